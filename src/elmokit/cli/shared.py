"""Code that several commands share: options for the model and the text, input lines, output checks, messages."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from elmokit import progress
from elmokit.cli.registry import Command
from elmokit.errors import ElmoError
from elmokit.formats.bundled import DEFAULT
from elmokit.messages import counted, printable
from elmokit.options import option
from elmokit.progress import ProgressDisplay
from elmokit.text.tokens import SegmenterName

if TYPE_CHECKING:
    from elmokit.analyse.index import OccurrenceIndex
    from elmokit.corpus.prepared import PreparedCorpus
    from elmokit.elmo import Elmo

Split = Literal["none", "line", "paragraph"]
MODEL_HELP = (
    "The model, of any format: a folder, .hdf5, .zip or checkpoint; a bundled model, see elmo models; or owner/name on "
    "the Hugging Face Hub."
)
CORPUS_HELP = "Text files, folders or globs, plain or compressed; - is standard input"
SEGMENT_HELP = "How lines are split into tokens; none splits at white space."
SPLIT_HELP = "How raw text is split into sentences: each line is a paragraph, or blank lines separate paragraphs."
LAYER_HELP = "Layer whose vectors are compared: mix is the model's weighted mean, 0 the lowest layer."
JSON_HELP = "Print one JSON object per line."
FONT_HELP = "A font file for characters that the installed fonts lack."
_MIN_WIDTH = 40
AS_IN_TRAINING = "as in the model's training"


def share_cores() -> None:
    """Let torch's idle threads sleep after microseconds, not milliseconds; to be called before torch is imported.

    By default they keep a core busy while they wait for each other, and training is then several times slower if other
    programs use the cores too. 1,000 is what GNU's OpenMP itself uses where threads are more than cores.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@dataclass(frozen=True, kw_only=True)
class ModelFileOptions(Command):
    """Options for the files of a model."""

    options: str | None = option(None, "The model's options.json if it is not next to the weights.", metavar="FILE")
    vocab: str | None = option(None, "The model's vocab.txt if it is not next to the weights.", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class DeviceOption(Command):
    """The option for the device."""

    device: str | None = option(
        None, "Device to compute on: cpu, cuda, cuda:1, …", metavar="DEVICE", shown="a GPU if there is one"
    )


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ModelFileOptions, DeviceOption):
    """Options for the model, which is the bundled one by default."""

    model: str = option(DEFAULT, MODEL_HELP, metavar="MODEL")

    def load(self, segment: SegmenterName | None = None, dtype: str | None = None) -> Elmo:
        """Load the model; `segment` overrides its text policy, `dtype` the dtype in which it is stored."""
        from elmokit.elmo import Elmo

        return Elmo.load(
            self.model, options=self.options, vocab=self.vocab, device=self.device, dtype=dtype, segment=segment
        )


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ModelOptions):
    """Options for the corpus, or the index of its words, in which a command searches."""

    corpus: tuple[str, ...] = option((), f"{CORPUS_HELP}; may be repeated.", metavar="CORPUS")
    index: Path | None = option(
        None,
        "Folder of an existing index, or with --corpus of a new index of all words.",
        metavar="DIR",
        shown="in the cache",
    )
    ignore_case: bool = option(False, "Treat upper and lower case as the same word.")
    segment: SegmenterName | None = option(None, SEGMENT_HELP, shown=AS_IN_TRAINING)
    split: Split | None = option(None, SPLIT_HELP, shown=AS_IN_TRAINING)
    workers: int | None = option(None, "Number of processes that read the text.", least=1, shown="all cores")

    def find_index(self, elmo: Elmo, searched: Sequence[str] | None, **changes: Any) -> OccurrenceIndex:  # noqa: ANN401
        """The index to search for the words `searched`, or for all words if it is None; built if it does not exist.

        `changes` replace values of options by name.
        """
        from elmokit.analyse.index_cache import find_index
        from elmokit.corpus.report import progress_display

        names = {item.name for item in fields(self)} & signature(find_index).parameters.keys()
        given = {name: getattr(self, name) for name in names}
        given |= {"words": given.get("words") or None, **changes}
        with progress_display("corpus") as on_corpus, ProgressDisplay() as display:

            def on_build(done: int, total: int) -> None:
                display.start("building the index", "sentences", total)
                display.update(done)

            def on_built(index: OccurrenceIndex) -> None:
                _report_built(index, elmo)

            return find_index(elmo, searched, **given, on_corpus=on_corpus, on_build=on_build, on_built=on_built)


