"""torch's nn.LSTM with projections, which cuDNN runs: one stack per direction, without clips and skip connections."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from elmokit.ops.bilstm import Stacks
from elmokit.ops.weights import LstmWeights


class CudnnStacks:
    """The closest network that cuDNN can run; the inputs of the backward direction are reversed in advance."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = [_lstm([w for w in layers if isinstance(w, LstmWeights)]) for layers in stacks]

    def prepare(self, x: Tensor, lengths: Tensor) -> list[nn.utils.rnn.PackedSequence | Tensor]:
        """x [B, T, P], lengths [B] on the CPU → the input of each stack: [T, B, P], or packed if lengths differ."""
        given = [x, reversed_sentences(x, lengths)][: len(self.stacks)]
        if bool((lengths == x.shape[1]).all()):
            return [values.transpose(0, 1).contiguous() for values in given]
        return [nn.utils.rnn.pack_padded_sequence(v, lengths, batch_first=True, enforce_sorted=False) for v in given]

    def __call__(
        self, given: Sequence[nn.utils.rnn.PackedSequence | Tensor]
    ) -> list[nn.utils.rnn.PackedSequence | Tensor]:
        """The top layer of each direction, in the layout of its input."""
        return [stack(values)[0] for stack, values in zip(self.stacks, given, strict=True)]

    def top(self, x: Tensor, lengths: Tensor) -> Tensor:
        """The top layer [B, T, 2P], for comparisons."""
        found = []
        for number, out in enumerate(self(self.prepare(x, lengths))):
            if isinstance(out, nn.utils.rnn.PackedSequence):
                padded = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])[0]
            else:
                padded = out.transpose(0, 1)
            found.append(reversed_sentences(padded, lengths) if number else padded)
        return torch.cat(found, dim=-1)

    def parameters(self) -> list[Tensor]:
        """All weights."""
        return [weight for stack in self.stacks for weight in stack.parameters()]


def reversed_sentences(x: Tensor, lengths: Tensor) -> Tensor:
    """x [B, T, …] with the tokens of each sentence in reverse order; padding stays where it is."""
    step = torch.arange(x.shape[1])
    positions = torch.where(step < lengths.unsqueeze(1), lengths.unsqueeze(1) - 1 - step, step)
    return x[torch.arange(len(lengths)).unsqueeze(1).to(x.device), positions.to(x.device)]


def _lstm(layers: Sequence[LstmWeights]) -> nn.LSTM:
    first = layers[0]
    cell = first.bias.shape[0] // 4
    assert first.projection is not None
    lstm = nn.LSTM(
        first.input.shape[1], cell, len(layers), proj_size=first.projection.shape[0],
        device=first.input.device, dtype=first.input.dtype,
    )  # fmt: skip
    with torch.no_grad():
        for number, w in enumerate(layers):
            bias = w.bias.clone()
            bias[cell : 2 * cell] += w.forget_bias
            values = {"weight_ih": w.input, "weight_hh": w.recurrent, "bias_ih": bias, "weight_hr": w.projection}
            for name, value in values.items():
                getattr(lstm, f"{name}_l{number}").copy_(value)
            getattr(lstm, f"bias_hh_l{number}").zero_()
    lstm.flatten_parameters()
    return lstm
