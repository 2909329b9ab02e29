"""Builds an index of occurrences in one pass with bounded memory, and resumes an interrupted build.

The rows of all occurrences are known before the vectors are computed, so each vector is written directly to its row.
The state of a build is therefore a single number, that of the sentences whose vectors are on the disk.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse import index as index_files
from elmokit.analyse.choice import Choice, WordJoiner, corpus_parts, word_test
from elmokit.analyse.index import DESCRIPTION, Floats, Int8Vectors, OccurrenceIndex, Projection, Rows
from elmokit.corpus.encoding import EncodedSentences
from elmokit.corpus.prepared import CorpusBuilder, PreparedCorpus
from elmokit.corpus.report import Report
from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.storage import atomic
from elmokit.storage.array_file import OffsetFile
from elmokit.storage.atomic import disk_errors, sync
from elmokit.storage.locks import folder_lock
from elmokit.storage.trusted import WorkFolder
from elmokit.text.tokens import SegmenterName, word_splitter

if TYPE_CHECKING:
    from elmokit.elmo import Elmo

_STATE = "state.json"
"""The file with the plan of an unfinished index and the number of sentences whose vectors are on the disk."""
_BUFFER_BYTES = 1 << 25
_SYNC_SECONDS = 20.0
_ROWS_AT_ONCE = 1 << 14
_REPORT_EVERY = 32
"""Number of sentences between two progress reports."""
_SPARE_BYTES = 1 << 26
"""Number of bytes to leave free on the disk."""


def build_index(
    elmo: Elmo,
    corpus: PreparedCorpus,
    folder: str | Path,
    *,
    layer: Literal["mix", "top"] | int = "top",
    choice: Choice | None = None,
    batch_tokens: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> OccurrenceIndex:
    """Build the index of a corpus in a folder, resume an interrupted build, or open the index if it is complete.

    Only sentences with a chosen occurrence are encoded. The build needs memory for the list of words and 16 bytes per
    occurrence. `on_progress` is called with the number of sentences done and their total.

        corpus = prepare(["texts/"], segment="english", split="line")
        index = build_index(elmo, corpus, "my-index", choice=Choice(words=("bank", "play")))
    """
    folder = Path(folder).expanduser().resolve()
    choice = choice or Choice()
    plan = index_plan(elmo, corpus, layer=layer, choice=choice)
    size = plan["vector_size"]
    if index := open_if_same(folder, plan):
        return index
    with folder_lock(folder, "another process is building this index", _index_errors):
        if index := open_if_same(folder, plan):  # another process has built it while this one waited
            return index
        _refuse_other_contents(folder)
        partial = folder.with_name(f".{folder.name}.partial")
        with _index_errors(folder), closing(WorkFolder(partial)) as work:
            try:
                done = _start(elmo, work.path, folder, corpus, choice, plan)
                tokens = np.fromfile(work.path / "tokens.bin", dtype="<i8")
                _check_space(folder, work.path, len(tokens), size)
                _write_vectors(elmo, work.path, tokens, plan, done, batch_tokens, on_progress or (lambda *_: None))
                description = {
                    **plan,
                    "format": index_files.FORMAT,
                    "rows": len(tokens),
                    "coarse_size": _write_coarse(work.path, len(tokens), size),
                    "corpus_tokens": corpus.n_tokens,
                    "corpus_sentences": corpus.n_sentences,
                }
                _finish(work.path, partial, folder, description)
            finally:
                with suppress(OSError):  # a folder that is not empty is needed to resume
                    partial.rmdir()
    return OccurrenceIndex.open(folder)


def index_plan(
    elmo: Elmo, corpus: PreparedCorpus, *, layer: Literal["mix", "top"] | int = "top", choice: Choice
) -> dict[str, Any]:
    """Everything that determines an index: two indexes with the same plan are equal."""
    index_files.check_stateless(elmo)
    if not isinstance(corpus, PreparedCorpus):
        raise ElmoError(
            f"corpus must be a PreparedCorpus, got {corpus!r}: elmokit.corpus.prepare.prepare makes one of files"
        )
    layer = stored_layer(elmo, layer)
    return {
        "version": index_files.VERSION,
        "model": elmo.fingerprint(mixes=layer == "mix"),
        "corpus": corpus.fingerprint,
        "content": corpus.content,
        "layer": layer,
        "vector_size": elmo.config.vector_size,
        "choice": asdict(choice),
    }


def stored_layer(elmo: Elmo, layer: str | int) -> Literal["mix"] | int:
    """A layer (mix, top or a number) as an index stores it: "mix" or a number."""
    last = elmo.config.n_outputs - 1
    if layer in ("mix", "top"):
        return "mix" if layer == "mix" else last
    if not str(layer).isascii() or not str(layer).isdigit() or int(layer) > last:
        raise ElmoError(f"layer must be mix, top or a number from 0 to {last}, got {layer!r}", "layer")
    return int(layer)


def open_if_same(folder: Path, plan: dict[str, Any]) -> OccurrenceIndex | None:
    """The index in a folder if it is complete and has this plan, otherwise None."""
    if not (folder / DESCRIPTION).is_file():
        return None
    try:
        index = OccurrenceIndex.open(folder)
    except ElmoError:
        return None  # damaged or of another version; reported before the folder is written
    same = json.loads(json.dumps(plan))
    return index if {name: index.description.get(name) for name in same} == same else None


def _refuse_other_contents(folder: Path) -> None:
    if (folder / DESCRIPTION).is_file():
        OccurrenceIndex.open(folder)  # reports damage, which may be why `open_if_same` did not return it
        advice = "name another folder, or remove this one"
        raise ElmoError(f"{folder} is an index of another model, corpus or choice of words: {advice}")
    problem = (
        "is a file" if folder.is_file() else "has files in it" if folder.exists() and any(folder.iterdir()) else ""
    )
    if problem:
        raise ElmoError(f"an index needs a new or an empty folder, but {folder} {problem}: name another folder")


def _start(
    elmo: Elmo, partial: Path, folder: Path, corpus: PreparedCorpus, choice: Choice, plan: dict[str, Any]
) -> int:
    """Write the text and the token of each row, unless an interrupted build with the same plan has done so.

    Returns the number of sentences whose vectors that build has written, or 0.
    """
    with suppress(OSError, ValueError, LookupError, TypeError):
        state = json.loads((partial / _STATE).read_text(encoding="ascii"))
        if state["plan"] == json.loads(json.dumps(plan)):
            return int(state["sentences"])
    joiner = WordJoiner(elmo, corpus.settings.get("segment"), choice.words, ignore_case=choice.ignore_case)
    prefix = f".{folder.name}."
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent, ignore_cleanup_errors=True) as joined:
        source = joiner.joined_corpus(corpus, choice, Path(joined) / "text") if joiner else corpus
        counts = choice.counts(source)
        if not counts.any():
            raise _nothing_chosen(choice, corpus)
        for other in partial.iterdir():  # from a build with another plan
            shutil.rmtree(other) if other.is_dir() else other.unlink()
        numbers, tokens = _write_text(partial / "text", folder, source, counts)
    starts = np.cumsum(counts) - counts
    words = np.stack([starts[numbers], counts[numbers]], axis=1)
    words[counts[numbers] == 0] = 0
    for name, values in (("tokens.bin", tokens), ("words.bin", words)):
        (partial / name).write_bytes(np.ascontiguousarray(values, dtype="<i8").tobytes())
        sync(partial / name)
    _write_state(partial, plan, 0)
    return 0


def _write_state(partial: Path, plan: dict[str, Any], sentences: int) -> None:
    state = json.dumps({"plan": plan, "sentences": sentences})
    atomic.write_text(partial / _STATE, state, errors=nullcontext)


def _write_text(
    folder: Path, shown: Path, corpus: PreparedCorpus, counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Write the sentences with a chosen occurrence as a corpus.

    Returns the id in the original corpus of each type of the new one [V], and the index in the new corpus of the token
    of each row [R].
    """
    types = list(corpus.type_texts())
    tokens_of_rows = np.empty(int(counts.sum()), dtype=np.int64)
    written = 0
    folder.mkdir()
    with CorpusBuilder(folder, shown=shown) as builder:
        for part in corpus_parts(corpus, counts):
            lengths = np.diff(part.ends, prepend=0)
            sentence = np.repeat(np.arange(len(lengths)), lengths)
            wanted = np.bincount(sentence[part.rows >= 0], minlength=len(lengths)) > 0
            inside = wanted[sentence]
            rows, tokens = part.rows[inside], part.tokens[inside]
            chosen = np.flatnonzero(rows >= 0)
            tokens_of_rows[rows[chosen]] = written + chosen
            written += len(tokens)
            distinct, ids, counted_tokens = np.unique(tokens, return_inverse=True, return_counts=True)
            report = Report(sentences=int(wanted.sum()), tokens=len(tokens))
            texts = [types[number] for number in distinct.tolist()]
            builder.add(EncodedSentences(texts, counted_tokens, ids.astype(np.uint32), lengths[wanted], report))
        builder.finish(corpus.settings, None)
    number_of = {text: number for number, text in enumerate(types)}
    numbers = [number_of[text] for text in PreparedCorpus.open(folder).type_texts()]
    return np.array(numbers, dtype=np.int64), tokens_of_rows


