"""The committed part of a spool, read in order and a piece at a time: what every writer writes from."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from elmokit.errors import ElmoError
from elmokit.output.journal import Record
from elmokit.output.shape import Shape, Vectors

VECTORS = "vectors.bin"
TEXTS = "sentences.jsonl"
BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Stored:
    """Sentences and their vectors, in the order of the input."""

    folder: Path
    shown: Path
    """How messages call the folder."""
    record: Record
    shape: Shape
    settings: Mapping[str, object]

    @property
    def sentences(self) -> int:
        """How many sentences there are."""
        return self.record.sentences

    @property
    def tokens(self) -> int:
        """How many tokens they have together."""
        return self.record.tokens

    @property
    def rows(self) -> int:
        """How many rows the flat array has: a row for each token, or for each sentence where pooled."""
        return self.sentences if self.shape.pooled else self.tokens

    def texts(self) -> Iterator[tuple[str, list[str]]]:
        """The text and the tokens of each sentence."""
        with (self.folder / TEXTS).open("rb") as file:
            for _ in range(self.sentences):
                line = file.readline()
                if not line:
                    raise self._damaged(TEXTS)
                text, tokens = json.loads(line)
                yield text, tokens

    def blocks(self) -> Iterator[Vectors]:
        """The flat array [rows, D] or [rows, L+1, D] in pieces of some megabytes."""
        step = max(1, BLOCK_BYTES // max(1, self.shape.row_bytes))
        with (self.folder / VECTORS).open("rb", buffering=0) as file:
            for start in range(0, self.rows, step):
                yield self._read(file, min(step, self.rows - start))

    def items(self) -> Iterator[tuple[str, list[str], Vectors]]:
        """The text, the tokens and the rows of each sentence."""
        with (self.folder / VECTORS).open("rb", buffering=1 << 20) as file:
            for text, tokens in self.texts():
                yield text, tokens, self._read(file, self.shape.rows(len(tokens)))

    def _read(self, file: IO[bytes], rows: int) -> Vectors:
        block = np.empty((rows, *self.shape.row), dtype="<f4")
        if block.size:
            view = block.data.cast("B")
            while view:
                got = file.readinto(view)  # type: ignore[attr-defined]  # typeshed's IO lacks it, files have it
                if not got:
                    raise self._damaged(VECTORS)
                view = view[got:]
        return block

    def _damaged(self, name: str) -> ElmoError:
        return ElmoError(f"{self.shown / name} is shorter than its journal says: delete {self.shown} and start again")
