"""`elmo embed`: computes vectors of sentences for the screen or a file, or of a folder of texts for a folder."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from elmokit.cli.registry import command, message_with_options
from elmokit.cli.shared import AS_IN_TRAINING, SEGMENT_HELP, SPLIT_HELP, ModelOptions, Split, is_same_file, say
from elmokit.corpus.lines import SentenceFormat, given_words, sentence_lines
from elmokit.corpus.worker_process import available_cores
from elmokit.errors import ElmoError
from elmokit.messages import counted, duration, printable, quantity
from elmokit.options import argument, option
from elmokit.text.tokens import SegmenterName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from elmokit.elmo import Elmo
    from elmokit.layers import Layer
    from elmokit.output import Summary
    from elmokit.output.embed_folder import EmbedFile, FileProgress, FolderProgress, FolderSummary
    from elmokit.text.vocab import UnknownTokens

    Vectors = NDArray[np.float32]
    Tokenise = Callable[[str], list[str]]
    Encode = Callable[[Iterable[list[str]]], Iterator[Vectors]]

_SHOWN_VALUES = 5
_SHOWN_CHARACTERS = 48
_FAILED, _INTERRUPTED = 2, 130
_UPDATE_SECONDS, _WAIT_SECONDS = 0.5, 3.0
"""Seconds between updates of the progress line, and without a new sentence until it shows the waiting tokens."""


@command("embed")
@dataclass(frozen=True, kw_only=True)
class EmbedCommand(ModelOptions):
    """Turn sentences into vectors, which are shown line by line or written to a file.

    A folder of texts becomes a folder with one file of vectors for each text. Run the same command again to continue
    after a stop.
    """

    texts: tuple[str, ...] = argument(
        "Sentences, each as one argument; or one folder of text files.", "TEXT|FOLDER", default=(), blank=True
    )
    text: tuple[str, ...] = option(
        (), "A sentence, also if there is a file with this name; may be repeated.", metavar="TEXT", blank=True
    )
    input: str | None = option(
        None, "Text with one sentence per line, plain or compressed; - is standard input.", metavar="FILE"
    )
    input_format: SentenceFormat = option(
        "lines", "What --input contains: text, words with tabs between them, or CoNLL columns."
    )
    split: Split = option("none", f"{SPLIT_HELP} With none a line is a sentence.")
    output: str | None = option(
        None,
        "File to write: .h5, .npz, .npy, .parquet, .jsonl, .csv or .txt; - writes JSON lines to standard output. "
        "For a folder of texts, the folder to write.",
        metavar="FILE",
        shown="one line per sentence on screen",
    )
    to: str | None = option(
        None,
        "Format of the files written for a folder of texts: h5, npz, npy, parquet, jsonl, csv or txt.",
        shown="h5",
        metavar="ENDING",
    )
    workers: int | None = option(
        None,
        "Number of processes for a folder of texts; each loads the model and uses a share of the threads.",
        least=1,
        shown="1",
    )
    shard: str | None = option(
        None,
        "Part of the files of a folder to embed: with 3/10, this is the third of ten jobs or machines.",
        metavar="I/N",
        shown="all files",
    )
    layer: str | None = option(
        None,
        "Layer of the vectors: mix is the model's weighted mean, 0 the lowest layer.",
        metavar="mix|top|all|N",
        shown="the last block of a Transformer, mix for an LSTM; all for --format bilm and allennlp",
    )
    pool: Literal["none", "mean", "max", "first", "last"] = option(
        "none", "How token vectors become one vector per sentence; none gives one vector per token."
    )
    format: Literal["elmokit", "bilm", "allennlp", "manylangs"] = option("elmokit", "Layout of an HDF5 output.")
    store: Literal["float32", "float16"] = option(
        "float32", "dtype of the numbers in the output; float16 halves the file."
    )
    segment: SegmenterName | None = option(None, SEGMENT_HELP, shown=AS_IN_TRAINING)
    resume: bool = option(False, "Resume an interrupted output file; for a folder of texts this is always done.")
    batch_tokens: int | None = option(None, "Number of tokens per batch.", least=1, shown="chosen for the device")
    dtype: Literal["float32", "float64", "float16", "bfloat16", "int8"] | None = option(
        None, "dtype to compute in; int8 is for the CPU.", shown="float32, or int8 if the model is stored so"
    )
    json: bool = option(False, "Print JSON: one line per sentence, or with --output FILE a summary.")

    def run(self) -> int | None:
        """Check the options, load the model and embed; Ctrl-C ends in a message and exit status 130."""
        from elmokit.output import check_output
        from elmokit.output.embed_lines import partial_folder
        from elmokit.text.policy import TextPolicy

        if self.layer is not None:
            parse_layer(self.layer)
        TextPolicy(self.segment).split("")  # a missing extra is reported before the model is loaded
        folder = self._folder
        try:
            if folder is not None:
                return self._embed_folder(folder)
            self._embed()
        except KeyboardInterrupt:
            continued = "the same command continues" if folder else ""
            if not folder and self._file and partial_folder(check_output(self._file)).exists():
                continued = "the same command with --resume continues"
            say(f"elmo: interrupted{continued and f'; {continued}'}")
            sys.exit(_INTERRUPTED)
        return None

    def _embed(self) -> None:
        self._check()
        with ExitStack() as stack:
            source = stack.enter_context(InputSentences(self._sentences, self.input, self.split, self.input_format))
            progress = None
            if self._file or self._json_lines:
                progress = stack.enter_context(EmbedProgress(source))  # before the model, which takes time to load
            elmo = self.load(self.segment, self.dtype)
            unknown = elmo.unknown_tokens()
            tokenise, encode = self._functions(elmo, unknown, progress.add_read if progress else None)
            if progress is None:
                _print_lines(source, tokenise, encode)
            elif self._file:
                summary = self._write_file(
                    elmo, source, tokenise, encode, self._file, resume=self.resume, on_progress=progress.done
                )
                progress.close()
                self._report_written(summary)
            else:
                self._print_json(source, tokenise, encode, progress)
        if message := unknown.message():
            say(f"elmo: {message}")
        if message := source.message():
            say(f"elmo: {message}")

    def _functions(
        self, elmo: Elmo, unknown: UnknownTokens, on_tokens: Callable[[int], None] | None = None
    ) -> tuple[Tokenise, Encode]:
        """The functions from a line to tokens and from tokens to vectors.

        `on_tokens` is called with the number of tokens of each line.
        """
        layer, pool = parse_layer(self._layer(elmo)), None if self.pool == "none" else self.pool

        def tokenise(line: str) -> list[str]:
            tokens = elmo.text_policy.split(line) if self.input_format == "lines" else given_words(line)
            unknown.add(tokens)
            if on_tokens is not None:
                on_tokens(len(tokens))
            return tokens

        def encode(sentences: Iterable[list[str]]) -> Iterator[Vectors]:
            return elmo.stream(sentences, layer=layer, pool=pool, batch_tokens=self.batch_tokens)

        return tokenise, encode

    @property
    def _folder(self) -> Path | None:
        """The folder of texts from the argument or --input, if there is one."""
        given = self.texts if not self.input else (self.input,)
        return Path(given[0]) if len(given) == 1 and not self.text and is_folder(given[0]) else None

    @property
    def _sentences(self) -> tuple[str, ...]:
        """The sentences from the arguments; empty for a single -, which is standard input."""
        return (*(() if self.texts == ("-",) else self.texts), *self.text)

    @property
    def _file(self) -> str | None:
        return None if self.output == "-" else self.output

    @property
    def _json_lines(self) -> bool:
        """Whether JSON lines go to standard output."""
        return self.output == "-" or (self.json and self.output is None)

    def _layer(self, elmo: Elmo) -> str:
        every = self._file is not None and self.format in ("bilm", "allennlp")
        return self.layer or ("all" if every else str(elmo.default_layer))

    def _check(self) -> None:
        from elmokit.output import check_output, writer_for

        for name in ("to", "workers", "shard"):
            if getattr(self, name) is not None:
                raise ElmoError(f"--{name} is for a folder of texts: elmo embed FOLDER --output FOLDER", name)
        for text in self.texts:
            if is_folder(text):
                raise ElmoError(
                    f"{text} is a folder, which must be given alone: give only the folder, or --text {text} for the "
                    "string"
                )
            if is_file(text):
                raise ElmoError(f"{text} is a file: --input {text} reads it, and --text {text} embeds the string")
        if self._sentences and self.input:
            raise ElmoError("give sentences as arguments or with --input, not both")
        if self.input_format != "lines" and (self.segment or self._sentences or self.split != "none"):
            other = "--segment" if self.segment else "--split" if self.split != "none" else "sentences as arguments"
            raise ElmoError(f"input_format {self.input_format} excludes {other}: give --input", "input_format")
        if self.resume and not self._file:
            raise ElmoError("--resume needs --output FILE: it continues the file of an interrupted run")
        if self._file:
            output = check_output(self._file)
            self._refuse_own_sources(output)
            writer_for(output, self.format)
        elif self.format != "elmokit":
            raise ElmoError(f"--format {self.format} is the layout of a file: add --output FILE.h5")

    def _refuse_own_sources(self, output: Path) -> None:
        """Refuse an output that would overwrite a file that this run reads."""
        if not output.exists():
            return
        sources = {name: getattr(self, name) for name in ("input", "model", "options", "vocab")}
        for name, source in sources.items():
            if source in (None, "-"):
                continue
            if any(is_same_file(file, output) for file in (Path(source), *Path(source).glob("*"))):
                raise ElmoError(
                    f"--output must not be a file that --{name} reads, got {self.output}: it would be overwritten"
                )

    def _settings(self, elmo: Elmo) -> dict[str, object]:
        """The settings that determine the vectors."""
        return {
            "model": elmo.fingerprint(mixes=True),
            "layer": self._layer(elmo),
            "pool": self.pool,
            "segment": elmo.text_policy.name_in_files if self.input_format == "lines" else self.input_format,
            "split": self.split,
            "dtype": elmo.dtype,
        }

    def _write_file(
        self,
        elmo: Elmo,
        lines: Iterable[str],
        tokenise: Tokenise,
        encode: Encode,
        output: str | Path,
        *,
        resume: bool,
        on_progress: Callable[[int, int], None],
    ) -> Summary:
        from elmokit.output import embed_lines

        return embed_lines(
            lines,
            tokenise=tokenise,
            encode=encode,
            output=output,
            layout=self.format,
            settings=self._settings(elmo),
            pooled=self.pool != "none",
            store=self.store,
            resume=resume,
            on_progress=on_progress,
        )

    def _report_written(self, summary: Summary) -> None:
        if self.json:
            print(json.dumps({"output": self.output, **asdict(summary)}))
            return
        resumed = f", {summary.resumed_from:,} of them by an earlier run" if summary.resumed_from else ""
        done = f"{counted(summary.sentences, 'sentence')}, {counted(summary.tokens, 'token')}"
        say(f"wrote {self.output}: {done}{resumed}")

    def _embed_folder(self, folder: Path) -> int | None:
        """Embed a folder of texts; the exit status is 2 if some texts could not be embedded."""
        from elmokit.output.embed_folder import check_folders, embed_folder, find_texts, select_shard, start_worker
        from elmokit.progress import ProgressDisplay

        if self._file is None:
            raise ElmoError(
                f"{folder} is a folder: --output FOLDER writes a file of vectors for each of its texts, and "
                f"--text {folder} embeds the string"
            )
        if self.input_format != "lines" and (self.segment or self.split != "none"):
            other = "--segment" if self.segment else "--split"
            raise ElmoError(f"input_format {self.input_format} excludes {other}: leave it out", "input_format")
        output, ending, workers = Path(self._file), (self.to or "h5").removeprefix("."), self.workers or 1
        check_folders(folder, output, ending, self.format)
        files = find_texts(folder)
        files = files if self.shard is None else select_shard(files, self.shard)
        threads = max(1, available_cores() // workers)
        begun = 0.0
        with ProgressDisplay("embedding", "B", total=sum(file.size for file in files)) as display:

            def show(progress: FolderProgress) -> None:
                nonlocal begun
                now = time.monotonic()
                begun = begun or now  # the first call comes when the model is loaded
                done = f"{progress.files:,} of {counted(len(files), 'file')}, {counted(progress.tokens, 'token')}"
                rate = f", {quantity(progress.tokens / (now - begun))} tokens/s" if progress.tokens else ""
                display.update(progress.bytes, extra=done + rate)

            summary = embed_folder(
                files,
                output,
                ending=ending,
                start=lambda number: start_worker(__name__, (self, number), threads),
                workers=workers,
                on_progress=show,
            )
        return self._report_folder(summary)

    def _report_folder(self, summary: FolderSummary) -> int | None:
        problems = {name: message_with_options(error, type(self), {}) for name, error in sorted(summary.failed.items())}
        if self.json:
            print(json.dumps({"output": self.output, **asdict(replace(summary, failed={})), "failed": problems}))
        skipped = f"; {counted(summary.skipped, 'file')} of an earlier run" if summary.skipped else ""
        done = f"{counted(summary.sentences, 'sentence')}, {counted(summary.tokens, 'token')}"
        say(f"wrote {counted(summary.files, 'file')} in {self.output}: {done}{skipped}")
        for name, problem in problems.items():  # errors, which --quiet does not hide
            print(printable(f"elmo: {name}: {problem}"), file=sys.stderr)
        if not problems:
            return None
        print(f"elmo: {counted(len(problems), 'file')} could not be embedded, see above", file=sys.stderr)
        return _FAILED

    def file_embedder(self, number: int) -> tuple[Path, dict[str, object], EmbedFile]:
        """The output, the settings, and the function that embeds a file, in the worker process with this number."""
        elmo = replace(self, device=_device_of(number, self.device)).load(self.segment, self.dtype)

        def embed(path: Path, target: Path, progress: FileProgress) -> Summary:
            tokenise, encode = self._functions(elmo, elmo.unknown_tokens(), progress.read_tokens)
            with InputSentences((), str(path), self.split, self.input_format, progress.read_bytes) as source:
                return self._write_file(elmo, source, tokenise, encode, target, resume=True, on_progress=progress.done)

        settings = {**self._settings(elmo), "store": self.store, "layout": self.format}
        return Path(self.output or ""), settings, embed

    def _print_json(self, lines: Iterable[str], tokenise: Tokenise, encode: Encode, progress: EmbedProgress) -> None:
        """Print one JSON object per sentence, as in a .jsonl file."""
        from elmokit.output.sentence_vectors import VectorShape
        from elmokit.output.writers.jsonl import write_sentence

        waiting: deque[list[str]] = deque()

        def tokens() -> Iterator[list[str]]:
            for line in lines:
                waiting.append(tokenise(line))
                yield waiting[-1]

        total = 0
        for index, vectors in enumerate(encode(tokens())):
            words = waiting.popleft()
            shape = VectorShape.of(vectors, self.pool != "none", self.store)
            write_sentence(sys.stdout, index, words, shape.from_rows(shape.to_rows(vectors, len(words))), shape)
            total += len(words)
            progress.done(index + 1, total)


class InputSentences(Iterator[str]):
    """The sentences to embed: the arguments, or the lines of a file or of standard input, which `split` can split."""

    def __init__(
        self,
        given: Sequence[str],
        path: str | None,
        split: Split,
        input_format: SentenceFormat,
        on_bytes: Callable[[int], None] | None = None,
    ) -> None:
        from elmokit.corpus.lines import InputLines

        self.split, self.input_format, self.lines = split, input_format, 0
        """The number of lines read so far."""
        self._given, self._path, self._file = given, path, None
        if not given:
            closed = path in (None, "-") and sys.stdin is None  # the shell closed stdin with `<&-`
            if closed or (path is None and sys.stdin.isatty()):
                advice = "give sentences as arguments, or --input FILE, or - for standard input"
                raise ElmoError(f"nothing to embed: {advice}")
            self._file = InputLines(path or "-", on_bytes)
        self._sentences = self._read(sentence_lines(self._file or iter(given), input_format))

    def _read(self, lines: Iterable[str]) -> Iterator[str]:
        from elmokit.text.splitting import split_sentences

        paragraph: list[str] = []
        for line in lines:
            self.lines += 1
            if self.split == "none":
                yield line
            elif self.split == "line":
                yield from split_sentences(line)
            elif line.strip():
                paragraph.append(line)
            else:
                yield from split_sentences("\n".join(paragraph))
                paragraph = []
        yield from split_sentences("\n".join(paragraph))

    def __next__(self) -> str:
        return next(self._sentences)

    def __enter__(self) -> InputSentences:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def count_lines(self) -> int | None:
        """The number of lines if it is known or can be counted quickly, otherwise None."""
        from elmokit.text.packed import COMPRESSED_ENDINGS

        path = Path(self._path or "-")
        if self._given:
            return len(self._given)
        if self.input_format.startswith("conll") or self._path in (None, "-"):
            return None
        if not path.is_file() or path.suffix in COMPRESSED_ENDINGS:
            return None
        count, last = 0, b"\n"
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                count, last = count + part.count(b"\n"), part[-1:]
        return count + (last != b"\n")

    def message(self) -> str | None:
        """A note about lines that were not UTF-8."""
        if self._file is None or not self._file.bad_lines:
            return None
        count = f"{self._file.bad_lines} line{'s were' if self._file.bad_lines > 1 else ' was'}"
        return f"{count} not UTF-8 (the first is line {self._file.first_bad_line}); bad bytes were read as U+FFFD"


class EmbedProgress:
    """Shows the number of finished sentences, and the time that a long sentence has taken so far.

    A thread updates the line at regular times, because all sentences of a batch finish at the same moment.
    """

    def __init__(self, source: InputSentences) -> None:
        from elmokit.progress import ProgressDisplay

        self._source, self._by_line = source, source.split != "none"
        self._display = ProgressDisplay("embedding", "lines" if self._by_line else "sentences")
        self._sentences, self._tokens, self._read, self._shown = -1, 0, 0, 0
        self._since = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def add_read(self, tokens: int) -> None:
        """Add the tokens of a sentence that has been read."""
        self._read += tokens

    def done(self, sentences: int, tokens: int) -> None:
        """Set the number of finished sentences and tokens, including those of an earlier run."""
        if self._sentences < 0:
            self._read += tokens
            self._show(sentences, tokens)  # the speed is measured from here
        self._sentences, self._tokens, self._since = sentences, tokens, time.monotonic()

    def _show(self, sentences: int, tokens: int, extra: str = "") -> None:
        self._shown = sentences
        parts = [counted(sentences, "sentence")] if self._by_line else []
        parts += [counted(tokens, "token"), *([extra] if extra else [])]
        self._display.update(self._source.lines if self._by_line else sentences, extra=", ".join(parts))

    def _watch(self) -> None:
        if (total := self._source.count_lines()) is not None:
            self._display.total = total
        while not self._stopped.wait(_UPDATE_SECONDS):
            sentences, tokens = self._sentences, self._tokens
            seconds, waiting = time.monotonic() - self._since, self._read - tokens
            if sentences > self._shown:
                self._show(sentences, tokens)
            elif sentences >= 0 and seconds >= _WAIT_SECONDS and waiting > 0:
                self._show(sentences, tokens, f"{counted(waiting, 'token')} being computed for {duration(seconds)}")

    def close(self) -> None:
        """Stop the updates and remove the progress line from a terminal; a log gets a last line."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            if self._sentences > self._shown:
                self._show(self._sentences, self._tokens)
            self._display.close()

    def __enter__(self) -> EmbedProgress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve() -> None:
    """Run a worker process of `elmo embed FOLDER`."""
    from elmokit.output.embed_folder import serve_files

    serve_files(lambda options: options[0].file_embedder(options[1]))


