"""The network layers that all tasks share: [static vectors; ELMo] → biLSTM → the head of the task → outputs.

In evaluation mode the outputs for a sentence do not depend on padding or on the other sentences of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elmokit.elmo import Elmo
from elmokit.model.scalar_mix import LayerNorm, ScalarMix
from elmokit.tasks.inputs import SentenceBatch
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.static import StaticVectors

Inputs = tuple[SentenceBatch, ...]
"""One batch per side of the examples: one, or two for pairs."""
PoolingName = Literal["attention", "max", "mean"]


@dataclass(frozen=True, eq=False)
class InputSpec:
    """The inputs of a network: the number and size of the ELMo layers, 0 without ELMo, and the static vectors."""

    elmo_layers: int
    elmo_size: int
    static: StaticVectors | None = None

    @classmethod
    def of(cls, elmo: Elmo | None, static: StaticVectors | None) -> InputSpec:
        """The inputs from an ELMo model and a table of static vectors, either of which may be missing."""
        return cls(elmo.config.n_outputs if elmo else 0, elmo.config.vector_size if elmo else 0, static)


class InputEncoder(nn.Module):
    """[x; ELMo(x)] for each word: x from the static vectors, ELMo(x) from the layers, either of which may be missing.

    ELMo(x) is a learned mix of the layers, or layer 0. With `elmo_output` a second mix is appended to the output of the
    task's LSTM. `compares` is for tasks that compare sentences word by word: with `words_beside`, the second mix and
    layer 0 are appended. They are normalised, because comparing multiplies vectors, whose scale depends on the model.
    """

    def __init__(self, options: TaskOptions, spec: InputSpec, *, compares: bool = False) -> None:
        super().__init__()
        self.static, self.uses_elmo = spec.static, options.elmo != "none"
        self.static_dropout = nn.Dropout(options.dropout)
        self.elmo_dropout = nn.Dropout(options.elmo_dropout)
        words_beside = compares and options.words_beside
        self.adds_elmo = self.uses_elmo and (options.elmo_output or words_beside)
        self.adds_layer_0 = words_beside and options.elmo == "mix"
        n_added = self.adds_elmo + self.adds_layer_0
        # Normalise over a sentence, not a batch: its vectors must not depend on the other sentences of the batch.
        norm: LayerNorm = "sentence" if options.mix_layer_norm else False
        mix_names = ("input", "output")[: (options.elmo == "mix") * (1 + self.adds_elmo)]
        self.mixes = nn.ModuleDict({name: ScalarMix(spec.elmo_layers, layer_norm=norm) for name in mix_names})
        self.norms = nn.ModuleList(_comparison_norm(spec.elmo_size) for _ in range(n_added * compares))
        static_size = self.static.size if self.static is not None else 0
        self.input_size = static_size + spec.elmo_size * self.uses_elmo
        self.extra_size = spec.elmo_size * n_added

    def forward(self, batch: SentenceBatch) -> Tensor:
        """The input of the task's LSTM, [B, T, input_size]."""
        parts = []
        if self.static is not None:
            parts.append(self.static_dropout(self.static(batch.words)))
        if self.uses_elmo:
            parts.append(self.elmo_dropout(self._elmo_vectors(batch, "input")))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def with_elmo(self, outputs: Tensor, batch: SentenceBatch) -> Tensor:
        """The LSTM's outputs [B, T, H], followed by ELMo vectors if the options ask for them."""
        if not self.adds_elmo:
            return outputs
        assert batch.layers is not None
        added = [self._elmo_vectors(batch, "output"), *([batch.layers[0]] if self.adds_layer_0 else [])]
        if self.norms:
            added = [norm(vectors) for norm, vectors in zip(self.norms, added, strict=True)]
        return torch.cat([outputs, *added], dim=2)

    def _elmo_vectors(self, batch: SentenceBatch, mix_name: str) -> Tensor:
        """A mix of the layers, or layer 0 if there are no mixes, [B, T, D]."""
        assert batch.layers is not None
        vectors: Tensor = self.mixes[mix_name](batch.layers, batch.mask) if mix_name in self.mixes else batch.layers[0]
        return vectors


