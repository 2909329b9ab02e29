"""ELMo in Flair: vectors of words in context for Flair's taggers and classifiers.

    from elmokit.integrations.flair import ElmoTokenEmbeddings
    tagger = SequenceTagger(embeddings=ElmoTokenEmbeddings("en"), tag_dictionary=tags, tag_type="ner")

Import this module before you load a tagger that uses it: the import registers the class with Flair.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats.bundled import DEFAULT
from elmokit.integrations.models import check_stateless, open_model
from elmokit.layers import Layer, check_layer

try:
    import flair
    from flair.data import Sentence
    from flair.embeddings.base import TokenEmbeddings, register_embeddings
except ImportError as error:
    raise MissingExtraError("flair", "flair", "ElmoTokenEmbeddings") from error


@register_embeddings
class ElmoTokenEmbeddings(TokenEmbeddings):  # type: ignore[misc]  # flair may not be installed
    """A vector for each token of a Flair sentence, [D]; with `layer="all"` the vectors of all layers, [(L+1)·D].

    `model`: a folder, a file, the name of a bundled model, or an Elmo. `layer` is as in `Elmo.encode`. A saved tagger
    contains the model's name, or with `save_model` the model itself. The model is not trained with the tagger.
    """

    def __init__(
        self,
        model: str | Path | Elmo = DEFAULT,
        layer: Layer | None = None,
        *,
        save_model: bool = False,
        name: str | None = None,
    ) -> None:
        # Not an attribute of the torch module, which would make its weights a part of every tagger.
        object.__setattr__(self, "model", model)
        elmo = self._elmo()
        check_stateless(elmo, type(self).__name__)
        self.layer = elmo.default_layer if layer is None else layer
        check_layer(self.layer, elmo.config.n_outputs)
        title = elmo.fingerprint()[:12] if isinstance(model, Elmo) else str(model)
        self.name = name or f"elmo-{title}-{self.layer}"
        self.static_embeddings = True
        super().__init__()
        self.save_model = save_model
        self._length = elmo.config.vector_size * (elmo.config.n_outputs if self.layer == "all" else 1)
        self.eval()

    @property
    def embedding_length(self) -> int:
        """The size of a token's vector."""
        return self._length

    def _elmo(self) -> Elmo:
        return open_model(self.model, str(flair.device))

    def _add_embeddings_internal(self, sentences: list[Sentence]) -> list[Sentence]:
        rows = ([token.text for token in sentence] for sentence in sentences)
        elmo = self._elmo()
        inner = slice(1, -1) if elmo.boundaries else slice(None)
        for sentence, found in zip(sentences, elmo.stream(rows, layer=self.layer), strict=True):
            vectors = np.concatenate(list(found), axis=-1) if self.layer == "all" else found
            for token, vector in zip(sentence, torch.from_numpy(vectors[inner]).to(flair.device), strict=True):
                token.set_embedding(self.name, vector)
        return sentences

    def to_params(self) -> dict[str, Any]:
        """The parameters that a saved tagger stores for these embeddings."""
        params = {"layer": self.layer, "save_model": self.save_model, "name": self.name}
        if self.save_model:
            with tempfile.TemporaryDirectory() as folder:
                self._elmo().save(folder, softmax="none")
                return params | {"files": {file.name: file.read_bytes() for file in Path(folder).iterdir()}}
        if isinstance(self.model, Elmo):
            raise ElmoError("an Elmo in memory has no name to save: give its folder, or save_model=True", "model")
        return params | {"model": str(self.model)}

    @classmethod
    def from_params(cls, params: dict[str, Any]) -> Self:
        """The embeddings of a saved tagger."""
        params = dict(params)
        files = params.pop("files", None)
        if files is None:
            return cls(**params)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                (Path(folder) / Path(name).name).write_bytes(content)
            return cls(Elmo.load(folder, device=str(flair.device)), **params)
