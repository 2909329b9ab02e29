"""What the biLM expects to read: log-probabilities, perplexity and words that fit, for models with a softmax.

The forward direction at token t says what comes next, the backward one what came before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.model.lm_head import AnyLmHead
from elmokit.text.vocab import Vocabulary

_CHUNK_NUMBERS = 2**25
"""Numbers of a [tokens, V] matrix that are held at once."""
_IN_ORDER = 0.5
"""The correlation of bias and rank from which on a vocabulary counts as one in order of falling counts."""


@dataclass(frozen=True)
class LogProbs:
    """Natural logarithms for one sentence of T tokens; a word outside the vocabulary counts as `<UNK>`."""

    forward: NDArray[np.float32]
    """[T + 1]: each token, then the end of the sentence, given what stands before it."""
    backward: NDArray[np.float32] | None
    """[T + 1]: the beginning of the sentence, then each token, given what stands after it; None for one direction."""

    def sums(self, counts: Sequence[int]) -> LogProbs:
        """The same for groups of tokens, `counts` of them in each: log p(a, b) = log p(a) + log p(b | a)."""
        starts = np.cumsum([0, *counts])
        return LogProbs(
            np.add.reduceat(self.forward, starts),
            None if self.backward is None else np.add.reduceat(self.backward, [0, *(1 + starts[:-1])]),
        )


class Perplexity(float):
    """exp of the mean loss over both directions; `forward` and `backward` are those of one direction."""

    forward: float
    backward: float | None
    tokens: int
    """Predictions in each direction: the tokens and one boundary a sentence."""

    @classmethod
    def of(cls, sentences: Sequence[LogProbs]) -> Self:
        """The perplexity over all tokens of the sentences."""
        tokens = sum(len(sentence.forward) for sentence in sentences)
        if not tokens:
            raise ElmoError("perplexity needs at least one sentence, got none")
        forward = -math.fsum(float(s.forward.sum(dtype=np.float64)) for s in sentences) / tokens
        backward = None
        if all(sentence.backward is not None for sentence in sentences):
            backward = -math.fsum(float(s.backward.sum(dtype=np.float64)) for s in sentences if s.backward is not None)
            backward /= tokens
        result = cls(math.exp(forward if backward is None else (forward + backward) / 2))
        result.forward, result.tokens = math.exp(forward), tokens
        result.backward = None if backward is None else math.exp(backward)
        return result


class LanguageModel:
    """The softmax of a model, with the vocabulary that names its rows."""

    def __init__(self, head: AnyLmHead | None, vocab: Vocabulary | None, *, bidirectional: bool) -> None:
        if head is None:
            raise ElmoError(
                "this model has no softmax, so it has no probabilities; a TensorFlow checkpoint or a model trained "
                "with elmokit brings one"
            )
        if vocab is None:
            raise ElmoError("this model's softmax has no vocabulary: give its vocab.txt with vocab= when loading")
        self.head, self.vocab, self.bidirectional = head, vocab, bidirectional

    def log_probs(self, tokens: Sequence[str], top: Tensor) -> LogProbs:
        """Tokens of a sentence and its top layer [T + 2, D], boundaries included → log-probabilities."""
        targets = [self.vocab.begin, *(self.vocab.index(token) for token in tokens), self.vocab.end]
        forward, backward = self._directions(top)
        return LogProbs(
            self._pick(forward[:-1], targets[1:]),
            None if backward is None else self._pick(backward[1:], targets[:-1]),
        )

    def substitutes(self, index: int, top: Tensor, k: int) -> list[tuple[str, float]]:
        """The k words that fit best at a token's place, and their probabilities, from the top layer [T + 2, D].

        p(w | before, after) ∝ p(w | before) p(w | after) / p(w): without the division a word's frequency would count
        twice, once in each direction, and `the` would fit everywhere. p(w) is told by the word's rank where the
        vocabulary stands in order of falling counts, as `elmo vocab` writes it, else by the softmax's bias.
        """
        forward, backward = self._directions(top)
        scores = self.head(forward[index : index + 1])[0].double()
        if backward is not None:
            scores = scores + self.head(backward[index + 2 : index + 3])[0].double() - self._log_frequencies()
        scores[[self.vocab.begin, self.vocab.end, self.vocab.unknown]] = -torch.inf
        best = torch.softmax(scores, dim=0).topk(min(k, len(scores) - 3))
        return [(self.vocab[i], p) for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]

    def _log_frequencies(self) -> Tensor:
        """The logarithm of how frequent each word is, up to a constant, [V]."""
        bias = self.head.bias.detach().double()
        ranks = torch.arange(1, len(bias) + 1, dtype=bias.dtype, device=bias.device)
        by_rank = torch.log(torch.log1p(1 / ranks))  # as in the sampled softmax
        # A bias learns frequencies, if less evenly than ranks tell them (a correlation of 0.95 and more in the bundled
        # models): where it does not fall with the ranks, the words stand in another order.
        together = torch.corrcoef(torch.stack([by_rank, bias]))[0, 1]
        return bias if together < _IN_ORDER else by_rank

    def _directions(self, top: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.bidirectional:
            return top, None
        forward, backward = top.chunk(2, dim=-1)
        return forward, backward

    def _pick(self, top: Tensor, targets: list[int]) -> NDArray[np.float32]:
        rows = torch.tensor(targets, device=top.device).unsqueeze(1)
        parts = [self.head(block).gather(1, rows[start : start + len(block)]) for start, block in self._blocks(top)]
        return torch.cat(parts)[:, 0].float().cpu().numpy()

    def _blocks(self, top: Tensor) -> Iterator[tuple[int, Tensor]]:
        size = max(1, _CHUNK_NUMBERS // len(self.head.bias))
        for start in range(0, len(top), size):
            yield start, top[start : start + size]
