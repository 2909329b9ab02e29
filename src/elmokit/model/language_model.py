"""The language model of a network: the softmax over the vocabulary, log-probabilities, perplexity and words that fit.

The forward direction predicts the next word at each token, the backward one the word before; both use one softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.model.bilm import BiLM
from elmokit.model.context import SoftmaxInputs, State
from elmokit.model.int8 import VALUES, Int8Weight, check_int8
from elmokit.model.placement import shells
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.linear import dense, linear
from elmokit.ops.softmax_loss import chunk_rows, softmax_loss
from elmokit.text.vocab import Vocabulary

_IN_ORDER = 0.5
"""The correlation of bias and rank above which a vocabulary counts as sorted by falling counts."""

MASKED_SHARE = 0.15
"""The share of a text's words that are masked to measure its masked perplexity."""
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
"""The steps of SplitMix64, which turn consecutive numbers into ones that look random."""


class LmHead(nn.Module):
    """The softmax: vectors from the context encoder [N, S] → log-probabilities over V words."""

    def __init__(self, n_words: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_words, size))
        self.bias = nn.Parameter(torch.zeros(n_words))
        nn.init.normal_(self.weight, std=size**-0.5)

    def forward(self, states: Tensor) -> Tensor:
        """states [N, S] → log-probabilities [N, V]."""
        return torch.log_softmax(linear(states, self.weight, self.bias), dim=-1)

    def losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """states [N, S], targets [N] → −log p [N]."""
        return target_losses(states, self.weight, self.bias, targets)


class Int8LmHead(nn.Module):
    """`LmHead` with an int8 matrix, which is mapped from a file and not read before the first product with it."""

    def __init__(self, n_words: int, size: int) -> None:
        super().__init__()
        self.weight = Int8Weight(n_words, size)
        self.bias = nn.Parameter(torch.zeros(n_words))
        self._checked: Int8Matrix | None = None

    def forward(self, states: Tensor) -> Tensor:
        """states [N, S] → log-probabilities [N, V]."""
        return torch.log_softmax(linear(states, self._matrix(states), self.bias), dim=-1)

    def losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """states [N, S], targets [N] → −log p [N]."""
        return target_losses(states, self._matrix(states), self.bias, targets)

    def _matrix(self, states: Tensor) -> Tensor | Int8Matrix:
        """The matrix in the form for a product with these states."""
        matrix = self.weight.matrix()
        if matrix is not self._checked:  # not checked when it was loaded, because that would read all of it
            check_int8(matrix.values, f"weight{VALUES}", "the softmax")
            self._checked = matrix
        if states.device.type == "cpu" and states.dtype == torch.float32:
            return matrix
        return dense(matrix).to(states.dtype)


AnyLmHead = LmHead | Int8LmHead


@torch.no_grad()
def target_losses(states: Tensor, weight: Tensor | Int8Matrix, bias: Tensor, targets: Tensor) -> Tensor:
    """states [N, S], weight [V, S], bias [V], targets [N] → −log p [N]; on a CPU each row independent of the others."""
    if states.device.type == "cuda" and isinstance(weight, Tensor):
        return softmax_loss(states, weight, bias, targets, row_weight=0.0)[1]
    size = chunk_rows(states.device, len(bias))
    parts = []
    for start in range(0, len(states), size):
        logits = linear(states[start : start + size], weight, bias)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        chosen = logits.gather(1, targets[start : start + size].unsqueeze(1))[:, 0]
        parts.append(torch.logsumexp(logits, dim=1) - chosen)
    return torch.cat(parts) if parts else states.new_zeros(0)


def head_shell(weights: Mapping[str, Tensor]) -> AnyLmHead:
    """A softmax without memory, of the kind and size of these weights; `placement.fill` gives it the weights."""
    kind, name = (Int8LmHead, f"weight{VALUES}") if f"weight{VALUES}" in weights else (LmHead, "weight")
    with shells():
        return kind(*weights[name].shape)


@dataclass(frozen=True)
class LogProbs:
    """Natural log-probabilities for one sentence of T tokens; a word outside the vocabulary counts as `<UNK>`."""

    forward: NDArray[np.float32]
    """[T + 1]: of each token, then of the end of the sentence, given the tokens before."""
    backward: NDArray[np.float32] | None
    """[T + 1]: of the sentence's beginning, then of each token, given the tokens after; None without this direction."""

    def sums(self, counts: Sequence[int]) -> LogProbs:
        """The log-probabilities of groups of `counts` tokens: log p(a, b) = log p(a) + log p(b | a)."""
        starts = np.cumsum([0, *counts])
        return LogProbs(
            np.add.reduceat(self.forward, starts),
            None if self.backward is None else np.add.reduceat(self.backward, [0, *(1 + starts[:-1])]),
        )


class Perplexity(float):
    """exp of the mean loss over both directions; `forward` and `backward` are the perplexities of one direction."""

    forward: float
    backward: float | None
    tokens: int
    """The number of predictions in each direction: the tokens, and one boundary per sentence."""

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


class Scores(NamedTuple):
    """−log p of every prediction in a batch of sentences."""

    losses: Tensor
    """[directions, N]: sentence after sentence; a sentence has one more prediction than words."""
    counts: list[int]
    """[B]: the number of predictions for each sentence in one direction."""
    state: State | None
    """The recurrent state after the sentences, for encoders that have one."""


