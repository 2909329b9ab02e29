"""The routes: those of text-embeddings-inference (TEI), those of OpenAI's API, and our own for words in context."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Scope

from elmokit import __version__
from elmokit.serve import encodings, explore
from elmokit.serve.batcher import Work
from elmokit.serve.encodings import Encoding, Format, Offsets, normalised
from elmokit.serve.errors import RequestError
from elmokit.serve.fields import Text
from elmokit.serve.gate import Call, Endpoint, Gate, check_key, crash_response, error_response, json_response
from elmokit.serve.schema import openapi
from elmokit.serve.service import Service, TokenisedTexts

PAGE = Path(__file__).parent / "page"
_ENCODINGS = ("float", "base64")
PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; object-src 'none'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def create_app(service: Service) -> ASGIApp:
    """The application of a service; the server calls `service.start` when it runs."""
    settings = service.settings
    post = {
        "/": embed, "/embed": embed, "/invocations": embed, "/embed_all": embed_all, "/similarity": similarity,
        "/tokenize": tokenize, "/tokens": tokens, "/v1/embeddings": openai_embeddings,
        "/embeddings": openai_embeddings, "/pooling": pooling, "/substitutes": explore.substitutes,
        "/neighbours": explore.neighbours, "/senses": explore.senses, "/words": explore.words,
    }  # fmt: skip
    get = {
        "/": home, "/health": health, "/ping": health, "/live": live, "/metrics": metrics, "/info": info,
        "/v1/models": models, "/openapi.json": schema, "/api-doc/openapi.json": schema,
    }  # fmt: skip
    routes: list[BaseRoute] = [
        Route(path, Endpoint(service, handle), methods=["POST"]) for path, handle in post.items()
    ]
    routes += [Route(path, handle, methods=["GET"]) for path, handle in get.items()]
    if settings.page:
        routes.append(Mount("/page", _PageFiles(directory=PAGE)))
    cors = Middleware(
        CORSMiddleware,
        allow_origins=list(settings.cors),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # clients may send custom headers
        expose_headers=["Retry-After", "X-Request-Id", "X-Truncated-Texts"],
    )
    app = Starlette(
        routes=routes,
        middleware=[cors] if settings.cors else [],
        exception_handlers={HTTPException: _http_error, RequestError: _request_error, Exception: crash_response},
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return Gate(app, service, {*post, *get})


def _http_error(request: Request, error: Exception) -> Response:
    """The router's errors 404 and 405, and 404 for a missing file of the page, as JSON."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 405:
        refused = RequestError(
            405, f"{path} does not allow the method {request.method}", "Method", headers=error.headers
        )
    else:
        refused = RequestError(error.status_code, "there is nothing at this address", "NotFound", code="not_found")
    return error_response(refused, path)


def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error, request.url.path)


class _PageFiles(StaticFiles):
    """The files of the page, with headers that make browsers ask whether a file has changed."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(PAGE_HEADERS)
        return response


# Routes that compute


async def embed(call: Call) -> Response:
    """TEI's /embed: one vector per text."""
    fields, service = call.fields, call.service
    _refuse_prompt(call)
    encoding = fields.choice("encoding_format", "float", (*_ENCODINGS, "npy"))
    dimensions = _dimensions(call)
    layer, pool = service.layer_of(fields), service.pool_of(fields)
    normalize = fields.flag("normalize", True)
    texts = await _tokenised(call, "inputs")
    call.reserve(encodings.response_bytes(len(texts.rows) * (dimensions or _vector_size(call)), encoding))
    work = await service.encode(texts, layer=layer, pool=pool)
    vectors = _final_vectors(work.results, dimensions, normalize)
    if encoding == "npy":
        body, kind = encodings.npy_bytes(np.stack(vectors)), encodings.NPY_MEDIA_TYPE
    else:
        parts = await encodings.fragments(vectors, cast("Encoding", encoding))
        body, kind = b"[%b]" % b",".join(parts), "application/json"
    return Response(body, headers=_timing_headers(call, texts, work), media_type=kind)


