"""What `elmo embed` does: sentences from arguments, a file or stdin; vectors to the screen or to a file."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from elmokit.corpus.lines import InputLines
from elmokit.elmo import Elmo
from elmokit.encode import Layer, Pool
from elmokit.errors import ElmoError
from elmokit.fingerprint import former_fingerprint
from elmokit.messages import counted
from elmokit.output import check_output, embed_lines, writer_for
from elmokit.output.spool import partial_folder, read_settings
from elmokit.text.policy import TextPolicy
from elmokit.text.tokens import SegmenterName, WordSplitter
from elmokit.text.vocab import UnknownTokens

_SHOWN_NUMBERS = 5
_SHOWN_CHARACTERS = 48
_LOG_EVERY = 10_000
_INTERRUPTED = 130
# They would turn around what a terminal shows after them.
_BIDI_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


@dataclass(frozen=True)
class EmbedRequest:
    """The options of `elmo embed`."""

    texts: list[str]
    model: str
    options: str | None
    vocab: str | None
    input: str | None
    output: str | None
    layer: str
    pool: str
    format: str
    segment: SegmenterName | None
    """None: as the model's training text was read, or at white space where that is not known."""
    resume: bool
    batch_tokens: int | None
    device: str | None
    dtype: str | None
    """None: float32, or int8 for a model that was saved so."""


def run_embed(request: EmbedRequest) -> None:
    """Check what can be checked at once, load the model, embed; Ctrl-C ends in a sentence and exit status 130."""
    try:
        _run(request)
    except KeyboardInterrupt:
        kept = request.output and partial_folder(check_output(request.output)).exists()
        print(f"elmo: interrupted{'; --resume goes on from here' if kept else ''}", file=sys.stderr)
        sys.exit(_INTERRUPTED)


def _run(request: EmbedRequest) -> None:
    layer = parse_layer(request.layer)
    TextPolicy(request.segment).split("")  # a missing extra is reported before the model is loaded
    if request.texts and request.input:
        raise ElmoError("give sentences as arguments or with --input, not both")
    if request.resume and not request.output:
        raise ElmoError("--resume goes with --output FILE: it continues the file of an interrupted run")
    if request.output:
        _refuse_own_sources(request, check_output(request.output))
        writer_for(check_output(request.output), request.format)
    elif request.format != "elmokit":
        raise ElmoError(f"--format {request.format} is the layout of a file: add --output FILE.h5")
    with _lines(request) as lines:
        elmo = Elmo.load(
            request.model,
            options=request.options,
            vocab=request.vocab,
            device=request.device,
            dtype=request.dtype,
            segment=request.segment,
        )
        unknown = elmo.unknown_tokens()
        tokenise = _counting(elmo.text_policy.split, unknown)
        pool = None if request.pool == "none" else cast(Pool, request.pool)

        def encode(sentences: Iterable[list[str]]) -> Iterator[NDArray[np.float32]]:
            return elmo.stream(sentences, layer=layer, pool=pool, batch_tokens=request.batch_tokens)

        if request.output:
            _to_file(request, elmo, lines, tokenise, encode)
        else:
            _to_screen(lines, tokenise, encode)
        if message := unknown.message():
            print(f"elmo: {message}", file=sys.stderr)
        if isinstance(lines, InputLines) and lines.bad_lines:
            count = f"{lines.bad_lines} line{'s were' if lines.bad_lines > 1 else ' was'}"
            print(
                f"elmo: {count} not UTF-8 (the first is line {lines.first_bad_line}); bad bytes were read as U+FFFD",
                file=sys.stderr,
            )


def _refuse_own_sources(request: EmbedRequest, output: Path) -> None:
    """The finished output replaces the file of its name, which must not be one that this run reads."""
    if not output.exists():
        return
    sources = {
        "--input": None if request.input == "-" else request.input,
        "--model": request.model,
        "--options": request.options,
        "--vocab": request.vocab,
    }
    for option, source in sources.items():
        if source is not None and any(_same(file, output) for file in (Path(source), *Path(source).glob("*"))):
            raise ElmoError(
                f"--output must not be a file that {option} reads, got {request.output}: it would be written over"
            )


def _same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:  # what cannot be found or read is for its reader to refuse
        return False


