"""What a model that reads whole words from a table does not know of a text: it takes such a token for `<UNK>`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from elmokit.messages import counted

if TYPE_CHECKING:
    from elmokit.elmo import Elmo

_SHOWN = 5


class UnknownTokens:
    """Counts the tokens that a model has no row for; none for a model that reads characters."""

    def __init__(self, elmo: Elmo) -> None:
        self._vocab = elmo.vocab if elmo.config.characters is None else None
        self.tokens = 0
        self.unknown = 0
        self._examples: dict[str, None] = {}
        """The first few, in their order."""

    def add(self, tokens: Iterable[str], times: int = 1) -> None:
        """Look at some tokens, each of which stands in the text so many times."""
        if self._vocab is None:
            return
        for token in tokens:
            self.tokens += times
            if token not in self._vocab:
                self.unknown += times
                if len(self._examples) <= _SHOWN:
                    self._examples[token] = None

    def told(self) -> str | None:
        """A sentence for the user, where there is something to tell."""
        if self._vocab is None or not self.unknown:
            return None
        names = list(self._examples)
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        are = "is" if self.unknown == 1 else "are"
        return (
            f"{self.unknown:,} of {counted(self.tokens, 'token')} ({self.unknown / self.tokens:.1%}) {are} not among "
            f"the {len(self._vocab):,} that this model knows and {are} read as {self._vocab.specials[2]}: {shown}"
        )
