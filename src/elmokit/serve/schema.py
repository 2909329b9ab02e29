"""The OpenAPI schema of the routes."""

from __future__ import annotations

from functools import cache
from typing import Any

from elmokit import __version__

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
NUMBER: Schema = {"type": "number"}
TOKENS: Schema = {"type": "array", "items": {"type": "string", "minLength": 1}}
SENTENCE: Schema = {"oneOf": [TEXT, TOKENS], "description": "A text, or its tokens."}
TEXTS: Schema = {
    "oneOf": [TEXT, {"type": "array", "items": SENTENCE, "minItems": 1}],
    "description": "One text, or a list of texts; a text can be given as a list of its tokens.",
}
LAYER: Schema = {
    "oneOf": [{"enum": ["mix", "top"]}, {"type": "integer", "minimum": 0}],
    "description": "Layer of the vectors; by default the layer that the server was started with.",
}
LAYERS: Schema = {"oneOf": [{"enum": ["mix", "top", "all"]}, {"type": "integer", "minimum": 0}]}
POOL: Schema = {"enum": ["mean", "max", "first", "last"]}
VECTORS: Schema = {"type": "array", "items": {"oneOf": [TEXT, {"type": "array", "items": NUMBER}]}}
TOKEN: Schema = {
    "type": "object",
    "required": ["text", "start", "end"],
    "properties": {"text": TEXT, "start": {"type": "integer"}, "end": {"type": "integer"}},
}
OBJECT: Schema = {"type": "object"}


def _whole(least: int, most: int | None = None) -> Schema:
    return {"type": "integer", "minimum": least, **({} if most is None else {"maximum": most})}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_TEI: Schema = {
    "inputs": TEXTS,
    "truncate": _or_null({**FLAG, "description": "Cut texts over the limit. Default: true."}),
    "truncation_direction": _or_null({"enum": ["right", "left", "Right", "Left"]}),
    "prompt_name": {"type": "null", "description": "This model has no prompts."},
}
_OPENAI: Schema = {
    "input": TEXTS,
    "model": {**TEXT, "description": "The name in /v1/models."},
    "encoding_format": _or_null({"enum": ["float", "base64"]}),
    "user": TEXT,
    "layer": _or_null(LAYER),
    "normalize": _or_null(FLAG),
    "truncate": _or_null(FLAG),
    "truncate_prompt_tokens": _or_null(_whole(-1)),
}
_EMBED = {
    **_TEI,
    "normalize": _or_null({**FLAG, "description": "Scale vectors to length 1. Default: true."}),
    "dimensions": _or_null({**_whole(1), "description": "Cut each vector to this size."}),
    "layer": _or_null(LAYER),
    "pool": _or_null(POOL),
    "encoding_format": _or_null({"enum": ["float", "base64", "npy"]}),
}
_POSITION = {
    "inputs": SENTENCE,
    "position": {**_whole(0), "description": "Position of the token, from 0."},
    "k": _or_null(_whole(1, 1000)),
}
_INDEX = {"index": {**TEXT, "description": "Name of an index, see /info; by default the first."}}
_OPENAI_LIST: Schema = {
    "type": "object",
    "required": ["object", "model", "data", "usage"],
    "properties": {"object": {"const": "list"}, "model": TEXT, "data": {"type": "array", "items": OBJECT}},
}
_TOKENS_ANSWER: Schema = {
    "type": "object",
    "required": ["model", "layer", "dtype", "offsets", "encoding_format", "usage", "data"],
    "properties": {
        "data": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "shape", "tokens", "vectors"],
                "properties": {"tokens": {"type": "array", "items": TOKEN}},
            },
        }
    },
}
_TEI_TOKEN: Schema = {"type": "object", "required": ["id", "text", "special", "start", "stop"]}
_SIMILARITY = {
    "inputs": {
        "type": "object",
        "required": ["source_sentence", "sentences"],
        "properties": {
            "source_sentence": SENTENCE,
            "sentences": {"type": "array", "items": SENTENCE, "minItems": 1},
        },
    },
    "parameters": _or_null(
        {
            "type": "object",
            "properties": {
                "words": {**FLAG, "description": "Compare all pairs of words."},
                "layer": LAYER,
                "pool": POOL,
                "truncate": FLAG,
            },
        }
    ),
}
_ARRAY_OR_OBJECT: Schema = {"oneOf": [{"type": "array", "items": NUMBER}, OBJECT]}
_BINARY: Schema = {"type": "string", "format": "binary"}
_BINARIES = ("application/x-npz", "application/vnd.apache.arrow.stream", "application/safetensors")

