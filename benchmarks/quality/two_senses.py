"""Do the senses of a word come apart in sentences as a person would type them? Twelve words, eight sentences each.

    python benchmarks/quality/two_senses.py MODEL

For each use of a word: has the use whose vector is nearest the same sense? By chance three times in seven. Layer 0 sees
the spelling alone, so there all uses of a word are equally near, and a tie counts as chance. The sentences are ours.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit import Elmo
from elmokit.errors import ElmoError

SENTENCES = Path(__file__).with_name("two_senses.toml")
_TIE = 1e-6


def uses_of(elmo: Elmo, word: str, senses: Mapping[str, Sequence[str]]) -> tuple[NDArray[np.float32], list[str]]:
    """The vectors of a word in its sentences [uses, L + 1, D], and the sense of each."""
    labels = [sense for sense, sentences in senses.items() for _ in sentences]
    tokens = [sentence.split() for sentences in senses.values() for sentence in sentences]
    layers = elmo.encode(tokens, output="layers")
    return np.stack([found[:, words.index(word)] for found, words in zip(layers, tokens, strict=True)]), labels


def share_right(vectors: NDArray[np.float32], labels: Sequence[str]) -> float:
    """How many of the vectors [uses, D] have their nearest neighbour in their own sense; ties are shared out."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similar = units @ units.T
    np.fill_diagonal(similar, -np.inf)
    same = np.array([[one == other for other in labels] for one in labels])
    nearest = similar >= similar.max(axis=1, keepdims=True) - _TIE
    return float(((nearest & same).sum(axis=1) / nearest.sum(axis=1)).mean())


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="en", metavar="MODEL")
    elmo = Elmo.load(parser.parse_args(given).model)
    words = tomllib.loads(SENTENCES.read_text(encoding="utf-8"))
    rows = []
    for word, senses in words.items():
        vectors, labels = uses_of(elmo, word, senses)
        rows.append([share_right(vectors[:, layer], labels) for layer in range(vectors.shape[1])])
    layers = range(len(rows[0]))
    print(f"| word | {' | '.join(f'layer {layer}' for layer in layers)} |")
    print(f"| --- |{' ---: |' * len(layers)}")
    for name, row in [*zip(words, rows, strict=True), ("all", np.mean(rows, axis=0))]:
        print(f"| {name} | {' | '.join(f'{100 * value:.0f} %' for value in row)} |")


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        sys.exit(f"two_senses.py: {error}")