def split_word_advice(word: str, segment: str | None) -> str | None:
    """Advice for a word that the tokeniser splits; None for a single token, and for characters that can be joined.

    >>> split_word_advice("New York", "english")
    'the tokeniser english splits it into New, York: search for one of these words'
    """
    name = cast(SegmenterName, segment or "none")
    pieces = word_splitter(name)(word)
    if len(pieces) < 2 or (name == "chars" and len(word.split()) == 1):
        return None
    return f"the tokeniser {name} splits it into {', '.join(pieces)}: search for one of these words"


def _nothing_chosen(choice: Choice, corpus: PreparedCorpus) -> ElmoError:
    """The error for a choice without occurrences in a corpus."""
    size, often = f"{counted(corpus.n_tokens, 'token')} of the text", f"{choice.min_count:,} times or more"
    if choice.words is None:
        return ElmoError(f"no word occurs {often} in the {size}: lower min_count", "min_count")
    shown = ", ".join(choice.words[:5]) + (", …" if len(choice.words) > 5 else "")
    if choice.min_count > 1:
        return ElmoError(f"{shown} does not occur {often} in the {size}: lower min_count", "min_count")
    found = list(filter(word_test(choice.words, True), corpus.type_texts()))
    problem = f"{shown} does not occur in the {size}"
    if found and not choice.ignore_case:
        return ElmoError(f"{problem}, but {', '.join(found[:5])} does: set ignore_case", "ignore_case")
    if advice := split_word_advice(choice.words[0], corpus.settings.get("segment")):
        return ElmoError(f"{choice.words[0]} does not occur in the {size}: {advice}")
    return ElmoError(f"{problem}: check its spelling, and how segment and split tokenise the text", "segment", "split")


