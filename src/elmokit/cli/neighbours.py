"""`elmo neighbours`: finds the sentences of a corpus in which a word is used most like in a given sentence."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elmokit.cli.registry import command
from elmokit.cli.shared import JSON_HELP, LAYER_HELP, IndexOptions, same_word, terminal_width
from elmokit.errors import ElmoError
from elmokit.messages import json_line
from elmokit.options import REQUIRED, argument, option

if TYPE_CHECKING:
    from elmokit.text.policy import PolicyName


@command("neighbours")
@dataclass(frozen=True, kw_only=True)
class NeighboursCommand(IndexOptions):
    """Show the nearest contexts of a word: the sentences of a text in which it is used most like in your sentence."""

    word: str = argument("The word, one of the tokens of --context.", "WORD")
    context: str = option(REQUIRED, "The sentence in which the word is used.", metavar="TEXT")
    k: int = option(10, "Number of nearest contexts to show.", least=1)
    any_word: bool = option(
        False, "Show contexts of all words, not of this word alone.", names="--any-word/--same-word"
    )
    position: int | None = option(
        None, "Number of the token in --context, from 1, if the word occurs in it several times.", least=1
    )
    layer: str | None = option(None, LAYER_HELP, metavar="mix|top|N", shown="top")
    json: bool = option(False, JSON_HELP)

    def run(self) -> None:
        """Find or build the index, and print the nearest contexts, one per line."""
        from elmokit.analyse.choice import WordJoiner
        from elmokit.analyse.neighbours import neighbours
        from elmokit.analyse.sentence_display import mark_token

        elmo = self.load(self.segment)
        policy = elmo.text_policy
        tokens = WordJoiner(elmo, policy.name, [self.word], ignore_case=self.ignore_case).join(
            policy.split(self.context)
        )
        position = find_word(self.word, tokens, self.position, ignore_case=self.ignore_case, segment=policy.name)
        index = self.find_index(elmo, None if self.any_word else [self.word])
        found = neighbours(elmo, index, tokens, position, self.k, any_word=self.any_word, ignore_case=self.ignore_case)
        if self.json:
            for each in found:
                record = {"similarity": round(each.similarity, 6), "word": each.word, "position": each.position + 1}
                print(json_line({**record, "tokens": each.tokens}))
            return
        width = terminal_width()

        def line(tokens: Sequence[str], position: int) -> str:
            return mark_token(tokens, position, width=None if width is None else width - 7, bold=width is not None)

        print(f"       {line(tokens, position)}", file=sys.stderr if width is None else sys.stdout)
        for each in found:
            print(f"{each.similarity:5.3f}  {line(each.tokens, each.position)}")


def find_word(
    word: str,
    tokens: list[str],
    position: int | None,
    *,
    ignore_case: bool = False,
    segment: PolicyName = "whitespace",
) -> int:
    """The index of a word in a sentence, from 0; an error if it is missing, or several times without `position`."""
    from elmokit.analyse.index_builder import split_word_advice

    positions = [number for number, token in enumerate(tokens) if same_word(token, word, ignore_case=ignore_case)]
    numbers = ", ".join(str(each + 1) for each in positions)
    if not positions:
        shown = " ".join(map(repr, tokens)) or "none"
        advice = split_word_advice(word, segment)
        if not ignore_case and any(same_word(token, word, ignore_case=True) for token in tokens):
            advice = "give --ignore-case to treat upper and lower case as the same word"
        raise ElmoError(
            f"--context must have {word!r} among its tokens, which are: {shown}" + (f"; {advice}" if advice else "")
        )
    if position is None and len(positions) > 1:
        raise ElmoError(f"--context has {word!r} {len(positions)} times, as tokens {numbers}: choose with --position")
    if position is not None and position - 1 not in positions:
        raise ElmoError(f"--position must be the number of {word!r} among the tokens ({numbers}), got {position}")
    return positions[0] if position is None else position - 1
