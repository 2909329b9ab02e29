"""A linear-chain conditional random field: scores for whole tag sequences, with forbidden transitions.

K tags; every step over the tokens is one operation for the whole batch and all pairs of tags.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.errors import ElmoError

Allowed = Sequence[Tensor | NDArray[np.bool_]]
_FORBIDDEN = -1e4
"""exp of it is exactly 0, and sums of it stay finite, which -inf in a gradient does not."""


class Crf(nn.Module):
    """Transition scores between K tags, and of each tag as the first and the last.

    `allowed` is what `schemes.transitions` gives: from row to column [K, K], at the start [K], at the end [K]. What is
    forbidden has probability 0 and is never decoded, unless no sequence is allowed at all.

    >>> crf = Crf(3)
    >>> crf.decode(torch.tensor([[[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]]]), torch.tensor([2]))
    tensor([[1, 0]])
    """

    may_follow: Tensor
    may_start: Tensor
    may_end: Tensor

    def __init__(self, n_tags: int, allowed: Allowed | None = None) -> None:
        super().__init__()
        shapes = ((n_tags, n_tags), (n_tags,), (n_tags,))
        rules = [torch.ones(shape) for shape in shapes] if allowed is None else [torch.as_tensor(a) for a in allowed]
        if [rule.shape for rule in rules] != list(shapes):
            raise ElmoError(
                f"what {n_tags} tags allow must have the shapes {shapes}: steps, starts and ends, got "
                f"{[tuple(rule.shape) for rule in rules]}"
            )
        self.n_tags = n_tags
        self.transitions = nn.Parameter(torch.zeros(n_tags, n_tags))
        self.starts = nn.Parameter(torch.zeros(n_tags))
        self.ends = nn.Parameter(torch.zeros(n_tags))
        for name, rule in zip(("may_follow", "may_start", "may_end"), rules, strict=True):
            self.register_buffer(name, rule.to(torch.bool).clone())

    def log_likelihood(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """emissions [B, T, K], tags [B, T] (anything at padding), lengths [B] → log p(tags) [B]; 0 without tokens."""
        mask = _mask(emissions, lengths)
        if not emissions.shape[1]:
            return emissions.new_zeros(len(emissions))
        score = self._score(emissions, tags.clamp(0, self.n_tags - 1), mask)
        log_partition = torch.logsumexp(self._forward_scores(emissions, mask)[-1] + self._scores()[2], dim=1)
        return (score - log_partition) * mask[:, 0]

    def marginals(self, emissions: Tensor, lengths: Tensor) -> Tensor:
        """emissions [B, T, K] → the probability of each tag at each token [B, T, K], 0 at padding."""
        mask = _mask(emissions, lengths)
        if not emissions.shape[1]:
            return torch.zeros_like(emissions)
        forward = torch.stack(self._forward_scores(emissions, mask), dim=1)
        backward = torch.stack(self._backward_scores(emissions, mask), dim=1)
        return torch.softmax(forward + backward, dim=2) * mask.unsqueeze(2)

    @torch.no_grad()
    def decode(self, emissions: Tensor, lengths: Tensor) -> Tensor:
        """emissions [B, T, K] → the best allowed tag sequences [B, T], -1 at padding."""
        mask = _mask(emissions, lengths)
        if not emissions.shape[1]:
            return lengths.new_zeros(len(lengths), 0).to(emissions.device)
        transitions, starts, ends = self._scores(float("-inf"))
        first, *others = emissions.unbind(1)
        best = starts + first  # [B, K], of the sequences that end in each tag
        same = torch.arange(self.n_tags, device=emissions.device).expand_as(best)
        came_from = []
        for step, here in enumerate(others, 1):
            reached, previous = (best.unsqueeze(2) + transitions).max(dim=1)
            inside = mask[:, step, None]
            best = torch.where(inside, reached + here, best)
            came_from.append(torch.where(inside, previous, same))
        tag = (best + ends).argmax(dim=1, keepdim=True)  # [B, 1]
        path = [tag]
        for previous in reversed(came_from):
            tag = previous.gather(1, tag)
            path.append(tag)
        return torch.cat(path[::-1], dim=1).masked_fill(~mask, -1)

    def _scores(self, forbidden: float = _FORBIDDEN) -> tuple[Tensor, Tensor, Tensor]:
        """Transitions [K, K], starts [K] and ends [K], with a score for what is forbidden."""
        return (
            self.transitions.masked_fill(~self.may_follow, forbidden),
            self.starts.masked_fill(~self.may_start, forbidden),
            self.ends.masked_fill(~self.may_end, forbidden),
        )

    def _score(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The score of the given sequences, [B]."""
        transitions, starts, ends = self._scores()
        inside = mask.to(emissions.dtype)
        emitted = emissions.gather(2, tags.unsqueeze(2)).squeeze(2) * inside
        moved = transitions[tags[:, :-1], tags[:, 1:]] * inside[:, 1:]
        last = tags.gather(1, (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)).squeeze(1)
        return emitted.sum(dim=1) + moved.sum(dim=1) + starts[tags[:, 0]] + ends[last]

    def _forward_scores(self, emissions: Tensor, mask: Tensor) -> list[Tensor]:
        """For each token [B, K]: log of the sum over all beginnings that end in a tag; at padding as before it."""
        transitions, starts, _ = self._scores()
        # unbind, not an index a step, whose gradient would be a whole tensor of zeros each.
        first, *others = emissions.unbind(1)
        alpha = starts + first
        alphas = [alpha]
        for step, here in enumerate(others, 1):
            reached = torch.logsumexp(alpha.unsqueeze(2) + transitions, dim=1) + here
            alpha = torch.where(mask[:, step, None], reached, alpha)
            alphas.append(alpha)
        return alphas

    def _backward_scores(self, emissions: Tensor, mask: Tensor) -> list[Tensor]:
        """For each token [B, K]: log of the sum over all endings after a tag."""
        transitions, _, ends = self._scores()
        beta = ends.expand(len(emissions), self.n_tags)
        betas = [beta]
        for step in range(emissions.shape[1] - 1, 0, -1):
            onward = torch.logsumexp(transitions + (emissions[:, step] + beta).unsqueeze(1), dim=2)
            beta = torch.where(mask[:, step, None], onward, beta)
            betas.append(beta)
        return betas[::-1]


def _mask(emissions: Tensor, lengths: Tensor) -> Tensor:
    return torch.arange(emissions.shape[1], device=emissions.device) < lengths.to(emissions.device).unsqueeze(1)
