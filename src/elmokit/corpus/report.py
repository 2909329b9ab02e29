"""The report of a prepared corpus (text read, stored and skipped, with reasons), and its progress display."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from elmokit.messages import counted
from elmokit.progress import ProgressDisplay

# The text for one item and for several; {limit} is max_tokens.
_SKIPPED = {
    "not_utf8": ("line that is not UTF-8", "lines that are not UTF-8"),
    "nul": ("line with NUL bytes, which are not text", "lines with NUL bytes, which are not text"),
    "empty": ("empty line", "empty lines"),
    "too_long": ("sentence of more than {limit:,} tokens", "sentences of more than {limit:,} tokens"),
    "too_large": ("line or paragraph of more than 16 MiB", "lines or paragraphs of more than 16 MiB"),
}
_LEFT_OUT = {
    "hidden": ("hidden file or folder", "hidden files and folders"),
    "not_text": ("file that is not text", "files that are not text"),
    "special": ("pipe, socket or device", "pipes, sockets or devices"),
    "prepared": ("folder of a prepared corpus", "folders of prepared corpora"),
    "again": ("file that was given or found twice", "files that were given or found twice"),
    "loop": ("folder that was found twice, by a link", "folders that were found twice, by links"),
}
_MANY = 0.05
"""Share of lines that are not UTF-8 from which the whole text may have another encoding."""


@dataclass
class Report:
    """The size of a corpus and the number of items that were left out; it is filled while text is read."""

    files: int = 0
    bytes: int = 0
    """Bytes of text, after decompression."""
    n_lines: int = 0
    sentences: int = 0
    tokens: int = 0
    types: int = 0
    """Distinct tokens, including the three special ones; 0 if they were not counted."""
    unlisted: int = 0
    """Tokens stored as `<UNK>` because the list of types was full."""
    max_tokens: int = 0
    """The limit above which sentences were skipped."""
    skipped: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By reason, a key of `_SKIPPED` or `_LEFT_OUT`: the number of items, and the first one, as a file or file:line."""

    def skip(self, reason: str, first: str, count: int = 1) -> None:
        """Count skipped items; `first` is stored if the reason is new."""
        before, earliest = self.skipped.get(reason, (0, first))
        self.skipped[reason] = (before + count, earliest)

    def add(self, other: Report) -> None:
        """Add the counts of the text that follows; files, types and max_tokens are not added."""
        for name in ("bytes", "n_lines", "sentences", "tokens", "unlisted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, (count, first) in other.skipped.items():
            self.skip(reason, first, count)

    def lines(self) -> list[str]:
        """The report as text, one line per fact."""
        text = f"{counted(self.bytes, 'byte')} of text, {counted(self.n_lines, 'line')}"
        read = f"read {counted(self.files, 'file')}, {text}"
        stored = f"stored {counted(self.sentences, 'sentence')}, {counted(self.tokens, 'token')}"
        lines = [read, stored + (f", {counted(self.types, 'type')}" if self.types else "")]
        for reason, (count, first) in self.skipped.items():
            verb, texts, at = ("skipped", _SKIPPED, "at") if reason in _SKIPPED else ("left out", _LEFT_OUT, "is")
            items = texts[reason][count != 1].format(limit=self.max_tokens)
            line = f"{verb} {count:,} {items}" + (f": {first}" if count == 1 else f", the first {at} {first}")
            if reason == "not_utf8" and count > max(1, _MANY * self.n_lines):
                share = f"{count / self.n_lines:.0%} of the lines"
                line += f"; these are {share}: convert the text, for example with iconv -f latin1 -t UTF-8"
            lines.append(line)
        if self.unlisted:
            lines.append(
                f"wrote {counted(self.unlisted, 'token')} as <UNK>: the list of {self.types:,} types was full, and "
                "later types were not added"
            )
        return lines

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """The report from the values of `asdict`."""
        skipped = {reason: (int(count), str(first)) for reason, (count, first) in values["skipped"].items()}
        return cls(**{**values, "skipped": skipped})


class Progress(NamedTuple):
    """The amount of a corpus that has been read."""

    read: int
    """Bytes read from the disk."""
    total: int | None
    """Bytes of all files; None for standard input."""
    sentences: int
    tokens: int


@contextmanager
def progress_display(name: str, *, quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """A function for `on_progress` of `prepare` that shows the progress."""
    with ProgressDisplay(f"preparing the {name}", "B", quiet=quiet) as display:
        yield lambda done: display.update(done.read, done.total, counted(done.tokens, "token"))
