"""Parts of speech by layer: a linear classifier on each layer, as in the paper's comparison of its two LSTM layers."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from elmokit.analyse.probes.linear import Features, Labels, LinearOptions, fit_linear
from elmokit.analyse.probes.sources import Source, append_mean, source_of, with_mean
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.tasks.examples import TaggedExample

_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class PosResult:
    """How often the tag of a development token was found."""

    accuracy: dict[str, float]
    """By layer: "0" …, "mean" of the layers, and "mix", a weighted mean learned with the classifier."""
    runs: dict[str, tuple[float, ...]]
    """The same for each seed; `accuracy` is their mean."""
    baseline: float
    """Without vectors: the word's most frequent tag in the training data, and the commonest tag for new words."""
    tags: tuple[str, ...]
    """The classes."""
    train_tokens: int
    """Tokens that the classifiers were trained on."""
    dev_tokens: int
    """Tokens that they were measured on."""


def probe_pos(
    source: Elmo | Source,
    train: Sequence[TaggedExample],
    dev: Sequence[TaggedExample],
    *,
    options: LinearOptions | None = None,
    seeds: Sequence[int] = (1,),
    folder: Path | None = None,
) -> PosResult:
    """Train a linear classifier of tags on each layer, once for each seed, and measure it on `dev`.

    The vectors of all layers are computed once and kept as float16 in temporary files, in `folder` where one is given.

    >>> probe_pos(elmo, train, dev).accuracy  # doctest: +SKIP
    {'0': 0.89, '1': 0.94, '2': 0.93, 'mean': 0.95, 'mix': 0.95}
    """
    chosen, options = source_of(source), options or LinearOptions()
    for name, examples in (("training", train), ("development", dev)):
        if not any(example.tokens for example in examples):
            raise ElmoError(f"the {name} data of a POS probe must have tokens, got none")
    if not seeds:
        raise ElmoError("a POS probe needs at least one seed, got none")
    tags = tuple(sorted({tag for example in train for tag in _tags(example)}))
    # Neighbouring sentences are alike; a fixed shuffle lets every block of the file hold a bit of everything.
    shuffled = [train[index] for index in np.random.default_rng(0).permutation(len(train))]
    train_labels, dev_labels = _labels(shuffled, tags), _labels(dev, tags)
    runs: defaultdict[str, tuple[float, ...]] = defaultdict(tuple)
    with ExitStack() as files:
        train_features = _write_features(chosen, shuffled, folder, files)
        dev_features = _write_features(chosen, dev, folder, files)
        for name, layers in _views(chosen).items():
            for seed in seeds:
                probe = fit_linear(
                    train_features[layers], train_labels, len(tags), replace(options, seed=seed), chosen.device
                )
                runs[name] += (float((probe.predict(dev_features[layers]) == dev_labels).mean()),)
    return PosResult(
        accuracy={name: sum(values) / len(values) for name, values in runs.items()},
        runs=dict(runs),
        baseline=_baseline(train, dev),
        tags=tags,
        train_tokens=len(train_labels),
        dev_tokens=len(dev_labels),
    )


def _views(source: Source) -> dict[str, slice]:
    """Which layers of the stored ones, the mean last among them, each probe sees."""
    stored = with_mean(source)
    views = {name: slice(number, number + 1) for number, name in enumerate(stored)}
    return views if len(stored) == 1 else views | {"mix": slice(0, len(source.names))}


def _write_features(
    source: Source, examples: Sequence[TaggedExample], folder: Path | None, files: ExitStack
) -> Features:
    """The vectors of all tokens, memory-mapped, [N, D] for each layer and for their mean, which is last.

    The files have no name, so that nothing of them is left however the process ends. They are written plainly, because
    a full disk under a memory map would end the process without a word.
    """
    try:
        outputs = [_nameless(folder, files) for _ in with_mean(source)]
        for layers in source.stream(example.tokens for example in examples):
            halves = np.clip(append_mean(layers), -_LARGEST, _LARGEST).astype(np.float16)
            for output, layer in zip(outputs, halves, strict=True):
                output.write(layer.tobytes())
        for output in outputs:
            output.flush()
    except OSError as error:
        where = folder or tempfile.gettempdir()
        raise ElmoError(
            f"the vectors cannot be kept in {where} ({error.strerror or error}): give a folder with more room"
        ) from error
    return [np.memmap(output, np.float16, mode="r").reshape(-1, source.size) for output in outputs]


def _nameless(folder: Path | None, files: ExitStack) -> IO[bytes]:
    """A temporary file that the stack closes."""
    file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 -- the stack closes it

    def close() -> None:
        with suppress(OSError):  # on a full disk closing fails too, after the error that was told already
            file.close()

    files.callback(close)
    return file


def _tags(example: TaggedExample) -> tuple[str, ...]:
    if example.tags is None or len(example.tags) != len(example.tokens):
        raise ElmoError(f"a POS probe needs a tag for each token, but the sentence of line {example.line} lacks some")
    return example.tags


def _labels(examples: Sequence[TaggedExample], tags: Sequence[str]) -> Labels:
    """The number of each token's tag; -1, which no prediction equals, for one that the training data lack."""
    numbers = {tag: number for number, tag in enumerate(tags)}
    return np.array([numbers.get(tag, -1) for example in examples for tag in _tags(example)], np.int64)


def _baseline(train: Sequence[TaggedExample], dev: Sequence[TaggedExample]) -> float:
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for example in train:
        for token, tag in zip(example.tokens, _tags(example), strict=True):
            counts[token][tag] += 1
    commonest = sum(counts.values(), Counter()).most_common(1)[0][0]
    best = {token: min(tags, key=lambda tag: (-tags[tag], tag)) for token, tags in counts.items()}
    pairs = [
        (best.get(token, commonest), tag)
        for example in dev
        for token, tag in zip(example.tokens, _tags(example), strict=True)
    ]
    return sum(found == wanted for found, wanted in pairs) / len(pairs)
