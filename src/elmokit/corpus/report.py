"""What was read, used and skipped, with the reason and the first place; and progress while a corpus is prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from elmokit.messages import counted
from elmokit.progress import ProgressDisplay

# The wording for one and for many; {limit} is max_tokens.
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
class SkippedItems:
    """Lines, sentences, files or folders that were left out for one reason."""

    kind: str
    """The reason: a key of `_SKIPPED` or `_LEFT_OUT`."""
    count: int
    first: str
    """The first one: a file, or a file and a line number from 1."""


@dataclass(frozen=True)
class Report:
    """The size of a corpus, and what of it was left out."""

    files: int = 0
    bytes: int = 0
    """Bytes of text, after unpacking."""
    n_lines: int = 0
    sentences: int = 0
    tokens: int = 0
    types: int = 0
    """Distinct tokens, including the three special ones; 0 if they were not counted."""
    unlisted: int = 0
    """Tokens stored as `<UNK>` because the list of types was full."""
    max_tokens: int = 0
    """Sentences with more tokens were skipped."""
    skipped: tuple[SkippedItems, ...] = ()

    def lines(self) -> list[str]:
        """The report as text, one line per fact."""
        text = f"{counted(self.bytes, 'byte')} of text, {counted(self.n_lines, 'line')}"
        read = f"read {counted(self.files, 'file')}, {text}"
        stored = f"stored {counted(self.sentences, 'sentence')}, {counted(self.tokens, 'token')}"
        lines = [read, stored + (f", {counted(self.types, 'type')}" if self.types else "")]
        for entry in self.skipped:
            verb, words, at = ("skipped", _SKIPPED, "at") if entry.kind in _SKIPPED else ("left out", _LEFT_OUT, "is")
            what = words[entry.kind][entry.count != 1].format(limit=self.max_tokens)
            first = f": {entry.first}" if entry.count == 1 else f", the first {at} {entry.first}"
            lines.append(f"{verb} {entry.count:,} {what}{first}")
        if self.unlisted:
            lines.append(
                f"wrote {counted(self.unlisted, 'token')} as <UNK>: the list of {self.types:,} types was full, and "
                "types first seen after that are not in it"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """The report that `to_dict` was called on."""
        return cls(**{**values, "skipped": tuple(SkippedItems(**entry) for entry in values["skipped"])})


class Tally:
    """The counts of a report while text is read."""

    def __init__(self) -> None:
        self.files = self.bytes = self.lines = self.sentences = self.tokens = self.unlisted = self.max_tokens = 0
        self._skipped: dict[str, list[Any]] = {}

    def skip(self, kind: str, first: str, count: int = 1) -> None:
        """Count items that were skipped; of several calls, the first one's place is stored."""
        self._skipped.setdefault(kind, [0, first])[0] += count

    def add(self, other: Tally) -> None:
        """Add the counts of the text that follows; the number of files and max_tokens stay."""
        self.bytes += other.bytes
        self.lines += other.lines
        self.sentences += other.sentences
        self.tokens += other.tokens
        self.unlisted += other.unlisted
        for kind, (count, first) in other._skipped.items():
            self.skip(kind, first, count)

    def report(self, *, types: int = 0) -> Report:
        """The counts by now."""
        return Report(
            files=self.files,
            bytes=self.bytes,
            n_lines=self.lines,
            sentences=self.sentences,
            tokens=self.tokens,
            types=types,
            unlisted=self.unlisted,
            max_tokens=self.max_tokens,
            skipped=tuple(SkippedItems(kind, count, first) for kind, (count, first) in self._skipped.items()),
        )


class Progress(NamedTuple):
    """How much of a corpus has been read."""

    read: int
    """Bytes read from the disk."""
    total: int | None
    """Bytes of all files; unknown for standard input."""
    sentences: int
    tokens: int


@contextmanager
def progress_display(name: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """A function for `prepare`'s on_progress that shows how much of the text is read."""
    with ProgressDisplay(f"preparing the {name}", "B", quiet=quiet) as display:
        yield lambda done: display.update(done.read, done.total, counted(done.tokens, "token"))
