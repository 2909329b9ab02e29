"""`elmo embed`: vectors for sentences, on the screen or in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from elmokit.cli.registry import command
from elmokit.cli.shared import AS_IN_TRAINING, SEGMENT_HELP, ModelOptions, is_same_file, say
from elmokit.corpus.sentence_formats import SentenceFormat, given_words, sentence_lines
from elmokit.errors import ElmoError
from elmokit.messages import counted, printable
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
# They would change the direction of what a terminal shows after them.


@command("embed")
@dataclass(frozen=True, kw_only=True)
class EmbedCommand(ModelOptions):
    """Turn sentences into vectors. They are shown line by line, or written to a file."""

    texts: tuple[str, ...] = argument("Sentences, each as one argument.", "TEXT", default=(), blank=True)
    input: str | None = option(
        None, "Text with one sentence per line, plain or compressed; - is standard input.", metavar="FILE"
    )
    input_format: SentenceFormat = option(
        "lines", "What --input contains: text, words with tabs between them, or CoNLL columns."
    )
    output: str | None = option(
        None,
        "File to write: .h5, .npz, .parquet, .jsonl or .txt.",
        metavar="FILE",
        shown="one line per sentence on screen",
    )
    layer: str | None = option(
        None,
        "Layer whose vectors to give: mix is the model's weighted mean, 0 the lowest layer.",
        metavar="mix|top|all|N",
        shown="mix; all for --format bilm and allennlp",
    )
    pool: Literal["none", "mean", "max", "first", "last"] = option(
        "none", "How to make one vector per sentence from its tokens; none gives one vector per token."
    )
    format: Literal["elmokit", "bilm", "allennlp", "manylangs"] = option("elmokit", "Layout of an HDF5 output.")
    segment: SegmenterName | None = option(None, SEGMENT_HELP, shown=AS_IN_TRAINING)
    resume: bool = option(False, "Continue an output that was interrupted.")
    batch_tokens: int | None = option(None, "Number of tokens per batch.", least=1, shown="chosen for the device")
    dtype: Literal["float32", "float64", "float16", "bfloat16", "int8"] | None = option(
        None, "dtype to compute in; int8 is for the CPU.", shown="float32, or int8 if the model is stored so"
    )

    def run(self) -> None:
        """Check what can be checked at once, load the model, embed; Ctrl-C ends in a sentence and exit status 130."""
        from elmokit.output import check_output
        from elmokit.output.spool import partial_folder

        try:
            self._embed()
        except KeyboardInterrupt:
            stored = self.output and partial_folder(check_output(self.output)).exists()
            say(f"elmo: interrupted{'; the same command with --resume continues' if stored else ''}")
            sys.exit(_INTERRUPTED)

    def _embed(self) -> None:
        from elmokit.corpus.lines import InputLines
        from elmokit.elmo import Elmo
        from elmokit.text.policy import TextPolicy

        layer = parse_layer(self._layer)
        TextPolicy(self.segment).split("")  # a missing extra is reported before the model is loaded
        self._check()
        with self._lines() as lines:
            elmo = Elmo.load(
                self.model,
                options=self.options,
                vocab=self.vocab,
                device=self.device,
                dtype=self.dtype,
                segment=self.segment,
            )
            unknown = elmo.unknown_tokens()
            pool = None if self.pool == "none" else self.pool

            def tokenise(line: str) -> list[str]:
                tokens = elmo.text_policy.split(line) if self.input_format == "lines" else given_words(line)
                unknown.add(tokens)
                return tokens

            def encode(sentences: Iterable[list[str]]) -> Iterator[Vectors]:
                return elmo.stream(sentences, layer=layer, pool=pool, batch_tokens=self.batch_tokens)

            sentences = sentence_lines(lines, self.input_format)
            if self.output:
                self._write_file(elmo, sentences, tokenise, encode)
            else:
                _print_lines(sentences, tokenise, encode)
            if message := unknown.message():
                say(f"elmo: {message}")
            if isinstance(lines, InputLines) and lines.bad_lines:
                count = f"{lines.bad_lines} line{'s were' if lines.bad_lines > 1 else ' was'}"
                first = f"the first is line {lines.first_bad_line}"
                say(f"elmo: {count} not UTF-8 ({first}); bad bytes were read as U+FFFD")

    @property
    def _layer(self) -> str:
        return self.layer or ("all" if self.output is not None and self.format in ("bilm", "allennlp") else "mix")

    def _check(self) -> None:
        from elmokit.output import check_output, writer_for

        if self.texts and self.input:
            raise ElmoError("give sentences as arguments or with --input, not both")
        if self.input_format != "lines" and (self.segment or tuple(self.texts) not in ((), ("-",))):
            other = "--segment, which splits text" if self.segment else "sentences as arguments: give --input"
            raise ElmoError(f"input_format {self.input_format} does not go with {other}", "input_format")
        if self.resume and not self.output:
            raise ElmoError("--resume needs --output FILE: it continues the file of an interrupted run")
        if self.output:
            output = check_output(self.output)
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

    @contextmanager
    def _lines(self) -> Iterator[Iterable[str]]:
        from elmokit.corpus.lines import InputLines

        if self.texts and tuple(self.texts) != ("-",):
            yield self.texts
            return
        closed = self.input in (None, "-") and sys.stdin is None  # by the shell, with `<&-`
        if closed or (self.input is None and sys.stdin.isatty()):
            raise ElmoError("nothing to embed: give sentences as arguments, or --input FILE, or - for standard input")
        with InputLines(self.input or "-") as lines:
            yield lines

    def _total(self, lines: Iterable[str]) -> int | None:
        """The number of sentences, if it is known or quickly counted."""
        from elmokit.text.packed import PACKED_ENDINGS

        if lines is self.texts:
            return len(self.texts)
        path = Path(self.input or "-")
        conll = self.input_format.startswith("conll")
        if conll or self.input in (None, "-") or not path.is_file() or path.suffix in PACKED_ENDINGS:
            return None
        count, last = 0, b"\n"
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                count, last = count + part.count(b"\n"), part[-1:]
        return count + (last != b"\n")

    def _write_file(self, elmo: Elmo, lines: Iterable[str], tokenise: Tokenise, encode: Encode) -> None:
        from elmokit.output import embed_lines
        from elmokit.progress import ProgressDisplay

        assert self.output is not None
        settings = {
            "model": elmo.fingerprint(mixes=True),
            "layer": self._layer,
            "pool": self.pool,
            "segment": elmo.text_policy.name_in_files if self.input_format == "lines" else self.input_format,
            "dtype": elmo.dtype,
        }
        with ProgressDisplay("embedding", "sentences", total=self._total(lines)) as display:
            summary = embed_lines(
                lines,
                tokenise=tokenise,
                encode=encode,
                output=self.output,
                layout=self.format,
                settings=settings,
                pooled=self.pool != "none",
                resume=self.resume,
                on_progress=lambda sentences, tokens: display.update(sentences, extra=counted(tokens, "token")),
            )
        resumed = f", {summary.resumed_from:,} of them by an earlier run" if summary.resumed_from else ""
        done = f"{counted(summary.sentences, 'sentence')}, {counted(summary.tokens, 'token')}"
        say(f"wrote {self.output}: {done}{resumed}")


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