async def embed_all(call: Call) -> Response:
    """TEI's /embed_all: one vector per token of each text."""
    _refuse_prompt(call)
    layer, encoding = call.service.layer_of(call.fields), call.fields.choice("encoding_format", "float", _ENCODINGS)
    texts = await _tokenised(call, "inputs")
    call.reserve(encodings.response_bytes(texts.tokens * _vector_size(call), encoding))
    work = await call.service.encode(texts, layer=layer)
    parts = await encodings.fragments(work.results, cast("Encoding", encoding))
    return Response(
        b"[%b]" % b",".join(parts), headers=_timing_headers(call, texts, work), media_type="application/json"
    )


async def openai_embeddings(call: Call) -> Response:
    """OpenAI's /v1/embeddings."""
    fields, service = call.fields, call.service
    name = _model_name(call)
    encoding = cast("Encoding", fields.choice("encoding_format", "float", _ENCODINGS))
    dimensions = _dimensions(call)
    layer, pool = service.layer_of(fields), service.pool_of(fields)
    normalize = fields.flag("normalize", True)
    texts = await _openai_texts(call)
    call.reserve(encodings.response_bytes(len(texts.rows) * (dimensions or _vector_size(call)), encoding))
    work = await service.encode(texts, layer=layer, pool=pool)
    parts = await encodings.fragments(_final_vectors(work.results, dimensions, normalize), encoding)
    return _openai_list(call, name, texts, work, parts, "embedding", "embedding")


async def pooling(call: Call) -> Response:
    """vLLM's /pooling: one vector per token of each text, for clients that compare words."""
    name, layer = _model_name(call), call.service.layer_of(call.fields)
    encoding = cast("Encoding", call.fields.choice("encoding_format", "float", _ENCODINGS))
    normalize = call.fields.flag("normalize", True)
    texts = await _openai_texts(call)
    call.reserve(encodings.response_bytes(texts.tokens * _vector_size(call), encoding))
    work = await call.service.encode(texts, layer=layer)
    vectors = [normalised(each) for each in work.results] if normalize else work.results
    parts = await encodings.fragments(vectors, encoding)
    return _openai_list(call, name, texts, work, parts, "pooling", "data")


async def tokens(call: Call) -> Response:
    """One vector per token of each text, with the token's offsets, from any layer and in several formats."""
    fields, service = call.fields, call.service
    kind = _format(call)
    layer = service.layer_of(fields, allow_all=True)
    unit = cast("Offsets", fields.choice("offsets", "characters", ("characters", "utf16", "bytes")))
    dtype = fields.choice("dtype", "float32", ("float32", "float16"))
    encoding = cast("Encoding", fields.choice("encoding_format", "base64", _ENCODINGS))
    given = fields.texts("inputs", service.settings.max_texts)
    texts = await _tokenised(call, "inputs", spans=True)
    layers = service.layers if layer == "all" else 1
    numbers = texts.tokens * layers * _vector_size(call)
    call.reserve(encodings.response_bytes(numbers, encoding if kind == "json" else kind))
    work = await service.encode(texts, layer=layer)
    assert texts.spans is not None
    spans = [encodings.unit_offsets(text, row, unit) for text, row in zip(given, texts.spans, strict=True)]
    vectors = work.results if dtype == "float32" else [each.astype(np.float16) for each in work.results]
    head: dict[str, Any] = {"model": service.name, "layer": layer, "dtype": dtype, "offsets": unit}
    headers = _timing_headers(call, texts, work)
    if kind != "json":
        return Response(
            encodings.packed(kind, head, texts.rows, spans, vectors), 200, headers, encodings.MEDIA_TYPES[kind]
        )
    parts = await encodings.fragments(vectors, encoding)
    data = []
    for number, (row, offsets, vector, part) in enumerate(zip(texts.rows, spans, vectors, parts, strict=True)):
        words = [{"text": text, "start": start, "end": end} for text, (start, end) in zip(row, offsets, strict=True)]
        facts = orjson.dumps({"index": number, "shape": vector.shape, "tokens": words})
        data.append(b'%b,"vectors":%b}' % (facts[:-1], part))
    usage = {"prompt_tokens": texts.tokens, "total_tokens": texts.tokens}
    start = orjson.dumps({**head, "encoding_format": encoding, "usage": usage})
    return Response(b'%b,"data":[%b]}' % (start[:-1], b",".join(data)), 200, headers, "application/json")