def score(
    bilm: BiLM,
    losses: Callable[[Tensor, Tensor], Tensor],
    tokens: Tensor,
    lengths: Tensor,
    words: Tensor,
    state: State | None = None,
) -> Scores:
    """Score whole sentences, boundaries included: tokens [B, T, P], lengths [B] on the CPU, words [B, T].

    `words` are rows of the softmax. `losses` takes the inputs of the softmax [N, S] and the correct words [N].
    `Elmo.perplexity`, `elmo eval` and the held-out perplexities of training all use this function.
    """
    forward, backward, after = bilm.predict(tokens, lengths, state)
    inside = torch.arange(tokens.shape[1] - 1) < (lengths - 1).unsqueeze(1)
    inside, words = inside.to(forward.device), words.to(forward.device)
    by_direction = [losses(forward[:, :-1][inside], words[:, 1:][inside])]
    if backward is not None:
        by_direction.append(losses(backward[:, 1:][inside], words[:, :-1][inside]))
    return Scores(torch.stack(by_direction), (lengths - 1).tolist(), after)


def masked_losses(
    bilm: BiLM, losses: Callable[[Tensor, Tensor], Tensor], tokens: Tensor, lengths: Tensor, words: Tensor
) -> Tensor:
    """−log p [M] of the words that `to_mask` chooses, from the words before and after them; arguments as in `score`."""
    masked = to_mask(words, lengths)
    return losses(bilm.predict_masked(tokens, lengths, masked), words[masked].to(tokens.device))


def to_mask(words: Tensor, lengths: Tensor) -> Tensor:
    """words [B, T] with boundaries, lengths [B] → [B, T]: true for about 15 % of the words of each sentence.

    The choice depends only on the sentence, so that a perplexity does not depend on how a text is divided.
    """
    rows = words.numpy().astype(np.uint64)
    positions = np.arange(rows.shape[1])
    last = lengths.numpy()[:, None] - 1
    powers = np.cumprod(np.full(rows.shape[1], _ODD, np.uint64))  # all arithmetic is modulo 2**64
    sentences = np.where(positions <= last, (rows + 1) * powers, 0).sum(axis=1, dtype=np.uint64)
    mixed = sentences[:, None] + (positions.astype(np.uint64) + 1) * _ODD
    for shift, factor in _MIXING:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    chosen = (mixed >> np.uint64(32)) < np.uint64(int(MASKED_SHARE * 2**32))
    return torch.from_numpy(chosen & (positions > 0) & (positions < last))


class LanguageModel:
    """The softmax of a model, with the vocabulary that names its rows."""

    def __init__(self, head: AnyLmHead | None, vocab: Vocabulary | None) -> None:
        if head is None:
            raise ElmoError(
                "this model has no softmax, so it has no probabilities: load a TensorFlow checkpoint, or a model that "
                "elmokit has trained"
            )
        if vocab is None:
            raise ElmoError("this model's softmax has no vocabulary: load it with its vocab.txt as vocab", "vocab")
        self.head, self.vocab = head, vocab

    def words(self, sentences: Sequence[Sequence[str]]) -> Tensor:
        """The rows of the softmax for each sentence's tokens, boundaries included [B, T + 2]."""
        vocab, longest = self.vocab, max(map(len, sentences), default=0) + 2
        rows = [[vocab.begin, *map(vocab.index, tokens), vocab.end] for tokens in sentences]
        return torch.tensor([row + [vocab.end] * (longest - len(row)) for row in rows], dtype=torch.long)

    @staticmethod
    def log_probs(scores: Scores) -> list[LogProbs]:
        """The log-probabilities of each sentence of a batch."""
        forward, *backward = (-direction.float().cpu() for direction in scores.losses)
        parts = [[part.numpy() for part in losses.split(scores.counts)] for losses in (forward, *backward)]
        return [LogProbs(*pair) if len(pair) == 2 else LogProbs(pair[0], None) for pair in zip(*parts, strict=True)]

    def fitting(self, index: int, inputs: SoftmaxInputs) -> Tensor:
        """Scores [V]: how well each word would fit at the position of a token in one sentence, from both directions.

        p(w | before, after) ∝ p(w | before) p(w | after) / p(w): without the division, a word's frequency would count
        twice, once in each direction, and `the` would fit everywhere. p(w) is computed from the word's rank if the
        vocabulary is sorted by falling counts, as `elmo vocab` writes it, otherwise from the softmax's bias.
        """
        scores: Tensor = self.head(inputs.forward[0, index : index + 1])[0].double()
        if inputs.backward is not None:
            after = self.head(inputs.backward[0, index + 2 : index + 3])[0].double()
            scores = scores + after - self._log_frequencies()
        return scores

    def best(self, scores: Tensor, k: int) -> list[tuple[str, float]]:
        """The k words with the highest scores [V], without boundaries and `<UNK>`, and their probabilities."""
        scores = scores.double()
        scores[[self.vocab.begin, self.vocab.end, self.vocab.unknown]] = -torch.inf
        best = torch.softmax(scores, dim=0).topk(min(k, len(scores) - 3))
        return [(self.vocab[i], p) for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]

    def _log_frequencies(self) -> Tensor:
        """The logarithm of each word's frequency, up to a constant, [V]."""
        bias = self.head.bias.detach().double()
        ranks = torch.arange(1, len(bias) + 1, dtype=bias.dtype, device=bias.device)
        by_rank = torch.log(torch.log1p(1 / ranks))  # as in the sampled softmax
        # A trained bias follows the frequencies, less evenly than the ranks do: in the bundled models, the correlation
        # of the two is at least 0.95. With a low correlation, the words are not sorted by frequency.
        correlation = torch.corrcoef(torch.stack([by_rank, bias]))[0, 1]
        return bias if correlation < _IN_ORDER else by_rank
