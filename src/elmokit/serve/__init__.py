"""The HTTP server: `elmo serve`.

settings.py     the options of the server: address, limits, access
service.py      the model and its state: loading, ready, draining; texts → tokens → vectors
batcher.py      the queue: texts of all requests → batches by a token budget, in one thread
app.py          the routes
gate.py         checks of every request: Host, API key, body limit, time limits, metrics, errors as JSON
fields.py       the fields of a request, checked
encodings.py    vectors as JSON, base64, npy, npz, Arrow, safetensors
explore.py      routes for neighbours, senses, substitutes
maps.py         the occurrences of a word on a map, for the page
errors.py       errors in the dialect of the route
metrics.py      Prometheus metrics
schema.py       the OpenAPI schema
server.py       uvicorn with a graceful shutdown and limits on slow clients
static_page.py  the page as a folder of files that needs no server
page/           the files of the page at /
static/         the files that replace the server in the exported page
demo/           the sentences of the demo

This module imports no package of the extra `serve`, so that it can be imported without them.
"""

from elmokit.serve.settings import ServeSettings

__all__ = ["ServeSettings"]
