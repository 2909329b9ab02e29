"""Shared by the adapters: models that are loaded once per process, and vectors of texts as lists of floats."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.bundled import DEFAULT, resolve_model
from elmokit.formats.load import detect
from elmokit.layers import Layer, Pool, check_layer
from elmokit.options import check_value
from elmokit.text.tokens import SegmenterName

MOST_MODELS = 4
"""Models that stay in the memory of the process; the least recently used one is removed first."""


def open_model(model: str | Path | Elmo, device: str | None = None) -> Elmo:
    """The model of a path or the name of a bundled model, loaded once in this process; an Elmo is returned as it is.

    A model whose files have changed is loaded again.
    """
    if isinstance(model, Elmo):
        return model
    path = Path(resolve_model(model))
    if not path.exists():
        detect(path)  # reports a wrong name as it was given
    changed = 0
    with suppress(OSError):  # the loader reports the error
        changed = max(file.stat().st_mtime_ns for file in (path, *path.glob("*")))
    return _load(path.absolute(), changed, device)


@lru_cache(maxsize=MOST_MODELS)
def _load(path: Path, _changed: int, device: str | None) -> Elmo:
    return Elmo.load(path, device=device)


def forget_models() -> None:
    """Remove all models from the memory of this process."""
    _load.cache_clear()


def check_stateless(elmo: Elmo, user: str) -> None:
    """Refuse a model whose vectors depend on earlier calls."""
    if elmo.state == "carry":
        raise ElmoError(f"{user} needs vectors that depend only on the text: load the model with state='zero'")


@dataclass(frozen=True)
class PooledTexts:
    """Texts → one vector each, as lists of floats, which retrieval libraries store.

    `model`: a folder, a file, the name of a bundled model, or an Elmo. `layer`, `pool`, `segment` and `batch_tokens`
    are those of `Elmo.encode`. `normalize` scales each vector to length 1; a text without tokens gets zeros.
    """

    model: str | Path | Elmo = DEFAULT
    layer: Layer | None = None
    pool: Pool = "mean"
    normalize: bool = True
    segment: SegmenterName | None = None
    batch_tokens: int | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        """Load the model, so that a wrong argument is found here and not at the first text."""
        elmo = open_model(self.model, self.device)
        check_stateless(elmo, type(self).__name__)
        check_value("pool", self.pool, Pool)
        if self.layer is not None:
            check_layer(self.layer, elmo.config.n_outputs, single=True)
        elmo.text_policy.override(self.segment)

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """N texts → N lists of D floats, each the same in any batch."""
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise ElmoError(f"a text must be a string, got {text!r} at position {number}", "texts")
        found = open_model(self.model, self.device).encode(
            texts,
            output="sentence",
            layer=self.layer,
            pool=self.pool,
            batch_tokens=self.batch_tokens,
            segment=self.segment,
        )
        if self.normalize:
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.float32(1e-30))
        numbers: list[list[float]] = found.tolist()
        return numbers
