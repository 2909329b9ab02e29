"""An index of occurrences, built in one pass with bounded memory and resumed where an earlier run was ended.

The rows of all occurrences are known before a vector is computed, so each vector is written where it belongs, and
a single number says what is done: the sentences whose vectors are on the disk.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.choosing import Choice
from elmokit.analyse.coarse import FROM_ROWS, SIZE, Projection
from elmokit.analyse.index import DESCRIPTION, FORMAT, VERSION, OccurrenceIndex, Rows, check_stateless, mapped
from elmokit.analyse.index_text import nothing_kept, write_text
from elmokit.analyse.joining import WordJoiner
from elmokit.analyse.vectors import Floats, Packed, pack
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.storage import atomic
from elmokit.storage.array_file import OffsetFile
from elmokit.storage.atomic import disk_errors, sync
from elmokit.storage.locks import folder_lock
from elmokit.storage.trusted import WorkFolder

if TYPE_CHECKING:
    from elmokit.elmo import Elmo

_PLAN, _DONE = "plan.json", "done.json"
_BUFFER_BYTES = 1 << 25
_SYNC_SECONDS = 20.0
_ROWS_AT_ONCE = 1 << 14
_TELL_EVERY = 32
"""Sentences."""
_SPARE_BYTES = 1 << 26
"""Left free on the disk beside the index."""


class BuildProgress(NamedTuple):
    """How far an index has come."""

    sentences: int
    total: int
    rows: int
    """Vectors in all."""


def build_index(
    elmo: Elmo,
    corpus: PreparedCorpus,
    folder: str | Path,
    *,
    layer: Literal["mix", "top"] | int = "top",
    choice: Choice | None = None,
    batch_tokens: int | None = None,
    on_progress: Callable[[BuildProgress], None] | None = None,
) -> OccurrenceIndex:
    """The index of a corpus in a folder, opened where it is there already, and gone on with where it is half built.

    Only sentences with an occurrence that the choice keeps are encoded. In memory are the list of words and 16 bytes
    per occurrence.

        corpus = prepare(["texts/"], segment="english", split="line")
        index = build_index(elmo, corpus, "my-index", choice=Choice(words=("bank", "play")))
    """
    folder = Path(folder).expanduser().resolve()
    choice = choice or Choice()
    plan = plan_of(elmo, corpus, layer=layer, choice=choice)
    layer, vector_size = plan["layer"], plan["vector_size"]
    if index := opened(folder, plan):
        return index
    with folder_lock(folder, "another process is building this index", index_errors):
        if index := opened(folder, plan):  # another process has built it while this one waited
            return index
        _refuse_foreign(folder)
        with index_errors(folder), _work_folder(folder) as partial:
            _start(elmo, partial, folder, corpus, choice, plan)
            text = PreparedCorpus.open(partial / "text")
            tokens = np.fromfile(partial / "tokens.bin", dtype="<i8")
            _check_space(folder, partial, len(tokens), vector_size)
            _write_vectors(elmo, partial, text, tokens, layer, vector_size, batch_tokens, on_progress)
            coarse_size = _write_coarse(partial, len(tokens), vector_size)
            described = {**plan, "format": FORMAT, "rows": len(tokens), "coarse_size": coarse_size}
            described["corpus_tokens"], described["corpus_sentences"] = corpus.n_tokens, corpus.n_sentences
            _finish(partial, folder, described)
    return OccurrenceIndex.open(folder)


def plan_of(
    elmo: Elmo,
    corpus: PreparedCorpus,
    *,
    layer: Literal["mix", "top"] | int = "top",
    choice: Choice,
) -> dict[str, Any]:
    """What an index is made from: two with the same plan are the same."""
    check_stateless(elmo)
    last = elmo.config.n_outputs - 1
    if layer != "mix" and (layer := last if layer == "top" else layer) not in range(last + 1):
        raise ElmoError(f"the layer of an index must be mix, top or a number from 0 to {last}, got {layer!r}")
    return {
        "version": VERSION,
        "model": elmo.fingerprint(mixes=layer == "mix"),
        "corpus": corpus.fingerprint,
        "content": corpus.content,
        "layer": layer,
        "vector_size": elmo.config.vector_size,
        "choice": choice.to_dict(),
    }


def opened(folder: Path, plan: dict[str, Any]) -> OccurrenceIndex | None:
    """The index of the folder, if it is whole and made by this plan."""
    if not (folder / DESCRIPTION).is_file():
        return None
    try:
        index = OccurrenceIndex.open(folder)
    except ElmoError:
        return None  # damaged, or of another version: who is about to write there says so
    same = json.loads(json.dumps(plan))
    return index if {name: index.description.get(name) for name in same} == same else None


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ElmoError(f"an index is built in a folder, and {folder} is a file: name another")
    if folder.is_dir() and any(folder.iterdir()):
        if (folder / DESCRIPTION).is_file():
            OccurrenceIndex.open(folder)  # says what is damaged, where that is why it does not serve
            raise ElmoError(
                f"{folder} is an index of another model, corpus or choice of words: name another folder, or remove it"
            )
        raise ElmoError(
            f"an index is built in a new folder or an empty one, and {folder} has files in it: name another"
        )


def _name_of_partial(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.partial")


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """A path to the folder in which an index is built; it is made if absent, and removed if nothing is in it."""
    named = _name_of_partial(folder)
    with closing(WorkFolder(named)) as work:
        try:
            yield work.path
        finally:
            with suppress(OSError):
                named.rmdir()


def _start(
    elmo: Elmo, partial: Path, folder: Path, corpus: PreparedCorpus, choice: Choice, plan: dict[str, Any]
) -> None:
    """Leave what an interrupted run with the same plan has done, or write the text and the places of all rows."""
    text = json.dumps(plan, sort_keys=True)
    try:
        if (partial / _PLAN).read_text(encoding="ascii") == text:
            return
    except (OSError, ValueError):
        pass
    joiner = WordJoiner(elmo, corpus.settings.get("segment"), choice.words, ignore_case=choice.ignore_case)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=f".{folder.name}.", ignore_cleanup_errors=True
    ) as joined:
        source = joiner.joined_corpus(corpus, choice, Path(joined) / "text") if joiner else corpus
        kept = choice.kept(source)
        if not kept.any():
            raise ElmoError(nothing_kept(choice, corpus))
        for left in partial.iterdir():  # of another plan
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        numbers, tokens = write_text(partial / "text", folder, source, kept)
    starts = np.cumsum(kept) - kept
    words = np.stack([starts[numbers], kept[numbers]], axis=1)
    words[kept[numbers] == 0] = 0
    for name, values in (("tokens.bin", tokens), ("words.bin", words)):
        (partial / name).write_bytes(np.ascontiguousarray(values, dtype="<i8").tobytes())
        sync(partial / name)
    atomic.write_text(partial / _PLAN, text, errors=nullcontext)


def _check_space(folder: Path, partial: Path, rows: int, size: int) -> None:
    """Refuse a disk that is too small before hours are spent."""
    need = rows * (size + 4 + (SIZE if rows >= FROM_ROWS else 0)) + _SPARE_BYTES
    have = sum(file.stat().st_size for file in partial.glob("*.bin")) + shutil.disk_usage(partial).free
    if need > have:
        raise ElmoError(
            f"the index {folder} of {counted(rows, 'occurrence')} needs {need / 1e9:.1f} GB and the disk has "
            f"{have / 1e9:.1f} GB: lower --max-occurrences, raise --min-count, or name a folder on another disk"
        )


def _write_vectors(
    elmo: Elmo,
    partial: Path,
    text: PreparedCorpus,
    tokens: NDArray[np.int64],
    layer: Literal["mix", "top"] | int,
    size: int,
    batch_tokens: int | None,
    on_progress: Callable[[BuildProgress], None] | None,
) -> None:
    """Encode the sentences that are not done, in order."""
    rows = np.argsort(tokens)  # [R] in the order of the text
    places = tokens[rows]
    bounds = np.searchsorted(places, text.ends)  # [S] where in `rows` each sentence ends
    done = _sentences_done(partial)
    types = list(text.type_texts())

    def sentences() -> Iterator[list[str]]:
        start = int(text.ends[done - 1]) if done else 0
        for end in text.ends[done:].tolist():
            # The stream asks for more once it has given back all it had: a run that goes on from here makes the same
            # batches, and so the same bytes.
            file.note(number)
            yield [types[number] for number in text.tokens[start:end].tolist()]
            start = end

    def tell(sentence: int) -> None:
        if on_progress is not None:
            on_progress(BuildProgress(sentence, text.n_sentences, len(tokens)))

    tell(done)
    with _RowFile(partial, size) as file:
        first = int(bounds[done - 1]) if done else 0
        number = done
        for number, vectors in enumerate(elmo.stream(sentences(), layer=layer, batch_tokens=batch_tokens), done + 1):
            last = int(bounds[number - 1])
            start = int(text.ends[number - 2]) if number > 1 else 0
            file.add(rows[first:last], vectors[places[first:last] - start])
            first = last
            if number % _TELL_EVERY == 0:
                tell(number)
        file.note(number, force=True)
        tell(number)


def _sentences_done(partial: Path) -> int:
    """How many sentences of an index that is half built are on the disk."""
    try:
        return int(json.loads((partial / _DONE).read_text(encoding="ascii"))["sentences"])
    except (OSError, ValueError):
        return 0


class _RowFile:
    """Vectors that come in any order, written to their rows; what is done is noted once it is on the disk."""

    def __init__(self, partial: Path, size: int) -> None:
        self._partial, self._size = partial, size
        self._codes, self._scales = OffsetFile(partial / "vectors.bin"), OffsetFile(partial / "scales.bin")
        self._waiting: list[tuple[Rows, Floats]] = []
        self._bytes = 0
        self._synced = time.monotonic()

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Take vectors of any length [N, D]; many are written at once."""
        self._waiting.append((rows, vectors))
        self._bytes += vectors.nbytes
        if self._bytes >= _BUFFER_BYTES:
            self._write()

    def note(self, sentences: int, *, force: bool = False) -> None:
        """Bring all of it to the disk and note how many sentences that makes, if the last time is long ago."""
        if not force and time.monotonic() - self._synced < _SYNC_SECONDS:
            return
        self._write()
        self._codes.sync()
        self._scales.sync()
        atomic.write_text(self._partial / _DONE, json.dumps({"sentences": sentences}), errors=nullcontext)
        self._synced = time.monotonic()

    def _write(self) -> None:
        if not self._waiting:
            return
        rows = np.concatenate([rows for rows, _ in self._waiting])
        packed = pack(np.concatenate([vectors for _, vectors in self._waiting]))
        order = np.argsort(rows)
        rows, codes, scales = rows[order], packed.codes[order], packed.scales[order]
        # Rows that follow each other go in one write; of a frequent word these are many.
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
            row = int(rows[start])
            self._codes.write(row * self._size, codes[start:stop].tobytes())
            self._scales.write(row * 4, scales[start:stop].tobytes())
        self._waiting, self._bytes = [], 0

    def __enter__(self) -> _RowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._codes.close()
        self._scales.close()