# Path, dialect, summary, fields, required fields, response, further content types
_POST: list[tuple[str, str, str, Schema, list[str], Schema, tuple[str, ...]]] = [
    ("/embed", "tei", "One vector per text", _EMBED, ["inputs"], VECTORS, ("application/x-npy",)),
    ("/", "tei", "The same as /embed", _EMBED, ["inputs"], VECTORS, ("application/x-npy",)),
    ("/invocations", "tei", "The same as /embed", _EMBED, ["inputs"], VECTORS, ("application/x-npy",)),
    ("/embed_all", "tei", "One vector per token", {
        **_TEI, "layer": _or_null(LAYER), "encoding_format": _or_null({"enum": ["float", "base64"]}),
    }, ["inputs"], {"type": "array"}, ()),
    ("/similarity", "tei", "Cosines of one sentence with others", _SIMILARITY, ["inputs"], _ARRAY_OR_OBJECT, ()),
    ("/tokenize", "tei", "The tokens of texts", {
        "inputs": TEXTS, "prompt_name": {"type": "null"}, "add_special_tokens": FLAG,
        "offsets": {"enum": ["bytes", "characters", "utf16"]},
    }, ["inputs"], {"type": "array", "items": {"type": "array", "items": _TEI_TOKEN}}, ()),
    ("/tokens", "tei", "One vector per token, with the token's offsets", {
        **{name: value for name, value in _TEI.items() if name != "prompt_name"},
        "layer": _or_null(LAYERS),
        "offsets": _or_null({"enum": ["characters", "utf16", "bytes"]}),
        "format": _or_null({"enum": ["json", "npz", "arrow", "safetensors"]}),
        "dtype": _or_null({"enum": ["float32", "float16"]}),
        "encoding_format": _or_null({"enum": ["base64", "float"]}),
    }, ["inputs"], _TOKENS_ANSWER, _BINARIES),
    ("/v1/embeddings", "openai", "One vector per text", {
        **_OPENAI, "dimensions": _or_null(_whole(1)), "pool": _or_null(POOL),
    }, ["input"], _OPENAI_LIST, ()),
    ("/embeddings", "openai", "The same as /v1/embeddings", {
        **_OPENAI, "dimensions": _or_null(_whole(1)), "pool": _or_null(POOL),
    }, ["input"], _OPENAI_LIST, ()),
    ("/pooling", "openai", "One vector per token", _OPENAI, ["input"], _OPENAI_LIST, ()),
    ("/substitutes", "tei", "Likely words at the position of a token", _POSITION, ["inputs", "position"], OBJECT, ()),
    ("/neighbours", "tei", "Sentences of an index with the most similar use of a word", {
        **_POSITION, **_INDEX, "word": TEXT, "any_word": FLAG, "ignore_case": FLAG,
    }, ["inputs"], OBJECT, ()),
    ("/senses", "tei", "The occurrences of a word in clusters", {
        **_INDEX, "word": TEXT, "ignore_case": FLAG, "clusters": _or_null(_whole(1, 1000)),
        "layers": {"enum": ["index", "all"]},
    }, ["word"], OBJECT, ()),
    ("/words", "tei", "Words of an index", {**_INDEX, "prefix": TEXT, "k": _whole(1, 1000)}, [], OBJECT, ()),
]  # fmt: skip
_GET: list[tuple[str, str, str, tuple[int, ...], bool]] = [  # path, summary, content type, statuses, whether public
    ("/", "The page for a browser, otherwise as /health", "", (503,), True),
    ("/health", "Whether the server accepts requests", "", (503,), True),
    ("/ping", "The same as /health", "", (503,), True),
    ("/live", "Whether the port is open", "", (), True),
    ("/metrics", "Metrics for Prometheus", "text/plain", (), True),
    ("/info", "The model, the limits and the indexes", "application/json", (401, 503), False),
    ("/v1/models", "The model", "application/json", (), True),
    ("/openapi.json", "This schema", "application/json", (), True),
    ("/api-doc/openapi.json", "This schema", "application/json", (), True),
]
_TEI_STATUSES = (400, 401, 408, 413, 415, 421, 422, 424, 429, 500, 503)
_OPENAI_STATUSES = (400, 401, 404, 408, 413, 415, 421, 429, 500, 503)
_MEANINGS = {
    400: "Not JSON, a field of the wrong type, or no text", 401: "Wrong or missing API key", 404: "Not found",
    405: "Method not allowed", 408: "The body took too long", 413: "The body is too large",
    415: "The Content-Type is not JSON", 421: "The Host header names another server",
    422: "A value outside its limits", 424: "The computation failed",
    429: "Too much work: try again after Retry-After seconds", 500: "The server failed",
    503: "The server is loading or stopping",
}  # fmt: skip


@cache
def openapi() -> Schema:
    """The schema of all routes."""
    paths: dict[str, Schema] = {}
    for path, dialect, summary, fields, required, response, kinds in _POST:
        statuses: tuple[int, ...] = _OPENAI_STATUSES if dialect == "openai" else _TEI_STATUSES
        statuses = (*statuses, 404) if path in ("/neighbours", "/senses", "/words") else statuses
        body = {"type": "object", "properties": fields, "required": required}
        content = {"application/json": {"schema": response}, **{kind: {"schema": _BINARY} for kind in kinds}}
        paths.setdefault(path, {})["post"] = {
            "summary": summary,
            "security": [{"key": []}, {}],
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {"200": {"description": "The result", "content": content}, **_errors(statuses, dialect)},
        }
    for path, summary, kind, statuses, public in _GET:
        result: Schema = {"description": "The result"}
        if kind:
            result["content"] = {kind: {"schema": TEXT if kind.startswith("text/") else OBJECT}}
        paths.setdefault(path, {})["get"] = {
            "summary": summary,
            "security": [] if public else [{"key": []}, {}],
            "responses": {"200": result, **_errors((*statuses, 421), "openai" if path == "/v1/models" else "tei")},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "elmokit", "version": __version__, "description": "Word vectors in context over HTTP."},
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "tei_error": {
                    "type": "object",
                    "required": ["error", "error_type"],
                    "properties": {"error": TEXT, "error_type": TEXT},
                },
                "openai_error": {
                    "type": "object",
                    "required": ["error"],
                    "properties": {"error": {"type": "object", "required": ["message", "type", "param", "code"]}},
                },
            },
        },
    }


def _errors(statuses: tuple[int, ...], dialect: str) -> Schema:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{dialect}_error"}}}
    return {str(status): {"description": _MEANINGS[status], "content": content} for status in sorted({*statuses, 405})}
