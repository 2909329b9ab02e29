"""simple_elmo's `ElmoModel`: import it from `elmokit.compat.simple_elmo` instead of `simple_elmo`.

    model = ElmoModel()
    model.load("model.zip")
    vectors = model.get_elmo_vectors([["A", "sentence"]], layers="top")

Methods, arguments and shapes are the same. As in simple_elmo, a call starts from zero, runs the first batch once to
warm up, and carries state from batch to batch; `load(..., stateful=False)` starts every sentence from zero. Two results
are different on purpose: averages leave out padding, and substitutes are predicted from the whole sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.compat import bilm
from elmokit.compat.bilm import Batcher, BidirectionalLanguageModel, Vocabulary, read_words
from elmokit.compat.load import load_elmo, token_lists
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError

__all__ = [
    "Batcher",
    "BidirectionalLanguageModel",
    "ElmoModel",
    "divide_chunks",
    "get_elmo_vectors",
    "load_elmo_embeddings",
    "tokenize",
    "weight_layers",
]

LayerChoice = Literal["average", "top", "all"]
Texts = Iterable[Sequence[str]]
Array = NDArray[np.float64]
Item = TypeVar("Item")


class ElmoModel:
    """An ELMo model; `load` reads its files."""

    def __init__(self) -> None:
        self.elmo: Elmo | None = None
        self.batcher: Batcher | None = None
        self.batch_size: int | None = None
        self.max_chars: int | None = None
        self.vector_size: int | None = None
        self.n_layers: int | None = None
        self.vocab: Vocabulary | None = None
        """The words that the model predicts, with `full=True`."""

    def load(
        self,
        directory: str | Path,
        max_batch_size: int = 32,
        limit: int = 100,
        full: bool = False,
        *,
        stateful: bool = True,
        device: str | torch.device | None = None,
    ) -> str:
        """Load a folder, a zip, the name of a bundled model, or `owner/name` on the Hub.

        `max_batch_size` is the number of sentences that are computed together. `full=True` requires the softmax, for
        `get_elmo_substitutes`. `limit` has no effect: every word is cached. `stateful=False` makes a sentence's
        vectors independent of other sentences.
        """
        if max_batch_size < 1:
            raise ElmoError(f"max_batch_size must be at least 1, got {max_batch_size}", "max_batch_size")
        elmo = load_elmo(directory, stateful=stateful, device=device)
        packed = Path(directory) / "vocab.txt.gz"
        if full and elmo.vocab is None and packed.is_file():
            checkpoint = elmo.checkpoint()
            checkpoint.use_vocabulary(read_words(packed, "directory"))  # refused if it belongs to another model
            elmo.vocab = checkpoint.vocab
        if full and (elmo.head is None or elmo.vocab is None):
            raise ElmoError(
                f"full=True needs a model with softmax and vocab.txt, but {directory} lacks one of them: load the "
                "folder of the checkpoint"
            )
        self.elmo, self.batch_size = elmo, max_batch_size
        self.vocab = Vocabulary(elmo.vocab) if full and elmo.vocab is not None else None
        self.vector_size, self.n_layers = elmo.config.vector_size, elmo.config.n_outputs
        self.max_chars = elmo.config.characters.max_characters if elmo.config.characters else None
        self.batcher = Batcher(None, self.max_chars) if self.max_chars else None
        return "The model is now loaded."

    def get_elmo_vectors(
        self, texts: Texts, warmup: bool = True, layers: LayerChoice = "average", session: object = None
    ) -> Array:
        """Lists of words → float64 [N, T, D], or [N, L+1, T, D] with `layers="all"`; 0 after a sentence's end.

        `warmup` first runs the first batch once, so that its vectors start from a state. If `session` is not None, the
        call continues from the state of the previous call; the value has no other use.
        """
        sentences = token_lists(texts, "texts")
        found = list(self._arrays(sentences, layers, warmup=warmup, session=session))
        longest = max(map(len, sentences), default=0)
        vectors = np.zeros((len(sentences), *self._layers_shape(layers), longest, self._loaded.config.vector_size))
        for row, array in zip(vectors, found, strict=True):
            row[..., : array.shape[-2], :] = array
        return vectors

    def get_elmo_vector_average(
        self, texts: Texts, warmup: bool = True, layers: LayerChoice = "average", session: object = None
    ) -> Array:
        """Lists of words → one vector of length 1 per sentence, float64 [N, D], or [N, L+1, D] with `layers="all"`.

        The vector is the mean over a sentence's words. With several layers, their joint vector has length 1. A sentence
        without words gets zeros.
        """
        sentences = token_lists(texts, "texts")
        averages = np.zeros((len(sentences), *self._layers_shape(layers), self._loaded.config.vector_size))
        found = self._arrays(sentences, layers, warmup=warmup, session=session)
        for row, array in zip(averages, found, strict=True):
            if array.shape[-2]:
                mean = array.mean(axis=-2, dtype=np.float64)
                row[...] = mean / np.linalg.norm(mean)
        return averages

    def get_elmo_substitutes(
        self, data: Iterable[str], topn: int = 3, nodelimiters: bool = True
    ) -> list[list[dict[str, Any]]]:
        """Sentences as strings, split at white space → for each word, the predictions of both language models.

        A word's entry is {"word", "forward", "backward"}. A direction has "candidates" (ids in the vocabulary),
        "candidate_words" and "logp" (natural logarithms of their probabilities), the best first. `topn` may be as large
        as the vocabulary. `nodelimiters` leaves out `<S>` and `</S>`. The model must have its softmax and both
        directions.
        """
        elmo = self._loaded
        if elmo.head is None or elmo.vocab is None:
            raise ElmoError(f"substitutes need a model with softmax and vocabulary, but {elmo.where} lacks one of them")
        if elmo.bilm.context.predicts_masked or elmo.config.n_directions < 2:
            raise ElmoError(f"{elmo.where} has no forward and backward model: use Elmo.substitutes instead")
        if isinstance(data, str):
            raise ElmoError(f"data must be a list of sentences, got the string {data[:40]!r}", "data")
        if topn < 1:
            raise ElmoError(f"topn must be at least 1, got {topn}", "topn")
        hidden = [elmo.vocab.begin, elmo.vocab.end] if nodelimiters else []
        most = min(topn, len(elmo.vocab) - len(hidden))
        return [_substitutes(elmo, sentence.split(), most, hidden) for sentence in data]

    @property
    def _loaded(self) -> Elmo:
        if self.elmo is None:
            raise ElmoError("no model is loaded: call load(directory) first")
        return self.elmo

    def _layers_shape(self, layers: LayerChoice) -> tuple[int, ...]:
        if layers not in ("average", "top", "all"):
            raise ElmoError(f"layers must be average, top or all, got {layers!r}", "layers")
        return (self._loaded.config.n_outputs,) if layers == "all" else ()

    def _arrays(
        self, sentences: list[list[str]], layers: LayerChoice, *, warmup: bool, session: object
    ) -> Iterator[NDArray[np.float32]]:
        """[T, D] or [L+1, T, D] for each sentence."""
        elmo = self._loaded
        layer: Literal["top", "all"] = "top" if layers == "top" else "all"
        self._layers_shape(layers)  # refuses other values
        assert self.batch_size is not None
        if elmo.state == "carry":
            if session is None:
                elmo.reset_state()
            if warmup and sentences:
                elmo.encode(sentences[: self.batch_size])
            chunks: Iterable[Sequence[list[str]]] = divide_chunks(sentences, self.batch_size)
        else:
            chunks = [sentences]
        for array in (array for chunk in chunks for array in elmo.stream(chunk, layer=layer)):
            yield array.mean(axis=0) if layers == "average" else array


@torch.no_grad()
def _substitutes(elmo: Elmo, words: list[str], topn: int, hidden: list[int]) -> list[dict[str, Any]]:
    """The predictions for the words of one sentence."""
    head, vocab = elmo.head, elmo.vocab
    assert head is not None
    assert vocab is not None
    if elmo.character_pieces is not None:
        ((words,), _) = elmo.character_pieces.split([words])
    tokens = elmo.encode_types([elmo.indexer.begin, *words, elmo.indexer.end])
    inputs = elmo.bilm.predict(tokens.unsqueeze(0), torch.tensor([len(tokens)]))
    assert inputs.backward is not None
    known: list[dict[str, Any]] = [{"word": vocab[vocab.index(word)]} for word in words]
    # A word is predicted forward from the position before it, and backward from the position after it.
    for side, states in {"forward": inputs.forward[0, :-2], "backward": inputs.backward[0, 2:]}.items():
        scores: Tensor = head(states)
        scores[:, hidden] = -torch.inf
        best = scores.topk(topn, dim=1)
        for entry, ids, values in zip(known, best.indices.tolist(), best.values.tolist(), strict=True):
            entry[side] = {
                "candidates": ids,
                "candidate_words": [vocab[number] for number in ids],
                "logp": [round(value, 4) for value in values],
            }
    return known


def load_elmo_embeddings(
    directory: str | Path, top: bool = False
) -> tuple[Batcher, None, Callable[[NDArray[np.int64]], Tensor]]:
    """The batcher, placeholder and vector op of `elmo_helpers.py`, the script that came before the package.

    The op is a function of ids here. Give all three to `get_elmo_vectors`.
    """
    model = BidirectionalLanguageModel(None, directory)
    characters = model.network.config.characters
    batcher = Batcher(None, characters.max_characters if characters else 50)
    layers: LayerChoice = "top" if top else "average"
    return batcher, None, lambda ids: weight_layers("input", model(ids), use_layers=layers)["weighted_op"]


def get_elmo_vectors(
    sess: object,
    texts: Iterable[Sequence[str]],
    batcher: Batcher,
    sentence_character_ids: None,
    elmo_sentence_input: Callable[[NDArray[np.int64]], Tensor],
) -> NDArray[np.float32]:
    """The vectors of one batch, float32 [N, T, D], from the results of `load_elmo_embeddings`; `sess` may be None."""
    vectors: NDArray[np.float32] = elmo_sentence_input(batcher.batch_sentences(texts)).detach().cpu().numpy()
    return vectors


def divide_chunks(data: Sequence[Item], n: int) -> Iterator[Sequence[Item]]:
    """Yield n items at a time."""
    for start in range(0, len(data), n):
        yield data[start : start + n]


def tokenize(string: str, limit: int | None = None) -> list[str]:
    """The runs of letters, digits and underscores in a string, at most `limit` of them.

    >>> tokenize("It's a river-bank.")
    ['It', 's', 'a', 'river', 'bank']
    """
    return re.findall(r"\w+", string)[:limit]


def weight_layers(
    name: str,
    bilm_ops: Mapping[str, Any],
    l2_coef: float = 0.0,
    use_layers: LayerChoice = "average",
    do_layer_norm: bool = False,
) -> dict[str, Tensor]:
    """`weight_layers` of `elmokit.compat.bilm` with simple_elmo's `use_layers`; "all" gives [B, L+1, T, D]."""
    if use_layers == "all":
        layers = bilm_ops["lm_embeddings"]
        return {"weighted_op": layers, "regularization_op": torch.zeros(1, device=layers.device)}
    return bilm.weight_layers(name, bilm_ops, l2_coef, use_layers == "top", do_layer_norm)
