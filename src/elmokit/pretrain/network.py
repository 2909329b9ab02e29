"""The network in training: its initial weights, and its loss and next state for a batch of text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from elmokit.corpus.prepared import PreparedCorpus
from elmokit.model.bilm import BiLM
from elmokit.model.context import State
from elmokit.model.language_model import LmHead, target_losses
from elmokit.model.token_encoder import CharCnn, Highway
from elmokit.ops.kernels import AutogradContext
from elmokit.ops.softmax_loss import softmax_loss
from elmokit.pretrain.batches import Batch
from elmokit.text.vocab import Vocabulary


@dataclass(frozen=True, eq=False)
class Negatives:
    """The sampled words of a sampled softmax, and the number of draws that it took to find them."""

    words: Tensor  # [S]
    tries: int


class LanguageModelNetwork(nn.Module):
    """A BiLM with its softmax; `forward` returns the loss of a batch."""

    def __init__(self, bilm: BiLM, head: LmHead, *, dropout: float = 0.0, tied: bool = False) -> None:
        super().__init__()
        self.bilm, self.head, self.dropout, self.tied = bilm, head, dropout, tied
        if tied:
            del self.head.weight

    def softmax_weight(self) -> Tensor:
        """The softmax weight [V, S]: its own or, if tied, the word table without its padding row."""
        if not self.tied:
            return self.head.weight
        assert self.bilm.token_encoder.words is not None
        return self.bilm.token_encoder.words.weight[1:]

    def forward(
        self,
        batch: Batch,
        state: State | None,
        negatives: Negatives | None = None,
        precision: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor, State | None]:
        """A batch and the state before it → the loss, −log p (detached, in the targets' shape), and the state after it.

        With `negatives` the softmax is sampled; otherwise it is over all words.
        """
        top, after = self.contextualise(batch, state, precision)
        flat, targets, weight = top.flatten(0, -2), batch.targets.reshape(-1), batch.row_weight()
        if negatives is None:
            loss, each = softmax_loss(flat, self.softmax_weight(), self.head.bias, targets, row_weight=weight)
        else:
            each = sampled_softmax_loss(
                flat, self.softmax_weight(), self.head.bias, targets, negatives.words, negatives.tries
            )
            loss = (each * weight).sum() if isinstance(weight, Tensor) else each.mean()
        return loss, each.detach().view(batch.targets.shape), after

    def contextualise(self, batch: Batch, state: State | None, precision: torch.dtype) -> tuple[Tensor, State | None]:
        """A batch and the state before it → the input of the softmax for each target, and the state after it."""
        with torch.autocast(batch.targets.device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
            types = self.bilm.encode_types(batch.characters, batch.words)  # [U, P]
        return batch.read(self.bilm.context, types.to(precision), state, dropout=self.dropout if self.training else 0.0)

    def losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """states [N, S], targets [N] → −log p [N] with the full softmax."""
        return target_losses(states, self.softmax_weight(), self.head.bias, targets)


_CARRY_BIAS = -2.0
"""With this bias of the gate, a highway layer passes on most of its input at first."""


@torch.no_grad()
def initialise(bilm: BiLM) -> None:
    """Draw all weights from bilm-tf's distributions; the rows of a word table have a norm of about 1."""
    encoder = bilm.token_encoder
    if encoder.words is not None:
        nn.init.normal_(encoder.words.weight, std=bilm.config.token_size**-0.5)
        encoder.words.weight[0] = 0
    if encoder.char_cnn is not None:
        _initialise_characters(encoder.char_cnn)
    if encoder.projection is not None:
        assert isinstance(encoder.projection, nn.Linear)
        nn.init.normal_(encoder.projection.weight, std=encoder.projection.in_features**-0.5)
        nn.init.zeros_(encoder.projection.bias)
    bilm.context.reset_parameters()


def _initialise_characters(char_cnn: CharCnn) -> None:
    nn.init.uniform_(char_cnn.embedding.weight, -1, 1)
    char_cnn.embedding.weight[0] = 0
    for convolution in char_cnn.convolutions:
        assert isinstance(convolution, nn.Conv1d)
        assert convolution.bias is not None
        if char_cnn.config.activation == "relu":
            nn.init.uniform_(convolution.weight, -0.05, 0.05)
        else:
            nn.init.normal_(convolution.weight, std=(convolution.in_channels * convolution.kernel_size[0]) ** -0.5)
        nn.init.zeros_(convolution.bias)
    for highway in char_cnn.highways:
        assert isinstance(highway, Highway)
        for part, bias in ((highway.transform, 0.0), (highway.gate, _CARRY_BIAS)):
            assert isinstance(part, nn.Linear)
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
            nn.init.constant_(part.bias, bias)


@torch.no_grad()
def start_from_frequencies(head: LmHead, vocab: Vocabulary, corpus: PreparedCorpus) -> None:
    """Set the bias of a new softmax so that it predicts each word with its frequency in the corpus."""
    counts = np.ones(len(vocab))
    np.add.at(counts, np.fromiter(map(vocab.index, corpus.type_texts()), np.int64, corpus.n_types), corpus.counts)
    # Each boundary is predicted in one direction only.
    counts[[vocab.begin, vocab.end]] = corpus.n_sentences / 2
    head.bias.copy_(torch.from_numpy(np.log(counts / counts.sum() * len(vocab))))


_EXCLUDED = -1e30
"""A score with probability 0; minus infinity would give NaN in the gradient."""


def sample_negatives(n_words: int, count: int, generator: torch.Generator) -> tuple[Tensor, int]:
    """Distinct words [count] drawn log-uniformly, as in bilm-tf, and the number of draws that it took.

    The vocabulary must be sorted by falling frequency: p(k) = log((k + 2) / (k + 1)) / log(V + 1).
    """
    count = min(count, n_words)
    if count == n_words:  # every word is in the sample, as after very many draws
        return torch.arange(n_words), 2**31
    found = torch.zeros(0, dtype=torch.int64)
    drawn: list[Tensor] = []
    while len(found) < count:
        u = torch.rand(max(1024, 2 * count), generator=generator, dtype=torch.float64)
        drawn.append((torch.exp(u * math.log(n_words + 1)) - 1).long().clamp(0, n_words - 1))
        everything = torch.cat(drawn)
        order = torch.argsort(everything, stable=True)  # equal words are adjacent, the first draw first
        values = everything[order]
        first = torch.ones(len(values), dtype=torch.bool)
        first[1:] = values[1:] != values[:-1]
        found = torch.sort(order[first]).values  # the draws that found a new word
    tries = int(found[count - 1]) + 1
    return everything[found[:count]], tries


def log_expected(words: Tensor, n_words: int, tries: int) -> Tensor:
    """log of the probability that each word is in a sample of distinct words that took `tries` draws."""
    numbers = words.double()
    p = torch.log1p(1 / (numbers + 1)) / math.log(n_words + 1)
    return torch.log(-torch.expm1(tries * torch.log1p(-p))).float()


def sampled_softmax_loss(
    top: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, negatives: Tensor, tries: int
) -> Tensor:
    """top [N, P], weight [V, P], bias [V], targets [N], negatives [S] → −log p [N] among the target and the sample.

    Each score is corrected by the log of the word's probability of being sampled, and a sampled word that is the target
    is excluded. The products are in top's dtype, the softmax in float32.
    """
    n_words = len(bias)
    # Not weight[targets]: several threads sum its gradient in no fixed order.
    true = (top * F.embedding(targets, weight)).sum(dim=1) + F.embedding(targets, bias.unsqueeze(1)).squeeze(1)  # [N]
    true = true.float() - log_expected(targets, n_words, tries).to(top.device)
    sample_index = torch.full((n_words,), -1, device=top.device)
    sample_index[negatives] = torch.arange(len(negatives), device=top.device)
    sampled_bias = bias[negatives] - log_expected(negatives, n_words, tries).to(top.device)
    others: Tensor = _LogSumExp.apply(  # type: ignore[no-untyped-call]
        top, F.embedding(negatives, weight), sampled_bias, sample_index[targets]
    )
    return torch.logaddexp(true, others) - true


class _LogSumExp(torch.autograd.Function):
    """top [N, P], weight [S, P], bias [S], excluded [N] → log Σ exp(score) [N] without the excluded word of each row.

    -1 excludes none. The scores become probabilities in place: autograd would allocate seven arrays of [N, S] and
    take twice the time.
    """

    @staticmethod
    def forward(ctx: AutogradContext, top: Tensor, weight: Tensor, bias: Tensor, excluded: Tensor) -> Tensor:
        scores = torch.addmm(bias.to(top), top, weight.to(top).T).float()
        rows = torch.nonzero(excluded >= 0).squeeze(1)
        scores[rows, excluded[rows]] = _EXCLUDED
        largest = scores.amax(dim=1, keepdim=True)
        torch.softmax(scores, dim=1, out=scores)
        ctx.save_for_backward(top, weight, scores)
        # The largest probability is 1 / Σ exp(score − largest).
        return (largest - scores.amax(dim=1, keepdim=True).log_()).squeeze(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: AutogradContext, upstream: Tensor) -> tuple[Tensor | None, ...]:
        top, weight, scores = ctx.saved_tensors
        gradient = scores.mul_(upstream.unsqueeze(1))
        products = gradient.to(top)
        return products @ weight.to(top), (products.T @ top).to(weight), gradient.sum(dim=0).to(weight), None
