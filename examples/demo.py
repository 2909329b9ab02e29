"""Words in context to vectors: the word "bank" in six sentences, told apart by the bundled model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from elmokit import Elmo
from elmokit.elmo import Layer

HERE = Path(__file__).parent
MONEY = [
    "My sister signed the last form and left the bank with a loan of ten thousand dollars .",
    "The accountant told a clerk at the bank that the cheque was missing .",
    "The lawyer keeps his coins and his jewels at the bank because the safe is strong .",
]
RIVER = [
    "Two frogs jumped off the bank and swam under the canoe .",
    "The ducks came out of the water and slept on the bank under the reeds .",
    "The boat was close to the left bank when it hit a rock under the water .",
]
SENTENCES = MONEY + RIVER
WORD = "bank"


def main() -> None:
    elmo = Elmo.load(device="cpu")
    print(f"Words in context to vectors, {elmo.config.vector_size} numbers a word:")
    for number, (sentence, array) in enumerate(zip(SENTENCES, elmo.encode(SENTENCES), strict=True), start=1):
        print(f"  {number}  {array.shape!s:>9}  {sentence}")
    show_similarities(elmo)
    show_nearest(elmo)
    print("\nTry it: .venv/bin/elmo embed 'A sentence of yours.'")


def show_similarities(elmo: Elmo) -> None:
    """Print how alike the word is in each two of the sentences."""
    alone = occurrences(elmo, SENTENCES, 0)
    print(
        f'\nBy its spelling (layer 0) "{WORD}" is the same in all six: every cosine is {(alone @ alone.T).min():.2f}.'
    )
    vectors = occurrences(elmo, SENTENCES, "top")
    apart = at_length_1(vectors - vectors.mean(axis=0))
    print("In context (top layer, without what all six share) 1-3 and 4-6 come apart; cosines:")
    print("     " + "".join(f"{number:>7}" for number in range(1, len(SENTENCES) + 1)))
    for number, row in enumerate(apart @ apart.T, start=1):
        print(f"  {number}  " + "".join(f"{value:+7.2f}" for value in row))


def show_nearest(elmo: Elmo) -> None:
    """Print, for each sentence, the one of a text whose "bank" is nearest."""
    text = (HERE / "corpus.txt").read_text(encoding="utf-8").splitlines()
    contexts = [sentence for sentence in text if WORD in sentence.split()][:160]
    similar = occurrences(elmo, SENTENCES, "top") @ occurrences(elmo, contexts, "top").T
    print(f'\nThe nearest "{WORD}" among {len(contexts)} other sentences:')
    for number, row in enumerate(similar, start=1):
        print(f"  {number}  {row.max():.2f}  {contexts[row.argmax()]}")


def occurrences(elmo: Elmo, sentences: list[str], layer: Layer) -> NDArray[np.float32]:
    """The vector of the word in each sentence, at length 1, [N, D]."""
    arrays = elmo.encode(sentences, layer=layer)
    places = [sentence.split().index(WORD) for sentence in sentences]
    return at_length_1(np.stack([array[place] for array, place in zip(arrays, places, strict=True)]))


def at_length_1(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


if __name__ == "__main__":
    main()
