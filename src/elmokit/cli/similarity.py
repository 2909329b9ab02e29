"""`elmo similarity`: compares sentences, or a word in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elmokit.cli.registry import command
from elmokit.cli.shared import AS_IN_TRAINING, LAYER_HELP, SEGMENT_HELP, ModelOptions, terminal_width
from elmokit.errors import ElmoError
from elmokit.messages import json_line
from elmokit.options import argument, option
from elmokit.text.tokens import SegmenterName


@command("similarity")
@dataclass(frozen=True, kw_only=True)
class SimilarityCommand(ModelOptions):
    """Compare sentences, or a word in them, by cosine: 1 is the same direction, 0 means nothing in common."""

    texts: tuple[str, ...] = argument("The sentences to compare, two or more, each as one argument.", "TEXT")
    word: tuple[str, ...] = option(
        (), "Word to compare instead of whole sentences; given once for all, or once per sentence.", metavar="WORD"
    )
    position: tuple[int, ...] = option(
        (), "Number of the token to compare, from 1; given once for all, or once per sentence.", metavar="N"
    )
    layer: str | None = option(None, LAYER_HELP, metavar="mix|top|N", shown="top for a Transformer, mix for an LSTM")
    segment: SegmenterName | None = option(None, SEGMENT_HELP, shown=AS_IN_TRAINING)
    json: bool = option(False, "Print one JSON object: the tokens, the positions of the word and the similarities.")

    def run(self) -> None:
        """Print one line per sentence: its similarity to each sentence, and its text."""
        from elmokit.analyse.choice import WordJoiner
        from elmokit.cli.embed import parse_layer

        if len(self.texts) < 2:
            raise ElmoError(
                f"there must be two sentences or more to compare, got {len(self.texts)}: give each as one argument, in "
                "quotes"
            )
        if self.word and self.position:
            raise ElmoError("give the word with --word or with --position, not both")
        layer = None if self.layer is None else parse_layer(self.layer)
        elmo = self.load(self.segment)
        tokens = elmo.text_policy.sentences_of(self.texts)
        if self.word:
            joiner = WordJoiner(elmo, elmo.segment, self.word, ignore_case=False)
            tokens = [joiner.join(row) for row in tokens]
        positions = self._positions(tokens)
        words = None if positions is None else (positions, positions)
        similarity = elmo.similarity(tokens, words=words, layer=layer).tolist()
        if not self.json:
            _print_table(tokens, positions, similarity)
            return
        numbers = None if positions is None else [position + 1 for position in positions]
        rounded = [[round(value, 6) for value in row] for row in similarity]
        print(json_line({"tokens": tokens, "positions": numbers, "similarity": rounded}))

    def _positions(self, tokens: Sequence[Sequence[str]]) -> list[int] | None:
        """The index of the compared word in each sentence, from 0; None if whole sentences are compared."""
        given: Sequence[str | int] = self.word or self.position
        if not given:
            return None
        option = "word" if self.word else "position"
        if len(given) not in (1, len(tokens)):
            raise ElmoError(f"{option} must be given once or {len(tokens)} times, got {len(given)}", option)
        each = given if len(given) > 1 else [given[0]] * len(tokens)
        return [self._find_position(row, one) for row, one in zip(tokens, each, strict=True)]

    def _find_position(self, tokens: Sequence[str], given: str | int) -> int:
        numbers = [number for number, token in enumerate(tokens, start=1) if given in (token, number)]
        shown = " ".join(map(repr, tokens)) or "none"
        if isinstance(given, int) and not numbers:
            raise ElmoError(f"position must be a number from 1 to {len(tokens)} for {shown}, got {given}", "position")
        if not numbers:
            raise ElmoError(f"word must be one of the tokens, which are {shown}, got {given!r}", "word")
        if len(numbers) > 1:
            several = " and ".join(map(str, numbers))
            raise ElmoError(f"word must be in {shown} once, got {given!r} as tokens {several}: use --position", "word")
        return numbers[0] - 1


def _print_table(
    tokens: Sequence[Sequence[str]], positions: Sequence[int] | None, similarity: Sequence[Sequence[float]]
) -> None:
    from elmokit.analyse.sentence_display import mark_token, plain_sentence

    width = terminal_width()
    for number, (sentence, row) in enumerate(zip(tokens, similarity, strict=True)):
        cells = "  ".join(f"{value:5.2f}" for value in row)
        columns = None if width is None else max(width - len(cells) - 2, 20)
        if positions is None:
            print(f"{cells}  {plain_sentence(sentence, columns)}")
        else:
            print(f"{cells}  {mark_token(sentence, positions[number], width=columns, bold=width is not None)}")