def _device_of(number: int, device: str | None) -> str | None:
    """The device of a worker: workers take turns on several GPUs, unless the user named one."""
    import torch

    if device not in (None, "cuda") or torch.cuda.device_count() < 2:
        return device
    return f"cuda:{number % torch.cuda.device_count()}"


def is_folder(text: str) -> bool:
    """Whether a text is the name of a folder; "." and ".." are treated as sentences."""
    if text in ("", ".", ".."):
        return False
    with suppress(OSError, ValueError):
        return Path(text).is_dir()
    return False


def is_file(text: str) -> bool:
    """Whether a text is the name of a file."""
    with suppress(OSError, ValueError):  # a long sentence is not a valid name
        return Path(text).is_file()
    return False


def parse_layer(layer: str) -> Layer:
    """The layer for an option value: mix, top, all or a number."""
    if layer in ("mix", "top", "all"):
        return cast("Layer", layer)
    if layer.isascii() and layer.isdigit():
        return int(layer)
    raise ElmoError(f"--layer must be mix, top, all or a number from 0, got {layer!r}")


def _print_lines(lines: Iterable[str], tokenise: Tokenise, encode: Encode) -> None:
    """Print one line per sentence; each is encoded alone, so that it is printed before a pipe sends the next."""
    for line in lines:
        tokens = tokenise(line)
        for vectors in encode([tokens]):
            print(readable(tokens, vectors), flush=True)


def readable(tokens: list[str], vectors: Vectors) -> str:
    """A sentence and its vectors on one line: the shape, the first values and the text."""
    shape = " x ".join(str(size) for size in vectors.shape)
    numbers = " ".join(f"{value:+.4f}" for value in vectors.reshape(-1)[:_SHOWN_VALUES])
    text = " ".join(tokens)
    text = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    return f"[{shape}]  {numbers}{' …' if vectors.size > _SHOWN_VALUES else ''}  {printable(text)}"
