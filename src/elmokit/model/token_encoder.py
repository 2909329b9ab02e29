"""The vector [P] of a token without context: from its row in a word table, from its characters, or from both.

The character part consists of convolutions over the characters, the maximum over positions, and highway layers.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from elmokit.config import CharacterConfig, ElmoConfig
from elmokit.errors import ElmoError
from elmokit.model.int8 import Linear, apply_linear, matrix_and_bias
from elmokit.ops.convolve import convolve, convolve_together
from elmokit.ops.linear import can_be_compiled
from elmokit.ops.native.characters import Affine, CharacterWeights, characters_native

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}
PART = 128
"""Words of similar length that a CPU computes together, padded to the longest of them."""


class Highway(nn.Module):
    """x ← g·relu(transform(x)) + (1 − g)·x with g = σ(gate(x))."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform: Linear = nn.Linear(size, size)
        self.gate: Linear = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        """x [U, F] → [U, F]."""
        gate = torch.sigmoid(apply_linear(self.gate, x))
        return gate * torch.relu(apply_linear(self.transform, x)) + (1 - gate) * x

    def matrices(self) -> tuple[Affine, Affine]:
        """The matrix and the bias of the transform, and those of the gate."""
        return matrix_and_bias(self.transform), matrix_and_bias(self.gate)


class CharCnn(nn.Module):
    """The character part: character ids of U tokens [U, M] → [U, F]."""

    def __init__(self, config: CharacterConfig) -> None:
        super().__init__()
        self.config = config
        self.uses_pool = False
        self.embedding = nn.Embedding(config.n_characters, config.embedding_size, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.embedding_size, count, width) for width, count in config.filters
        )
        self.highways = nn.ModuleList(Highway(config.n_filters) for _ in range(config.n_highway))

    def forward(self, ids: Tensor, projection: Linear | None = None) -> Tensor:
        """ids [U, M] → [U, F], or [U, P] with a projection [P, F]."""
        compiled = self._compiled(ids, projection)
        if compiled is not None:
            return compiled
        x = self._plain(ids) if len(ids) else self.embedding.weight.new_zeros(0, self.config.n_filters)
        return x if projection is None else apply_linear(projection, x)

    def _compiled(self, ids: Tensor, projection: Linear | None) -> Tensor | None:
        """The result of one call of the compiled kernels, or None if they cannot be used."""
        if ids.device.type != "cpu" or not len(ids) or ids.shape[1] < self.config.widest_filter:
            return None
        if torch.is_autocast_enabled("cpu"):
            return None
        weights = CharacterWeights(
            self.embedding.weight,
            self.config.padding_character,
            [_weight_and_bias(conv) for conv in self.convolutions],
            self.config.activation,
            [highway.matrices() for highway in self.highways if isinstance(highway, Highway)],
            None if projection is None else matrix_and_bias(projection),
        )
        if not can_be_compiled(*weights.tensors()):
            return None
        return characters_native(ids, weights, pool=self.uses_pool)

    def _plain(self, ids: Tensor) -> Tensor:
        """ids [U, M] → [U, F] in torch's operations."""
        x = _ACTIVATIONS[self.config.activation](self._filters(ids))
        for highway in self.highways:
            x = highway(x)
        return x

    def traceable(self, ids: Tensor) -> Tensor:
        """ids [U, M] → [U, F] in operations that torch.export records."""
        characters = self.embedding(ids).transpose(1, 2)  # [U, c, M]
        x = torch.cat([conv(characters).amax(dim=-1) for conv in self.convolutions], dim=1)
        x = _ACTIVATIONS[self.config.activation](x)
        for highway in self.highways:
            layer = cast(Highway, highway)
            gate = torch.sigmoid(layer.gate(x))
            x = gate * torch.relu(layer.transform(x)) + (1 - gate) * x
        return x

    def trim(self, ids: Tensor) -> Tensor:
        """Remove columns of padding: all windows that contain only padding are equal, so one per width is enough.

        Ids on a GPU are not changed: to read them, the host would have to wait for the GPU.
        """
        if ids.device.type != "cpu":
            return ids
        # numpy, because torch's `any` takes 10 times as long.
        used = (ids.numpy() != self.config.padding_character).any(axis=0).nonzero()[0]
        longest = int(used[-1]) + 1 if len(used) else 0
        return ids[:, : min(self.config.max_characters, longest + self.config.widest_filter)]

    def _filters(self, ids: Tensor) -> Tensor:
        """ids [U, M] → [U, F]: each filter's largest product over all positions."""
        filters = [_weight_and_bias(conv) for conv in self.convolutions]
        on_cpu = ids.device.type == "cpu"
        if on_cpu and len(ids) > PART:
            order = self._lengths(ids).argsort(stable=True)
            parts = [self._part(ids[order[start : start + PART]], filters) for start in range(0, len(ids), PART)]
            return torch.cat(parts).index_select(0, order.argsort())
        if on_cpu or not torch.is_grad_enabled():
            return self._part(ids, filters)
        return convolve_together(self.embedding(ids), filters, self._lengths(ids))

    def _part(self, ids: Tensor, filters: list[tuple[Tensor, Tensor]]) -> Tensor:
        characters = self.embedding(self.trim(ids))  # [U, M, c]
        return torch.cat([convolve(characters, weight, bias) for weight, bias in filters], dim=1)

    def _lengths(self, ids: Tensor) -> Tensor:
        """ids [U, M] → [U]: the number of characters up to the last one that is not padding."""
        number = torch.arange(1, ids.shape[1] + 1, device=ids.device)
        return ((ids != self.config.padding_character) * number).amax(dim=1)


def _weight_and_bias(conv: nn.Module) -> tuple[Tensor, Tensor]:
    """The weight [count, c, width] and the bias [count] of a convolution."""
    assert isinstance(conv, nn.Conv1d)
    assert conv.bias is not None
    return conv.weight, conv.bias


class TokenEncoder(nn.Module):
    """Ids of U tokens → [U, P]; with words and characters, a token is projection([word; characters])."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.words: nn.Embedding | None = None
        self.char_cnn: CharCnn | None = None
        self.projection: Linear | None = None
        self.int8_factors: tuple[str, ...] = ()
        if config.words is not None:
            self.words = nn.Embedding(config.words.n_words + 1, config.words.embedding_size, padding_idx=0)
        if config.characters is not None:
            self.char_cnn = CharCnn(config.characters)
        if config.token_projection:
            self.projection = nn.Linear(config.parts_size, config.token_size)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        table = self.words if self.char_cnn is None else self.char_cnn.embedding
        assert table is not None
        return table.weight.device

    def forward(self, characters: Tensor | None, words: Tensor | None, *, traceable: bool = False) -> Tensor:
        """characters [U, M], words [U] → [U, P]; with `traceable`, in operations that torch.export records."""
        if not traceable and self.words is None and self.char_cnn is not None and characters is not None:
            token: Tensor = self.char_cnn(characters, self.projection)
            return token
        parts: list[Tensor] = []
        if self.words is not None:
            if words is None:
                raise ElmoError("this model needs word ids, got none")
            parts.append(self.words(words))
        if self.char_cnn is not None:
            if characters is None:
                raise ElmoError("this model needs character ids, got none")
            parts.append(self.char_cnn.traceable(characters) if traceable else self.char_cnn(characters))
        token = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        if self.projection is None:
            return token
        return cast(Tensor, self.projection(token)) if traceable else apply_linear(self.projection, token)
