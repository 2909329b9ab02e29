"""Words in context to vectors: the word "bank" in six sentences, and the sentences of a text where it is nearest.

Until elmokit brings a model of its own, the demo trains a tiny one first on examples/corpus.txt, once.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from elmokit import Elmo
from elmokit.elmo import Layer
from elmokit.train_command import TrainRequest, run_train

HERE = Path(__file__).parent
MODEL = HERE / "tiny-model"
# None of these stands in the text that the model was trained on.
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
# As `elmo train examples/corpus.txt --output examples/tiny-model --cell-size 96 …`
RECIPE = {
    "cell_size": 96,
    "output_size": 48,
    "filters": "1:16,2:16,3:32,4:32",
    "batch_size": 24,
    "window": 16,
    "learning_rate": 0.006,
    "dropout": 0.2,
    "heldout_fraction": 0.03,
    "epochs": 16,
    "seed": 2,
}


def main() -> None:
    show(model())
    print(f"\nTry it: .venv/bin/elmo embed 'A sentence of yours' --model {MODEL.relative_to(HERE.parent)}")


def model() -> Elmo:
    """The demo's model, trained the first time; where that was interrupted, it goes on."""
    if not (MODEL / "config.json").exists():
        print("Training a tiny biLM once, on examples/corpus.txt:")
        torch.set_num_threads(1)  # products this small gain nothing from a second core and lose much where it is busy
        request = TrainRequest(
            [str(HERE / "corpus.txt")],
            MODEL,
            cache=MODEL / "prepared",
            device="cpu",
            resume=True,
            command="make demo",
            changes=RECIPE,
        )
        if status := run_train(request):
            sys.exit(status)
    return Elmo.load(MODEL)


def show(elmo: Elmo) -> None:
    """Print what the vectors of the word say."""
    print(f"\nWords in context to vectors, {elmo.config.vector_size} numbers a word:")
    for sentence, array in zip(SENTENCES, elmo.encode(SENTENCES), strict=True):
        print(f"  {array.shape!s:>9}  {sentence}")
    corpus = (HERE / "corpus.txt").read_text(encoding="utf-8").splitlines()
    contexts = [sentence for sentence in corpus if WORD in sentence.split()]
    alone = occurrences(elmo, SENTENCES, layer=0)
    print(
        f'\nBy its spelling (layer 0) "{WORD}" is the same everywhere: every cosine is {(alone @ alone.T).min():.2f}.'
    )
    print(
        f'In context it is not. The nearest of {len(contexts)} other sentences with "{WORD}", by the mix of all layers:'
    )
    similar = occurrences(elmo, SENTENCES) @ occurrences(elmo, contexts).T
    for sentence, row in zip(SENTENCES, similar, strict=True):
        print(f"  {sentence}\n    {row.max():.3f}  {contexts[row.argmax()]}")
    print("\nAnd what both directions expect in its place:")
    for sentence in (MONEY[0], RIVER[1]):
        words = [word for word, _ in elmo.substitutes(sentence, sentence.split().index(WORD), k=6) if word != WORD]
        print(f"  {sentence.replace(WORD, '____')}   {', '.join(words)}")


def occurrences(elmo: Elmo, sentences: list[str], layer: Layer = "mix") -> NDArray[np.float32]:
    """The vector of the word in each sentence, at length 1, [N, D]."""
    arrays = elmo.encode(sentences, layer=layer)
    vectors = np.stack([array[sentence.split().index(WORD)] for array, sentence in zip(arrays, sentences, strict=True)])
    unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


if __name__ == "__main__":
    main()
