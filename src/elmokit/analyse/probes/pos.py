"""Parts of speech by layer: a linear classifier on each layer, as in the paper's comparison of its two LSTM layers."""

from __future__ import annotations

import secrets
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from elmokit.analyse.probes.linear import Labels, LinearOptions, StoredRows, fit_linear
from elmokit.analyse.probes.sources import ElmoSource, Source, source_of
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.storage.cache import cache_folder
from elmokit.storage.checksum import key_of
from elmokit.storage.vectors import StoredLayers, VectorBlock, VectorStore
from elmokit.tasks.inputs import frozen_features, rounded
from elmokit.tasks.tag import TaggedExample


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

    The vectors of all layers are computed once and stored as float16 in `folder`, by default features/ in the cache
    folder. Those of an Elmo stay there for the next probe or task; those of another source are removed at the end.

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
    # Neighbouring sentences are similar; after a fixed shuffle every block contains a bit of everything.
    shuffled = [train[index] for index in np.random.default_rng(0).permutation(len(train))]
    train_labels, dev_labels = _labels(shuffled, tags), _labels(dev, tags)
    runs: defaultdict[str, tuple[float, ...]] = defaultdict(tuple)
    with ExitStack() as stack:
        train_layers, dev_layers = (_stored(chosen, examples, folder, stack) for examples in (shuffled, dev))
        for name, parts in _parts(chosen).items():
            train_features, dev_features = (
                [StoredRows(layers, part, chosen.size) for part in parts] for layers in (train_layers, dev_layers)
            )
            for seed in seeds:
                probe = fit_linear(train_features, train_labels, len(tags), replace(options, seed=seed), chosen.device)
                runs[name] += (float((probe.predict(dev_features) == dev_labels).mean()),)
    return PosResult(
        accuracy={name: sum(values) / len(values) for name, values in runs.items()},
        runs=dict(runs),
        baseline=_baseline(train, dev),
        tags=tags,
        train_tokens=len(train_labels),
        dev_tokens=len(dev_labels),
    )


def _parts(source: Source) -> dict[str, list[Sequence[int]]]:
    """For each probe the layers that it sees, each a mean of layers of the source."""
    count = len(source.names)
    alone: list[Sequence[int]] = [(number,) for number in range(count)]
    parts = {name: [layer] for name, layer in zip(source.names, alone, strict=True)}
    return parts if count == 1 else {**parts, "mean": [range(count)], "mix": alone}


def _stored(source: Source, examples: Sequence[TaggedExample], folder: Path | None, stack: ExitStack) -> StoredLayers:
    """The vectors of all tokens; the stack removes those that nobody could find again."""
    sentences = [example.tokens for example in examples]
    if isinstance(source, ElmoSource):
        return frozen_features(
            source.elmo, sentences, cache=folder, batch_tokens=source.batch_tokens, progress=source.progress
        )
    # A run that is killed leaves them to the bound on the cache's size.
    place = (folder or cache_folder() / "features") / f"run-{secrets.token_hex(8)}"
    stack.callback(shutil.rmtree, place, ignore_errors=True)
    keys = {key_of(number): number for number in range(len(sentences))}

    def compute(new: Sequence[bytes], _: object) -> VectorBlock:
        wanted = [sentences[keys[key]] for key in new]
        arrays = [torch.from_numpy(layers).transpose(0, 1) for layers in source.stream(wanted)]  # [T, K, D] each
        return VectorBlock.of(
            {key: len(tokens) for key, tokens in zip(new, wanted, strict=True)},
            rounded(torch.cat(arrays), torch.float16),
        )

    store = VectorStore(place, (0, len(source.names), source.size))
    rows = {key: len(sentences[number]) for key, number in keys.items()}
    places = store.complete(rows, compute, dtype=torch.float16)
    return StoredLayers([places[key] for key in keys], layers=len(source.names), width=source.size)


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
