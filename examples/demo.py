"""Words in context → vectors: the bundled model separates two senses of the word "bank" in six sentences."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit import Elmo
from elmokit.layers import Layer

HERE = Path(__file__).parent
MONEY = [
    "The bank lent the company two million dollars.",
    "He borrowed money from the bank to buy a house.",
    "The bank charges a fee for every loan.",
]
RIVER = [
    "He sat on the bank of the river and fished.",
    "We pulled the boat up on the grassy bank.",
    "The river overflowed its bank after the rain.",
]
SENTENCES = MONEY + RIVER
WORD = "bank"


def main() -> None:
    elmo = Elmo.load(device="cpu")
    print(f"Words in context → vectors of {elmo.config.vector_size} numbers, one per token:")
    for number, (sentence, array) in enumerate(zip(SENTENCES, elmo.encode(SENTENCES), strict=True), start=1):
        print(f"  {number}  {array.shape!s:>9}  {sentence}")
    show_similarities(elmo)
    show_nearest(elmo)
    command = os.path.relpath(Path(sys.executable).with_name("elmo"))
    print(f"\nTry it: {command} embed 'A sentence of yours.'")


def show_similarities(elmo: Elmo) -> None:
    """Print the cosine of the word's vectors in each pair of sentences."""
    alone = occurrences(elmo, SENTENCES, 0)
    print(
        f'\nWithout context (layer 0) "{WORD}" is the same in all six: every cosine is {(alone @ alone.T).min():.2f}.'
    )
    vectors = occurrences(elmo, SENTENCES, "top")
    similar = vectors @ vectors.T
    print("In context (top layer) sentences 1-3 and 4-6 separate. Cosines:")
    print("     " + "".join(f"{number:>6}" for number in range(1, len(SENTENCES) + 1)))
    for number, row in enumerate(similar, start=1):
        print(f"  {number}  " + "".join(f"{value:6.2f}" for value in row))
    meant = np.arange(len(SENTENCES)) < len(MONEY)
    same_sense = meant == meant[:, None]
    same, other = similar[same_sense & ~np.eye(len(SENTENCES), dtype=bool)], similar[~same_sense]
    print(f"The same sense: {same.min():.2f} to {same.max():.2f}.")
    print(f"Different senses: {other.min():.2f} to {other.max():.2f}.")


def show_nearest(elmo: Elmo) -> None:
    """Print, for each sentence, the sentence of corpus.txt with the nearest vector of the word."""
    text = (HERE / "corpus.txt").read_text(encoding="utf-8").splitlines()
    contexts = [sentence for sentence in text if WORD in sentence.split()][:160]
    similar = occurrences(elmo, SENTENCES, "top") @ occurrences(elmo, contexts, "top").T
    print(f'\nThe nearest "{WORD}" among {len(contexts)} other sentences:')
    for number, row in enumerate(similar, start=1):
        print(f"  {number}  {row.max():.2f}  {contexts[row.argmax()]}")


def occurrences(elmo: Elmo, sentences: list[str], layer: Layer) -> NDArray[np.float32]:
    """The vector of the word in each sentence, scaled to length 1, [N, D]."""
    arrays = elmo.encode(sentences, layer=layer)
    positions = [[token.text for token in elmo.tokenize(sentence)].index(WORD) for sentence in sentences]
    vectors = np.stack([array[position] for array, position in zip(arrays, positions, strict=True)])
    unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


if __name__ == "__main__":
    main()
