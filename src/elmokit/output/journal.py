"""The journal of a spool: one checked line for each commit; what follows the last whole line never happened."""

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Record:
    """What was durable at a commit, counted from the start of the run."""

    sentences: int = 0
    tokens: int = 0
    vector_bytes: int = 0
    """Length of vectors.bin that belongs to these sentences."""
    text_bytes: int = 0
    """Length of sentences.jsonl that belongs to these sentences."""
    layers: int | None = None
    """L+1 where all layers are kept."""
    dim: int | None = None
    """Size of a vector; None before the first sentence."""
    sha256: str = ""
    """Digest of the input lines consumed so far."""
    output_bytes: int | None = None
    """Set in the last record only: the output is in its place and has this size."""


def to_line(record: Record) -> bytes:
    """One line of the journal: a checksum, then the record."""
    body = json.dumps(asdict(record), separators=(",", ":")).encode("ascii")
    return b"%08x %s\n" % (zlib.crc32(body), body)


def read_records(path: Path) -> Iterator[tuple[Record, int]]:
    """Each whole record and the offset after it, up to the first line that is torn or damaged."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            # A line that a crash cut short, or a page the disk never got, fails the checksum.
            if not line.endswith(b"\n") or line[:9] != b"%08x " % zlib.crc32(line[9:-1]):
                return
            end += len(line)
            yield Record(**json.loads(line[9:])), end
