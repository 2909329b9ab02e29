"""bilm-tf's training checkpoints (`PREFIX.index`, `PREFIX.data-00000-of-00001`, options.json), read without TensorFlow.

They contain the weights of bilm.py under other names, and the softmax and Adagrad's state too.
"""

from __future__ import annotations

from elmokit.errors import ElmoError
from elmokit.formats.bilm import HDF5_SUFFIXES, WeightsFile, options_name, read_weights
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.registry import Format, ModelFiles
from elmokit.formats.source import Source, read_text
from elmokit.formats.tensorbundle import MAGIC, TensorBundle

_SUFFIX = ".index"


def detect(source: Source, name: str | None) -> str | None:
    """The prefix of a checkpoint: the newest one, or the one that a file belongs to."""
    if name is None or name == "checkpoint":
        return _newest_checkpoint(source)
    for marker in (_SUFFIX, ".data-", ".meta"):
        prefix = name.partition(marker)[0]
        if marker in name and prefix + _SUFFIX in source.names():
            return prefix
    index = source.path(name + _SUFFIX)
    return name if index is not None and index.is_file() else None


def read(files: ModelFiles) -> Checkpoint:
    """A model from `PREFIX.index`, its data files and options.json."""
    source, prefix, where = files.source, files.main, files.where
    # The bundle is given whole paths, so that its messages name them.
    tensors = TensorBundle(where, open_file=lambda name: source.open(prefix + name.removeprefix(where)))
    file = WeightsFile(tensors, "tensorflow", where + _SUFFIX)
    return read_weights(files, file, options_name(files, prefix + _SUFFIX))


def _newest_checkpoint(source: Source) -> str | None:
    """The checkpoint that the file `checkpoint` names, or the one with the highest step."""
    names = source.names()
    prefixes = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and _is_index(source, name)]
    if "checkpoint" in names:
        for line in read_text(source, "checkpoint").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model_checkpoint_path":
                # Often an absolute path of another machine, so only its last part is used.
                named = value.strip().strip('"').replace("\\", "/").rpartition("/")[2]
                if f"{named}{_SUFFIX}" in names:
                    return named
                # The weights of a run that was cleaned up may be in an HDF5 file in the same folder.
                if not prefixes and not any(name.endswith(HDF5_SUFFIXES) for name in names):
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
        file.seek(max(0, file.tell() - 8))
        return int.from_bytes(file.read(), "little") == MAGIC


FORMAT = Format(
    name="tensorflow",
    description="a TensorFlow checkpoint of bilm-tf (.index and .data files)",
    detect=detect,
    read=read,
    files=("checkpoint", "*.index", "*.data-*", "*.json", "vocab.txt"),
    takes_options=True,
)
