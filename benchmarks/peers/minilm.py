"""all-MiniLM-L6-v2 as a source of word vectors: words → pieces → the last layer → the mean of each word's pieces.

It gives vectors of one layer, and ELMo a mix of layers; both give a vector of size 384 per word, in the context of the
sentence. A batch is padded to its longest sentence in pieces.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from peers.systems import Batch, Vectors, by_length

LONGEST = 512
"""The network's number of positions; words whose pieces come after them get zeros."""

Ids = NDArray[np.int64]


class PieceEncoding(Protocol):
    """A sentence in pieces, with the interface of the package tokenizers."""

    ids: list[int]
    word_ids: list[int | None]
    """The word of each piece; None for the two markers."""


def padded(encodings: Sequence[PieceEncoding]) -> tuple[Ids, Ids]:
    """The padded ids of pieces [B, T], and their mask."""
    longest = max(len(encoding.ids) for encoding in encodings)
    ids = np.zeros((len(encodings), longest), np.int64)
    mask = np.zeros_like(ids)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding.ids)] = encoding.ids
        mask[row, : len(encoding.ids)] = 1
    return ids, mask


def word_means(pieces: Vectors, words: Sequence[int | None], count: int) -> Vectors:
    """pieces [T, D] → [count, D]: the mean of each word's pieces, zeros for a word without pieces."""
    starts = [t for t, word in enumerate(words) if word is not None and word != words[t - 1]]
    ends = [t + 1 for t, word in enumerate(words) if word is not None and word != words[t + 1]]
    named = [word for word in (words[t] for t in starts) if word is not None]
    if len(named) == count and ends[-1] - starts[0] == count:
        return pieces[starts[0] : ends[-1]]  # each word is one piece
    means = np.zeros((count, pieces.shape[1]), np.float32)
    if named:
        sizes = np.array(ends, np.float32) - np.array(starts, np.float32)
        means[named] = np.add.reduceat(pieces[: ends[-1]], starts, axis=0) / sizes[:, None]
    return means


class _MiniLm(ABC):
    """Shared by both runtimes: splitting words into pieces, and averaging the pieces of words."""

    facts: dict[str, str]
    words = 0
    pieces = 0

    def fresh(self) -> None:  # noqa: B027 - deliberately empty
        """Do nothing: it caches no words."""

    def encode(self, batch: Batch) -> list[Vectors]:
        """The vectors of each sentence's words in the last layer, [T, D]."""
        encodings = self.split(batch)
        values = self.last_layer(*padded(encodings))
        self.words += sum(map(len, batch))
        self.pieces += sum(len(encoding.ids) - 2 for encoding in encodings)
        self.facts["pieces per word"] = f"{self.pieces / max(1, self.words):.2f}"
        return [
            word_means(pieces[: len(encoding.ids)], encoding.word_ids, len(tokens))
            for pieces, encoding, tokens in zip(values, encodings, batch, strict=True)
        ]

    def encode_all(self, sentences: Batch, size: int = 64) -> list[Vectors]:
        """The vectors of all sentences, in batches of similar lengths."""
        return by_length(self, sentences, size)

    @abstractmethod
    def split(self, batch: Batch) -> Sequence[PieceEncoding]:
        """The sentences in pieces."""

    @abstractmethod
    def last_layer(self, ids: Ids, mask: Ids) -> Vectors:
        """ids [B, T], mask [B, T] → [B, T, D]."""


class MiniLmOnnx(_MiniLm):
    """MiniLM in onnxruntime with the package tokenizers, without torch and transformers."""

    def __init__(self, model: str, dtype: Literal["float32", "int8"]) -> None:
        import onnxruntime  # type: ignore[import-not-found,unused-ignore]
        import tokenizers  # type: ignore[import-not-found,unused-ignore]

        folder = Path(model)
        self.tokenizer: Any = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        # The file sets exactly 128 pieces, which would pad most sentences and cut some.
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(LONGEST)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
        options.inter_op_num_threads = 1
        path = str(folder / f"{dtype}.onnx")
        self.session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = {given.name: given.type for given in self.session.get_inputs()}
        self.facts = {"onnxruntime": onnxruntime.__version__, "tokenizers": tokenizers.__version__}

    def split(self, batch: Batch) -> Sequence[PieceEncoding]:
        """The sentences in pieces."""
        found: Sequence[PieceEncoding] = self.tokenizer.encode_batch([list(s) for s in batch], is_pretokenized=True)
        return found

    def last_layer(self, ids: Ids, mask: Ids) -> Vectors:
        """ids [B, T], mask [B, T] → [B, T, D]."""
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        # Fused graphs take int32, other graphs int64.
        feed = {n: given[n].astype(np.int32 if "int32" in kind else np.int64) for n, kind in self.inputs.items()}
        found: Vectors = self.session.run(["last_hidden_state"], feed)[0]
        return found


class MiniLmTransformers(_MiniLm):
    """MiniLM in transformers, called as its users do."""

    def __init__(self, model: str) -> None:
        import torch
        import transformers  # type: ignore[import-not-found,unused-ignore]

        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model)
        self.bert: Any = transformers.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
        self.facts = {"transformers": transformers.__version__, "its torch": torch.__version__}

    def split(self, batch: Batch) -> Sequence[PieceEncoding]:
        """The sentences in pieces."""
        given = [list(sentence) for sentence in batch]
        found = self.tokenizer(given, is_split_into_words=True, truncation=True, max_length=LONGEST)
        encodings: Sequence[PieceEncoding] = found.encodings
        return encodings

    def last_layer(self, ids: Ids, mask: Ids) -> Vectors:
        """ids [B, T], mask [B, T] → [B, T, D]."""
        import torch

        with torch.inference_mode():
            found = self.bert(input_ids=torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
        vectors: Vectors = found.last_hidden_state.numpy()
        return vectors
