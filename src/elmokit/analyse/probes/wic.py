"""Word in context: whether a word means the same in two sentences, decided by a threshold on a cosine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elmokit.analyse.probes.sources import LayerSource, append_mean, source_of, with_mean
from elmokit.corpus.lines import InputLines
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError

_COLUMNS = ("label", "indices", "sentence1", "sentence2")
_PENALTY = 1e-3

Cosines = NDArray[np.float64]


@dataclass(frozen=True)
class WicPair:
    """A word in two sentences, and whether it means the same in both."""

    first: tuple[str, ...]
    """The tokens of one sentence."""
    second: tuple[str, ...]
    """The tokens of the other sentence."""
    positions: tuple[int, int]
    """The index of the word in each sentence, from 0."""
    same: bool
    """Whether the word means the same in both."""


@dataclass(frozen=True)
class WicResult:
    """The accuracy of several methods on the dev pairs, by layer ("0" … and "mean")."""

    accuracy: dict[str, float]
    """With a threshold: the answer is "same" if the cosine is at or above it."""
    thresholds: dict[str, float]
    """The threshold of each layer, learned on the training pairs."""
    train_accuracy: dict[str, float]
    """With the threshold, on the training pairs."""
    logistic: dict[str, float]
    """With logistic regression on the cosine of each layer, and on the cosines of "all" layers together."""
    majority: float
    """With the more frequent answer of the training pairs for all pairs."""


def read_wic(path: str | Path) -> list[WicPair]:
    """Read a table with the columns label (T or F), indices, sentence1 and sentence2.

    The sentences are tokenised; indices such as "2-1" are the positions of the word in them.
    """
    with InputLines(path) as lines:
        header = next(lines, "").split("\t")
        if missing := [column for column in _COLUMNS if column not in header]:
            raise ElmoError(f"line 1 of {path} must name the columns {', '.join(_COLUMNS)}, but lacks {missing[0]}")
        return [
            _parse_pair(line, header, f"line {number} of {path}") for number, line in enumerate(lines, start=2) if line
        ]


def _parse_pair(line: str, header: Sequence[str], where: str) -> WicPair:
    cells = line.split("\t")
    if len(cells) != len(header):
        raise ElmoError(f"a line must have {len(header)} columns, got {len(cells)} in {where}")
    row = dict(zip(header, cells, strict=True))
    if row["label"] not in ("T", "F"):
        raise ElmoError(f"label must be T or F, got {row['label']!r} in {where}")
    first, second = tuple(row["sentence1"].split()), tuple(row["sentence2"].split())
    numbers = row["indices"].split("-")
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise ElmoError(f'indices must be two numbers such as "2-1", got {row["indices"]!r} in {where}')
    positions = (int(numbers[0]), int(numbers[1]))
    if positions[0] >= len(first) or positions[1] >= len(second):
        raise ElmoError(f"indices must be positions of a token in each sentence, got {row['indices']} in {where}")
    return WicPair(first, second, positions, row["label"] == "T")


def probe_wic(source: Elmo | LayerSource, train: Sequence[WicPair], dev: Sequence[WicPair]) -> WicResult:
    """Learn a threshold for each layer on `train` and measure it on `dev`.

    >>> probe_wic(elmo, read_wic("train.tsv"), read_wic("dev.tsv")).accuracy  # doctest: +SKIP
    {'0': 0.53, '1': 0.57, '2': 0.58, 'mean': 0.58}
    """
    chosen = source_of(source)
    if not train or not dev:
        raise ElmoError(f"a word-in-context probe needs pairs, got {len(train)} to train and {len(dev)} to measure on")
    names = with_mean(chosen)
    train_cosines, dev_cosines = (np.array(list(_cosines(chosen, pairs))) for pairs in (train, dev))  # [N, K]
    train_same, dev_same = (np.array([pair.same for pair in pairs]) for pairs in (train, dev))
    thresholds = [best_threshold(train_cosines[:, layer], train_same) for layer in range(len(names))]
    hits = (dev_cosines >= thresholds) == dev_same[:, None]
    train_hits = (train_cosines >= thresholds) == train_same[:, None]
    # "all" leaves out the mean, because its cosine is nearly a linear function of those of the layers.
    columns = {name: [layer] for layer, name in enumerate(names)} | {"all": list(range(len(chosen.names)))}
    logistic = {
        name: _logistic(train_cosines[:, some], train_same, dev_cosines[:, some]) == dev_same
        for name, some in columns.items()
    }
    return WicResult(
        accuracy=dict(zip(names, hits.mean(0).tolist(), strict=True)),
        thresholds=dict(zip(names, thresholds, strict=True)),
        train_accuracy=dict(zip(names, train_hits.mean(0).tolist(), strict=True)),
        logistic={name: float(hits.mean()) for name, hits in logistic.items()},
        majority=float((dev_same == (train_same.mean() >= 0.5)).mean()),
    )


def best_threshold(cosines: Cosines, same: NDArray[np.bool_]) -> float:
    """The threshold with the highest accuracy, half way between two cosines."""
    order = np.argsort(cosines, kind="stable")
    values, truth = cosines[order], same[order]
    # right[i] is the number of correct answers if the answer for the i smallest cosines is "different".
    right = np.concatenate([[0], np.cumsum(~truth)]) + np.concatenate([[truth.sum()], truth.sum() - np.cumsum(truth)])
    possible = np.concatenate([[True], values[1:] > values[:-1], [True]])
    cut = int(np.argmax(np.where(possible, right, -1)))
    if cut == 0:
        return float(values[0])
    return float(np.nextafter(values[-1], np.inf)) if cut == len(values) else float(values[cut - 1 : cut + 1].mean())


def _cosines(source: LayerSource, pairs: Sequence[WicPair]) -> Iterator[Cosines]:
    """For each pair, the cosine of the word's two vectors in each layer and in their mean, [K]."""
    sentences = (tokens for pair in pairs for tokens in (pair.first, pair.second))
    stream = source.stream(sentences)
    for pair, first, second in zip(pairs, stream, stream, strict=False):
        one, other = append_mean(first[:, pair.positions[0]]), append_mean(second[:, pair.positions[1]])
        lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
        yield (one * other).sum(-1).astype(np.float64) / np.where(lengths > 0, lengths, 1)


def _logistic(train: Cosines, same: NDArray[np.bool_], dev: Cosines) -> NDArray[np.bool_]:
    """The answers for `dev` of logistic regression on standardised columns, trained with L-BFGS."""
    centre, deviation = train.mean(0), np.maximum(train.std(0), 1e-9)
    known, wanted = torch.from_numpy((train - centre) / deviation), torch.from_numpy(same).double()
    weights = torch.zeros(train.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = nn.functional.binary_cross_entropy_with_logits(known @ weights[1:] + weights[0], wanted)
        value = value + _PENALTY * weights[1:].square().sum()
        torch.autograd.backward(value)
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    found = weights.detach().numpy()
    answers: NDArray[np.bool_] = ((dev - centre) / deviation) @ found[1:] + found[0] > 0
    return answers
