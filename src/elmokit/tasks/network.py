"""The networks of the three kinds of task, from a batch of sentences to a loss or to predictions.

    classify  [x; ELMo] → biLSTM → pooling → labels
    tag       [x; ELMo] → biLSTM → a score a tag → CRF, or each tag for itself
    pair      both sentences as above → each word beside its counterpart in the other → pooling → labels or a score

In evaluation mode the numbers of a sentence do not depend on padding or on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.model.scalar_mix import ScalarMix
from elmokit.tasks.examples import Kind
from elmokit.tasks.inputs import InputEncoder, SentenceBatch
from elmokit.tasks.layers.alignment import Alignment
from elmokit.tasks.layers.attention import Pooling
from elmokit.tasks.layers.crf import Allowed, Crf
from elmokit.tasks.layers.recurrent import BiLstm
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.static import StaticVectors

Inputs = SentenceBatch | Sequence[SentenceBatch]
"""One batch, or two of a pair."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What the network says of a batch; on the network's device."""

    labels: Tensor | None = None
    """[B] for classify and pair, [B, T] for tag with -1 at padding; None where the target is a score."""
    probabilities: Tensor | None = None
    """[B, K], or [B, T, K] for tag with 0 at padding; None where the target is a score."""
    scores: Tensor | None = None
    """[B], where the target is a score."""

    def cpu(self) -> Predictions:
        """The same on the CPU."""
        parts = (self.labels, self.probabilities, self.scores)
        return Predictions(*(None if part is None else part.cpu() for part in parts))


