"""The task `pair`, one label or score for each pair of sentences.

Each sentence: [static vectors; ELMo] → biLSTM. Then each word is compared with similar words of the other sentence →
pooling → label or score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.tasks.classify import LabelAnswer, LabelledExample, LabelTask, label_of
from elmokit.tasks.network import Inputs, InputSpec, Pooling, TaskNetwork, masked_max, masked_mean, masked_softmax
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.reading import FilePath, Segment, Tokens, location, quoted
from elmokit.tasks.scores import MainScore, TaskScores, check_lengths
from elmokit.tasks.task import Answer


@dataclass(frozen=True)
class PairExample(LabelledExample):
    """Two sentences and their label, which is a number if the task predicts scores."""

    first: Tokens
    second: Tokens
    label: str | None = None
    line: int = 0
    raw: tuple[str, ...] = field(default=(), compare=False)
    texts = ("first", "second")


@dataclass(frozen=True)
class ScoreAnswer(Answer):
    """The score of a pair."""

    score: float


def score_numbers(gold: ArrayLike, predicted: ArrayLike) -> TaskScores:
    """Score predicted numbers against gold ones, both [N]; a correlation with constant values counts as 0."""
    right, guess = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    check_lengths(len(right), len(guess))
    scores = (
        MainScore("Pearson", _pearson(right, guess)),
        MainScore("Spearman", _pearson(_ranks(right), _ranks(guess))),
        MainScore("mean squared error", float(np.mean((right - guess) ** 2))),
    )
    return TaskScores(scores, counts={"examples": len(right)}, has_errors=False)


def _pearson(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    # If all values are equal, subtracting their mean would leave rounding errors, which could correlate.
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0 or not np.isfinite([x, y]).all():
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1, 1))


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0; equal values get the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = (ends - (counts + 1) / 2)[inverse]
    return ranks


def scores_of(examples: Sequence[PairExample], path: FilePath | None = None) -> list[float]:
    """The examples' labels as numbers."""
    scores = []
    for example in examples:
        label = label_of(example, path)
        try:
            score = float(label)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise ElmoError(
                f"{location(path, example.line)}: a score must be a number, got {quoted(label)}: choose the column of "
                "the scores, or train with target='label'",
                "target",
            )
        scores.append(score)
    return scores


def align(first: Tensor, second: Tensor, first_mask: Tensor, second_mask: Tensor) -> tuple[Tensor, Tensor]:
    """first [B, T, D], second [B, S, D] → for each word, the mean of the other sentence's words by similarity.

    Returns [B, T, D] from the words of the second sentence and [B, S, D] from those of the first; zeros if the other
    sentence is empty.
    """
    similarity = first @ second.transpose(1, 2)  # [B, T, S]
    for_first = masked_softmax(similarity, second_mask.unsqueeze(1)) @ second
    for_second = masked_softmax(similarity.transpose(1, 2), first_mask.unsqueeze(1)) @ first
    return for_first, for_second


