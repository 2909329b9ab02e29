"""ELMo in scikit-learn: a transformer from texts to vectors for pipelines and grid searches.

    from elmokit.sklearn import ElmoVectorizer
    model = make_pipeline(ElmoVectorizer("my-model"), LogisticRegression(max_iter=1000)).fit(texts, labels)

What is loaded and what is computed belong to the process, not to the estimator: clones share them, and a pickle holds
neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from elmokit.elmo import Elmo
from elmokit.encode import Layer, Pool, check_pool
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats.bundled import DEFAULT
from elmokit.text.policy import Sentence
from elmokit.text.tokens import SegmenterName
from elmokit.vector_memory import Opened, Stored, open_model, remembered

try:
    from sklearn.base import BaseEstimator, TransformerMixin, clone
except ImportError as error:
    raise MissingExtraError("scikit-learn", "tasks", "ElmoVectorizer") from error


class ElmoVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn is not annotated
    """Texts, or lists of tokens, → float32 [N, D], one pooled ELMo vector each.

    It learns nothing from the texts. A text that this process has embedded before is not embedded again, so that a
    grid search over a classifier costs one pass through the model, and one over layers by number no more.

    >>> ElmoVectorizer("my-model").fit_transform(["a river bank", "a bank account"]).shape  # doctest: +SKIP
    (2, 1024)
    """

    def __init__(
        self,
        model: str | Path | Elmo | None = None,
        *,
        layer: Layer = "mix",
        pool: Pool = "mean",
        segment: SegmenterName | None = None,
        batch_tokens: int | None = None,
        device: str | None = None,
        cache: str | Path | None = None,
    ) -> None:
        """Keep the arguments; nothing is read before `fit`.

        `model`: a model of any format by its path, or an Elmo, which clones share; None: the one of the package.
        `layer`: "mix", "top", a number, or "all" for the vectors of all layers one after the other, [N, (L+1)·D].
        `pool`: "mean", "max", "first" or "last" of the tokens. `segment`: how a text becomes tokens ("english",
        "jieba", "chars" or "whitespace"); None: as in `Elmo.encode`. `cache`: a file of vectors for other processes.
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
        self._opened()
        _texts(X)
        return self

    def transform(self, X: Iterable[Sentence]) -> NDArray[np.float32]:  # noqa: N803
        """N texts → [N, D]; a text without tokens gets zeros."""
        opened = self._opened()
        rows = opened.elmo.text_policy.override(self.segment).sentences_of(_texts(X))
        stored = Stored(self.cache) if self.cache is not None else None

        def embed(tokens: Iterable[Sequence[str]]) -> Iterable[NDArray[np.float32]]:
            stream = opened.elmo.stream(tokens, layer=kept, pool=self.pool, batch_tokens=self.batch_tokens)
            return (vector.reshape(-1).copy() for vector in stream)  # not a view that keeps the sentence alive

        # One pass gives all layers, so all are kept; the mix is not made of them once they are pooled.
        kept: Layer = "mix" if self.layer == "mix" else "all"
        vectors = remembered(rows, f"{opened.name} {kept} {self.pool}", embed, stored)
        part = self._part(opened.elmo)
        size = part.stop - part.start
        return np.stack([vector[part] for vector in vectors]) if vectors else np.zeros((0, size), np.float32)

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """elmo_0 …, or elmo_layer0_0 … for all layers, [D]."""
        elmo = self._opened().elmo
        size = elmo.config.vector_size
        if self.layer != "all":
            return np.array([f"elmo_{number}" for number in range(size)], dtype=object)
        names = [f"elmo_layer{layer}_{number}" for layer in range(elmo.config.n_outputs) for number in range(size)]
        return np.array(names, dtype=object)

    def _opened(self) -> Opened:
        if self.pool is None:
            raise ElmoError("pool must be mean, max, first or last, got None")
        check_pool(self.pool)
        opened = open_model(DEFAULT if self.model is None else self.model, self.device)
        if opened.elmo.state == "carry":
            raise ElmoError(
                "ElmoVectorizer needs vectors that the text alone decides: load the model with state='zero'"
            )
        opened.elmo.stream([], layer=self.layer, batch_tokens=self.batch_tokens)
        opened.elmo.text_policy.override(self.segment)
        return opened

    def _part(self, elmo: Elmo) -> slice:
        """Which numbers of a vector that is kept are asked for."""
        size, layers = elmo.config.vector_size, elmo.config.n_outputs
        if self.layer in ("mix", "all"):
            return slice(0, size if self.layer == "mix" else layers * size)
        number = layers - 1 if self.layer == "top" else int(self.layer)
        return slice(number * size, (number + 1) * size)

    def __sklearn_clone__(self) -> Self:
        """An unfitted copy; an Elmo is shared, not copied."""
        others = {name: clone(value, safe=False) for name, value in self.get_params().items() if name != "model"}
        return type(self)(self.model, **others)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:  # noqa: ANN401 - scikit-learn's Tags
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = False
        tags.transformer_tags.preserves_dtype = []
        return tags


def _texts(given: Any) -> list[str | tuple[str, ...]]:  # noqa: ANN401 - a list, a Series, an array
    """Any column of texts or token lists as a list, checked."""
    if isinstance(given, str) or not isinstance(given, Iterable):
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
            raise ElmoError(f"a text must be a string or a list of tokens, got {text!r} in place {number}")
    return texts