def _comparison_norm(size: int) -> nn.LayerNorm:
    """A normalisation after which a vector's dot product with itself is √size, about as large as the LSTM's."""
    norm = nn.LayerNorm(size)
    nn.init.constant_(norm.weight, size**-0.25)
    return norm


class SentenceLstm(nn.Module):
    """A bidirectional LSTM over sentences with dropout between its layers; padding does not change its output."""

    def __init__(self, input_size: int, hidden: int, *, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        between = dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(input_size, hidden, layers, batch_first=True, dropout=between, bidirectional=True)
        self.output_size = 2 * hidden
        # Orthogonal recurrent weights, input weights that preserve the scale, and a forget gate that starts open.
        for inputs, steps, bias, other_bias in self.lstm.all_weights:
            for input_gate, step_gate in zip(inputs.data.chunk(4), steps.data.chunk(4), strict=True):
                nn.init.orthogonal_(step_gate)
                nn.init.xavier_uniform_(input_gate)
            nn.init.zeros_(other_bias)
            nn.init.zeros_(bias).data[hidden : 2 * hidden] = 1.0

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        """values [B, T, D], lengths [B] on the CPU → [B, T, 2·hidden], zeros at padding."""
        if not values.shape[0] or not values.shape[1]:
            return values.new_zeros(*values.shape[:2], self.output_size)
        run = self.run_by_direction if values.device.type == "cpu" else self.run_packed
        return run(values, lengths)

    def run_packed(self, values: Tensor, lengths: Tensor) -> Tensor:
        """`forward` as torch does it for sentences of different lengths."""
        # Packing needs at least one word per sentence: an empty one gets a padding word, whose output is zeroed below.
        packed = pack_padded_sequence(values, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=values.shape[1])
        if int(lengths.min()) == 0:
            outputs = outputs * (lengths > 0).to(outputs.device)[:, None, None]
        return outputs

    def run_by_direction(self, values: Tensor, lengths: Tensor) -> Tensor:
        """`forward` for a CPU, where torch's LSTM is fast only for one direction and sentences of equal length.

        The backward direction reads each sentence reversed, so that padding follows the words in both directions.
        """
        batch, width, _ = values.shape
        positions = torch.arange(width)
        inside = positions < lengths.unsqueeze(1)  # [B, T]
        mirrored = torch.where(inside, lengths.unsqueeze(1) - 1 - positions, positions)
        rows = (mirrored + width * torch.arange(batch).unsqueeze(1)).flatten()
        start = values.new_zeros(1, batch, self.lstm.hidden_size)
        weights = self.lstm.all_weights
        for layer in range(self.lstm.num_layers):
            if layer:
                values = F.dropout(values, self.lstm.dropout, self.training)
            forward, backward = (
                torch.lstm(x, (start, start), [*own], True, 1, 0.0, self.training, False, True)[0]
                for x, own in zip((values, _reordered(values, rows)), weights[2 * layer :], strict=False)
            )
            values = torch.cat([forward, _reordered(backward, rows)], dim=2)
        return values * inside.unsqueeze(2)


def _reordered(values: Tensor, rows: Tensor) -> Tensor:
    """values [B, T, D] with their B·T rows in another order; indexing with a tensor would have a slower gradient."""
    return values.flatten(0, 1).index_select(0, rows).view_as(values)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """values [B, T, D], mask [B, T] → the mean over the words [B, D]; zeros if there are none."""
    inside = mask.unsqueeze(2).to(values.dtype)
    return (values * inside).sum(dim=1) / inside.sum(dim=1).clamp(min=1)


def masked_max(values: Tensor, mask: Tensor) -> Tensor:
    """values [B, T, D], mask [B, T] → the maximum over the words [B, D]; zeros if there are none."""
    if not values.shape[1]:
        return values.new_zeros(len(values), values.shape[2])
    largest = values.masked_fill(~mask.unsqueeze(2), torch.finfo(values.dtype).min).amax(dim=1)
    return largest * mask.any(dim=1, keepdim=True)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension where the mask is true; 0 elsewhere."""
    inside = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(inside, dim=-1) * mask


class Pooling(nn.Module):
    """One vector from the word vectors of a text; "attention" is a learned weighted mean, then the maximum.

    The weighted mean describes the text as a whole; the maximum also shows single words that stand out. The weights
    are the softmax of tanh(W x + b) times a learned query.
    """

    def __init__(self, name: PoolingName, size: int) -> None:
        super().__init__()
        self.name = name
        if name == "attention":
            self.project = nn.Linear(size, size)
            self.query = nn.Parameter(torch.zeros(size))  # zero weighs all words equally
        self.output_size = 2 * size if name == "attention" else size

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """values [B, T, D], mask [B, T] → [B, output_size]; zeros if there are no words."""
        if self.name != "attention":
            return masked_max(values, mask) if self.name == "max" else masked_mean(values, mask)
        weights = masked_softmax(torch.tanh(self.project(values)) @ self.query, mask)
        return torch.cat([(weights.unsqueeze(1) @ values).squeeze(1), masked_max(values, mask)], dim=1)


class TaskNetwork(nn.Module):
    """The network of a task, without ELMo itself; a subclass adds the head of the task.

    The subclass sets `output`, the last layer, and returns the input of that layer from `vectors`. Loss and decoding
    are those of a classifier unless the subclass overrides them.
    """

    output: nn.Module

    def __init__(self, options: TaskOptions, spec: InputSpec, n_outputs: int, *, compares: bool = False) -> None:
        """`n_outputs` is K, the number of labels or tags, or 1 for a score. `compares`: see `InputEncoder`."""
        super().__init__()
        self.options = options
        self.encoder = InputEncoder(options, spec, compares=compares)
        self.lstm = SentenceLstm(
            self.encoder.input_size, options.hidden, layers=options.layers, dropout=options.dropout
        )
        self.dropout = nn.Dropout(options.dropout)
        self.state_size = self.lstm.output_size + self.encoder.extra_size
        """The size of the vectors that `states` returns."""

    @property
    def mixes(self) -> dict[str, ScalarMix]:
        """The learned mixes of the layers, by where they are used: "input" or "output" of the LSTM."""
        return dict(self.encoder.mixes.items())  # type: ignore[arg-type]

    def states(self, batch: SentenceBatch) -> Tensor:
        """The LSTM's output for each word, with ELMo vectors if the options ask for them, [B, T, state_size]."""
        return self.encoder.with_elmo(self.lstm(self.encoder(batch), batch.lengths), batch)

    def vectors(self, inputs: Inputs) -> Tensor:
        """The input of the output layer: [B, size], or [B, T, size] for one output per word."""
        raise NotImplementedError

    def forward(self, inputs: Inputs) -> Tensor:
        """Scores before any softmax: [B, K], or [B, T, K] for one output per word."""
        # Dropout comes after pooling, because it would change a maximum or an alignment.
        outputs: Tensor = self.output(self.dropout(self.vectors(inputs)))
        return outputs

    def loss(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """The mean loss of the examples, plus the penalty λ‖w‖² of each mix."""
        loss = self.output_loss(self(inputs), targets, inputs)
        for mix in self.mixes.values():
            loss = loss + self.options.mix_penalty * mix.penalty()
        return loss

    def output_loss(self, outputs: Tensor, targets: Tensor, inputs: Inputs) -> Tensor:
        """outputs [B, K] and labels [B] → the mean loss."""
        return F.cross_entropy(outputs, targets)

    @torch.no_grad()
    def predict(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """The result of `decode`; always computed in evaluation mode."""
        was_training = self.training
        self.eval()
        try:
            return self.decode(self(inputs), inputs)
        finally:
            self.train(was_training)

    def decode(self, outputs: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
        """outputs [B, K] → tensors [B, …] for `Task.answer`; for a classifier the probabilities [B, K]."""
        return (torch.softmax(outputs, dim=1),)