class WordAlignment(nn.Module):
    """Compares each word a with its aligned vector ã and pools: [a; ã; a - ã; a ⊙ ã] → projection → [max; mean]."""

    def __init__(self, size: int, hidden: int) -> None:
        super().__init__()
        self.compare = nn.Sequential(nn.Linear(4 * size, hidden), nn.ReLU())
        self.output_size = 2 * hidden

    def forward(self, first: Tensor, second: Tensor, first_mask: Tensor, second_mask: Tensor) -> tuple[Tensor, Tensor]:
        """first [B, T, D], second [B, S, D] → one vector for each sentence, both [B, 2·hidden]."""
        for_first, for_second = align(first, second, first_mask, second_mask)
        return self._pooled(first, for_first, first_mask), self._pooled(second, for_second, second_mask)

    def _pooled(self, own: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        compared = self.compare(torch.cat([own, other, own - other, own * other], dim=2))
        return torch.cat([masked_max(compared, mask), masked_mean(compared, mask)], dim=1)


class PairNetwork(TaskNetwork):
    """Two linear layers on [u; v; |u - v|; u ⊙ v], where u and v are the vectors of the two sentences."""

    score_facts: Tensor

    def __init__(self, options: TaskOptions, spec: InputSpec, n_outputs: int) -> None:
        super().__init__(options, spec, n_outputs, compares=True)
        self.scores = options.target == "score"
        # Mean, standard deviation, minimum and maximum of the training scores.
        self.register_buffer("score_facts", torch.tensor([0.0, 1.0, -torch.inf, torch.inf]))
        self.alignment = WordAlignment(self.state_size, options.hidden) if options.alignment else None
        self.pooling = None if options.alignment else Pooling(options.pooling, self.state_size)
        pooled = self.alignment or self.pooling
        assert pooled is not None
        self.output = nn.Sequential(
            nn.Linear(4 * pooled.output_size, options.hidden),
            nn.ReLU(),
            nn.Dropout(options.dropout),
            nn.Linear(options.hidden, n_outputs),
        )

    def vectors(self, inputs: Inputs) -> Tensor:
        """The combined vector of each pair, [B, 4·size]."""
        first, second = inputs
        states = [self.states(batch) for batch in inputs]
        if self.alignment is not None:
            u, v = self.alignment(*states, first.mask, second.mask)
        else:
            assert self.pooling is not None
            u, v = self.pooling(states[0], first.mask), self.pooling(states[1], second.mask)
        return torch.cat([u, v, (u - v).abs(), u * v], dim=1)

    def standardise(self, scores: Tensor) -> None:
        """Set the mean and the standard deviation of the training scores [N], and the range of predictions."""
        if not len(scores) or not bool(torch.isfinite(scores).all()):
            raise ElmoError(f"training needs at least one score, and all must be finite, got {len(scores)} scores")
        deviation = float(scores.double().std(correction=0)) or 1.0  # any value will do if all scores are equal
        facts = [float(scores.double().mean()), deviation, float(scores.min()), float(scores.max())]
        self.score_facts.copy_(torch.tensor(facts))

    def output_loss(self, outputs: Tensor, targets: Tensor, inputs: Inputs) -> Tensor:
        """outputs [B, K] and labels [B], or outputs [B, 1] and scores [B] → the mean loss."""
        if not self.scores:
            return super().output_loss(outputs, targets, inputs)
        mean, deviation, _, _ = self.score_facts
        return F.mse_loss(outputs.squeeze(1), (targets.to(outputs.dtype) - mean) / deviation)

    def decode(self, outputs: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
        """The probabilities [B, K], or the scores [B]."""
        if not self.scores:
            return super().decode(outputs, inputs)
        mean, deviation, least, largest = self.score_facts
        return ((outputs.squeeze(1) * deviation + mean).clamp(least, largest),)


class PairTask(LabelTask[PairExample, LabelAnswer | ScoreAnswer]):
    """One label for each pair of sentences, or with target="score" one number; then `labels` is empty."""

    name = "pair"
    example = PairExample
    columns = ("first", "second", "label")
    sides = ("first", "second")
    own_options = ("pooling", "alignment", "words_beside", "target", "max_tokens")

    @classmethod
    def unused(cls, options: TaskOptions) -> dict[str, str]:
        """The options that have no effect because of the values of others, each with its purpose."""
        unused = super().unused(options)
        if options.alignment:
            unused["pooling"] = "classify, and for pair without alignment"
        if options.elmo == "none":
            unused["words_beside"] = "ELMo vectors, and elmo is none"
        return unused

    @classmethod
    def from_examples(
        cls, examples: Sequence[PairExample], options: TaskOptions, path: FilePath | None = None
    ) -> tuple[Self, list[str]]:
        """The task with the labels of training examples, or, for scores, a task without labels."""
        if options.target == "label":
            return super().from_examples(examples, options, path)
        if len(distinct := set(scores := scores_of(examples, path))) < 2:
            where = "the training data" if path is None else str(path)
            value = f"{distinct.pop():g} {len(scores):,} times"
            raise ElmoError(
                f"scores must differ for a model to learn them, got {value} in {where}: is that the column of the "
                "scores?"
            )
        return cls(()), []

    def check(
        self, examples: Sequence[PairExample], path: FilePath | None = None, *, held_out: bool = False
    ) -> list[str]:
        """Refuse examples without a label or a score."""
        if self.labels:
            return super().check(examples, path, held_out=held_out)
        scores_of(examples, path)
        return []

    def build_network(self, options: TaskOptions, spec: InputSpec) -> PairNetwork:
        """A network with one output per label, or one for a score."""
        return PairNetwork(options, spec, len(self.labels) or 1)

    def prepare_network(self, network: TaskNetwork, examples: Sequence[PairExample]) -> None:
        """Set the mean and the standard deviation of the training scores in the network."""
        if not self.labels:
            assert isinstance(network, PairNetwork)
            network.standardise(self.targets(examples))

    def targets(self, examples: Sequence[PairExample]) -> Tensor:
        """The ids of the labels or the scores, [B]."""
        return super().targets(examples) if self.labels else torch.tensor(scores_of(examples), dtype=torch.float32)

    def answer(self, example: PairExample, decoded: tuple[Tensor, ...]) -> LabelAnswer | ScoreAnswer:
        """The most probable label, or the score."""
        return super().answer(example, decoded) if self.labels else ScoreAnswer(float(decoded[0]))

    def score(self, examples: Sequence[PairExample], answers: Sequence[Any]) -> TaskScores:
        """Accuracy and the scores of each label, or the correlation of predicted and gold scores."""
        if self.labels:
            return super().score(examples, answers)
        return score_numbers(scores_of(examples), [answer.score for answer in answers])


TASK = PairTask


def read_pairs(
    path: FilePath,
    *,
    first: str | None = None,
    second: str | None = None,
    label: str | None = None,
    segment: Segment = "whitespace",
    labelled: bool = True,
) -> list[PairExample]:
    """The sentence pairs of a table and their labels; columns are chosen as in `read_texts`.

    With labelled=False no label is read, and a table of two columns without a header is read as `first TAB second`.
    """
    return list(PairTask.read(path, first=first, second=second, label=label, segment=segment, labelled=labelled))