@dataclass(frozen=True, kw_only=True)
class IndexOptions(SearchOptions):
    """Options for what a new index contains."""

    words: tuple[str, ...] = option(
        (), "Words to include in a new index instead of all words; may be repeated.", metavar="WORD"
    )
    min_count: int = option(1, "Minimum number of times a word must occur to be in a new index of all words.", least=1)
    max_occurrences: int = option(
        1000,
        "Number of occurrences of each word to index, spread evenly over the text; 0 indexes all of them.",
        least=0,
    )


def _report_built(index: OccurrenceIndex, elmo: Elmo) -> None:
    size = sum(file.stat().st_size for file in index.folder.rglob("*.bin"))
    chosen = index.description["choice"]["words"]
    shown = "all words" if chosen is None else ", ".join(chosen[:3]) + (" …" if len(chosen) > 3 else "")
    found = f"{counted(len(index), 'occurrence')} in {counted(index.text.n_sentences, 'sentence')}"
    space = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
    say(f"built an index of {shown}: {found}, {space} in {index.folder}")
    unknown = elmo.unknown_tokens()
    for text, (_, rows) in zip(index.text.type_texts(), index.words.tolist(), strict=True):
        if rows:
            unknown.add([text], rows)
    if message := unknown.message():
        say(f"elmo: {message}")


def prepare_and_report(sources: Sequence[str], **settings: Any) -> PreparedCorpus:  # noqa: ANN401 - those of `prepare`
    """Prepare a corpus, show the progress, and report how much was read and skipped."""
    from elmokit.corpus.prepare import prepare
    from elmokit.corpus.report import progress_display

    with progress_display("corpus") as on_progress:
        corpus = prepare(sources, **settings, on_progress=on_progress)
    for line in corpus.report.lines():
        say(line)
    return corpus


def terminal_width() -> int | None:
    """The width of the terminal in columns; None if the output is not a terminal, so that lines are not cut."""
    return max(shutil.get_terminal_size().columns, _MIN_WIDTH) if sys.stdout.isatty() else None


def say(text: str) -> None:
    """Print a line that is not a result, to stderr; nothing with `--quiet`."""
    if not progress.silent:
        print(printable(text), file=sys.stderr, flush=True)


@contextmanager
def input_lines(texts: Sequence[str], input: str | None, purpose: str) -> Iterator[Iterable[str]]:
    """The sentences from the arguments, or the lines of a file or of standard input."""
    from elmokit.corpus.lines import InputLines

    if texts and input:
        raise ElmoError("give sentences as arguments or with --input, not both")
    if texts and tuple(texts) != ("-",):
        yield texts
        return
    closed = input in (None, "-") and sys.stdin is None  # the shell closed stdin with `<&-`
    if closed or (input is None and not texts and sys.stdin.isatty()):
        raise ElmoError(f"nothing to {purpose}: give sentences as arguments, or --input FILE, or - for standard input")
    with InputLines(input or "-") as lines:
        yield lines


def check_output_file(name: str, path: Path, reads: Iterable[str | Path | None]) -> None:
    """Refuse an output file that could not be written at the end or would overwrite a file that is read."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ElmoError(f"{name} must be a file in a folder that exists, got {path}", name)
    if not path.exists():
        return
    sources = [Path(source) for source in reads if source not in (None, "-")]
    if any(is_same_file(file, path) for source in sources for file in (source, *source.glob("*"))):
        raise ElmoError(f"{name} must not be a file that is read, got {path}: it would be overwritten", name)


def is_same_file(path: Path, other: Path) -> bool:
    """Whether two paths are the same file; False if one cannot be found, which its reader will report."""
    try:
        return path.samefile(other)
    except OSError:
        return False


def same_word(token: str, word: str, *, ignore_case: bool) -> bool:
    """Whether a token equals a word."""
    return token == word or (ignore_case and token.casefold() == word.casefold())
