"""The LSTM context encoder of the original ELMo: two stacks of projected, clipped LSTM layers, one per direction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from elmokit.config import LstmConfig
from elmokit.model.context import ContextEncoder, ContextOutput, State, register_context
from elmokit.model.int8 import Int8Weight
from elmokit.ops.bilstm import bilstm, choose, stacked, zero_states
from elmokit.ops.traceable import lstm_scan
from elmokit.ops.weights import AnyLstmWeights, Int8LstmWeights, LstmWeights
from elmokit.ops.windows import lstm_windows


class LstmLayer(nn.Module):
    """The weights of one layer in one direction; `elmokit.ops.reference` shows how they are used."""

    int8_weights: ClassVar[tuple[str, ...]] = ("input_weight", "recurrent_weight", "projection_weight")

    def __init__(self, config: LstmConfig) -> None:
        super().__init__()
        self.config = config
        gates = 4 * config.cell_size
        self.input_weight: nn.Parameter | Int8Weight = nn.Parameter(torch.zeros(gates, config.output_size))
        self.recurrent_weight: nn.Parameter | Int8Weight = nn.Parameter(torch.zeros(gates, config.output_size))
        self.bias = nn.Parameter(torch.zeros(gates))
        self.projection_weight: nn.Parameter | Int8Weight | None = None
        if config.projection:
            self.projection_weight = nn.Parameter(torch.zeros(config.output_size, config.cell_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights from the distributions of bilm-tf; the recurrence adds the forget bias."""
        bound = math.sqrt(6 / (2 * self.config.output_size + 4 * self.config.cell_size))  # for one matrix [2P, 4H]
        with torch.no_grad():
            nn.init.zeros_(self.bias)
            if isinstance(self.projection_weight, nn.Parameter):
                nn.init.xavier_uniform_(self.projection_weight)
            for weight in (self.input_weight, self.recurrent_weight):
                assert isinstance(weight, nn.Parameter)
                nn.init.uniform_(weight, -bound, bound)

    def weights(self) -> AnyLstmWeights:
        """The layer's weights in the form that the recurrence takes."""
        weights = (self.input_weight, self.recurrent_weight, self.projection_weight)
        matrices = [weight.matrix() if isinstance(weight, Int8Weight) else weight for weight in weights]
        kind = Int8LstmWeights if isinstance(self.input_weight, Int8Weight) else LstmWeights
        return kind(
            matrices[0],  # type: ignore[arg-type]  # all three have the same type
            matrices[1],  # type: ignore[arg-type]
            self.bias,
            matrices[2],  # type: ignore[arg-type]
            forget_bias=self.config.forget_bias,
            cell_clip=self.config.cell_clip,
            projection_clip=self.config.projection_clip,
        )


class LstmStack(nn.Module):
    """L layers in one direction."""

    def __init__(self, config: LstmConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(LstmLayer(config) for _ in range(config.n_layers))

    def weights(self) -> list[AnyLstmWeights]:
        """The weights of every layer, the lowest first."""
        return [cast(LstmLayer, layer).weights() for layer in self.layers]


class LstmEncoder(ContextEncoder):
    """An LSTM stack per direction; the second stack reads each sentence from its last token to its first."""

    config: LstmConfig
    carries_state = True
    uses_pool = True
    joined_matrices: ClassVar[Mapping[str, int]] = {"input_weight": 4, "recurrent_weight": 4}

    def __init__(self, config: LstmConfig, n_directions: int) -> None:
        super().__init__(config, n_directions)
        self.forward_lstm = LstmStack(config)
        self.backward_lstm = LstmStack(config) if n_directions > 1 else None

    def reset_parameters(self) -> None:
        """Draw new weights, layer by layer."""
        for layer in self.modules():
            if isinstance(layer, LstmLayer):
                layer.reset_parameters()

    def stacks(self) -> list[list[AnyLstmWeights]]:
        """The weights, by direction and layer."""
        directions = [self.forward_lstm] if self.backward_lstm is None else [self.forward_lstm, self.backward_lstm]
        return [stack.weights() for stack in directions]

    def forward(
        self, tokens: Tensor, lengths: Tensor, state: State | None = None, *, dropout: float = 0.0
    ) -> ContextOutput:
        """tokens [B, T, P], lengths [B] → layers [L+1, B, T, D] and the state after each sentence's last token."""
        found = bilstm(
            tokens,
            lengths,
            self.stacks(),
            None if state is None else state.h,
            None if state is None else state.c,
            skip_connections=self.config.skip_connections,
            dropout=dropout,
        )
        first = self.token_layer(tokens)
        if found.buffer is None or first.shape != found.buffer.shape[1:]:
            layers = torch.stack([first, *found.layers])
        else:
            layers = found.buffer
            layers[0] = first
        return ContextOutput(layers, State(found.h, found.c))

    def traceable_layers(self, tokens: Tensor, inside: Tensor) -> list[Tensor]:
        """The layers of `forward` in operations that torch.export records."""
        directions = []
        for d, weights in enumerate(self.stacks()):

            def layer(number: int, x: Tensor, d: int = d, weights: list[AnyLstmWeights] = weights) -> Tensor:
                return lstm_scan(x, inside, cast(LstmWeights, weights[number]), reverse=d == 1)

            skip = self.config.skip_connections
            directions.append(stacked(tokens, layer, len(weights), skip_connections=skip, dropout=0.0))
        layers = [torch.cat(parts, dim=-1) for parts in zip(*directions, strict=True)]
        return [self.token_layer(tokens), *layers]

    def read_windows(
        self, x: Tensor, keep: Tensor, state: State | None, *, dropout: float = 0.0
    ) -> tuple[Tensor, State]:
        """x [D, T, B, P], keep [T, B] → the top layer [D, T, B, P] and the state after the window."""
        before = state or self.zero_state(x.shape[2])
        by_layer = [cast(list[LstmWeights], list(layer)) for layer in zip(*self.stacks(), strict=True)]
        last_h, last_c = [], []

        def layer(number: int, values: Tensor) -> Tensor:
            y, h, c = lstm_windows(values, keep, by_layer[number], before.h[:, number], before.c[:, number])
            last_h.append(h)
            last_c.append(c)
            return y

        top = stacked(x, layer, len(by_layer), skip_connections=self.config.skip_connections, dropout=dropout)[-1]
        return top, State(torch.stack(last_h, dim=1), torch.stack(last_c, dim=1))

    def zero_state(self, batch: int) -> State:
        """h [D, L, B, P] and c [D, L, B, H] of zeros."""
        return State(*zero_states(self.stacks(), batch))

    def explain(self, tokens: Tensor) -> str:
        """The path that the dispatcher chooses for tokens of this shape and dtype, and the reason."""
        choice = choose(tokens, self.stacks(), gradient=False)
        return f"{choice.path}: {choice.why}"


register_context(LstmConfig, LstmEncoder)
