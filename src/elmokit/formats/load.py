"""From a path to a checkpoint, whatever the format."""

from __future__ import annotations

from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.formats.bilm import read_hdf5, read_tensorflow, read_vocabulary
from elmokit.formats.bundled import resolved
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.detect import Found, detect
from elmokit.formats.manylangs import read_manylangs
from elmokit.formats.native import read_native
from elmokit.formats.source import FolderSource, Source
from elmokit.formats.token_embeddings import with_token_embeddings
from elmokit.text.vocab import Vocabulary


def read_checkpoint(
    path: str | Path,
    *,
    options: str | Path | None = None,
    vocab: str | Path | None = None,
    token_embeddings: str | Path | None = None,
    int8: bool = False,
) -> Checkpoint:
    """Read a model of any format, a bundled one or one on the Hub by its name; keywords name files that lie elsewhere.

    With `int8` its matrices come in 8 bits, each quantised as it is read, so that the whole is never there in floats;
    without, they come as they are stored.
    """
    found = detect(resolved(path))
    if found.kind == "tokens":
        raise ElmoError(
            f"{found.where} holds token embeddings alone: load the model they were made from and give this file "
            "with token_embeddings="
        )
    options_at = (found.source, found.options) if found.options else None
    if options is not None:
        if found.kind not in ("bilm", "tensorflow"):
            raise ElmoError(f"options= goes with weights.hdf5 or a TensorFlow checkpoint, and {path} is {found.kind}")
        options_at = _file(options)
    if found.kind == "elmokit":
        checkpoint = read_native(found.source, int8=int8)
    elif found.kind == "manylangs":
        checkpoint = read_manylangs(found.source, int8=int8)
    else:
        read = read_hdf5 if found.kind == "bilm" else read_tensorflow
        checkpoint = read(found.source, found.main, options_at, int8=int8)
    words = _vocabulary(found, checkpoint, vocab)
    if token_embeddings is not None:
        return with_token_embeddings(checkpoint, *_file(token_embeddings), words)
    checkpoint.use_vocabulary(words)
    return checkpoint


def _file(path: str | Path) -> tuple[Source, str]:
    path = Path(path)
    try:
        found = path.is_file()
    except OSError as error:
        raise ElmoError(f"{path} cannot be read: {error.strerror or error}") from error
    if not found:
        raise ElmoError(f"{path} does not exist or is no file; check the name")
    return FolderSource(path.parent), path.name


def _vocabulary(found: Found, checkpoint: Checkpoint, vocab: str | Path | None) -> Vocabulary | None:
    """The vocabulary that was asked for, or the one beside the weights."""
    if vocab is not None:
        return read_vocabulary(*_file(vocab))
    if found.kind not in ("bilm", "tensorflow") or "vocab.txt" not in found.source.names():
        return checkpoint.vocab
    try:
        return read_vocabulary(found.source, "vocab.txt")
    except ElmoError:
        if checkpoint.config.words or checkpoint.head:
            raise
        return None  # a model of characters without a softmax has no use for it