async def similarity(call: Call) -> Response:
    """TEI's /similarity: cosines of one sentence with others; with `words`, the cosines of all pairs of their words."""
    inputs, parameters = call.fields.inner("inputs", required=True), call.fields.inner("parameters")
    service = call.service
    source = inputs.sentence("source_sentence")
    others = inputs.texts("sentences", service.settings.max_texts - 1)
    words = parameters.flag("words", False)
    layer, pool = service.layer_of(parameters, compared=True), service.pool_of(parameters)
    texts = await service.tokenise([source, *others], truncate=parameters.flag("truncate", True))
    if words:
        pairs = len(texts.rows[0]) * sum(map(len, texts.rows[1:]))
        call.reserve(encodings.response_bytes(pairs + texts.tokens * _vector_size(call), "float"))
    work = await service.encode(texts, layer=layer, pool=None if words else pool)
    units = [normalised(each) for each in work.results]
    headers = _timing_headers(call, texts, work)
    if not words:
        cosines = np.array([float(units[0] @ each) for each in units[1:]], np.float32)
        return Response(_json_bytes(cosines), 200, headers, "application/json")
    found = [
        {"tokens": row, "similarity": np.ascontiguousarray(units[0] @ each.T)}
        for row, each in zip(texts.rows[1:], units[1:], strict=True)
    ]
    return Response(_json_bytes({"tokens": texts.rows[0], "sentences": found}), 200, headers, "application/json")


async def tokenize(call: Call) -> Response:
    """TEI's /tokenize; by default the offsets are in bytes, as in TEI."""
    _refuse_prompt(call)
    unit = cast("Offsets", call.fields.choice("offsets", "bytes", ("characters", "utf16", "bytes")))
    given = call.fields.texts("inputs", call.service.settings.max_texts)
    texts = await call.service.tokenise(given, truncate=True, spans=True)
    assert texts.spans is not None
    found = []
    for text, row in zip(given, texts.spans, strict=True):
        offsets = encodings.unit_offsets(text, row, unit)
        found.append(
            [
                {"id": number, "text": token.text, "special": False, "start": start, "stop": stop}
                for number, (token, (start, stop)) in enumerate(zip(row, offsets, strict=True))
            ]
        )
    return json_response(found)


# Routes that compute nothing


async def home(request: Request) -> Response:
    """The page for a browser; the health of the server for everyone else, as TEI does."""
    service: Service = request.app.state.service
    if service.settings.page and "text/html" in request.headers.get("accept", ""):
        return FileResponse(PAGE / "index.html", headers={**PAGE_HEADERS, "Vary": "Accept"})
    return await health(request)


async def health(request: Request) -> Response:
    """200 if the server accepts requests; the check computes nothing."""
    service: Service = request.app.state.service
    if service.is_ready:
        return Response()
    error = RequestError(503, "unhealthy", "Unhealthy", headers={"Retry-After": "2"}, more={"state": service.state})
    return error_response(error, "/health")


async def live(_: Request) -> Response:
    """200 as soon as the port is open."""
    return Response()


