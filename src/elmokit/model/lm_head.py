"""The softmax over the vocabulary, shared by both directions."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from elmokit.model.int8 import VALUES, Int8Weight, check_int8
from elmokit.model.shell import shells
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.linear import dense, linear
from elmokit.ops.softmax_loss import chunk_rows, softmax_loss


class LmHead(nn.Module):
    """What the context encoder gives for predictions [N, S] → log-probabilities over V words."""

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
    """The same with an int8 matrix, which stays in its file, unread, until the first product with it."""

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
        """The matrix in the form that products with such states take."""
        matrix = self.weight.matrix()
        if matrix is not self._checked:  # not when it was loaded: that would have read all of it
            check_int8(matrix.values, f"weight{VALUES}", "the softmax")
            self._checked = matrix
        if states.device.type == "cpu" and states.dtype == torch.float32:
            return matrix
        return dense(matrix).to(states.dtype)


AnyLmHead = LmHead | Int8LmHead


@torch.no_grad()
def target_losses(states: Tensor, weight: Tensor | Int8Matrix, bias: Tensor, targets: Tensor) -> Tensor:
    """states [N, S], weight [V, S], bias [V], targets [N] → −log p [N]; on a CPU each row independent of the others.

    The one scorer behind `Elmo.perplexity`, `elmo eval` and the held-out perplexities of training.
    """
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
    """A softmax without memory or values for weights as files have them; `load_state_dict` gives it those."""
    kind, name = (Int8LmHead, f"weight{VALUES}") if f"weight{VALUES}" in weights else (LmHead, "weight")
    with shells():
        return kind(*weights[name].shape)
