"""Clean raw text before training: repair markup, and leave out paragraphs that are not prose or are repeated.

    python runs/clean.py text enwiki-a-0.txt.xz frus-0.txt.xz --against text/books-2.heldout.txt

The files have one paragraph per line and a blank line between documents, plain or compressed. Each becomes
FOLDER/NAME.txt. A paragraph is left out by the first of these rules that applies:

    notice      it begins like one of the notices that publishers add (`_NOTICES`)
    not prose   table cells, two or more formulas, or too few letters (less than 60 % of its characters; Chinese 45 %)
    heading     fewer than four words, and no punctuation that ends a sentence
    script      too few of its letters belong to the language's script (less than 70 %; Chinese 40 %)
    held out    it shares 13 words in a row with the held-out text
    repeated    an earlier line is the same
    near copy   it begins or ends with the same 13 words as an earlier paragraph

Chinese is compared by 26 characters instead of 13 words. The last three rules ignore case and punctuation. One process
reads the files in the given order, because the order decides which copy stays.

With --simplify, FOLDER/NAME.simplified.txt gets a copy of each Chinese paragraph that has traditional characters, in
simplified characters (pip install opencc-python-reimplemented). So a model learns both scripts from all of the text.

With --lower 10, every tenth paragraph is written in lower case, so that a model also learns text without capitals.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.storage.atomic import atomic_file
from elmokit.text.packed import READ_ERRORS, open_decompressed

RULES = ("notice", "not prose", "heading", "script", "held out", "repeated", "near copy")
_NOTICES = (
    "for the current status of this publication",
    "produced by",
    "transcriber's note",
    "end of the project gutenberg",
    "end of project gutenberg",
)
_SHARED = {"latin": 13, "chinese": 26}
"""Length of a sequence of units (words, or Chinese characters) that counts as copied."""
_LEAST_LETTERS = {"latin": 0.6, "chinese": 0.45}
_LEAST_OF_SCRIPT = {"latin": 0.7, "chinese": 0.4}
_CELLS = re.compile(r"\s\|\s|\t|\bformula_\d+")
_SENTENCE_ENDS = ".!?。！？”\"'’)）:：;；…"

_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_REPAIRS = (
    (re.compile(r"<ref[^<>]*>.*?</ref>|</?[a-z][^<>]*>", re.IGNORECASE), ""),  # tags
    (re.compile(r"\{\{[^{}]*\}\}|'{2,}"), ""),  # templates, bold and italics
    (re.compile(r"\s*[(（]\s*[,;，；、:：]*\s*[)）]"), ""),  # brackets left over from a removed pronunciation
    (re.compile(r"([(（])\s*[,;，；、]\s*"), r"\1"),
    (re.compile(r"\s+([,.;:!?])(?=\s|$)"), r"\1"),
    (re.compile(r"\s+"), " "),
)
_WORDS = re.compile(r"\w+")


def repaired(line: str) -> str:
    """The paragraph without leftovers of markup, in Unicode's composed form."""
    line = unicodedata.normalize("NFC", html.unescape(line))
    line = "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in line if c != "\u00ad")
    line = _LINK.sub(r"\1", line)
    for pattern, replacement in _REPAIRS:
        line = pattern.sub(replacement, line)
    return line.strip()


class Cleaner:
    """Decides for each paragraph whether it stays, and remembers the paragraphs that stayed."""

    def __init__(self, script: str, heldout: Sequence[Path] = ()) -> None:
        self.script = script
        self._run = _SHARED[script]
        self._lines: set[int] = set()
        self._edges: set[int] = set()
        self._heldout: set[int] = set()
        for path in heldout:
            for line in paragraphs(path):
                self._heldout.update(self._runs(self._units(repaired(line))))

    def reason_against(self, text: str) -> str | None:
        """The rule that leaves a repaired paragraph out; None if it stays."""
        if text.lower().startswith(_NOTICES):
            return "notice"
        visible = sum(not c.isspace() for c in text)
        letters = [c for c in text if c.isalpha()]
        if len(_CELLS.findall(text)) > 1 or len(letters) < _LEAST_LETTERS[self.script] * visible:
            return "not prose"
        units = self._units(text)
        if len(units) < 4 and text[-1:] not in _SENTENCE_ENDS:
            return "heading"
        if sum(map(self._is_of_script, letters)) < _LEAST_OF_SCRIPT[self.script] * len(letters):
            return "script"
        if self._heldout and not self._heldout.isdisjoint(self._runs(units)):
            return "held out"
        line = _digest(units)
        if line in self._lines:
            return "repeated"
        edges = [_digest(part) for part in (units[: self._run], units[-self._run :])] if len(units) > self._run else []
        if not self._edges.isdisjoint(edges):
            return "near copy"
        self._lines.add(line)
        self._edges.update(edges)
        return None

    def _is_of_script(self, letter: str) -> bool:
        if self.script == "latin":
            return letter < "\u0250" or "\u1e00" <= letter < "\u1f00"
        return "\u3400" <= letter < "\ua000" or "\uf900" <= letter < "\ufb00" or letter >= "\U00020000"

    def _units(self, text: str) -> Sequence[str]:
        words = _WORDS.findall(text.lower())
        return words if self.script == "latin" else "".join(words)

    def _runs(self, units: Sequence[str]) -> Iterator[int]:
        for start in range(len(units) - self._run + 1):
            yield _digest(units[start : start + self._run])


