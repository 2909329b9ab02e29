"""What was read, what was kept, and what was skipped, why and where first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from elmokit.messages import counted

# What a person reads for one and for many; {limit} is a setting of the run.
_SKIPPED = {
    "not_utf8": ("line that is not UTF-8", "lines that are not UTF-8"),
    "nul": ("line with NUL bytes, which text does not have", "lines with NUL bytes, which text does not have"),
    "empty": ("empty line", "empty lines"),
    "too_long": ("sentence of more than {limit:,} tokens", "sentences of more than {limit:,} tokens"),
    "too_large": ("line or paragraph of more than 16 MiB", "lines or paragraphs of more than 16 MiB"),
}
_LEFT_OUT = {
    "hidden": ("hidden file or folder", "hidden files and folders"),
    "not_text": ("file that is not text", "files that are not text"),
    "special": ("pipe, socket or device", "pipes, sockets or devices"),
    "prepared": ("folder of a prepared corpus", "folders of prepared corpora"),
    "again": ("file that was named or found twice", "files that were named or found twice"),
    "loop": ("folder that was found twice, by a link", "folders that were found twice, by links"),
}


@dataclass(frozen=True)
class Skipped:
    """Things of one kind that were not read."""

    kind: str
    """One of the kinds that `Report.lines` has words for."""
    count: int
    first: str
    """Where the first one is: a file, or a file and the number of its line from 1."""


@dataclass(frozen=True)
class Report:
    """What a corpus held."""

    files: int = 0
    bytes: int = 0
    """Of text, unpacked."""
    n_lines: int = 0
    sentences: int = 0
    tokens: int = 0
    types: int = 0
    """Distinct tokens, the three special ones among them where a list of types is kept."""
    unlisted: int = 0
    """Tokens written as `<UNK>` because the list of types was full."""
    max_tokens: int = 0
    """The longest sentence that was kept could have this many tokens."""
    skipped: tuple[Skipped, ...] = ()

    def lines(self) -> list[str]:
        """What a person reads, a line each."""
        text = f"{counted(self.bytes, 'byte')} of text, {counted(self.n_lines, 'line')}"
        read = f"read {counted(self.files, 'file')}, {text}"
        kept = f"kept {counted(self.sentences, 'sentence')}, {counted(self.tokens, 'token')}"
        told = [read, kept + (f", {counted(self.types, 'type')}" if self.types else "")]
        for entry in self.skipped:
            verb, words, at = ("skipped", _SKIPPED, "at") if entry.kind in _SKIPPED else ("left out", _LEFT_OUT, "is")
            what = words[entry.kind][entry.count != 1].format(limit=self.max_tokens)
            first = f": {entry.first}" if entry.count == 1 else f", the first {at} {entry.first}"
            told.append(f"{verb} {entry.count:,} {what}{first}")
        if self.unlisted:
            told.append(
                f"wrote {counted(self.unlisted, 'token')} as <UNK>: the list of {self.types:,} types was full, and "
                "types first seen after that are not in it"
            )
        return told

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON holds it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """The report from what `to_dict` gave."""
        return cls(**{**values, "skipped": tuple(Skipped(**entry) for entry in values["skipped"])})


class Tally:
    """A report while it grows; things are noted in the order of the corpus."""

    def __init__(self) -> None:
        self.files = self.bytes = self.lines = self.sentences = self.tokens = self.unlisted = self.max_tokens = 0
        self._skipped: dict[str, list[Any]] = {}

    def skip(self, kind: str, first: str, count: int = 1) -> None:
        """Note things that were skipped."""
        self._skipped.setdefault(kind, [0, first])[0] += count

    def add(self, other: Tally) -> None:
        """Note what another tally has noted about the text that follows; files and limits are not added."""
        self.bytes += other.bytes
        self.lines += other.lines
        self.sentences += other.sentences
        self.tokens += other.tokens
        self.unlisted += other.unlisted
        for kind, (count, first) in other._skipped.items():
            self.skip(kind, first, count)

    def report(self, *, types: int = 0) -> Report:
        """What was noted by now."""
        return Report(
            files=self.files,
            bytes=self.bytes,
            n_lines=self.lines,
            sentences=self.sentences,
            tokens=self.tokens,
            types=types,
            unlisted=self.unlisted,
            max_tokens=self.max_tokens,
            skipped=tuple(Skipped(kind, count, first) for kind, (count, first) in self._skipped.items()),
        )
