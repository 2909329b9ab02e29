"""The word list of a model: a token a line, `<S>`, `</S>` and `<UNK>` among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from elmokit.errors import ElmoError

BEGIN, END, UNKNOWN = "<S>", "</S>", "<UNK>"
SKIPPED_LINE = "!!!MAXTERMID"


class Vocabulary(Sequence[str]):
    """Words in file order; a word's index is its row in the softmax and, plus one, in a word table.

    A model that reads words or has a softmax needs the three `specials` among them (`require_specials`).
    """

    def __init__(self, words: Iterable[str], *, specials: tuple[str, str, str] = (BEGIN, END, UNKNOWN)) -> None:
        self._words = list(words)
        # Of equal words the last one counts, as in bilm-tf.
        self._index = {word: number for number, word in enumerate(self._words)}
        self.specials = specials
        self.begin, self.end, self.unknown = (self._index.get(special, -1) for special in specials)

    @classmethod
    def from_text(cls, text: str) -> Vocabulary:
        """Read vocab.txt: a token a line, bilm-tf's `!!!MAXTERMID` left out; an empty line counts, as it did there."""
        lines = (line.strip() for line in text.removeprefix("\ufeff").removesuffix("\n").split("\n"))
        return cls(line for line in lines if line != SKIPPED_LINE)

    def require_specials(self) -> None:
        """Refuse a word list without the sentence boundaries and the unknown word."""
        if missing := [special for special in self.specials if special not in self._index]:
            raise ElmoError(f"a vocabulary needs the entry {missing[0]}, and it is not among its {len(self)} words")

    def to_text(self) -> str:
        """The vocabulary as vocab.txt."""
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
