"""Routes that use an index of occurrences or the language model: neighbours, senses, words, substitutes."""

from __future__ import annotations

import asyncio
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from starlette.responses import Response

from elmokit.errors import ElmoError
from elmokit.serve.encodings import normalised
from elmokit.serve.errors import RequestError
from elmokit.serve.fields import Text
from elmokit.serve.gate import Call, json_response
from elmokit.serve.maps import layer_maps, layer_of, senses_object
from elmokit.serve.service import Service

if TYPE_CHECKING:
    from elmokit.analyse import OccurrenceIndex

_MAX_RESULTS = 1000
_CLOSE_WORDS = 5
_CACHED_RESPONSES = 32
_COMPARED_WORDS = 20_000


def describe(name: str, index: OccurrenceIndex) -> dict[str, Any]:
    """An index as /info lists it."""
    return {
        "name": name,
        "occurrences": len(index),
        "words": int((index.words[:, 1] > 0).sum()),
        "layer": layer_of(index),
    }


async def substitutes(call: Call) -> Response:
    """The most likely words at the position of a token, given the text on both sides."""
    elmo, fields = call.service.elmo, call.fields
    if elmo.head is None:
        raise RequestError(422, "this model was saved without its softmax, so it cannot predict words")
    k = fields.integer("k", 10, least=1, most=_MAX_RESULTS)
    text = fields.sentence("inputs")
    texts = await call.service.tokenise([text], truncate=False, spans=True)
    [row], spans = texts.rows, texts.spans
    assert spans is not None
    position = _position(call, row)
    pieces = elmo.character_pieces
    if pieces is not None and len(pieces.of(row[position])) > 1:
        raise fields.refused("position", "must be the position of a single character: this model predicts characters")
    work = await call.service.batcher.call(lambda: elmo.substitutes(row, position, k or 10), texts.sizes[0])
    [found] = work.results
    words = [{"text": token.text, "start": token.start, "end": token.end} for token in spans[0]]
    likely = [{"word": word, "probability": round(float(probability), 8)} for word, probability in found]
    return json_response({"tokens": words, "position": position, "substitutes": likely})


async def neighbours(call: Call) -> Response:
    """The sentences of an index whose use of a word is most similar to its use in the given sentence."""
    from elmokit.analyse.neighbours import nearest_sentences

    fields, service = call.fields, call.service
    index = _index(call)
    k = fields.integer("k", 10, least=1, most=_MAX_RESULTS) or 10
    any_word, ignore_case = fields.flag("any_word", False), fields.flag("ignore_case", False)
    row = await _joined_tokens(call, fields.sentence("inputs"), ignore_case)
    position = _position(call, row)
    rows = None
    if not any_word:
        rows = index.rows_of(row[position], ignore_case=ignore_case)
        if not len(rows):
            raise _unknown_word(index, row[position])
    texts = await service.tokenise([row], truncate=False)
    layer: Any = layer_of(index)
    work = await service.encode(texts, layer=layer, reduce=lambda _, vectors: vectors[position].copy())
    [vector] = work.results
    async with service.searching:
        found = await asyncio.to_thread(nearest_sentences, index, vector, k, rows=rows)
    near = [{"similarity": round(n.similarity, 6), "tokens": n.tokens, "position": n.position} for n in found]
    return json_response({"tokens": row, "position": position, "layer": layer, "neighbours": near})


async def words(call: Call) -> Response:
    """The words of an index that begin with a prefix, the most frequent first."""
    index = _index(call)
    prefix, k = (
        call.fields.text("prefix", "").casefold(),
        call.fields.integer("k", 20, least=1, most=_MAX_RESULTS) or 20,
    )
    counts = index.words[:, 1]
    texts = index.types
    found = [n for n in np.flatnonzero(counts > 0).tolist() if texts[n].casefold().startswith(prefix)]
    best = sorted(found, key=lambda n: (-int(index.text.counts[n]), texts[n]))[:k]
    return json_response({"words": [{"word": texts[n], "occurrences": int(counts[n])} for n in best]})


