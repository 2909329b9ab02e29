"""How much a packed file may unpack to: a few kilobytes can ask for more than any memory."""

from __future__ import annotations

import zipfile

from elmokit.errors import ElmoError

_TIMES = 24
"""Weights and vectors shrink by a tenth when they are packed, and text to a quarter; zeros in the packing of our own
parquet files shrink to a twenty-first."""
_ALWAYS = 16 << 20


def most_unpacked(packed: int) -> int:
    """The bytes that so many packed bytes may unpack to."""
    return _ALWAYS + _TIMES * packed


def check_unpacked(unpacked: int, packed: int, where: str) -> None:
    """Refuse a file that says it unpacks to far more than models and vectors do."""
    if unpacked > most_unpacked(packed):
        raise ElmoError(
            f"{where} says that its {packed} bytes unpack to {unpacked}, which no model or file of vectors does; "
            "do not trust it"
        )


def check_zip(archive: zipfile.ZipFile, packed: int, where: str) -> None:
    """Refuse a zip of `packed` bytes whose files, one of them or all, would unpack to far too much."""
    members = archive.infolist()
    for member in members:
        check_unpacked(member.file_size, packed, f"{where}!{member.filename}")
    check_unpacked(sum(member.file_size for member in members), packed, where)
