"""Where a network's batches come from: vectors kept on the disk, or a biLM that runs for each batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from elmokit.elmo import Elmo
from elmokit.storage.vectors import StoredLayers
from elmokit.tasks.examples import Example, PairExample, TaggedExample, TextExample, Tokens
from elmokit.tasks.features import Progress, frozen_features, live_layers
from elmokit.tasks.inputs import SentenceBatch
from elmokit.tasks.network import Inputs
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.static import StaticVectors


def sentences_of(examples: Sequence[Example], options: TaskOptions) -> list[list[Tokens]]:
    """The sentences of examples: one list of them, two for pairs. Texts and pairs are cut to max_tokens."""
    sides: list[list[Tokens]] = [[], []]
    for example in examples:
        if isinstance(example, PairExample):
            for side, tokens in zip(sides, (example.first, example.second), strict=True):
                side.append(tokens[: options.max_tokens])
        elif isinstance(example, TextExample):
            sides[0].append(example.tokens[: options.max_tokens])
        else:
            sides[0].append(example.tokens)
    return sides if sides[1] else sides[:1]


def is_cut(example: Example, options: TaskOptions) -> bool:
    """Whether an example has a text that is longer than the network reads."""
    if isinstance(example, TaggedExample):
        return False
    sides = (example.first, example.second) if isinstance(example, PairExample) else (example.tokens,)
    return max(map(len, sides)) > options.max_tokens


def cut_note(examples: Sequence[Example], options: TaskOptions, path: str | None = None) -> list[str]:
    """A sentence on examples that are cut, where any are."""
    cut = sum(is_cut(example, options) for example in examples)
    if not cut:
        return []
    are = "is" if cut == 1 else "are"
    of_all = f"{cut:,} of {len(examples):,} texts" + (f" of {path}" if path else "")
    return [f"{of_all} {are} longer than {options.max_tokens} tokens (max_tokens) and {are} cut"]


class Source:
    """Batches of some examples' sentences, by number.

    `lengths` are the tokens of each example, of both its sentences for a pair.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        options: TaskOptions,
        *,
        elmo: Elmo | None,
        static: StaticVectors | None,
        keep: bool,
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`keep`: compute all vectors now and keep them on the disk; else each batch runs the biLM."""
        self.sides = sentences_of(examples, options)
        self.lengths = [sum(map(len, sentences)) for sentences in zip(*self.sides, strict=True)]
        self._elmo, self._static = (None if options.elmo == "none" else elmo), static
        self._layer_0 = options.elmo == "0"
        self._features: StoredLayers | None = None
        if keep and self._elmo is not None:
            every = [sentence for side in self.sides for sentence in side]
            self._features = frozen_features(self._elmo, every, cache=cache, layer_0=self._layer_0, progress=progress)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, numbers: Sequence[int], device: torch.device) -> Inputs:
        """The sentences of some examples; two batches of them for pairs."""
        batches = [self._batch(side, numbers, device) for side in range(len(self.sides))]
        return batches[0] if len(batches) == 1 else batches

    def _batch(self, side: int, numbers: Sequence[int], device: torch.device) -> SentenceBatch:
        sentences = [self.sides[side][number] for number in numbers]
        words = None if self._static is None else self._static.ids(sentences)
        layers: Tensor | None = None
        lengths = torch.tensor(list(map(len, sentences)))
        if self._features is not None:
            layers, lengths = self._features.batch([side * len(self) + number for number in numbers])
        elif self._elmo is not None:
            layers, lengths = live_layers(self._elmo, sentences)
            layers = layers[:1] if self._layer_0 else layers
        return SentenceBatch(layers, words, lengths).to(device)
