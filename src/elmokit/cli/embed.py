"""`elmo embed`: vectors for sentences, on the screen or in a file."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from elmokit.cli.registry import command
from elmokit.cli.shared import AS_IN_TRAINING, SEGMENT_HELP, SPLIT_HELP, ModelOptions, Split, is_same_file, say
from elmokit.corpus.lines import SentenceFormat, given_words, sentence_lines
from elmokit.errors import ElmoError
from elmokit.messages import counted, duration, printable
from elmokit.options import argument, option
from elmokit.text.tokens import SegmenterName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from elmokit.elmo import Elmo
    from elmokit.encode import Layer

    Vectors = NDArray[np.float32]
    Tokenise = Callable[[str], list[str]]
    Encode = Callable[[Iterable[list[str]]], Iterator[Vectors]]

_SHOWN_NUMBERS = 5
_SHOWN_CHARACTERS = 48
_INTERRUPTED = 130
_SHOW_SECONDS, _QUIET_SECONDS = 0.5, 3.0
"""The progress line is renewed after the first; after the second without a sentence it says what is computed."""


@command("embed")
@dataclass(frozen=True, kw_only=True)
class EmbedCommand(ModelOptions):
    """Turn sentences into vectors. They are shown line by line, or written to a file."""

    texts: tuple[str, ...] = argument("Sentences, each as one argument.", "TEXT", default=(), blank=True)
    text: tuple[str, ...] = option(
        (), "A sentence, even if a file has that name; may be repeated.", metavar="TEXT", blank=True
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
        "File to write: .h5, .npz, .npy, .parquet, .jsonl, .csv or .txt; - writes JSON lines to standard output.",
        metavar="FILE",
        shown="one line per sentence on screen",
    )
    layer: str | None = option(
        None,
        "Layer whose vectors to give: mix is the model's weighted mean, 0 the lowest layer.",
        metavar="mix|top|all|N",
        shown="top for a Transformer, mix for an LSTM; all for --format bilm and allennlp",
    )
    pool: Literal["none", "mean", "max", "first", "last"] = option(
        "none", "How to make one vector per sentence from its tokens; none gives one vector per token."
    )
    format: Literal["elmokit", "bilm", "allennlp", "manylangs"] = option("elmokit", "Layout of an HDF5 output.")
    store: Literal["float32", "float16"] = option(
        "float32", "dtype of the numbers in the output; float16 halves the file."
    )
    segment: SegmenterName | None = option(None, SEGMENT_HELP, shown=AS_IN_TRAINING)
    resume: bool = option(False, "Continue an output that was interrupted.")
    batch_tokens: int | None = option(None, "Number of tokens per batch.", least=1, shown="chosen for the device")
    dtype: Literal["float32", "float64", "float16", "bfloat16", "int8"] | None = option(
        None, "dtype to compute in; int8 is for the CPU.", shown="float32, or int8 if the model is stored so"
    )
    json: bool = option(False, "Print JSON: one line per sentence, or with --output FILE what was written.")

    def run(self) -> None:
        """Check what can be checked at once, load the model, embed; Ctrl-C ends in a sentence and exit status 130."""
        from elmokit.output import check_output
        from elmokit.output.embed_lines import partial_folder

        try:
            self._embed()
        except KeyboardInterrupt:
            stored = self._file and partial_folder(check_output(self._file)).exists()
            say(f"elmo: interrupted{'; the same command with --resume continues' if stored else ''}")
            sys.exit(_INTERRUPTED)

    def _embed(self) -> None:
        from elmokit.text.policy import TextPolicy

        if self.layer is not None:
            parse_layer(self.layer)
        TextPolicy(self.segment).split("")  # a missing extra is reported before the model is loaded
        self._check()
        with ExitStack() as stack:
            source = stack.enter_context(InputSentences(self._sentences, self.input, self.split, self.input_format))
            progress = None
            if self._file or self._json_lines:
                progress = stack.enter_context(EmbedProgress(source))  # loading a model takes a while too
            elmo = self.load(self.segment, self.dtype)
            layer = parse_layer(self._layer(elmo))
            unknown = elmo.unknown_tokens()
            pool = None if self.pool == "none" else self.pool

            def tokenise(line: str) -> list[str]:
                tokens = elmo.text_policy.split(line) if self.input_format == "lines" else given_words(line)
                unknown.add(tokens)
                if progress is not None:
                    progress.reading(len(tokens))
                return tokens

            def encode(sentences: Iterable[list[str]]) -> Iterator[Vectors]:
                return elmo.stream(sentences, layer=layer, pool=pool, batch_tokens=self.batch_tokens)

            if progress is None:
                _print_lines(source, tokenise, encode)
            elif self._file:
                self._write_file(elmo, source, tokenise, encode, progress)
            else:
                self._print_json(source, tokenise, encode, progress)
        if message := unknown.message():
            say(f"elmo: {message}")
        if message := source.message():
            say(f"elmo: {message}")

    @property
    def _sentences(self) -> tuple[str, ...]:
        """The sentences that were given as arguments; a lone - is standard input."""
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
        return self.layer or ("all" if every else elmo.default_layer)

    def _check(self) -> None:
        from elmokit.output import check_output, writer_for

        for text in self.texts:
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
        """The finished output replaces the file of its name, which must not be one that this run reads."""
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

    def _write_file(
        self, elmo: Elmo, lines: Iterable[str], tokenise: Tokenise, encode: Encode, progress: EmbedProgress
    ) -> None:
        from elmokit.output import embed_lines

        assert self._file is not None
        settings = {
            "model": elmo.fingerprint(mixes=True),
            "layer": self._layer(elmo),
            "pool": self.pool,
            "segment": elmo.text_policy.name_in_files if self.input_format == "lines" else self.input_format,
            "split": self.split,
            "dtype": elmo.dtype,
        }
        summary = embed_lines(
            lines,
            tokenise=tokenise,
            encode=encode,
            output=self._file,
            layout=self.format,
            settings=settings,
            pooled=self.pool != "none",
            store=self.store,
            resume=self.resume,
            on_progress=progress.done,
        )
        progress.close()
        if self.json:
            print(json.dumps({"output": self.output, **asdict(summary)}))
            return
        resumed = f", {summary.resumed_from:,} of them by an earlier run" if summary.resumed_from else ""
        done = f"{counted(summary.sentences, 'sentence')}, {counted(summary.tokens, 'token')}"
        say(f"wrote {self.output}: {done}{resumed}")

    def _print_json(self, lines: Iterable[str], tokenise: Tokenise, encode: Encode, progress: EmbedProgress) -> None:
        """One JSON object per sentence, as in a .jsonl file."""
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
    """The sentences to embed: arguments, or the lines of a file or of standard input, split if that is asked for."""

    def __init__(self, given: Sequence[str], path: str | None, split: Split, form: SentenceFormat) -> None:
        from elmokit.corpus.lines import InputLines

        self.split, self.form, self.lines = split, form, 0
        """How many lines have been read by now."""
        self._given, self._path, self._file = given, path, None
        if not given:
            closed = path in (None, "-") and sys.stdin is None  # by the shell, with `<&-`
            if closed or (path is None and sys.stdin.isatty()):
                advice = "give sentences as arguments, or --input FILE, or - for standard input"
                raise ElmoError(f"nothing to embed: {advice}")
            self._file = InputLines(path or "-")
        self._sentences = self._read(sentence_lines(self._file or iter(given), form))

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
        """The number of lines, if it is known or quickly counted."""
        from elmokit.text.packed import PACKED_ENDINGS

        path = Path(self._path or "-")
        if self._given:
            return len(self._given)
        if self.form.startswith("conll") or self._path in (None, "-"):
            return None
        if not path.is_file() or path.suffix in PACKED_ENDINGS:
            return None
        count, last = 0, b"\n"
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                count, last = count + part.count(b"\n"), part[-1:]
        return count + (last != b"\n")

    def message(self) -> str | None:
        """What is to be said about lines that were not UTF-8."""
        if self._file is None or not self._file.bad_lines:
            return None
        count = f"{self._file.bad_lines} line{'s were' if self._file.bad_lines > 1 else ' was'}"
        return f"{count} not UTF-8 (the first is line {self._file.first_bad_line}); bad bytes were read as U+FFFD"


class EmbedProgress:
    """Shows how many sentences are done, and of a long one for how long it has been computed.

    A thread shows it: sentences come many at once, and between the first and the last of them no speed is right.
    """

    def __init__(self, source: InputSentences) -> None:
        from elmokit.progress import ProgressDisplay

        self._source, self._by_line = source, source.split != "none"
        self._display = ProgressDisplay("embedding", "lines" if self._by_line else "sentences")
        self._sentences, self._tokens, self._read, self._shown = -1, 0, 0, 0
        self._since = time.monotonic()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def reading(self, tokens: int) -> None:
        """A sentence has been read."""
        self._read += tokens

    def done(self, sentences: int, tokens: int) -> None:
        """Take how many sentences and tokens are done, those of an earlier run included."""
        if self._sentences < 0:
            self._read += tokens
            self._show(sentences, tokens)  # the speed is counted from here
        self._sentences, self._tokens, self._since = sentences, tokens, time.monotonic()

    def _show(self, sentences: int, tokens: int, extra: str = "") -> None:
        self._shown = sentences
        parts = [counted(sentences, "sentence")] if self._by_line else []
        parts += [counted(tokens, "token"), *([extra] if extra else [])]
        self._display.update(self._source.lines if self._by_line else sentences, extra=", ".join(parts))

    def _watch(self) -> None:
        if (total := self._source.count_lines()) is not None:
            self._display.total = total
        while not self._stopped.wait(_SHOW_SECONDS):
            sentences, tokens = self._sentences, self._tokens
            seconds, waiting = time.monotonic() - self._since, self._read - tokens
            if sentences > self._shown:
                self._show(sentences, tokens)
            elif sentences >= 0 and seconds >= _QUIET_SECONDS and waiting > 0:
                self._show(sentences, tokens, f"{counted(waiting, 'token')} being computed for {duration(seconds)}")

    def close(self) -> None:
        """Remove the line from a terminal; a log gets the last one."""
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


def is_file(text: str) -> bool:
    """Whether a text is the name of a file."""
    with suppress(OSError, ValueError):  # a long sentence is no name
        return Path(text).is_file()
    return False


def parse_layer(layer: str) -> Layer:
    """mix, top, all or a number."""
    if layer in ("mix", "top", "all"):
        return cast("Layer", layer)
    if layer.isascii() and layer.isdigit():
        return int(layer)
    raise ElmoError(f"--layer must be mix, top, all or a number from 0, got {layer!r}")


def _print_lines(lines: Iterable[str], tokenise: Tokenise, encode: Encode) -> None:
    """One readable line per sentence, each encoded alone, so that it shows before the next comes through a pipe."""
    for line in lines:
        tokens = tokenise(line)
        for vectors in encode([tokens]):
            print(readable(tokens, vectors), flush=True)


def readable(tokens: list[str], vectors: Vectors) -> str:
    """A sentence and its vectors on one line: the shape, the first numbers, the text."""
    shape = " x ".join(str(size) for size in vectors.shape)
    numbers = " ".join(f"{value:+.4f}" for value in vectors.reshape(-1)[:_SHOWN_NUMBERS])
    text = " ".join(tokens)
    text = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    return f"[{shape}]  {numbers}{' …' if vectors.size > _SHOWN_NUMBERS else ''}  {printable(text)}"
