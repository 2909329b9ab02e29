"""The character part of a token: convolutions over its characters, the maximum over positions, highways."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.config import CharacterConfig
from elmokit.ops.convolve import convolve, convolve_together
from elmokit.ops.linear import linear

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}
PARTS = (0.5, 0.8, 0.95)
"""Where words sorted by their length are divided, so that each part is computed only as long as its own longest."""
LEAST_SORTED = 256
"""Fewer words than this are not worth dividing."""


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
        x = _ACTIVATIONS[self.config.activation](self._filters(ids))
        for highway in self.highways:
            x = highway(x)
        return x

    def trim(self, ids: Tensor) -> Tensor:
        """Leave out columns of padding: all windows that lie wholly in it are equal, so one of each width is enough.

        Ids on a GPU are taken as they are: to look at them would make the host wait for it.
        """
        if ids.device.type != "cpu":
            return ids
        used = (
            (ids.numpy() != self.config.padding_character).any(axis=0).nonzero()[0]
        )  # torch's any takes 10 times as long
        longest = int(used[-1]) + 1 if len(used) else 0
        return ids[:, : min(self.config.max_characters, longest + self.config.widest_filter)]

    def _filters(self, ids: Tensor) -> Tensor:
        """ids [U, M] → [U, F]: each filter's largest product over all positions."""
        filters = [_numbers(conv) for conv in self.convolutions]
        if not torch.is_grad_enabled():
            characters = self.embedding(self.trim(ids))  # [U, M, c]
            return torch.cat([convolve(characters, weight, bias) for weight, bias in filters], dim=1)
        number = torch.arange(1, ids.shape[1] + 1, device=ids.device)
        lengths = ((ids != self.config.padding_character) * number).amax(dim=1)
        if ids.device.type != "cpu":
            return convolve_together(self.embedding(ids), filters, lengths)
        order = lengths.argsort(stable=True)
        stops = [int(part * len(ids)) for part in PARTS] if len(ids) >= LEAST_SORTED else []
        parts = []
        for start, stop in zip([0, *stops], [*stops, len(ids)], strict=True):
            characters = self.embedding(self.trim(ids[order[start:stop]]))
            parts.append(torch.cat([convolve(characters, weight, bias) for weight, bias in filters], dim=1))
        return torch.cat(parts).index_select(0, order.argsort())


def _numbers(conv: nn.Module) -> tuple[Tensor, Tensor]:
    """The weight [count, c, width] and the bias [count] of a convolution."""
    assert isinstance(conv, nn.Conv1d)
    assert conv.bias is not None
    return conv.weight, conv.bias
