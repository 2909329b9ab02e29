"""ELMo as plain torch operations: a loop of AllenNLP's structure, and the equations token by token.

The loop replaces AllenNLP if AllenNLP cannot be installed; the table then says so. Like AllenNLP it pads a batch to its
longest sentence, and runs the character part for every occurrence of every word at its full 50 characters. It computes
both products of every time step in a Python loop over the sentences that have not ended, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.model.bilm import BiLM
from elmokit.model.transformer import TransformerEncoder
from elmokit.ops.bilstm import Stacks
from elmokit.ops.reference import clip, lstm_reference, transformer_reference
from elmokit.ops.weights import LstmWeights
from peers.systems import Batch, Vectors, by_length


class _Layer(Protocol):
    def __call__(self, values: Tensor, weights: LstmWeights, *, reverse: bool) -> Tensor: ...


class Plain:
    """A whole model, with the recurrence as a loop or by the reference."""

    def __init__(self, model: str, *, structure: Literal["loop", "reference"], device: str = "cpu") -> None:
        self.elmo = Elmo.load(model, device=device, dtype="float32")
        self.structure = structure
        if structure == "loop" and isinstance(self.elmo.bilm.context, TransformerEncoder):
            raise ElmoError("the loop of AllenNLP's structure needs an LSTM, but this model has a Transformer")
        self.facts = {"recurrence": "peers.plain" if structure == "loop" else "elmokit.ops.reference"}

    def fresh(self) -> None:
        """Do nothing: it caches no words."""

    @torch.no_grad()
    def encode(self, batch: Batch) -> list[Vectors]:
        """The mean of all layers of each sentence, or a Transformer's last block, [T, D]."""
        bilm, indexer = self.elmo.bilm, self.elmo.indexer
        lengths = torch.tensor([len(tokens) + 2 for tokens in batch])
        longest = int(lengths.max())
        words = [[indexer.begin, *tokens, indexer.end] for tokens in batch]
        flat = indexer([word for row in words for word in [*row, *[""] * (longest - len(row))]]).characters
        assert flat is not None
        tokens_in = characters(bilm, torch.from_numpy(flat).to(bilm.device)).view(len(batch), longest, -1)
        if isinstance(bilm.context, TransformerEncoder):
            return transformer_tops(bilm.context, tokens_in, lengths)
        tokens_in = tokens_in * (torch.arange(longest) < lengths.unsqueeze(1)).unsqueeze(-1).to(bilm.device)
        recurrence = loop if self.structure == "loop" else reference
        layers = recurrence(
            tokens_in, lengths, bilm.context.stacks(), skip_connections=bilm.config.lstm.skip_connections
        )
        mean = torch.stack([torch.cat([tokens_in, tokens_in], dim=-1), *layers]).mean(dim=0).cpu().numpy()
        return [mean[row, 1 : len(tokens) + 1] for row, tokens in enumerate(batch)]

    def encode_all(self, sentences: Batch, size: int = 64) -> list[Vectors]:
        """The vectors of all sentences, in batches of similar lengths."""
        return by_length(self, sentences, size)


def characters(bilm: BiLM, ids: Tensor) -> Tensor:
    """ids [N, M] → token vectors [N, P]; every token is computed at its full width."""
    part, projection = bilm.token_encoder.char_cnn, bilm.token_encoder.projection
    assert part is not None
    embedded = part.embedding(ids).transpose(1, 2)  # [N, c, M]
    activation = torch.relu if part.config.activation == "relu" else torch.tanh
    x = torch.cat([activation(conv(embedded).amax(dim=-1)) for conv in part.convolutions], dim=-1)
    for highway in part.highways:
        gate = torch.sigmoid(highway.gate(x))
        x = gate * torch.relu(highway.transform(x)) + (1 - gate) * x
    return x if projection is None else projection(x)


