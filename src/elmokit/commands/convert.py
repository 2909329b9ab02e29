"""One format into another, losing nothing that the target can hold."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

import torch

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.bilm_write import write_bilm
from elmokit.formats.load import read_checkpoint
from elmokit.formats.native import write_native
from elmokit.formats.stored import Numbers, SoftmaxNumbers, stored_in
from elmokit.formats.token_embeddings import write_token_embeddings
from elmokit.storage.atomic import disk_errors

log = logging.getLogger(__name__)


def convert_model(
    source: str | Path,
    target: Path,
    *,
    to: Literal["elmokit", "bilm", "tokens"],
    dtype: Numbers | None = None,
    softmax: SoftmaxNumbers | None = None,
    options: str | Path | None = None,
    vocab: str | Path | None = None,
    overwrite: bool = False,
) -> Path:
    """Convert the model at `source` and return what was written.

    `dtype` is what our own folder stores, `softmax` the same for the softmax or "none"; see `formats.stored`.
    """
    for option, value in (("dtype", dtype), ("softmax", softmax)):
        if to != "elmokit" and value in ("float16", "int8"):
            raise ElmoError(f"the format {to} holds float32: --{option} {value} goes with --to elmokit")
    with disk_errors(target):
        _check_target(target, to, overwrite=overwrite)
    checkpoint = read_checkpoint(source, options=options, vocab=vocab, int8=dtype == "int8")
    checkpoint = stored_in(checkpoint, dtype, softmax)
    if to == "elmokit":
        write_native(checkpoint, target)
    elif to == "bilm":
        write_bilm(checkpoint, target)
        if checkpoint.text.get("segment", "none") != "none":
            segment = checkpoint.text["segment"]
            log.warning("the format bilm does not hold how text becomes tokens: use it with --segment %s", segment)
    else:
        if checkpoint.vocab is None:
            raise ElmoError(f"token embeddings need a word list: name the vocab.txt of {source} with --vocab")
        write_token_embeddings(target, token_embeddings(Elmo(checkpoint)))
    return target


@torch.no_grad()
def token_embeddings(elmo: Elmo) -> torch.Tensor:
    """The context-free vector of each word of the vocabulary, [V, P]."""
    assert elmo.vocab is not None
    return elmo.encode_types(list(elmo.vocab))


def _check_target(target: Path, to: str, *, overwrite: bool) -> None:
    if to == "tokens":
        if target.suffix not in (".hdf5", ".h5"):
            raise ElmoError(f"token embeddings are an HDF5 file: let DST end in .hdf5, got {target}")
        if target.exists() and not overwrite:
            raise ElmoError(f"{target} exists; choose another name or add --overwrite")
        if not target.parent.is_dir():
            raise ElmoError(f"the folder {target.parent} does not exist; make it first")
    elif target.is_file():
        raise ElmoError(f"DST must be a folder, and {target} is a file")
    elif target.is_dir() and any(target.iterdir()) and not overwrite:
        raise ElmoError(f"the folder {target} is not empty; choose another or add --overwrite")
