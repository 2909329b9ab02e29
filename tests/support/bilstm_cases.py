"""LSTM stacks of odd shapes over ragged sentences, and what the equations make of them."""

import torch

from elmokit.ops.outputs import BiLstmOutput
from elmokit.ops.reference import lstm_reference
from elmokit.ops.weights import LstmWeights


def bilstm_case(batch, time, cell, output, *, directions=2, layers=2, clips=True, projection=True, seed=0):
    """x, lengths, stacks, h and c in float64; the clips really clip."""
    generator = torch.Generator().manual_seed(1000 * batch + time + seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    width = output if projection else cell
    stacks = [
        [
            LstmWeights(
                normal(4 * cell, width) / width**0.5,
                normal(4 * cell, width) / width**0.5,
                normal(4 * cell) * 0.3,
                normal(width, cell) * 2 / cell**0.5 if projection else None,
                forget_bias=1.0,
                cell_clip=0.9 if clips else None,
                projection_clip=0.8 if clips else None,
            )
            for _ in range(layers)
        ]
        for _ in range(directions)
    ]
    lengths = torch.randint(1, time + 1, (batch,), generator=generator)
    lengths[batch // 2] = time
    x = normal(batch, time, width)
    return (
        x,
        lengths,
        stacks,
        normal(directions, layers, batch, width) * 0.3,
        normal(directions, layers, batch, cell) * 0.3,
    )


def bilstm_reference(x, lengths, stacks, h, c, *, skip_connections):
    """The equations, layer after layer."""
    outputs, last_h, last_c = [], [], []
    for d, layers in enumerate(stacks):
        values, of_direction = x, []
        for number, weights in enumerate(layers):
            y, h_n, c_n = lstm_reference(values, lengths, weights, h[d, number], c[d, number], reverse=d == 1)
            values = y + values if number and skip_connections else y
            of_direction.append(values)
            last_h.append(h_n)
            last_c.append(c_n)
        outputs.append(of_direction)
    inside = (torch.arange(x.shape[1]) < lengths.unsqueeze(1)).unsqueeze(-1)
    joined = [torch.cat(parts, dim=-1) * inside for parts in zip(*outputs, strict=True)]
    return BiLstmOutput(joined, torch.stack(last_h).view_as(h), torch.stack(last_c).view_as(c))