def _digest(units: Sequence[str]) -> int:
    """A hash of 64 bits that is the same in every process, so that the result is always the same."""
    data = " ".join(units).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def paragraphs(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or compressed."""
    with ExitStack() as stack:
        for line in open_decompressed(path, stack):
            yield line.decode("utf-8", "replace")


def clean(source: Path, output: Path, cleaner: Cleaner, lower: int = 0) -> Counter[str]:
    """Write the paragraphs of a file that stay, whole or not at all; count them and those left out by each rule."""
    counts: Counter[str] = Counter()
    blank = True  # nothing to separate yet
    with atomic_file(output) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for line in paragraphs(source):
            text = repaired(line)
            if not text:
                file.write("" if blank else "\n")
                blank = True
                continue
            reason = cleaner.reason_against(text)
            counts[reason or "stay"] += 1
            if reason is None:
                file.write((text.lower() if lower and counts["stay"] % lower == 0 else text) + "\n")
                blank = False
    return counts


def simplifier() -> Callable[[str], str]:
    """A function that converts a text to simplified characters."""
    try:
        from opencc import OpenCC
    except ImportError:
        raise ElmoError("--simplify needs OpenCC: pip install opencc-python-reimplemented") from None
    convert: Callable[[str], str] = OpenCC("t2s").convert
    return convert


def simplify(source: Path, output: Path, convert: Callable[[str], str]) -> tuple[int, int]:
    """Write the paragraphs that `convert` changes; return the number written and the number read."""
    changed = total = 0
    with atomic_file(output) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for line in paragraphs(source):
            simplified = convert(line)
            total += bool(line.strip())
            changed += simplified != line
            if simplified != line or not line.strip():
                file.write(simplified)
    return changed, total


def main(given: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="folder for the clean files; created if it does not exist"
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="text to clean")
    parser.add_argument("--against", type=Path, nargs="*", default=[], metavar="FILE", help="held-out text")
    parser.add_argument("--script", choices=list(_SHARED), default="latin", help="the language's script [latin]")
    parser.add_argument(
        "--simplify", action="store_true", help="also write traditional Chinese in simplified characters"
    )
    parser.add_argument(
        "--lower",
        type=int,
        default=0,
        metavar="N",
        help="write every N-th paragraph in lower case; 0: none [%(default)s]",
    )
    options = parser.parse_args(given)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        convert = simplifier() if options.simplify else None
        cleaner = Cleaner(options.script, options.against)
        for source in options.files:
            output = options.folder / (source.name.split(".txt")[0] + ".txt")
            if output.exists() and output.samefile(source):
                raise ElmoError(f"the clean text must not replace the raw text, got the folder of {source}")
            counts = clean(source, output, cleaner, options.lower)
            left_out = ", ".join(f"{rule} {counts[rule]:,}" for rule in RULES if counts[rule]) or "none"
            print(
                f"{source.name}: {counts['stay']:,} of {counts.total():,} paragraphs stay; left out: {left_out}",
                flush=True,
            )
            if convert is not None:
                changed, total = simplify(output, output.with_suffix(".simplified.txt"), convert)
                print(f"{source.name}: {changed:,} of {total:,} paragraphs also in simplified characters", flush=True)
    except (ElmoError, *READ_ERRORS) as error:
        print(f"clean.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