def _check_space(folder: Path, partial: Path, rows: int, size: int) -> None:
    """Refuse a disk that is too small before the vectors are computed, which may take hours."""
    coarse_size = index_files.COARSE_SIZE if rows >= index_files.COARSE_FROM_ROWS else 0
    need = rows * (size + 4 + coarse_size) + _SPARE_BYTES
    have = sum(file.stat().st_size for file in partial.glob("*.bin")) + shutil.disk_usage(partial).free
    if need > have:
        raise ElmoError(
            f"the index {folder} of {counted(rows, 'occurrence')} needs {need / 1e9:.1f} GB and the disk has "
            f"{have / 1e9:.1f} GB: lower max_occurrences, raise min_count, or name a folder on another disk",
            "max_occurrences",
            "min_count",
        )


def _write_vectors(
    elmo: Elmo,
    partial: Path,
    tokens: NDArray[np.int64],
    plan: dict[str, Any],
    done: int,
    batch_tokens: int | None,
    report: Callable[[int, int], None],
) -> None:
    """Compute and write the vectors of the sentences after the first `done`, in order."""
    text = PreparedCorpus.open(partial / "text")
    rows = np.argsort(tokens)  # [R] in the order of the text
    positions = tokens[rows]
    bounds = np.searchsorted(positions, text.ends)  # [S] the end of each sentence in `rows`
    types = list(text.type_texts())

    def sentences() -> Iterator[list[str]]:
        start = int(text.ends[done - 1]) if done else 0
        for end in text.ends[done:].tolist():
            # The stream reads more sentences only when it has returned all earlier ones. A build that resumes from
            # here therefore has the same batches and writes the same bytes.
            if time.monotonic() - file.synced > _SYNC_SECONDS:
                file.sync()
                _write_state(partial, plan, number)
            yield [types[number] for number in text.tokens[start:end].tolist()]
            start = end

    with closing(_RowFile(partial, plan["vector_size"])) as file:
        first, number = int(bounds[done - 1]) if done else 0, done
        report(number, text.n_sentences)
        stream = elmo.stream(sentences(), layer=plan["layer"], batch_tokens=batch_tokens)
        for number, vectors in enumerate(stream, done + 1):
            last = int(bounds[number - 1])
            start = int(text.ends[number - 2]) if number > 1 else 0
            file.add(rows[first:last], vectors[positions[first:last] - start])
            first = last
            if number % _REPORT_EVERY == 0 or number == text.n_sentences:
                report(number, text.n_sentences)
        file.sync()
        _write_state(partial, plan, number)


