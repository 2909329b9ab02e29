"""Sources of vectors: a model that Elmo.load can load, a BERT-like model (the mean of a word's pieces), or GloVe."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from two_senses import Language, Tokenizer, tokenizer_of

from elmokit import Elmo
from elmokit.analyse.probes.sources import ElmoSource, LayerSource
from elmokit.encode import encode_stream
from elmokit.errors import ElmoError
from elmokit.tasks.static import glove
from elmokit.text.policy import TextPolicy
from elmokit.text.tokens import SegmenterName, segmenter

Vectors = NDArray[np.float32]
_BERT_FILES = ("config.json", "tokenizer.json", "model.safetensors")
_BATCH_PIECES = {"cpu": 2048, "cuda": 32_768}


@dataclass(frozen=True)
class Encoder:
    """A source of vectors, and its tokenisation of raw text."""

    source: LayerSource
    language: Language
    segment: SegmenterName
    """The segmenter for a text that is not tokenised already."""
    tokenize: Tokenizer
    """The tokeniser with character offsets, for `two_senses`."""

    def means(self, sentences: Sequence[Sequence[str]]) -> Iterator[Vectors]:
        """The mean of each sentence's words, [K, D]."""
        if isinstance(self.source, ElmoSource):
            yield from self.source.elmo.stream(sentences, layer="all", pool="mean")
        else:
            yield from (found.mean(axis=1) for found in self.source.stream(sentences))


def is_bert(model: str) -> bool:
    """Whether this is the folder of a BERT-like model."""
    return all((Path(model) / name).is_file() for name in _BERT_FILES)


def open_encoder(model: str, device: str | None, language: Language | None) -> Encoder:
    """The model as a source; by default the language is detected from the model's text policy."""
    if is_bert(model):
        chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
        segment: SegmenterName = "chars" if language == "zh" else "whitespace"
        return Encoder(BertSource(Path(model), torch.device(chosen)), language or "en", segment, segmenter(segment))
    if model == "glove":
        return Encoder(StaticSource(*glove()), "en", "whitespace", segmenter("whitespace"))
    elmo = Elmo.load(model, device=device)
    spoken: Language = language or ("zh" if elmo.segment in ("chars", "jieba") else "en")
    return Encoder(ElmoSource(elmo), spoken, elmo.segment, tokenizer_of(elmo, spoken))


class StaticSource:
    """One vector per word that does not depend on the context, as in GloVe; an unknown word gets zeros."""

    def __init__(self, words: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """`vectors` [V, D] in the order of `words`; an unknown word is also looked up in lower case."""
        if vectors.ndim != 2 or len(words) != len(vectors):
            raise ElmoError(
                f"vectors must have one row per word, got {vectors.shape} for {len(words):,} words", "vectors"
            )
        self.names = ("static",)
        self.size = int(vectors.shape[1])
        self.device = torch.device("cpu")
        self._rows = {word: row for row, word in enumerate(words)}
        self._vectors = vectors

    def stream(self, sentences: Iterable[Sequence[str]]) -> Iterator[NDArray[np.float32]]:
        """Sentences → arrays [1, T, D]."""
        for tokens in sentences:
            found = np.zeros((1, len(tokens), self.size), np.float32)
            for position, token in enumerate(tokens):
                row = self._rows.get(token, self._rows.get(token.lower()))
                if row is not None:
                    found[0, position] = self._vectors[row]
            yield found


class BertSource:
    """All hidden layers of a BERT-like model; a word's vector is the mean of its pieces, zeros if they were cut off."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        try:
            import tokenizers  # type: ignore[import-not-found,unused-ignore]
            import transformers  # type: ignore[import-not-found,unused-ignore]
        except ImportError as error:
            raise ElmoError(f"{folder} is a BERT-like model, which needs the package transformers") from error
        self.tokenizer: Any = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.model: Any = transformers.AutoModel.from_pretrained(str(folder), local_files_only=True)
        self.model = self.model.float().to(device).eval()
        # The file may set exactly 128 pieces, which pads most sentences and cuts some.
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.model.config.max_position_embeddings)
        self.device = device
        self.size = int(self.model.config.hidden_size)
        self.names = tuple(str(layer) for layer in range(self.model.config.num_hidden_layers + 1))

    def stream(self, sentences: Iterable[Sequence[str]]) -> Iterator[Vectors]:
        """Sentences → arrays [K, T, D]."""
        budget = _BATCH_PIECES.get(self.device.type, _BATCH_PIECES["cpu"])
        return encode_stream(sentences, self._run, budget, size=lambda tokens: len(tokens) * 4 // 3)

    @torch.no_grad()
    def _run(self, batch: Sequence[Sequence[str]]) -> list[Vectors]:
        encodings = self.tokenizer.encode_batch([list(tokens) for tokens in batch], is_pretokenized=True)
        longest, widest = max(len(encoding.ids) for encoding in encodings), max(map(len, batch))
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        share = torch.zeros(len(batch), widest, longest)  # of each piece in its word
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding.ids)] = torch.tensor(encoding.ids)
            mask[row, : len(encoding.ids)] = 1
            for position, word in enumerate(encoding.word_ids):
                if word is not None:
                    share[row, word, position] = 1
        share /= share.sum(2, keepdim=True).clamp(min=1)
        found = self.model(
            input_ids=ids.to(self.device), attention_mask=mask.to(self.device), output_hidden_states=True
        )
        share = share.to(self.device)
        layers = torch.stack([share @ layer.float() for layer in found.hidden_states]).cpu().numpy()
        return [layers[:, row, : len(tokens)] for row, tokens in enumerate(batch)]

    @torch.no_grad()
    def word(self, word: str) -> Vectors:
        """The mean of the embeddings of a word's pieces, without positions and context [D]."""
        pieces = self.tokenizer.encode([word], is_pretokenized=True, add_special_tokens=False).ids
        table = self.model.get_input_embeddings().weight
        found: Vectors = table[pieces].mean(dim=0).cpu().numpy() if pieces else np.zeros(self.size, np.float32)
        return found


class BertAsElmo:
    """A BERT-like model with the part of Elmo's interface that frozen heads use; layer 0 is `BertSource.word`."""

    state, boundaries = "zero", False

    def __init__(self, folder: Path, device: str | None) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.folder, self.source = folder, BertSource(folder, self.device)
        self.text_policy = TextPolicy.of("whitespace")
        self.segment = self.text_policy.name
        size, n_outputs = self.source.size, len(self.source.names)
        context = SimpleNamespace(n_layers=n_outputs - 1)
        self.config = SimpleNamespace(token_size=size, vector_size=size, n_outputs=n_outputs, context=context)

    def fingerprint(self) -> str:
        """A digest of the model's files, for the cache of vectors."""
        found = hashlib.blake2b(digest_size=16)
        for name in _BERT_FILES:
            found.update((self.folder / name).read_bytes())
        return found.hexdigest()

    def stream(self, sentences: Iterable[Sequence[str]], *, layer: str, batch_tokens: int | None) -> Iterator[Vectors]:
        """Sentences → arrays [L+1, T, D]."""
        rows = [tuple(tokens) for tokens in sentences]
        words = {word: self.source.word(word) for tokens in rows for word in tokens}
        for tokens, found in zip(rows, self.source.stream(rows), strict=True):
            if tokens:
                found[0] = [words[word] for word in tokens]
            yield found