def _write_coarse(partial: Path, rows: int, size: int) -> int:
    """Write the small picture of all rows where they are many, and return its numbers a row."""
    if rows < FROM_ROWS or size <= SIZE:
        return 0
    codes, scales = partial / "vectors.bin", partial / "scales.bin"
    projection = Projection.of(Packed(mapped(codes, "i1", (rows, size)), mapped(scales, "<f4", (rows,))))
    (partial / "directions.bin").write_bytes(projection.directions.astype("<f4").tobytes())
    (partial / "steps.bin").write_bytes(projection.steps.astype("<f4").tobytes())
    # Read as files: what is read through a map stays in this process's memory.
    with codes.open("rb") as first, scales.open("rb") as second, (partial / "coarse.bin").open("wb") as file:
        for start in range(0, rows, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, rows - start)
            block = np.fromfile(first, dtype="i1", count=count * size).reshape(count, size)
            file.write(projection.project(Packed(block, np.fromfile(second, dtype="<f4", count=count))).tobytes())
    return SIZE


def _finish(partial: Path, folder: Path, description: dict[str, Any]) -> None:
    """Give the folder its name once everything is on the disk."""
    for file in partial.glob("*.bin"):
        sync(file)
    text = json.dumps(description, indent=1, sort_keys=True) + "\n"
    atomic.write_text(partial / DESCRIPTION, text, errors=nullcontext)
    sync(partial)
    if folder.is_dir():
        folder.rmdir()
    _name_of_partial(folder).rename(folder)
    sync(folder.parent)
    # Not before: until the folder has its name they say that nothing is left to do.
    for name in (_PLAN, _DONE):
        (folder / name).unlink(missing_ok=True)


def index_errors(folder: Path) -> AbstractContextManager[None]:
    """Explain errors of the disk while an index is built."""
    return disk_errors(
        f"the index {folder}",
        "name another folder",
        if_full="free some and run the same command again, which resumes where it stopped, or name another folder",
    )
