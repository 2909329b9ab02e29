"""The sampled softmax of the original: each update scores the right words against a sample of the vocabulary.

Words are drawn log-uniformly (the vocabulary stands in order of falling counts, so p(k) = log((k+2)/(k+1)) / log(V+1))
and without repeats; scores are corrected by the logarithm of how often a word is expected among the sample, and a
sampled word that is the right one does not count against itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

_HIDDEN = -1e30
"""A score whose probability is 0, also where an infinity would give NaN in the gradient."""


def sample_negatives(n_words: int, count: int, generator: torch.Generator) -> tuple[Tensor, int]:
    """Distinct words [count] drawn log-uniformly, and how many draws it took."""
    count = min(count, n_words)
    if count == n_words:  # every word is drawn sooner or later
        return torch.arange(n_words), 2**31
    found = torch.zeros(0, dtype=torch.int64)
    drawn: list[Tensor] = []
    while len(found) < count:
        u = torch.rand(max(1024, 2 * count), generator=generator, dtype=torch.float64)
        drawn.append((torch.exp(u * math.log(n_words + 1)) - 1).long().clamp(0, n_words - 1))
        everything = torch.cat(drawn)
        order = torch.argsort(everything, stable=True)  # equal words side by side, the first drawn first
        values = everything[order]
        first = torch.ones(len(values), dtype=torch.bool)
        first[1:] = values[1:] != values[:-1]
        found = torch.sort(order[first]).values  # draws that brought a new word
    tries = int(found[count - 1]) + 1
    return everything[found[:count]], tries


def log_expected(words: Tensor, n_words: int, tries: int) -> Tensor:
    """log of how often each word is expected in a sample without repeats that took so many draws."""
    numbers = words.double()
    p = torch.log1p(1 / (numbers + 1)) / math.log(n_words + 1)
    return torch.log(-torch.expm1(tries * torch.log1p(-p))).float()


def sampled_softmax_loss(
    top: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, negatives: Tensor, tries: int
) -> Tensor:
    """top [N, P], weight [V, P], bias [V], targets [N], negatives [S] → −log p [N] among the target and the sample.

    The products are in top's number type, the softmax in float32.
    """
    n_words = len(bias)
    # Not weight[targets], whose gradient several threads sum in no fixed order.
    true = (top * F.embedding(targets, weight)).sum(dim=1) + F.embedding(targets, bias.unsqueeze(1)).squeeze(1)  # [N]
    true = true.float() - log_expected(targets, n_words, tries).to(top.device)
    others = torch.addmm(bias[negatives].to(top), top, F.embedding(negatives, weight).to(top).T).float()  # [N, S]
    others = others - log_expected(negatives, n_words, tries).to(top.device)
    others = others.masked_fill(targets.unsqueeze(1) == negatives, _HIDDEN)
    return torch.logsumexp(torch.cat([true.unsqueeze(1), others], dim=1), dim=1) - true