class _RowFile:
    """Writes vectors, which are added in any order, to their rows."""

    def __init__(self, partial: Path, size: int) -> None:
        self._size = size
        self._codes, self._scales = OffsetFile(partial / "vectors.bin"), OffsetFile(partial / "scales.bin")
        self._waiting: list[tuple[Rows, Floats]] = []
        self._bytes = 0
        self.synced = time.monotonic()
        """The time of the last call of `sync`."""

    def add(self, rows: Rows, vectors: Floats) -> None:
        """Add vectors of any length [N, D]; they are buffered and written together."""
        self._waiting.append((rows, vectors))
        self._bytes += vectors.nbytes
        if self._bytes >= _BUFFER_BYTES:
            self._write()

    def sync(self) -> None:
        """Flush everything to the disk."""
        self._write()
        self._codes.sync()
        self._scales.sync()
        self.synced = time.monotonic()

    def _write(self) -> None:
        if not self._waiting:
            return
        rows = np.concatenate([rows for rows, _ in self._waiting])
        codes, scales = Int8Vectors.quantise(np.concatenate([vectors for _, vectors in self._waiting]))
        order = np.argsort(rows)
        rows, codes, scales = rows[order], codes[order], scales[order]
        # Consecutive rows, of which a frequent word has many, are written at once.
        breaks = np.flatnonzero(np.diff(rows) != 1) + 1
        for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(rows)], strict=True):
            row = int(rows[start])
            self._codes.write(row * self._size, codes[start:stop].tobytes())
            self._scales.write(row * 4, scales[start:stop].tobytes())
        self._waiting, self._bytes = [], 0

    def close(self) -> None:
        """Close the files."""
        self._codes.close()
        self._scales.close()


def _write_coarse(partial: Path, rows: int, size: int) -> int:
    """Write coarse.bin for an index of many rows and return the size of its vectors; 0 if it is not needed."""
    coarse_size = index_files.COARSE_SIZE
    if rows < index_files.COARSE_FROM_ROWS or size <= coarse_size:
        return 0
    codes, scales = partial / "vectors.bin", partial / "scales.bin"
    mapped = Int8Vectors(np.memmap(codes, "i1", "r", shape=(rows, size)), np.memmap(scales, "<f4", "r"))
    projection = Projection.fit(mapped)
    (partial / "directions.bin").write_bytes(projection.directions.astype("<f4").tobytes())
    (partial / "steps.bin").write_bytes(projection.steps.astype("<f4").tobytes())
    # Read as files: pages read through a memory map would count as memory of this process.
    with codes.open("rb") as first, scales.open("rb") as second, (partial / "coarse.bin").open("wb") as file:
        for start in range(0, rows, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, rows - start)
            block = np.fromfile(first, dtype="i1", count=count * size).reshape(count, size)
            file.write(projection.project(Int8Vectors(block, np.fromfile(second, dtype="<f4", count=count))).tobytes())
    return coarse_size


def _finish(work: Path, partial: Path, folder: Path, description: dict[str, Any]) -> None:
    """Rename the folder when everything is on the disk; `work` is a safe path of `partial`."""
    for file in work.glob("*.bin"):
        sync(file)
    text = json.dumps(description, indent=1, sort_keys=True) + "\n"
    atomic.write_text(work / DESCRIPTION, text, errors=nullcontext)
    sync(work)
    if folder.is_dir():
        folder.rmdir()
    partial.rename(folder)
    sync(folder.parent)
    (folder / _STATE).unlink(missing_ok=True)  # last, because an interrupted build needs it until the rename


def _index_errors(folder: Path) -> AbstractContextManager[None]:
    """A context that explains errors of the disk while an index is built."""
    return disk_errors(
        f"the index {folder}",
        "name another folder",
        if_full="free some and build it again, which resumes where it stopped, or name another folder",
    )
