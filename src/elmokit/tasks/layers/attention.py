"""One vector from the vectors of a sentence's words: attention, maximum, mean; padding never counts."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

PoolingName = Literal["attention", "max", "mean"]


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """values [B, T, D], mask [B, T] → the mean over the words [B, D]; zeros where there is none."""
    kept = mask.unsqueeze(2).to(values.dtype)
    return (values * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """values [B, T, D], mask [B, T] → the largest of each number over the words [B, D]; zeros where there is none."""
    if not values.shape[1]:
        return values.new_zeros(len(values), values.shape[2])
    largest = values.masked_fill(~mask.unsqueeze(2), torch.finfo(values.dtype).min).amax(dim=1)
    return largest * mask.any(dim=1, keepdim=True)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Weights over the last dimension that are 0 where the mask is false and add up to 1 where anything is true."""
    kept = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(kept, dim=-1) * mask


class AttentionPooling(nn.Module):
    """A weighted mean: a word's weight is how well tanh(W x + b) agrees with a learned query."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.project = nn.Linear(size, size)
        self.query = nn.Parameter(torch.zeros(size))  # the mean, to begin with

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """values [B, T, D], mask [B, T] → [B, D]; zeros where there are no words."""
        weights = masked_softmax(torch.tanh(self.project(values)) @ self.query, mask)
        return (weights.unsqueeze(1) @ values).squeeze(1)


class Pooling(nn.Module):
    """The pooling of a name; "attention" gives the attention's mean and the maximum.

    A weighted mean tells what a text is about on the whole, the maximum whether anything in it speaks up.
    """

    def __init__(self, name: PoolingName, size: int) -> None:
        super().__init__()
        self.name = name
        self.attention = AttentionPooling(size) if name == "attention" else None
        self.output_size = 2 * size if name == "attention" else size

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """values [B, T, D], mask [B, T] → [B, output_size]."""
        if self.attention is not None:
            return torch.cat([self.attention(values, mask), masked_max(values, mask)], dim=1)
        return masked_max(values, mask) if self.name == "max" else masked_mean(values, mask)
