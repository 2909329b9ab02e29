"""The first sense of a word in WordNet's own files: index.noun … and data.noun … of a `dict` folder."""

from __future__ import annotations

from pathlib import Path

from elmokit.errors import ElmoError

_FILES = {"NOUN": "noun", "VERB": "verb", "ADJ": "adj", "ADV": "adv"}
_TYPES = {"n": 1, "v": 2, "a": 3, "r": 4, "s": 5}
_SATELLITE = "s"
_SIMILAR = "&"


class WordNet:
    """Looks up first senses in a folder of WordNet 3.0 (Debian: wordnet-base, in /usr/share/wordnet)."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._first: dict[tuple[str, str], int] = {}
        self._data: dict[str, bytes] = {}
        for pos, name in _FILES.items():
            try:
                lines = (self.folder / f"index.{name}").read_text(encoding="latin-1").splitlines()
                self._data[pos] = (self.folder / f"data.{name}").read_bytes()
            except OSError as error:
                raise ElmoError(
                    f"a WordNet folder must hold index.noun, data.noun and so on, got {self.folder} "
                    f"({error.strerror or error}): Debian's package wordnet-base puts them in /usr/share/wordnet"
                ) from error
            for line in lines:
                if not line.startswith(" "):  # the licence is indented
                    fields = line.split()
                    # lemma pos senses pointers pointer… senses tagged offset…, the most frequent sense first
                    self._first[fields[0], pos] = int(fields[6 + int(fields[3])])

    def first_sense(self, lemma: str, pos: str) -> str | None:
        """The sense key of the first sense of a lemma as NOUN, VERB, ADJ or ADV; None for a word it does not have."""
        lemma = lemma.lower().replace(" ", "_")
        offset = self._first.get((lemma, pos))
        if offset is None:
            return None
        kind, file, words, pointers = self._synset(pos, offset)
        number = next((number for word, number in words if word == lemma), None)
        if number is None:
            raise ElmoError(f"{self.folder} is damaged: the first sense of {lemma} is not at byte {offset}")
        head = ":"
        if kind == _SATELLITE:  # such an adjective is named after the one that it is similar to
            similar = next(target for symbol, target in pointers if symbol == _SIMILAR)
            word, head_number = self._synset(pos, similar)[2][0]
            head = f"{word}:{head_number:02}"
        return f"{lemma}%{_TYPES[kind]}:{file}:{number:02}:{head}"

    def _synset(self, pos: str, offset: int) -> tuple[str, str, list[tuple[str, int]], list[tuple[str, int]]]:
        """Kind, file number, words with their numbers, pointers with their targets."""
        data = self._data[pos]
        fields = data[offset : data.index(b"\n", offset)].decode("latin-1").split(" | ")[0].split()
        kind, count = fields[2], int(fields[3], 16)
        words = [
            # "(p)" and the like say where an adjective may stand
            (fields[4 + 2 * i].split("(")[0].lower(), int(fields[5 + 2 * i], 16))
            for i in range(count)
        ]
        start = 5 + 2 * count
        pointers = [(fields[i], int(fields[i + 1])) for i in range(start, start + 4 * int(fields[start - 1]), 4)]
        return kind, fields[1], words, pointers
