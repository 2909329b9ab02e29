"""Two sentences read against each other: each word beside what answers to it in the other sentence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.tasks.layers.attention import masked_max, masked_mean, masked_softmax


def align(first: Tensor, second: Tensor, first_mask: Tensor, second_mask: Tensor) -> tuple[Tensor, Tensor]:
    """first [B, T, D], second [B, S, D] → for each word the sum of the other's words, weighted by how similar they are.

    [B, T, D] made of the second sentence's words, [B, S, D] made of the first's; zeros where the other has none.
    """
    similarity = first @ second.transpose(1, 2)  # [B, T, S]
    for_first = masked_softmax(similarity, second_mask.unsqueeze(1)) @ second
    for_second = masked_softmax(similarity.transpose(1, 2), first_mask.unsqueeze(1)) @ first
    return for_first, for_second


class Alignment(nn.Module):
    """Compares each word with its counterpart and pools: [a; ã; a - ã; a ⊙ ã] → projection → [max; mean]."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.compare = nn.Sequential(nn.Linear(4 * size, hidden), nn.ReLU())
        self.output_size = 2 * hidden

    def forward(self, first: Tensor, second: Tensor, first_mask: Tensor, second_mask: Tensor) -> tuple[Tensor, Tensor]:
        """first [B, T, D], second [B, S, D] → a vector for each sentence, twice [B, 2·hidden]."""
        for_first, for_second = align(first, second, first_mask, second_mask)
        return self._pooled(first, for_first, first_mask), self._pooled(second, for_second, second_mask)

    def _pooled(self, own: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        compared = self.compare(torch.cat([own, other, own - other, own * other], dim=2))
        return torch.cat([masked_max(compared, mask), masked_mean(compared, mask)], dim=1)
