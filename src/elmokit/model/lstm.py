"""The weights of one direction of the language model: a stack of projected, clipped LSTM layers."""

from __future__ import annotations

import torch
from torch import nn

from elmokit.config import LstmConfig
from elmokit.model.int8 import Int8Weight
from elmokit.ops.weights import AnyLstmWeights, Int8LstmWeights, LstmWeights


class LstmLayer(nn.Module):
    """The weights of one layer; see `elmokit.ops.reference` for what they do."""

    def __init__(self, config: LstmConfig) -> None:
        super().__init__()
        self.config = config
        gates = 4 * config.cell_size
        self.input_weight = nn.Parameter(torch.empty(gates, config.output_size))
        self.recurrent_weight = nn.Parameter(torch.empty(gates, config.output_size))
        self.bias = nn.Parameter(torch.empty(gates))
        self.projection_weight: nn.Parameter | None = None
        if config.projection:
            self.projection_weight = nn.Parameter(torch.empty(config.output_size, config.cell_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform weights scaled by the sizes they join, zero bias (the forget bias is added apart)."""
        nn.init.xavier_uniform_(self.input_weight)
        nn.init.xavier_uniform_(self.recurrent_weight)
        nn.init.zeros_(self.bias)
        if self.projection_weight is not None:
            nn.init.xavier_uniform_(self.projection_weight)

    def weights(self) -> LstmWeights:
        """The layer's numbers as the recurrence takes them."""
        return LstmWeights(
            self.input_weight,
            self.recurrent_weight,
            self.bias,
            self.projection_weight,
            forget_bias=self.config.forget_bias,
            cell_clip=self.config.cell_clip,
            projection_clip=self.config.projection_clip,
        )


class Int8LstmLayer(nn.Module):
    """The same with its matrices in 8 bits."""

    def __init__(self, config: LstmConfig) -> None:
        super().__init__()
        self.config = config
        gates = 4 * config.cell_size
        self.input_weight = Int8Weight(gates, config.output_size)
        self.recurrent_weight = Int8Weight(gates, config.output_size)
        self.bias = nn.Parameter(torch.zeros(gates))
        self.projection_weight = Int8Weight(config.output_size, config.cell_size) if config.projection else None

    def weights(self) -> Int8LstmWeights:
        """The layer's numbers as the recurrence takes them."""
        return Int8LstmWeights(
            self.input_weight.matrix(),
            self.recurrent_weight.matrix(),
            self.bias,
            None if self.projection_weight is None else self.projection_weight.matrix(),
            forget_bias=self.config.forget_bias,
            cell_clip=self.config.cell_clip,
            projection_clip=self.config.projection_clip,
        )


class LstmStack(nn.Module):
    """L layers in one direction; `elmokit.ops.bilstm` runs those of both."""

    def __init__(self, config: LstmConfig, *, int8: bool = False) -> None:
        super().__init__()
        kind = Int8LstmLayer if int8 else LstmLayer
        self.layers = nn.ModuleList(kind(config) for _ in range(config.n_layers))

    def weights(self) -> list[AnyLstmWeights]:
        """The numbers of every layer, the lowest first."""
        return [layer.weights() for layer in self.layers if isinstance(layer, LstmLayer | Int8LstmLayer)]
