"""The softmax over the vocabulary, shared by both directions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from elmokit.model.int8 import VALUES, Int8Weight, check_int8
from elmokit.model.shell import shells
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.linear import dense, linear


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


class Int8LmHead(nn.Module):
    """The same with the matrix in 8 bits, which lies in its file, unread, until the first product with it."""

    def __init__(self, n_words: int, output_size: int) -> None:
        super().__init__()
        self.weight = Int8Weight(n_words, output_size)
        self.bias = nn.Parameter(torch.zeros(n_words))
        self._checked: Int8Matrix | None = None

    def forward(self, top: Tensor) -> Tensor:
        """top [N, P] → log-probabilities [N, V]."""
        return torch.log_softmax(self.logits(top), dim=-1)

    def logits(self, top: Tensor) -> Tensor:
        """top [N, P] → scores [N, V] before the softmax."""
        matrix = self.weight.matrix()
        if matrix is not self._checked:  # not when it was loaded: that would have read all of it
            check_int8(matrix.values, f"weight{VALUES}", "the softmax")
            self._checked = matrix
        if top.device.type == "cpu" and top.dtype == torch.float32:
            return linear(top, matrix, self.bias)
        return linear(top, dense(matrix).to(top.dtype), self.bias)


AnyLmHead = LmHead | Int8LmHead


def head_shell(weights: Mapping[str, Tensor]) -> AnyLmHead:
    """A softmax without memory or numbers for weights as files hold them; `load_state_dict` gives it those."""
    kind, name = (Int8LmHead, f"weight{VALUES}") if f"weight{VALUES}" in weights else (LmHead, "weight")
    with shells():
        return kind(*weights[name].shape)
