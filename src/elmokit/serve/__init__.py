"""The HTTP server: `elmo serve`.

settings.py    limits and addresses, with their defaults
service.py     the model while it serves: loading, ready, draining; texts → tokens → vectors
batcher.py     the queue: texts of all requests → batches by a token budget, in one thread
app.py         the routes
gate.py        what every request passes: Host, API key, body limit, time limits, metrics, errors as JSON
fields.py      the fields of a request, checked
encodings.py   vectors as JSON, base64, npy, npz, Arrow, safetensors
explore.py     neighbours, senses, substitutes
errors.py      what a request is refused with, in the dialect of its route
metrics.py     Prometheus metrics
schema.py      the OpenAPI schema
server.py      uvicorn with a graceful end and limits on slow clients
page/          the files of the page at /

This module imports nothing of the extra `serve`, so that the package can be imported without it.
"""

from elmokit.serve.settings import ServeSettings

__all__ = ["ServeSettings"]
