"""One direction of the language model: a stack of projected, clipped LSTM layers with residuals."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.config import LstmConfig
from elmokit.ops.recurrence import lstm
from elmokit.ops.weights import LstmWeights


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


class LstmStack(nn.Module):
    """L layers in one direction; layers after the first add their input where the model has skip connections."""

    def __init__(self, config: LstmConfig, *, reverse: bool) -> None:
        super().__init__()
        self.config = config
        self.reverse = reverse
        self.layers = nn.ModuleList(LstmLayer(config) for _ in range(config.n_layers))

    def forward(
        self, x: Tensor, lengths: Tensor, h: Tensor, c: Tensor, *, dropout: float = 0.0
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """x [B, T, P], lengths [B], h [L, B, P], c [L, B, H] → L outputs [B, T, P] and the last h and c.

        `dropout` is the pre-training one: on each layer's input and on the top output.
        """
        outputs: list[Tensor] = []
        last_h, last_c = [], []
        for number, layer in enumerate(self.layers):
            x = nn.functional.dropout(x, dropout, self.training)
            assert isinstance(layer, LstmLayer)
            y, h_n, c_n = lstm(x, lengths, layer.weights(), h[number], c[number], reverse=self.reverse)
            x = y + x if number and self.config.skip_connections else y
            outputs.append(x)
            last_h.append(h_n)
            last_c.append(c_n)
        if dropout:
            outputs[-1] = nn.functional.dropout(outputs[-1], dropout, self.training)
        return outputs, torch.stack(last_h), torch.stack(last_c)
