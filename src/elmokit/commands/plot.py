"""What `elmo plot` does: pictures of what the layers make of words in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from elmokit.analyse.choice import WordJoiner
from elmokit.analyse.index import Occurrence
from elmokit.analyse.index_builder import split_word_advice
from elmokit.analyse.index_cache import IndexOptions
from elmokit.analyse.pictures import draw_similarity, draw_words, place_words, similarities
from elmokit.commands.index_display import find_index_with_progress
from elmokit.commands.model_request import ModelRequest
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.plots.style import add_font, check_groups, check_picture, font_families
from elmokit.text.tokens import SegmenterName


@dataclass(frozen=True)
class SimilarityRequest(ModelRequest):
    """The options of `elmo plot similarity`."""

    first: str
    second: str
    output: Path
    segment: SegmenterName | None = None
    """None: as the model's training text was read, or at white space where that is not known."""
    font: Path | None = None


@dataclass(frozen=True)
class WordsRequest(ModelRequest):
    """The options of `elmo plot words`."""

    words: Sequence[str]
    output: Path
    sentences: Sequence[str] = ()
    """The sentences in which the words stand; without any, those of a corpus."""
    where: IndexOptions = field(default_factory=IndexOptions)
    occurrences: int = 8
    """So many of each word are taken from a corpus."""
    ignore_case: bool = False
    font: Path | None = None


def run_similarity(request: SimilarityRequest) -> None:
    """Draw the cosines of the words of two sentences, layer by layer."""
    check_picture(request.output)
    if request.font is not None:
        add_font(request.font)
    font_families([request.first, request.second])
    elmo = request.load(request.segment)
    first, second = elmo.text_policy.sentences_of([request.first, request.second])
    if not first or not second:
        raise ElmoError("a heat map is of two sentences, and one of those given has no tokens")
    draw_similarity(similarities(elmo, first, second), first, second, request.output)
    print(f"wrote {request.output}")


def run_words(request: WordsRequest) -> None:
    """Draw words in their sentences, layer by layer."""
    check_picture(request.output)
    if request.font is not None:
        add_font(request.font)
    font_families([*request.words, *request.sentences])
    if request.occurrences < 1:
        raise ElmoError(f"--occurrences must be at least 1, got {request.occurrences}")
    if request.sentences and (request.where.corpus or request.where.index):
        raise ElmoError("give the sentences with --sentence or a text with --corpus, not both")
    asked = list(dict.fromkeys(request.words))
    check_groups(len(asked), "words")
    elmo = request.load(request.where.segment)
    found = _in_sentences(request, asked, elmo) if request.sentences else _in_corpus(request, asked, elmo)
    draw_words(asked, place_words(elmo, asked, found), request.output)
    print(f"wrote {request.output}")


def _in_sentences(request: WordsRequest, asked: Sequence[str], elmo: Elmo) -> list[tuple[int, Occurrence]]:
    found = []
    policy = elmo.text_policy
    joiner = WordJoiner(elmo, policy.name, asked, ignore_case=request.ignore_case)
    for number, sentence in enumerate(request.sentences):
        tokens = tuple(joiner.join(policy.split(sentence)))
        for place, token in enumerate(tokens):
            for group, word in enumerate(asked):
                if token == word or (request.ignore_case and token.casefold() == word.casefold()):
                    found.append((group, Occurrence(number, place, tokens)))
    for group, word in enumerate(asked):
        if group not in {number for number, _ in found}:
            pieces = split_word_advice(word, policy.name)
            raise ElmoError(
                f"{word!r} is not a token of any --sentence: {pieces or 'give one that has it, or leave the word out'}"
            )
    return found


def _in_corpus(request: WordsRequest, asked: Sequence[str], elmo: Elmo) -> list[tuple[int, Occurrence]]:
    """Some occurrences of each word, spread evenly over the corpus."""
    where = request.where if request.where.index else replace(request.where, max_occurrences=request.occurrences)
    index = find_index_with_progress(where, elmo, words=asked, ignore_case=request.ignore_case)
    found = []
    for group, word in enumerate(asked):
        rows = index.rows_of(word, ignore_case=request.ignore_case)
        if not len(rows):
            pieces = split_word_advice(word, index.text.settings.get("segment"))
            raise ElmoError(
                f"{word!r} does not occur in the corpus: {pieces or 'look at its spelling, or leave it out'}"
            )
        chosen = np.unique(np.linspace(0, len(rows) - 1, min(request.occurrences, len(rows))).astype(np.int64))
        found += [(group, index.occurrence(int(row))) for row in rows[chosen]]
    return found