class TaskNetwork(nn.Module):
    """A task's own layers, from ELMo layers and word rows to the answer; the biLM is not part of it.

    `n_outputs` K: labels or tags; 1 for a score. `allowed`: see `Crf`. Before a score is trained,
    `standardise` tells the network what scores look like.
    """

    score_facts: Tensor

    def __init__(
        self,
        kind: Kind,
        options: TaskOptions,
        *,
        n_outputs: int,
        elmo_layers: int,
        elmo_size: int,
        static: StaticVectors | None = None,
        allowed: Allowed | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.options = kind, options
        self.scores = kind == "pair" and options.target == "score"
        if n_outputs < 1 or (self.scores and n_outputs != 1):
            raise ElmoError(f"a task needs at least one label, and a score is one number, got {n_outputs} outputs")
        self.encoder = InputEncoder(
            options,
            elmo_layers=elmo_layers,
            elmo_size=elmo_size,
            static=static,
            compares=kind == "pair" and options.words_beside,
        )
        self.lstm = BiLstm(self.encoder.input_size, options.hidden, layers=options.layers, dropout=options.dropout)
        self.dropout = nn.Dropout(options.dropout)
        size = self.lstm.output_size + self.encoder.extra_size
        self.pooling: Pooling | None = None
        self.alignment: Alignment | None = None
        self.crf: Crf | None = None
        self.output: nn.Module
        if kind == "tag":
            self.output = nn.Linear(size, n_outputs)
            self.crf = Crf(n_outputs, allowed) if options.crf else None
        elif kind == "classify":
            self.pooling = Pooling(options.pooling, size)
            self.output = nn.Linear(self.pooling.output_size, n_outputs)
        else:
            if options.alignment:
                self.alignment = Alignment(size, options.hidden)
                pooled = self.alignment.output_size
            else:
                self.pooling = Pooling(options.pooling, size)
                pooled = self.pooling.output_size
            self.output = nn.Sequential(
                nn.Linear(4 * pooled, options.hidden),
                nn.ReLU(),
                nn.Dropout(options.dropout),
                nn.Linear(options.hidden, n_outputs),
            )
        # Mean, spread, least and largest of the training scores.
        self.register_buffer("score_facts", torch.tensor([0.0, 1.0, -torch.inf, torch.inf]))

    @property
    def mixes(self) -> dict[str, ScalarMix]:
        """The learned mixes of the layers by where they are used: "input" and "output"."""
        return self.encoder.mixes

    def standardise(self, scores: Tensor) -> None:
        """Take mean and spread from the training scores [N]; predictions will stay within their range."""
        if not len(scores) or not bool(torch.isfinite(scores).all()):
            raise ElmoError(f"the scores to learn must be finite numbers and at least one, got {len(scores)} of them")
        spread = float(scores.double().std(correction=0)) or 1.0  # all the same: any spread will do
        facts = [float(scores.double().mean()), spread, float(scores.min()), float(scores.max())]
        self.score_facts.copy_(torch.tensor(facts))

    def loss(self, inputs: Inputs, targets: Tensor) -> Tensor:
        """The mean over the examples, plus λ‖w‖² of the mixes.

        targets: labels [B], tags [B, T] (anything at padding), or scores [B].
        """
        outputs = self(inputs)
        if self.kind == "tag":
            loss = self._tag_loss(outputs, targets, _single(inputs))
        elif self.scores:
            mean, spread, _, _ = self.score_facts
            loss = F.mse_loss(outputs.squeeze(1), (targets.to(outputs.dtype) - mean) / spread)
        else:
            loss = F.cross_entropy(outputs, targets)
        for mix in self.mixes.values():
            loss = loss + self.options.mix_penalty * mix.penalty()
        return loss

    @torch.no_grad()
    def predict(self, inputs: Inputs) -> Predictions:
        """Labels with probabilities, or scores, in evaluation mode whatever the mode of the network."""
        was_training = self.training
        self.eval()
        try:
            outputs = self(inputs)
            if self.scores:
                mean, spread, least, largest = self.score_facts
                return Predictions(scores=(outputs.squeeze(1) * spread + mean).clamp(least, largest))
            if self.kind == "tag":
                return self._tags(outputs, _single(inputs))
            probabilities = torch.softmax(outputs, dim=1)
            return Predictions(probabilities.argmax(dim=1), probabilities)
        finally:
            self.train(was_training)

    def forward(self, inputs: Inputs) -> Tensor:
        """Scores before any softmax: [B, K]; for tag [B, T, K]."""
        if self.kind == "pair":
            vectors = self._compared(*_pair(inputs))
        else:
            batch = _single(inputs)
            vectors = self._states(batch)
            if self.pooling is not None:
                vectors = self.pooling(vectors, batch.mask)
        # After pooling, where there is one: numbers that were dropped would be missing in a maximum or an alignment.
        outputs: Tensor = self.output(self.dropout(vectors))
        return outputs

    def _states(self, batch: SentenceBatch) -> Tensor:
        """A vector for each word in its sentence, [B, T, size]."""
        return self.encoder.beside(self.lstm(self.encoder(batch), batch.lengths), batch)

    def _compared(self, first: SentenceBatch, second: SentenceBatch) -> Tensor:
        """[u; v; |u - v|; u ⊙ v] of a pair's two vectors."""
        states = [self._states(batch) for batch in (first, second)]
        if self.alignment is not None:
            u, v = self.alignment(*states, first.mask, second.mask)
        else:
            assert self.pooling is not None
            u, v = self.pooling(states[0], first.mask), self.pooling(states[1], second.mask)
        return torch.cat([u, v, (u - v).abs(), u * v], dim=1)

    def _tag_loss(self, emissions: Tensor, tags: Tensor, batch: SentenceBatch) -> Tensor:
        if self.crf is not None:
            return -self.crf.log_likelihood(emissions, tags, batch.lengths).mean()
        known = tags.masked_fill(~batch.mask, -1)
        total = F.cross_entropy(emissions.flatten(0, 1), known.flatten(), ignore_index=-1, reduction="sum")
        return total / max(len(emissions), 1)

    def _tags(self, emissions: Tensor, batch: SentenceBatch) -> Predictions:
        if self.crf is not None:
            return Predictions(self.crf.decode(emissions, batch.lengths), self.crf.marginals(emissions, batch.lengths))
        mask = batch.mask
        probabilities = torch.softmax(emissions, dim=2) * mask.unsqueeze(2)
        return Predictions(emissions.argmax(dim=2).masked_fill(~mask, -1), probabilities)


def _single(inputs: Inputs) -> SentenceBatch:
    if not isinstance(inputs, SentenceBatch):
        raise ElmoError(f"this task takes one batch of sentences, got {len(inputs)}")
    return inputs


def _pair(inputs: Inputs) -> tuple[SentenceBatch, SentenceBatch]:
    if isinstance(inputs, SentenceBatch) or len(inputs) != 2:
        raise ElmoError("a pair task takes two batches of sentences, one for each side")
    return inputs[0], inputs[1]
