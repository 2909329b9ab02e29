"""Which format a path holds, told from what is in the files, not from what they are called."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmokit.errors import ElmoError
from elmokit.formats import hdf5, manylangs
from elmokit.formats.bundled import bundled_models
from elmokit.formats.native import FORMAT
from elmokit.formats.source import ZIP_MAGIC, FolderSource, Source, ZipSource, read_json, read_text
from elmokit.storage.hostile_hdf5 import MAGIC

Kind = Literal["elmokit", "bilm", "tensorflow", "manylangs", "tokens"]

_INDEX_SUFFIX = ".index"
_INDEX_MAGIC = bytes.fromhex("57fb808b247547db")
_CELLS = ("RNN_0", "rnn")
"""The groups of an HDF5 file that hold LSTM cells: of two directions, of one."""
_KNOWN = (
    "an elmokit folder (config.json, model.safetensors), options.json with a weights .hdf5 file, an NLPL zip, "
    "a TensorFlow checkpoint (.index and .data files) or an ELMoForManyLangs folder (encoder.pkl, token_embedder.pkl)"
)


@dataclass(frozen=True)
class Found:
    """A model on disk."""

    kind: Kind
    source: Source
    main: str
    """The file to open first: weights, checkpoint prefix or configuration."""
    options: str | None = None
    """The options file, where the path named it."""

    @property
    def where(self) -> str:
        """How a message calls the model."""
        return self.source.describe(self.main)


def detect(path: str | Path) -> Found:
    """Find the model at a path: a folder, a zip, or any one of a model's files.

    >>> detect("elmo_2x4096_512_2048cnn_2xhighway_weights.hdf5").kind  # doctest: +SKIP
    'bilm'
    """
    try:
        if not str(path):
            raise ElmoError("the path of a model must not be empty")
        return _find(Path(path).expanduser())
    except OSError as error:
        raise ElmoError(f"{path} cannot be read: {error.strerror or error}") from error


def _find(path: Path) -> Found:
    if path.is_dir():
        return _in_source(FolderSource(path), str(path))
    if path.is_file():
        return _from_file(path)
    prefix = path.with_name(path.name + _INDEX_SUFFIX)
    if prefix.is_file():
        return Found("tensorflow", FolderSource(path.parent), path.name)
    if path.name == str(path):
        names = ", ".join(bundled_models())
        raise ElmoError(f"{path} does not exist; a model is one that comes with elmokit ({names}), {_KNOWN}")
    raise ElmoError(f"{path} does not exist; a model is {_KNOWN}")


def _from_file(path: Path) -> Found:
    source = FolderSource(path.parent)
    magic = _head(source, path.name)
    if magic.startswith(MAGIC) or path.suffix.lower() in (".hdf5", ".h5"):
        return _hdf5(source, path.name)
    if path.name in manylangs.FILES or path.name == "model.safetensors":
        return _in_source(source, str(path.parent))
    if magic.startswith(ZIP_MAGIC) or path.suffix.lower() == ".zip":
        return _in_source(ZipSource(path), str(path))
    prefix = _checkpoint_prefix(source, path.name)
    if prefix is not None:
        return Found("tensorflow", source, prefix)
    if magic.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        found = _in_source(source, str(path.parent))
        return Found(found.kind, source, found.main, path.name) if found.kind in ("bilm", "tensorflow") else found
    raise ElmoError(f"{path} is no part of a model that elmokit knows; a model is {_KNOWN}")


def _in_source(source: Source, where: str) -> Found:
    names = source.names()
    if "config.json" in names and _is_native(source):
        return Found("elmokit", source, "config.json")
    if all(name in names for name in manylangs.FILES):
        return Found("manylangs", source, "encoder.pkl")
    prefix = _newest_checkpoint(source)
    if prefix is not None:
        return Found("tensorflow", source, prefix)
    files = [name for name in names if _head(source, name, suffixes=(".hdf5", ".h5")).startswith(MAGIC)]
    models = [name for name in files if hdf5.names_at_top(source, name, _CELLS)]
    if len(models) > 1:
        raise ElmoError(f"{where} holds several models ({', '.join(models)}): name one of the files")
    if models or files:
        return _hdf5(source, (models or files)[0])
    if damaged := [name for name in names if name.endswith((".hdf5", ".h5"))]:
        raise ElmoError(f"{source.describe(damaged[0])} is not an HDF5 file; fetch it again")
    listed = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
    raise ElmoError(f"{where} holds no model that elmokit knows (files: {listed or 'none'}); a model is {_KNOWN}")


def _is_native(source: Source) -> bool:
    if "model.safetensors" in source.names():
        return True
    try:
        return read_json(source, "config.json").get("format") == FORMAT
    except ElmoError:
        return False


def _hdf5(source: Source, name: str) -> Found:
    found = hdf5.names_at_top(source, name, ("embedding", *_CELLS))
    return Found("tokens" if found == {"embedding"} else "bilm", source, name)


def _checkpoint_prefix(source: Source, name: str) -> str | None:
    """The prefix of the TensorFlow checkpoint that a file belongs to."""
    if name == "checkpoint":
        return _newest_checkpoint(source)
    names = source.names()
    for marker in (_INDEX_SUFFIX, ".data-", ".meta"):
        prefix = name.partition(marker)[0]
        if marker in name and prefix + _INDEX_SUFFIX in names:
            return prefix
    return None


def _newest_checkpoint(source: Source) -> str | None:
    """The checkpoint that the file `checkpoint` names, or the one with the highest step."""
    indices = [name for name in source.names() if name.endswith(_INDEX_SUFFIX) and _is_index(source, name)]
    prefixes = [name.removesuffix(_INDEX_SUFFIX) for name in indices]
    if "checkpoint" in source.names():
        for line in read_text(source, "checkpoint").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model_checkpoint_path":
                # Often an absolute path of another machine, so its last part is what counts.
                named = value.strip().strip('"').replace("\\", "/").rpartition("/")[2]
                if f"{named}{_INDEX_SUFFIX}" in source.names():
                    return named
                if not prefixes and not any(name.endswith((".hdf5", ".h5")) for name in source.names()):
                    raise ElmoError(
                        f"{source.describe('checkpoint')} names {named}, and {source.describe(named)}.index is missing"
                    )
    return max(prefixes, key=_step, default=None)


def _step(prefix: str) -> tuple[int, str]:
    number = prefix.rpartition("-")[2]
    return (int(number) if number.isascii() and number.isdigit() and len(number) < 20 else -1, prefix)


def _is_index(source: Source, name: str) -> bool:
    with source.open(name) as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - len(_INDEX_MAGIC)))
        return file.read() == _INDEX_MAGIC


def _head(source: Source, name: str, suffixes: tuple[str, ...] = ()) -> bytes:
    if suffixes and not name.lower().endswith(suffixes):
        return b""
    with source.open(name) as file:
        return file.read(64)
