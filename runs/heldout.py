"""Split a corpus file between documents: most of it to train on, the end held out to measure on.

    python runs/heldout.py books-2.txt.xz text        # writes text/books-2.train.txt and text/books-2.heldout.txt

The file is UTF-8 text with blank lines between documents, plain or packed. The cut is at the last blank line in the
first 96 % of its bytes, so that no document is in both parts. The same file always gives the same parts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.storage.atomic import atomic_file
from elmokit.text.packed import READ_ERRORS, open_decompressed

SHARE = 0.04
_PACKINGS = (".xz", ".gz", ".bz2", ".zst")


def parts(source: Path, folder: Path) -> tuple[Path, Path]:
    """The paths of the two parts of a corpus file: to train on, and held out."""
    plain = source.stem if source.suffix in _PACKINGS else source.name
    stem = plain.removesuffix(".txt")
    return folder / f"{stem}.train.txt", folder / f"{stem}.heldout.txt"


def cut(source: Path, folder: Path) -> tuple[int, int]:
    """Write both parts, whole or not at all, and return the number of lines of each."""
    train, heldout = parts(source, folder)
    cut_line = _cut_line(source)
    lines = 0
    # The last context manager ends first: the part to train on appears last, so that both parts exist if it does.
    with (
        atomic_file(train) as head,
        atomic_file(heldout) as tail,
        head.open("wb") as before,
        tail.open("wb") as after,
        ExitStack() as stack,
    ):
        for number, line in enumerate(open_decompressed(source, stack)):
            if number != cut_line:
                (before if number < cut_line else after).write(line)
            lines = number + 1
    return cut_line, lines - cut_line - 1


def _cut_line(source: Path) -> int:
    """The number of the blank line at which the file is cut, from 0."""
    blanks, size = [], 0
    with ExitStack() as stack:
        for number, line in enumerate(open_decompressed(source, stack)):
            if size and not line.strip():
                blanks.append((number, size))
            size += len(line)
    within = [number for number, before in blanks if before <= (1 - SHARE) * size]
    if not within:
        raise ElmoError(
            f"{source} must have a blank line in its first {1 - SHARE:.0%}, got none: separate its documents by one"
        )
    return within[-1]


def main(given: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="FILE", help="the corpus file")
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="folder for both parts; created if it does not exist"
    )
    options = parser.parse_args(given)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        train, heldout = cut(options.source, options.folder)
    except (ElmoError, *READ_ERRORS) as error:
        print(f"heldout.py: {error}", file=sys.stderr)
        return 2
    print(f"{options.source.name}: {train:,} lines to train on, {heldout:,} held out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