def transformer_tops(context: TransformerEncoder, x: Tensor, lengths: Tensor) -> list[Vectors]:
    """x [B, T, P], lengths [B] → the last block of each sentence without its boundaries."""
    config, blocks = context.config, context.block_weights()
    return [
        transformer_reference(tokens[:length], blocks, window=config.window, outputs=[len(blocks)])[0, 1:-1].numpy()
        for tokens, length in zip(x, lengths.tolist(), strict=True)
    ]


def reference(x: Tensor, lengths: Tensor, stacks: Stacks, *, skip_connections: bool) -> list[Tensor]:
    """x [B, T, P], lengths [B] → L layers [B, T, 2P] from zero states, by `elmokit.ops.reference`."""

    def layer(values: Tensor, weights: LstmWeights, *, reverse: bool) -> Tensor:
        h, c = _zeros(values, weights)
        return lstm_reference(values, lengths, weights, h, c, reverse=reverse)[0]

    return _stacked(x, stacks, layer, skip_connections=skip_connections)


def loop(x: Tensor, lengths: Tensor, stacks: Stacks, *, skip_connections: bool) -> list[Tensor]:
    """x [B, T, P], lengths [B] on the CPU → L layers [B, T, 2P] from zero states, computed like AllenNLP does."""
    order = lengths.argsort(descending=True, stable=True)
    sizes: list[int] = lengths[order].tolist()

    def layer(values: Tensor, weights: LstmWeights, *, reverse: bool) -> Tensor:
        return _loop_layer(values, sizes, weights, reverse=reverse)

    layers = _stacked(x[order.to(x.device)], stacks, layer, skip_connections=skip_connections)
    back = order.argsort().to(x.device)
    return [values[back] for values in layers]


def _stacked(x: Tensor, stacks: Stacks, layer: _Layer, *, skip_connections: bool) -> list[Tensor]:
    directions: list[list[Tensor]] = []
    for d, weights in enumerate(stacks):
        values, outputs = x, []
        for number, w in enumerate(weights):
            assert isinstance(w, LstmWeights)
            y = layer(values, w, reverse=d == 1)
            values = y + values if number and skip_connections else y
            outputs.append(values)
        directions.append(outputs)
    return [torch.cat(parts, dim=-1) for parts in zip(*directions, strict=True)]


def _loop_layer(x: Tensor, sizes: Sequence[int], weights: LstmWeights, *, reverse: bool) -> Tensor:
    """x [B, T, P] with the longest sentences first → [B, T, P]."""
    h_all, c_all = _zeros(x, weights)
    out = x.new_zeros(x.shape[0], x.shape[1], h_all.shape[1])
    time = sizes[0] if sizes else 0
    for t in reversed(range(time)) if reverse else range(time):
        n = sum(size > t for size in sizes)
        h, c = h_all[:n].clone(), c_all[:n].clone()
        given, before = F.linear(x[:n, t], weights.input), F.linear(h, weights.recurrent, weights.bias)
        parts = [a + b for a, b in zip(given.chunk(4, dim=1), before.chunk(4, dim=1), strict=True)]
        i, f, o = torch.sigmoid(parts[0]), torch.sigmoid(parts[1] + weights.forget_bias), torch.sigmoid(parts[3])
        c = clip(i * torch.tanh(parts[2]) + f * c, weights.cell_clip)
        h = o * torch.tanh(c)
        if weights.projection is not None:
            h = clip(F.linear(h, weights.projection), weights.projection_clip)
        h_all, c_all = h_all.clone(), c_all.clone()
        h_all[:n], c_all[:n] = h, c
        out[:n, t] = h
    return out


def _zeros(x: Tensor, weights: LstmWeights) -> tuple[Tensor, Tensor]:
    cell = weights.bias.shape[0] // 4
    output = cell if weights.projection is None else weights.projection.shape[0]
    return x.new_zeros(x.shape[0], output), x.new_zeros(x.shape[0], cell)
