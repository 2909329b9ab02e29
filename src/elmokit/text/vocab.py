"""The vocabulary of a model, with `<S>`, `</S>` and `<UNK>` among its words; vocab.txt has one word per line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.text.policy import CharacterPieces

BEGIN, END, UNKNOWN = "<S>", "</S>", "<UNK>"
SKIPPED_LINE = "!!!MAXTERMID"
_SHOWN = 5


class Vocabulary(Sequence[str]):
    """Words in file order. A word's index is its row in the softmax; its row in a word table is the index + 1.

    A model that reads words or has a softmax needs the three `specials` among them (`require_specials`).
    """

    def __init__(self, words: Iterable[str], *, specials: tuple[str, str, str] = (BEGIN, END, UNKNOWN)) -> None:
        self._words = list(words)
        # If a word occurs twice, the last index counts, as in bilm-tf.
        self._index = {word: number for number, word in enumerate(self._words)}
        self.specials = specials
        self.begin, self.end, self.unknown = (self._index.get(special, -1) for special in specials)

    @classmethod
    def from_text(cls, text: str) -> Vocabulary:
        """Read the text of a vocab.txt; as in bilm-tf, `!!!MAXTERMID` is left out and an empty line is a word."""
        lines = (line.strip() for line in text.removeprefix("\ufeff").removesuffix("\n").split("\n"))
        return cls(line for line in lines if line != SKIPPED_LINE)

    def require_specials(self) -> None:
        """Raise ElmoError if a special word is missing."""
        if missing := [special for special in self.specials if special not in self._index]:
            raise ElmoError(f"a vocabulary needs the entry {missing[0]}, and it is not among its {len(self)} words")

    def to_text(self) -> str:
        """The vocabulary as the text of a vocab.txt."""
        return "".join(f"{word}\n" for word in self._words)

    def index(self, word: str, *_: int) -> int:
        """The word's index, or that of `<UNK>`."""
        return self._index.get(word, self.unknown)

    def __contains__(self, word: object) -> bool:
        return word in self._index

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return self._words[index]

    def __len__(self) -> int:
        return len(self._words)

    def __iter__(self) -> Iterator[str]:
        return iter(self._words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self._words == other._words and self.specials == other.specials

    __hash__ = None  # type: ignore[assignment]


class UnknownTokens:
    """Counts the tokens that a model reads as `<UNK>`; a model without a vocabulary has none."""

    def __init__(self, vocab: Vocabulary | None, pieces: CharacterPieces | None = None) -> None:
        """`pieces`: splits each token for a model of characters."""
        self._vocab, self._pieces = vocab, pieces
        self.tokens = 0
        self.unknown = 0
        self._examples: dict[str, None] = {}
        """The first few unknown tokens, in order."""

    def add(self, tokens: Iterable[str], times: int = 1) -> None:
        """Count tokens that each occur `times` times."""
        if self._vocab is None:
            return
        for token in tokens if self._pieces is None else chain.from_iterable(map(self._pieces.of, tokens)):
            self.tokens += times
            if token not in self._vocab:
                self.unknown += times
                if len(self._examples) <= _SHOWN:
                    self._examples[token] = None

    def message(self) -> str | None:
        """A sentence about the unknown tokens for the user, or None if there are none."""
        if self._vocab is None or not self.unknown:
            return None
        names = list(self._examples)
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        are = "is" if self.unknown == 1 else "are"
        return (
            f"{self.unknown:,} of {counted(self.tokens, 'token')} ({self.unknown / self.tokens:.1%}) {are} not among "
            f"the {len(self._vocab):,} that this model knows and {are} read as {self._vocab.specials[2]}: {shown}"
        )
