"""Models and pooled vectors that a process keeps, so that the same text is not embedded twice."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.bundled import resolved
from elmokit.tasks.features import fingerprint

Vector = NDArray[np.float32]

LARGEST_MEMORY = 1 << 29
"""Bytes of vectors that a process keeps; the longest unused ones go first."""
_OPEN_MODELS = 2
_WAIT_SECONDS = 60.0
_ASKED_AT_ONCE = 500
_WRITTEN_AT_ONCE = 1_000

_lock = threading.RLock()
_models: OrderedDict[tuple[str, int, str], Elmo] = OrderedDict()
_names: WeakKeyDictionary[Elmo, tuple[tuple[tuple[str, float, float], ...], str]] = WeakKeyDictionary()
_vectors: OrderedDict[bytes, Vector] = OrderedDict()
_bytes = 0


@dataclass(frozen=True)
class Opened:
    """A model and a name that no other numbers have."""

    elmo: Elmo
    """The model."""
    name: str
    """A digest of its numbers."""


@torch.no_grad()
def open_model(model: str | Path | Elmo, device: str | None) -> Opened:
    """The model of a path, or a bundled one by its name, loaded once in this process; an Elmo as it is.

    A model that was written anew is loaded anew.
    """
    with _lock:
        elmo = model if isinstance(model, Elmo) else _loaded(Path(resolved(model)), device)
        # An Elmo may be trained or moved between two calls; sums are quicker than a digest, and tell.
        tensors = [tensor.detach() for name, tensor in elmo.state_dict().items() if not name.startswith("head.")]
        versions = tuple((str(tensor.dtype), float(tensor.sum()), float(tensor.float().norm())) for tensor in tensors)
        known = _names.get(elmo)
        if known is None or known[0] != versions:
            known = _names[elmo] = (versions, _name(elmo))
        return Opened(elmo, known[1])


def _name(elmo: Elmo) -> str:
    """What two models share only where all their vectors, mixed ones too, are equal."""
    digest = hashlib.blake2b(f"{fingerprint(elmo)} {elmo.boundaries}".encode(), digest_size=16)
    for mix in elmo.mixes:
        digest.update(str(mix.layer_norm).encode())
        for value in mix.state_dict().values():
            digest.update(value.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _loaded(path: Path, device: str | None) -> Elmo:
    files = [path, *path.glob("*")] if path.is_dir() else [path]
    try:
        changed = max(file.stat().st_mtime_ns for file in files)
    except OSError:  # for the loader to name
        changed = 0
    key = (str(path.absolute()), changed, str(device))
    if key not in _models:
        _models[key] = Elmo.load(path, device=device)
        while len(_models) > _OPEN_MODELS:
            _models.popitem(last=False)
    _models.move_to_end(key)
    return _models[key]


class Stored:
    """Vectors in a file that processes share: a SQLite table of keys and numbers."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._session() as session:
            session.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB NOT NULL)")

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Those of the keys that are there, with their vectors."""
        found = {}
        with self._session() as session:
            for start in range(0, len(keys), _ASKED_AT_ONCE):
                some = keys[start : start + _ASKED_AT_ONCE]
                marks = ",".join("?" * len(some))
                for key, vector in session.execute(f"SELECT * FROM vectors WHERE key IN ({marks})", some):
                    found[key] = np.frombuffer(vector, np.float32)
        return found

    def add(self, vectors: Sequence[tuple[bytes, Vector]]) -> None:
        """Keep them, all or none."""
        with self._session() as session:
            rows = ((key, vector.tobytes()) for key, vector in vectors)
            session.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", rows)

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes count once the block has ended well."""
        try:
            with closing(sqlite3.connect(self.path, timeout=_WAIT_SECONDS)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise ElmoError(
                f"the cache must be a file that can be written, got {self.path} ({error}): give another, or remove it"
            ) from error


def remembered(
    rows: Sequence[Sequence[str]],
    facts: str,
    embed: Callable[[Iterable[Sequence[str]]], Iterable[Vector]],
    stored: Stored | None = None,
) -> list[Vector]:
    """A vector for each row of tokens; `embed` gets only those that nobody knows yet, each once.

    `facts` says all that a vector depends on besides the tokens.
    """
    keys = [_key(facts, row) for row in rows]
    with _lock:
        known = {key: _vectors[key] for key in set(keys) if key in _vectors}
    if stored is not None and (missing := [key for key in dict.fromkeys(keys) if key not in known]):
        known |= stored.find(missing)
    new = {key: row for key, row in zip(keys, rows, strict=True) if key not in known}
    fresh: list[tuple[bytes, Vector]] = []
    for key, vector in zip(new, embed(new.values()), strict=True):
        known[key] = vector
        fresh.append((key, vector))
        if stored is not None and len(fresh) == _WRITTEN_AT_ONCE:  # what is done stays done if the run is killed
            stored.add(fresh)
            fresh.clear()
    if stored is not None and fresh:
        stored.add(fresh)
    _keep(known)
    return [known[key] for key in keys]


def _key(facts: str, row: Sequence[str]) -> bytes:
    text = "\0".join([facts, str(len(row)), *row])
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _keep(vectors: dict[bytes, Vector]) -> None:
    global _bytes
    with _lock:
        for key, vector in vectors.items():
            if key not in _vectors:
                _vectors[key] = vector
                _bytes += vector.nbytes
            _vectors.move_to_end(key)
        while _bytes > LARGEST_MEMORY and _vectors:
            _bytes -= _vectors.popitem(last=False)[1].nbytes


def forget() -> None:
    """Let go of all models and vectors that this process keeps."""
    global _bytes
    with _lock:
        _models.clear()
        _vectors.clear()
        _bytes = 0
