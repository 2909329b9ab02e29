"""What `elmo neighbours` does: the sentences of a corpus in which a word is used as in a given one."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field

from elmokit.analyse.choice import WordJoiner
from elmokit.analyse.index_builder import split_word_advice
from elmokit.analyse.index_cache import IndexOptions
from elmokit.analyse.neighbours import Neighbour, neighbours
from elmokit.analyse.sentence_display import mark_token
from elmokit.commands.index_display import find_index_with_progress, terminal_width
from elmokit.commands.model_request import ModelRequest
from elmokit.errors import ElmoError
from elmokit.text.policy import PolicyName


@dataclass(frozen=True)
class NeighboursRequest(ModelRequest):
    """The options of `elmo neighbours`."""

    word: str
    context: str
    where: IndexOptions = field(default_factory=IndexOptions)
    k: int = 10
    any_word: bool = False
    ignore_case: bool = False
    position: int | None = None
    """Which token of the context, from 1, where the word is there several times."""
    json: bool = False


def run_neighbours(request: NeighboursRequest) -> None:
    """Find the index or build it, and print the nearest contexts, a line each."""
    elmo = request.load(request.where.segment)
    policy = elmo.text_policy
    joiner = WordJoiner(elmo, policy.name, [request.word], ignore_case=request.ignore_case)
    tokens = joiner.join(policy.split(request.context))
    place = find_word(request.word, tokens, request.position, ignore_case=request.ignore_case, segment=policy.name)
    index = find_index_with_progress(
        request.where,
        elmo,
        words=None if request.any_word else [request.word],
        ignore_case=request.ignore_case,
    )
    found = neighbours(
        elmo, index, tokens, place, request.k, any_word=request.any_word, ignore_case=request.ignore_case
    )
    if request.json:
        for each in found:
            print(json.dumps(_as_dict(each), ensure_ascii=False))
        return
    width = terminal_width()
    print(f"       {_line(tokens, place, width)}", file=sys.stderr if width is None else sys.stdout)
    for each in found:
        print(f"{each.similarity:5.3f}  {_line(each.tokens, each.position, width)}")


def find_word(
    word: str,
    tokens: list[str],
    position: int | None,
    *,
    ignore_case: bool = False,
    segment: PolicyName = "whitespace",
) -> int:
    """Where in a sentence a word stands, from 0; refused where it is not there or which one is meant is not clear."""
    places = [
        number
        for number, token in enumerate(tokens)
        if token == word or (ignore_case and token.casefold() == word.casefold())
    ]
    if not places:
        shown = " ".join(map(repr, tokens)) or "none"
        pieces = split_word_advice(word, segment)
        raise ElmoError(
            f"--context must have {word!r} among its tokens, which are: {shown}" + (f"; {pieces}" if pieces else "")
        )
    if position is None and len(places) > 1:
        shown = ", ".join(str(place + 1) for place in places)
        raise ElmoError(f"--context has {word!r} {len(places)} times, as its tokens {shown}: choose with --position")
    if position is not None and position - 1 not in places:
        shown = ", ".join(str(place + 1) for place in places)
        raise ElmoError(f"--position must be the number of {word!r} among the tokens ({shown}), got {position}")
    return places[0] if position is None else position - 1


def _line(tokens: list[str] | tuple[str, ...], position: int, width: int | None) -> str:
    return mark_token(tokens, position, width=None if width is None else width - 7, bold=width is not None)


def _as_dict(neighbour: Neighbour) -> dict[str, object]:
    return {
        "similarity": round(neighbour.similarity, 6),
        "word": neighbour.word,
        "position": neighbour.position + 1,
        "tokens": neighbour.tokens,
    }