async def metrics(request: Request) -> Response:
    """The metrics for Prometheus."""
    text, kind = request.app.state.service.metrics.text(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": kind})


async def schema(_: Request) -> Response:
    """The OpenAPI schema."""
    return json_response(openapi())


async def info(request: Request) -> Response:
    """The model, the limits and the indexes: TEI's keys and ours."""
    service: Service = request.app.state.service
    check_key(service, dict(request.scope["headers"]))
    with service.accept():
        elmo, settings = service.elmo, service.settings
        return json_response(
            {
                "model_id": service.name,
                "model_sha": None,
                "model_dtype": elmo.dtype,
                "served_model_name": service.name,
                "model_type": {"embedding": {"pooling": settings.pool}},
                "max_concurrent_requests": settings.max_queue_tokens,
                "max_input_length": settings.max_input_tokens,
                "max_batch_tokens": service.batch_tokens,
                "max_batch_requests": None,
                "max_client_batch_size": settings.max_texts,
                "auto_truncate": True,
                "tokenization_workers": 1,
                "version": __version__,
                "sha": None,
                "docker_label": None,
                "layer": service.layer,
                "layers": service.layers,
                "dimensions": elmo.config.vector_size,
                "segment": elmo.segment,
                "predicts_words": elmo.head is not None,
                "indexes": [explore.describe(name, index) for name, index in service.indexes.items()],
            }
        )


async def models(request: Request) -> Response:
    """OpenAI's list of models; it needs no API key, since clients ask for it before they send one."""
    service: Service = request.app.state.service
    model = {"id": service.name, "object": "model", "created": service.created, "owned_by": "elmokit"}
    return json_response({"object": "list", "data": [{**model, "max_model_len": service.settings.max_input_tokens}]})


# Shared by several routes


def _json_bytes(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _vector_size(call: Call) -> int:
    return call.service.elmo.config.vector_size


def _dimensions(call: Call) -> int | None:
    return call.fields.integer("dimensions", least=1, most=_vector_size(call))


def _final_vectors(vectors: Sequence[Any], dimensions: int | None, normalize: bool) -> list[Any]:
    """The vectors, cut to `dimensions` and then scaled to length 1."""
    chosen = vectors if dimensions is None else [each[:dimensions] for each in vectors]
    return [normalised(each) for each in chosen] if normalize else list(chosen)


def _refuse_prompt(call: Call) -> None:
    if "prompt_name" in call.fields:
        raise call.fields.refused("prompt_name", "must be left out: this model has no prompts")


async def _tokenised(call: Call, name: str, *, spans: bool = False) -> TokenisedTexts:
    """The tokens of a TEI request; by default texts over the limit are cut."""
    fields, service = call.fields, call.service
    truncate = fields.flag("truncate", True)
    direction = fields.choice("truncation_direction", "right", ("right", "left", "Right", "Left"))
    texts = fields.texts(name, service.settings.max_texts)
    return await service.tokenise(texts, truncate=truncate, left=direction.lower() == "left", spans=spans)


async def _openai_texts(call: Call) -> TokenisedTexts:
    """The tokens of an OpenAI request; by default texts over the limit are refused, as in vLLM."""
    fields, service = call.fields, call.service
    texts: list[Text] = fields.texts("input", service.settings.max_texts)
    most = fields.integer("truncate_prompt_tokens", least=-1)
    truncate = fields.flag("truncate", most is not None)
    most = None if most is None or most < 1 else most
    return await service.tokenise(texts, truncate=truncate, most=most, name="input")


def _model_name(call: Call) -> str:
    name, service = call.fields.text("model", call.service.name), call.service
    if name != service.name and not service.settings.any_model:
        message = f"this server has the model {service.name}: ask for it, or start the server with --any-model"
        raise RequestError(404, message, "NotFound", param="model", code="model_not_found")
    return service.name


def _openai_list(
    call: Call, name: str, texts: TokenisedTexts, work: Work, parts: list[bytes], kind: str, key: str
) -> Response:
    item = b'{"object":"%b","index":%d,"%b":%b}'
    data = b",".join(item % (kind.encode(), n, key.encode(), part) for n, part in enumerate(parts))
    usage = {"prompt_tokens": texts.tokens, "total_tokens": texts.tokens}
    head = orjson.dumps({"object": "list", "model": name, "created": int(time.time()), "usage": usage})
    body = b'%b,"data":[%b]}' % (head[:-1], data)
    return Response(body, headers=_timing_headers(call, texts, work), media_type="application/json")


def _format(call: Call) -> Format:
    """The format named by the field `format` or by the header Accept."""
    if "format" in call.fields:
        return cast("Format", call.fields.choice("format", "json", tuple(encodings.MEDIA_TYPES)))
    accept = call.request.headers.get("accept", "")
    return next((kind for kind, media in encodings.MEDIA_TYPES.items() if kind != "json" and media in accept), "json")


def _timing_headers(call: Call, texts: TokenisedTexts, work: Work) -> dict[str, str]:
    """TEI's timing headers in milliseconds, and the number of texts that were cut."""
    total = str(round((time.perf_counter() - call.begin) * 1e3))
    headers = {
        "x-compute-type": "cpu" if call.service.elmo.device.type == "cpu" else "gpu",
        "x-compute-time": total,
        "x-compute-characters": str(texts.characters),
        "x-compute-tokens": str(texts.tokens),
        "x-total-time": total,
        "x-tokenization-time": str(round(texts.seconds * 1e3)),
        "x-queue-time": str(round((work.started - work.queued) * 1e3)),
        "x-inference-time": str(round((work.finished - work.started) * 1e3)),
    }
    return {**headers, "x-truncated-texts": str(texts.cut)} if texts.cut else headers