async def senses(call: Call) -> Response:
    """The occurrences of a word in clusters, and their points on a map; with `layers: all` a map of each layer."""
    from elmokit.analyse.senses import find_senses

    fields, service = call.fields, call.service
    index = _index(call)
    word, ignore_case = fields.text("word"), fields.flag("ignore_case", False)
    clusters = fields.integer("clusters", least=1, most=_MAX_RESULTS)
    all_layers = fields.choice("layers", "index", ("index", "all")) == "all"
    cached, key = service.cached_senses, (str(index.folder), word, ignore_case, clusters, all_layers)
    if key not in cached:
        if not len(index.rows_of(word, ignore_case=ignore_case)):
            raise _unknown_word(index, word)
        try:
            async with service.searching:
                found = await asyncio.to_thread(find_senses, index, word, clusters, ignore_case=ignore_case)
        except ElmoError as error:
            if "clusters" not in error.arguments:
                raise
            raise fields.refused("clusters", str(error).removeprefix("clusters ")) from None
        occurrences = [index.occurrence(row) for row in found.rows.tolist()]
        answer = senses_object(found, index, occurrences)
        if all_layers:
            texts = await service.tokenise([list(each.tokens) for each in occurrences], truncate=False)
            work = await service.encode(
                texts, layer="all", reduce=lambda number, vectors: vectors[:, occurrences[number].position].copy()
            )
            vectors = normalised(np.stack(work.results, axis=1))  # [L+1, N, D]
            answer |= await asyncio.to_thread(layer_maps, vectors, found, _layer_number(service, index))
        cached[key] = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
        while len(cached) > _CACHED_RESPONSES:
            cached.popitem(last=False)
    cached.move_to_end(key)
    return Response(cached[key], media_type="application/json")


def _layer_number(service: Service, index: OccurrenceIndex) -> int:
    """The number of the index's layer; for a mix, the number of the top layer."""
    layer = layer_of(index)
    return layer if isinstance(layer, int) else service.layers - 1


def _index(call: Call) -> OccurrenceIndex:
    indexes = call.service.indexes
    if not indexes:
        raise RequestError(404, "this server has no index: start it with --index DIR", "NotFound", code="no_index")
    name = call.fields.text("index", next(iter(indexes)))
    if name not in indexes:
        raise RequestError(404, f"index must be one of {', '.join(indexes)}", "NotFound", param="index")
    return indexes[name]


async def _joined_tokens(call: Call, text: Text, ignore_case: bool) -> list[str]:
    """The tokens of a text; a word that the request names stays one token, even in a model of characters."""
    from elmokit.analyse.choice import WordJoiner

    elmo = call.service.elmo
    [row] = (await call.service.tokenise([text], truncate=False)).rows
    if "word" not in call.fields:
        return row
    return WordJoiner(elmo, elmo.segment, [call.fields.text("word")], ignore_case=ignore_case).join(row)


def _position(call: Call, row: list[str]) -> int:
    """The position of the requested token: the field `position`, or the first token that is `word`."""
    if not row:
        raise call.fields.refused("inputs", "must have at least one token")
    if "word" in call.fields and "position" not in call.fields:
        word = call.fields.text("word").casefold()
        positions = [number for number, token in enumerate(row) if token.casefold() == word]
        if not positions:
            raise call.fields.refused("word", "must be one of the tokens of inputs")
        return positions[0]
    return call.fields.required_integer("position", least=0, most=len(row) - 1)


def _unknown_word(index: OccurrenceIndex, word: str) -> RequestError:
    counts = index.words[:, 1]
    frequent = np.argsort(-np.asarray(counts), kind="stable")[:_COMPARED_WORDS]
    texts = [index.types[number] for number in frequent.tolist() if counts[number] > 0]
    folded = word.casefold()  # once, because a word may have megabytes
    same = [text for text in texts if text.casefold() == folded]
    near = list(dict.fromkeys([*same, *get_close_matches(word[:60], texts, _CLOSE_WORDS)]))[:_CLOSE_WORDS]
    return RequestError(404, "the word is not in the index", "NotFound", param="word", more={"words": near})
