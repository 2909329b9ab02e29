"""From lines of text to one finished file of vectors; a run that is interrupted can be resumed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.output.sentence_vectors import Store
from elmokit.output.spool import Spool, partial_folder
from elmokit.output.writers import writer_for
from elmokit.storage.trusted import follow_links

Encode = Callable[[Iterable[list[str]]], Iterator[NDArray[Any]]]
"""Takes lists of tokens and yields an array for each, in their order; it may read ahead."""


@dataclass(frozen=True)
class Summary:
    """What a finished run wrote."""

    sentences: int
    tokens: int
    resumed_from: int
    """How many of the sentences were done by an earlier run."""


def check_output(output: str | Path) -> Path:
    """The file to write, with links followed; an ElmoError for a path that could not be written at the end."""
    try:
        path = follow_links(Path(output))
        for each in (path, partial_folder(path)):  # whose name is longer and must fit too
            with suppress(FileNotFoundError, NotADirectoryError):
                each.stat()
    except ElmoError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # before Python 3.13 a loop of links is a RuntimeError
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ElmoError(f"output must be a path that can be used, got {output} ({reason})", "output") from error
    if path.is_dir():
        advice = f"add a name such as {path / 'vectors.h5'}"
        raise ElmoError(f"output must be a file, got the folder {output}: {advice}", "output")
    if path.exists() and not path.is_file():
        raise ElmoError(f"output must be an ordinary file, got {output}: choose another", "output")
    if not path.parent.is_dir():
        raise ElmoError(f"the folder of output must exist, got {output}: create {path.parent} first", "output")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        advice = "choose another or change its mode"
        raise ElmoError(f"the folder of output must be writable, got {path.parent}: {advice}", "output")
    return path


def embed_lines(
    lines: Iterable[str],
    *,
    tokenise: Callable[[str], list[str]],
    encode: Encode,
    output: str | Path,
    layout: str = "elmokit",
    settings: Mapping[str, object],
    pooled: bool = False,
    store: Store = "float32",
    resume: bool = False,
    commit_bytes: int = 64 << 20,
    commit_seconds: float = 5.0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Encode each line as a sentence and write all of them to one file, which appears whole or not at all.

    `encode` yields arrays [T, D] or [L+1, T, D], or with `pooled` [D] or [L+1, D]; `store` is their dtype on the disk.
    They are collected in
    OUTPUT.partial, and flushed to the disk every `commit_bytes` or `commit_seconds` and when an exception ends the run.
    `resume` continues from there if the settings and the lines already done are the same. `on_progress` is called with
    the number of sentences and tokens done, including those of the earlier run.
    """
    target = check_output(output)
    writer = writer_for(target, layout)
    with Spool(target, settings=settings, pooled=pooled, store=store, resume=resume) as spool:
        source = iter(lines)
        spool.skip_committed(source)
        resumed_from = spool.done.sentences
        if spool.finished:
            if next(source, None) is not None:
                raise spool.input_changed()
            spool.remove()
        else:
            try:
                for _ in _append_all(spool, source, tokenise, encode):
                    if on_progress:
                        on_progress(spool.done.sentences, spool.done.tokens)
                    spool.commit_if_due(commit_bytes, commit_seconds)
            finally:
                spool.commit()
            spool.publish(writer)
    return Summary(spool.done.sentences, spool.done.tokens, resumed_from)


def _append_all(
    spool: Spool, source: Iterator[str], tokenise: Callable[[str], list[str]], encode: Encode
) -> Iterator[None]:
    """Append the remaining lines; yields before the first and after each."""
    waiting: deque[tuple[str, list[str]]] = deque()  # as many as encode reads ahead

    def tokens() -> Iterator[list[str]]:
        for line in source:
            words = tokenise(line)
            waiting.append((line, words))
            yield words

    arrays = encode(tokens())
    try:
        yield
        for vectors in arrays:
            if not waiting:
                raise RuntimeError("encode yielded more arrays than it took sentences")
            spool.append(*waiting.popleft(), vectors)
            yield
        if waiting or next(source, None) is not None:
            raise RuntimeError(f"encode ended after {spool.done.sentences} sentences, before its input did")
    finally:
        if isinstance(arrays, Generator):
            arrays.close()  # frees its threads and device memory now
