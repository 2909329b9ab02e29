"""ELMo in scikit-learn: a transformer from texts to vectors for pipelines and grid searches.

    from elmokit.sklearn import ElmoVectorizer
    model = make_pipeline(ElmoVectorizer("my-model"), LogisticRegression(max_iter=1000)).fit(texts, labels)

Models and vectors belong to the process, not to the estimator: clones share them, and pickles do not contain them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats.bundled import DEFAULT
from elmokit.integrations.models import check_stateless, forget_models, open_model
from elmokit.layers import Layer, Pool
from elmokit.options import check_value
from elmokit.storage.cache import key_of
from elmokit.storage.vectors import RecentVectors, VectorBlock, VectorStore
from elmokit.text.policy import Sentence
from elmokit.text.tokens import SegmenterName

try:
    from sklearn.base import BaseEstimator, TransformerMixin, clone
except ImportError as error:
    raise MissingExtraError("scikit-learn", "tasks", "ElmoVectorizer") from error

Vector = NDArray[np.float32]

_IN_A_FILE = 1_000
"""Sentences per file of the cache; a killed run loses at most this number."""
_recent = RecentVectors(1 << 29)


class ElmoVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """Texts, or lists of tokens, → float32 [N, D], one pooled ELMo vector each.

    It learns nothing from the texts. A text that this process has embedded is not embedded again. So a grid search over
    a classifier costs one pass through the model, and a grid search over numbered layers costs no more.

    >>> ElmoVectorizer("my-model").fit_transform(["a river bank", "a bank account"]).shape  # doctest: +SKIP
    (2, 1024)
    """

    def __init__(
        self,
        model: str | Path | Elmo | None = None,
        *,
        layer: Layer | None = "mix",
        pool: Pool = "mean",
        segment: SegmenterName | None = None,
        batch_tokens: int | None = None,
        device: str | None = None,
        cache: str | Path | None = None,
    ) -> None:
        """Store the arguments; nothing is read before `fit`.

        `model`: the path of a model of any format, or an Elmo, which clones share; None means the bundled model.
        `layer`: "mix", "top", a number, or "all" for the concatenated vectors of all layers, [N, (L+1)·D]; None means
        as in `Elmo.encode`. `pool`: "mean", "max", "first" or "last" of the tokens. `segment`: how a text becomes
        tokens ("english", "jieba", "chars" or "whitespace"); None means as in `Elmo.encode`. `cache`: a folder where
        the vectors are stored for other processes.
        """
        self.model = model
        self.layer = layer
        self.pool = pool
        self.segment = segment
        self.batch_tokens = batch_tokens
        self.device = device
        self.cache = cache

    def fit(self, X: Iterable[Sentence], y: object = None) -> Self:  # noqa: N803 - scikit-learn's names
        """Open the model and check the arguments and the texts; nothing is learned."""
        self._elmo()
        if isinstance(X, Iterator):  # `fit_transform` would return nothing, because `fit` reads it to its end
            raise ElmoError(f"fit reads all texts before transform does: give a list, got {type(X).__name__}")
        _texts(X)
        return self

    def transform(self, X: Iterable[Sentence]) -> NDArray[np.float32]:  # noqa: N803
        """N texts → [N, D]; a text without tokens gets zeros."""
        elmo = self._elmo()
        rows = elmo.text_policy.override(self.segment).sentences_of(_texts(X))
        # One pass gives all layers, so all are stored; a mix cannot be computed from layers that are already pooled.
        chosen = elmo.default_layer if self.layer is None else self.layer
        layer: Layer = "mix" if chosen == "mix" else "all"
        name = f"{elmo.fingerprint(mixes=layer == 'mix')}-{layer}-{self.pool}"
        keys = [key_of([name, row]) for row in rows]
        vectors = _recent.find(keys)
        if missing := {key: row for key, row in zip(keys, rows, strict=True) if key not in vectors}:
            vectors |= self._computed(elmo, missing, layer, name)
        _recent.add(vectors)
        part = _part(elmo, chosen)
        found = np.empty((len(keys), part.stop - part.start), np.float32)
        for number, key in enumerate(keys):
            found[number] = vectors[key][part]
        return found

    def _computed(
        self, elmo: Elmo, rows: Mapping[bytes, Sequence[str]], layer: Layer, name: str
    ) -> dict[bytes, Vector]:
        """The vectors of sentences by key, read from the cache folder if there is one, otherwise computed."""

        def embedded(keys: Iterable[bytes]) -> Iterator[Vector]:
            tokens = (rows[key] for key in keys)
            stream = elmo.stream(tokens, layer=layer, pool=self.pool, batch_tokens=self.batch_tokens)
            # Copies, because a view would keep the vectors of a whole batch in memory.
            return (vector.reshape(-1).copy() for vector in stream)

        if self.cache is None:
            return dict(zip(rows, embedded(rows), strict=True))

        def compute(keys: Sequence[bytes], _: object) -> VectorBlock:
            return VectorBlock.of(dict.fromkeys(keys, 1), torch.from_numpy(np.stack([*embedded(keys)])).unsqueeze(1))

        size = elmo.config.vector_size * (elmo.config.n_outputs if layer == "all" else 1)
        store = VectorStore(Path(self.cache) / name, (0, 1, size))
        stored = store.complete(dict.fromkeys(rows, 1), compute, dtype=torch.float32, most_sentences=_IN_A_FILE)
        return {key: block.layers[row, 0].numpy().copy() for key, (block, row, _) in stored.items()}

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """The names elmo_0 …, or elmo_layer0_0 … for all layers, [D]."""
        config = self._elmo().config
        parts = [f"layer{layer}_" for layer in range(config.n_outputs)] if self.layer == "all" else [""]
        return np.array([f"elmo_{part}{n}" for part in parts for n in range(config.vector_size)], dtype=object)

    def _elmo(self) -> Elmo:
        check_value("pool", self.pool, Pool)
        elmo = open_model(DEFAULT if self.model is None else self.model, self.device)
        check_stateless(elmo, "ElmoVectorizer")
        elmo.stream([], layer=self.layer, batch_tokens=self.batch_tokens)
        elmo.text_policy.override(self.segment)
        return elmo

    def __sklearn_clone__(self) -> Self:
        """An unfitted copy; an Elmo is shared, not copied."""
        others = {name: clone(value, safe=False) for name, value in self.get_params().items() if name != "model"}
        return type(self)(self.model, **others)

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - scikit-learn's Tags
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []
        return tags


def forget() -> None:
    """Remove all models and vectors from the memory of this process."""
    forget_models()
    _recent.clear()


def _part(elmo: Elmo, layer: Layer) -> slice:
    """The part of a stored vector that `layer` selects."""
    size, layers = elmo.config.vector_size, elmo.config.n_outputs
    if layer in ("mix", "all"):
        return slice(0, size if layer == "mix" else layers * size)
    number = layers - 1 if layer == "top" else int(layer)
    return slice(number * size, (number + 1) * size)


def _texts(given: Any) -> list[str | tuple[str, ...]]:  # noqa: ANN401 - a list, a Series, an array
    """A column of texts or token lists as a list, with its types checked."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ElmoError(f"ElmoVectorizer takes a list of texts, got {type(given).__name__}")
    if getattr(given, "ndim", 1) == 2:  # a data frame, or a column of one
        if given.shape[1] != 1:  # type: ignore[attr-defined]
            raise ElmoError(f"ElmoVectorizer takes one column of texts, got {given.shape[1]}")  # type: ignore[attr-defined]
        given = np.asarray(given, dtype=object)[:, 0]
    texts: list[str | tuple[str, ...]] = []
    for number, text in enumerate(given):
        if isinstance(text, str):
            texts.append(text)
        elif isinstance(text, Sequence | np.ndarray) and all(isinstance(token, str) for token in text):
            texts.append(tuple(str(token) for token in text))
        else:
            raise ElmoError(f"a text must be a string or a list of tokens, got {text!r} at position {number}")
    return texts
