"""Sentences whose vectors say which they are, and a run that stores them, which test_storage_vectors.py kills.

vector_samples.py FOLDER COUNT PAUSE
"""

import sys
import time
from pathlib import Path

import torch

from elmokit.storage import vectors
from elmokit.storage.cache import key_of
from elmokit.storage.vectors import StoredLayers, VectorBlock, VectorStore

SHAPE = (2, 3, 4)


def length(number):
    return number % 4


def layers_of(number):
    """[T, L, D]"""
    return (number + torch.arange(length(number) * 12) / 64).reshape(-1, 3, 4)


def block_of(numbers):
    """A block of sentences by number, whose words are even and odd numbers."""
    numbers = list(numbers)
    rows = {key_of(number): length(number) for number in numbers}
    word_rows = torch.tensor([number % 2 for number in numbers for _ in range(length(number))], dtype=torch.int32)
    words = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    return VectorBlock.of(rows, torch.cat([layers_of(number) for number in numbers]), words, word_rows)


def store(folder, numbers, *, computed=None, pause=0.0, **options):
    """The vectors of sentences by number; `computed` gets the numbers of those that were not stored."""
    numbers = list(numbers)
    of_key = {key_of(number): number for number in numbers}

    def compute(keys, note):
        new = [of_key[key] for key in keys]
        if computed is not None:
            computed.extend(new)
        time.sleep(pause)
        note(len(new))
        return block_of(new)

    rows = {key: length(number) for key, number in of_key.items()}
    found = VectorStore(folder, SHAPE).complete(rows, compute, dtype=torch.float32, **options)
    return StoredLayers([found[key_of(number)] for number in numbers], layers=3, width=4, words=True)


def check(stored, numbers):
    """That each sentence has its own vectors."""
    numbers = list(numbers)
    batch, lengths = stored.batch(range(len(numbers)))
    assert lengths.tolist() == list(map(length, numbers))
    for slot, number in enumerate(numbers):
        assert torch.equal(batch[1:, slot, : length(number)], layers_of(number).transpose(0, 1)), number
        assert (batch[0, slot, : length(number)] == number % 2).all()
        assert not batch[:, slot, length(number) :].any()


if __name__ == "__main__":
    folder, count, pause = sys.argv[1:]
    vectors.os.fsync = lambda fd: None  # a kill loses nothing that was written
    print("begun", flush=True)
    wanted = range(int(count))
    check(store(Path(folder), wanted, pause=float(pause), most_sentences=1), wanted)
    print("done", flush=True)
