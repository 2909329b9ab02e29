"""The softmax over the vocabulary, shared by both directions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.ops.linear import linear


class LmHead(nn.Module):
    """Top-layer outputs [N, P] of one direction → log-probabilities over V words."""

    def __init__(self, n_words: int, output_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_words, output_size))
        self.bias = nn.Parameter(torch.zeros(n_words))
        nn.init.normal_(self.weight, std=output_size**-0.5)

    def forward(self, top: Tensor) -> Tensor:
        """top [N, P] → log-probabilities [N, V]."""
        return torch.log_softmax(self.logits(top), dim=-1)

    def logits(self, top: Tensor) -> Tensor:
        """top [N, P] → scores [N, V] before the softmax."""
        return linear(top, self.weight, self.bias)
