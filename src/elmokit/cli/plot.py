"""`elmo plot`: draws the vectors of words in sentences, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elmokit.cli.registry import command, group
from elmokit.cli.shared import (
    AS_IN_TRAINING,
    FONT_HELP,
    SEGMENT_HELP,
    ModelOptions,
    SearchOptions,
    same_word,
)
from elmokit.errors import ElmoError
from elmokit.messages import printable
from elmokit.options import REQUIRED, argument, option
from elmokit.text.tokens import SegmenterName

if TYPE_CHECKING:
    from elmokit.analyse.index import Occurrence
    from elmokit.elmo import Elmo

group("plot", "Draw words in sentences, layer by layer.")
_OUTPUT_HELP = "The picture to write: .png, .svg or .pdf."


def _prepare(output: Path, font: Path | None, texts: Sequence[str]) -> None:
    """Check the output file and the fonts for the texts before anything is read."""
    from elmokit.plots.style import add_font, check_picture, font_families

    check_picture(output)
    if font is not None:
        add_font(font)
    font_families(texts)


@command("plot similarity")
@dataclass(frozen=True, kw_only=True)
class PlotSimilarityCommand(ModelOptions):
    """Draw how similar the words of two sentences are, layer by layer."""

    first: str = argument("The first sentence.", "TEXT", blank=True)
    second: str = argument("The second sentence.", "TEXT", blank=True)
    output: Path = option(REQUIRED, _OUTPUT_HELP, metavar="FILE")
    segment: SegmenterName | None = option(None, SEGMENT_HELP, shown=AS_IN_TRAINING)
    font: Path | None = option(None, FONT_HELP, metavar="FILE")

    def run(self) -> None:
        """Draw the cosine similarities of the words of two sentences."""
        from elmokit.analyse.pictures import draw_similarity, similarities

        _prepare(self.output, self.font, [self.first, self.second])
        elmo = self.load(self.segment)
        first, second = elmo.text_policy.sentences_of([self.first, self.second])
        if not first or not second:
            empty = "second" if first else "first"
            raise ElmoError(
                f"a heat map needs two sentences, but the {empty} sentence has no tokens: give two sentences"
            )
        draw_similarity(similarities(elmo, first, second), first, second, self.output)
        print(printable(f"wrote {self.output}"))


@command("plot words")
@dataclass(frozen=True, kw_only=True)
class PlotWordsCommand(SearchOptions):
    """Draw words in their sentences as points, layer by layer."""

    words: tuple[str, ...] = argument("The words.", "WORD")
    output: Path = option(REQUIRED, _OUTPUT_HELP, metavar="FILE")
    sentence: tuple[str, ...] = option(
        (), "A sentence that contains the words; may be repeated.", metavar="TEXT", blank=True
    )
    occurrences: int = option(8, "Number of occurrences of each word to draw from a corpus.", least=1)
    font: Path | None = option(None, FONT_HELP, metavar="FILE")

    def run(self) -> None:
        """Draw the words of the sentences, or of a corpus."""
        from elmokit.analyse.pictures import draw_words, occurrence_vectors
        from elmokit.plots.style import check_groups

        _prepare(self.output, self.font, [*self.words, *self.sentence])
        if self.sentence and (self.corpus or self.index):
            raise ElmoError("give the sentences with --sentence or a text with --corpus, not both")
        words = list(dict.fromkeys(self.words))
        check_groups(len(words), "words")
        elmo = self.load(self.segment)
        found = self._in_sentences(words, elmo) if self.sentence else self._in_corpus(words, elmo)
        draw_words(words, occurrence_vectors(elmo, words, found), self.output)
        print(printable(f"wrote {self.output}"))

    def _in_sentences(self, words: Sequence[str], elmo: Elmo) -> list[tuple[int, Occurrence]]:
        from elmokit.analyse.choice import WordJoiner
        from elmokit.analyse.index import Occurrence
        from elmokit.analyse.index_builder import split_word_advice

        found, policy = [], elmo.text_policy
        joiner = WordJoiner(elmo, policy.name, words, ignore_case=self.ignore_case)
        for index, sentence in enumerate(self.sentence):
            tokens = tuple(joiner.join(policy.split(sentence)))
            for position, token in enumerate(tokens):
                for number, word in enumerate(words):
                    if same_word(token, word, ignore_case=self.ignore_case):
                        found.append((number, Occurrence(index, position, tokens)))
        for number, word in enumerate(words):
            if number not in {each for each, _ in found}:
                advice = split_word_advice(word, policy.name) or "give one that contains it, or leave the word out"
                raise ElmoError(f"{word!r} is not a token of any --sentence: {advice}")
        return found

    def _in_corpus(self, words: Sequence[str], elmo: Elmo) -> list[tuple[int, Occurrence]]:
        """Some occurrences of each word, spread evenly over the corpus."""
        import numpy as np

        from elmokit.analyse.index_builder import split_word_advice

        limit = {} if self.index else {"max_occurrences": self.occurrences}
        index = self.find_index(elmo, words, **{"words": None, **limit})
        found = []
        for number, word in enumerate(words):
            rows = index.rows_of(word, ignore_case=self.ignore_case)
            if not len(rows):
                advice = (
                    split_word_advice(word, index.text.settings.get("segment")) or "check its spelling, or leave it out"
                )
                raise ElmoError(f"{word!r} does not occur in the corpus: {advice}")
            chosen = np.unique(np.linspace(0, len(rows) - 1, min(self.occurrences, len(rows))).astype(np.int64))
            found += [(number, index.occurrence(int(row))) for row in rows[chosen]]
        return found
