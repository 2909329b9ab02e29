"""What `elmo embed` does: sentences from arguments, a file or stdin; vectors to the screen or to a file."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from elmokit.elmo import Elmo, Layer
from elmokit.errors import ElmoError
from elmokit.output import InputLines, check_output, embed_lines, read_lines, writer_for
from elmokit.pooling import Pool
from elmokit.text.tokens import SegmenterName, segmenter, words

_SHOWN_NUMBERS = 5
_SHOWN_CHARACTERS = 48
_LOG_EVERY = 10_000


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
    segment: SegmenterName
    resume: bool
    batch_tokens: int
    device: str | None
    dtype: str


def run_embed(request: EmbedRequest) -> None:
    """Check what can be checked at once, load the model, embed."""
    layer = parse_layer(request.layer)
    tokenise = _tokeniser(request.segment)
    if request.texts and request.input:
        raise ElmoError("give sentences as arguments or with --input, not both")
    if request.resume and (not request.output or not request.input or request.input == "-"):
        raise ElmoError("--resume goes with --input FILE and --output FILE")
    if request.output:
        writer_for(check_output(request.output), request.format)
    elif request.format != "elmokit":
        raise ElmoError(f"--format {request.format} is the layout of a file: add --output FILE.h5")
    with _lines(request) as lines:
        elmo = Elmo.load(
            request.model, options=request.options, vocab=request.vocab, device=request.device, dtype=request.dtype
        )
        pool = None if request.pool == "none" else cast(Pool, request.pool)

        def encode(sentences: Iterable[list[str]]) -> Iterator[NDArray[np.float32]]:
            return elmo.stream(sentences, layer=layer, pool=pool, batch_tokens=request.batch_tokens)

        if request.output:
            _to_file(request, elmo, lines, tokenise, encode)
        else:
            _to_screen(lines, tokenise, encode)
        if isinstance(lines, InputLines) and lines.bad_lines:
            count = f"{lines.bad_lines} line{'s were' if lines.bad_lines > 1 else ' was'}"
            print(
                f"elmo: {count} not UTF-8 (the first is line {lines.first_bad_line}); bad bytes were read as U+FFFD",
                file=sys.stderr,
            )


def parse_layer(layer: str) -> Layer:
    """mix, top, all or a number."""
    if layer in ("mix", "top", "all"):
        return cast(Layer, layer)
    if layer.isascii() and layer.isdigit():
        return int(layer)
    raise ElmoError(f"--layer must be mix, top, all or a number from 0, got {layer!r}")


def _tokeniser(name: SegmenterName) -> Callable[[str], list[str]]:
    segment = segmenter(name)
    return lambda line: words(segment(line))


@contextmanager
def _lines(request: EmbedRequest) -> Iterator[Iterable[str]]:
    if request.texts and request.texts != ["-"]:
        yield request.texts
        return
    if request.input is None and sys.stdin.isatty():
        raise ElmoError("nothing to embed: give sentences as arguments, or --input FILE, or - for standard input")
    with read_lines(request.input or "-") as lines:
        yield lines


def _to_file(
    request: EmbedRequest,
    elmo: Elmo,
    lines: Iterable[str],
    tokenise: Callable[[str], list[str]],
    encode: Callable[[Iterable[list[str]]], Iterator[NDArray[np.float32]]],
) -> None:
    assert request.output is not None
    settings = {
        "model": fingerprint(elmo),
        "layer": request.layer,
        "pool": request.pool,
        "segment": request.segment,
        "dtype": request.dtype,
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
    print(
        f"wrote {request.output}: {summary.sentences:,} sentences, {summary.tokens:,} tokens{resumed}", file=sys.stderr
    )


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, a log line now and then elsewhere."""
    if sys.stderr.isatty():
        with tqdm(unit=" sentences", file=sys.stderr) as bar:

            def update(sentences: int, tokens: int) -> None:
                bar.set_postfix_str(f"{tokens:,} tokens", refresh=False)
                bar.update(sentences - bar.n)

            yield update
        return

    def log(sentences: int, tokens: int) -> None:
        if sentences % _LOG_EVERY == 0:
            print(f"{sentences:,} sentences, {tokens:,} tokens", file=sys.stderr, flush=True)

    yield log


def _to_screen(
    lines: Iterable[str],
    tokenise: Callable[[str], list[str]],
    encode: Callable[[Iterable[list[str]]], Iterator[NDArray[np.float32]]],
) -> None:
    """One readable line a sentence: shape, the first numbers, the text."""
    shown: list[list[str]] = []

    def tokens() -> Iterator[list[str]]:
        for line in lines:
            shown.append(tokenise(line))
            yield shown[-1]

    for vectors in encode(tokens()):
        print(readable(shown.pop(0), vectors), flush=True)


def readable(tokens: list[str], vectors: NDArray[np.float32]) -> str:
    """A sentence and its vectors on one line."""
    shape = " x ".join(str(size) for size in vectors.shape)
    numbers = " ".join(f"{value:+.4f}" for value in vectors.reshape(-1)[:_SHOWN_NUMBERS])
    text = " ".join(tokens)
    text = text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
    printable = "".join(c if c.isprintable() else "\ufffd" for c in text)
    return f"[{shape}]  {numbers}{' …' if vectors.size > _SHOWN_NUMBERS else ''}  {printable}"


def fingerprint(elmo: Elmo) -> str:
    """A short name that two models share only if all their numbers are equal."""
    digest = hashlib.blake2b(json.dumps(elmo.config.to_dict(), sort_keys=True).encode(), digest_size=16)
    state: dict[str, Any] = {**elmo.bilm.state_dict(), **elmo.mixes.state_dict()}
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