def parse_layer(layer: str) -> Layer:
    """mix, top, all or a number."""
    if layer in ("mix", "top", "all"):
        return cast(Layer, layer)
    if layer.isascii() and layer.isdigit():
        return int(layer)
    raise ElmoError(f"--layer must be mix, top, all or a number from 0, got {layer!r}")


def _counting(tokenise: WordSplitter, unknown: UnknownTokens) -> WordSplitter:
    def counted_tokens(line: str) -> list[str]:
        tokens = tokenise(line)
        unknown.add(tokens)
        return tokens

    return counted_tokens


@contextmanager
def _lines(request: EmbedRequest) -> Iterator[Iterable[str]]:
    if request.texts and request.texts != ["-"]:
        yield request.texts
        return
    closed = request.input in (None, "-") and sys.stdin is None  # by the shell, with `<&-`
    if closed or (request.input is None and sys.stdin.isatty()):
        raise ElmoError("nothing to embed: give sentences as arguments, or --input FILE, or - for standard input")
    with InputLines(request.input or "-") as lines:
        yield lines


def _to_file(
    request: EmbedRequest,
    elmo: Elmo,
    lines: Iterable[str],
    tokenise: WordSplitter,
    encode: Callable[[Iterable[list[str]]], Iterator[NDArray[np.float32]]],
) -> None:
    assert request.output is not None
    settings = {
        "model": _model_name(elmo, request),
        "layer": request.layer,
        "pool": request.pool,
        "segment": elmo.text_policy.name_in_files,
        "dtype": elmo.dtype,
    }
    with _progress() as on_progress:
        summary = embed_lines(
            lines,
            tokenise=tokenise,
            encode=encode,
            output=request.output,
            layout=request.format,
            settings=settings,
            pooled=request.pool != "none",
            resume=request.resume,
            on_progress=on_progress,
        )
    resumed = f", {summary.resumed_from:,} of them by an earlier run" if summary.resumed_from else ""
    done = f"{counted(summary.sentences, 'sentence')}, {counted(summary.tokens, 'token')}"
    print(f"wrote {request.output}: {done}{resumed}", file=sys.stderr)


def _model_name(elmo: Elmo, request: EmbedRequest) -> str:
    """The model's fingerprint, or the former one where the run to resume was begun by an earlier release."""
    assert request.output is not None
    name = elmo.fingerprint(mixes=True)
    earlier = read_settings(partial_folder(check_output(request.output))) if request.resume else {}
    before = earlier.get("settings", {}).get("model", name)
    return before if before != name and before == former_fingerprint(elmo.checkpoint()) else name


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, a log line now and then elsewhere."""
    if sys.stderr.isatty():
        with tqdm(unit=" sentences", file=sys.stderr) as bar:

            def update(sentences: int, tokens: int) -> None:
                bar.set_postfix_str(counted(tokens, "token"), refresh=False)
                bar.update(sentences - bar.n)

            yield update
        return

    def log(sentences: int, tokens: int) -> None:
        if sentences % _LOG_EVERY == 0:
            print(f"{counted(sentences, 'sentence')}, {counted(tokens, 'token')}", file=sys.stderr, flush=True)

    yield log


def _to_screen(
    lines: Iterable[str],
    tokenise: WordSplitter,
    encode: Callable[[Iterable[list[str]]], Iterator[NDArray[np.float32]]],
) -> None:
    """One readable line a sentence: shape, the first numbers, the text.

    Each is encoded alone, so that it shows before the next one has come through a pipe.
    """
    for line in lines:
        tokens = tokenise(line)
        for vectors in encode([tokens]):
            print(readable(tokens, vectors), flush=True)


def readable(tokens: list[str], vectors: NDArray[np.float32]) -> str:
    """A sentence and its vectors on one line."""
    shape = " x ".join(str(size) for size in vectors.shape)
    numbers = " ".join(f"{value:+.4f}" for value in vectors.reshape(-1)[:_SHOWN_NUMBERS])
    text = " ".join(tokens)
    text = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    printable = "".join(c if _showable(c) else "\ufffd" for c in text)
    return f"[{shape}]  {numbers}{' …' if vectors.size > _SHOWN_NUMBERS else ''}  {printable}"


def _showable(character: str) -> bool:
    """Printable, or of the invisible kind that joins emoji and shapes letters."""
    return character.isprintable() or (unicodedata.category(character) == "Cf" and character not in _BIDI_CONTROLS)
