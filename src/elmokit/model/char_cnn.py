"""The character part of a token: convolutions over its characters, the maximum over positions, highways."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.config import CharacterConfig
from elmokit.ops.linear import linear

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class Highway(nn.Module):
    """x ← g·relu(transform(x)) + (1 − g)·x with g = σ(gate(x))."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.gate = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        """x [U, F] → [U, F]."""
        gate = torch.sigmoid(linear(x, self.gate.weight, self.gate.bias))
        return gate * torch.relu(linear(x, self.transform.weight, self.transform.bias)) + (1 - gate) * x


class CharCnn(nn.Module):
    """Characters of U tokens, ids [U, M] → [U, F]."""

    def __init__(self, config: CharacterConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.n_characters, config.embedding_size, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.embedding_size, count, width) for width, count in config.filters
        )
        self.highways = nn.ModuleList(Highway(config.n_filters) for _ in range(config.n_highway))

    def forward(self, ids: Tensor) -> Tensor:
        """ids [U, M] → [U, F]."""
        if not len(ids):
            return self.embedding.weight.new_zeros(0, self.config.n_filters)
        characters = self.embedding(self._trim(ids))  # [U, M, c]
        activation = _ACTIVATIONS[self.config.activation]
        x = torch.cat([activation(_convolve(characters, conv).amax(dim=1)) for conv in self.convolutions], dim=1)
        for highway in self.highways:
            x = highway(x)
        return x

    def _trim(self, ids: Tensor) -> Tensor:
        """Leave out columns of padding: all windows that lie wholly in it are equal, so one of each width is enough."""
        used = (ids != self.config.padding_character).any(dim=0).nonzero()
        longest = int(used[-1]) + 1 if len(used) else 0
        widest = max(width for width, _ in self.config.filters)
        return ids[:, : min(self.config.max_characters, longest + widest)]


def _convolve(characters: Tensor, conv: nn.Module) -> Tensor:
    """characters [U, M, c] → [U, M − width + 1, count], as one product over all windows of all tokens."""
    assert isinstance(conv, nn.Conv1d)
    windows = characters.unfold(1, conv.kernel_size[0], 1)  # [U, positions, c, width]
    products = linear(windows.flatten(0, 1).flatten(1), conv.weight.flatten(1), conv.bias)
    return products.view(*windows.shape[:2], -1)
