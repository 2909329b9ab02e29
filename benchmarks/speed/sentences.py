"""Tokenised sentences for the benchmarks: from a file, from a corpus next to the checkout, or generated.

    python benchmarks/speed/sentences.py 20000 --seed 3 > sentences.txt

writes sentences for a machine without a corpus.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from elmokit.errors import ElmoError
from elmokit.text.splitting import split_sentences
from elmokit.text.tokens import word_splitter

CHECKOUT = Path(__file__).resolve().parents[2]
LONGEST = 80
"""Largest number of tokens; longer lines of a corpus are often lists and tables, not sentences."""
PARAGRAPHS = 6000
"""Largest number of paragraphs read from a corpus."""


@dataclass(frozen=True)
class Text:
    """Sentences, and their source as text."""

    sentences: list[list[str]]
    source: str

    def drawn(self, count: int, seed: int) -> list[list[str]]:
        """Random sentences without repetition, from the seed."""
        if len(self.sentences) < count:
            raise ElmoError(
                f"{self.source} must have {count} sentences, got {len(self.sentences)}: use fewer or more text"
            )
        order = np.random.default_rng(seed).permutation(len(self.sentences))[:count]
        return [self.sentences[index] for index in order]

    def of_length(self, tokens: int, count: int, seed: int) -> list[list[str]]:
        """`count` sentences of `tokens` tokens; if there are too few, longer sentences are cut."""
        exact = [s for s in self.sentences if len(s) == tokens]
        cut = [s[:tokens] for s in self.sentences if len(s) > tokens]
        chosen = exact if len(exact) >= count else [*exact, *cut]
        return Text(chosen, f"{self.source}, {tokens} tokens").drawn(count, seed)


def read(path: Path | None, *, seed: int = 0) -> Text:
    """The lines of a file, split at white space; without a file, text from ../shared/corpora or random sentences."""
    if path is not None:
        lines = path.read_text(encoding="utf-8").splitlines()
        return Text([tokens for line in lines if (tokens := line.split())], path.name)
    corpora = [folder / "corpora" for folder in (CHECKOUT.parent / "shared", CHECKOUT / "shared")]
    files = sorted(file for folder in corpora for file in folder.glob("enwiki-*.txt.xz"))
    if files:
        return _from_corpus(files[seed % len(files)], seed)
    return Text(made(50_000, seed), f"made sentences of natural frequencies, seed {seed}")


def _from_corpus(path: Path, seed: int) -> Text:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        skipped = islice(file, (seed % 7) * PARAGRAPHS // 2, None)
        paragraphs = list(islice(skipped, PARAGRAPHS))
    split = word_splitter("english")
    found = (split(sentence) for text in paragraphs for sentence in split_sentences(text))
    return Text([tokens for tokens in found if 1 <= len(tokens) <= LONGEST], path.name)


def made(count: int, seed: int, types: int = 120_000) -> list[list[str]]:
    """Sentences of random words with natural frequencies and lengths, 22 words per sentence on average."""
    random = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    sizes = np.minimum(20, 1 + np.log2(np.arange(1, types + 1)) / 2 + random.poisson(2, types)).astype(int)
    words = ["".join(random.choice(letters, n)) for n in sizes]
    chances = 1 / (np.arange(types) + 2.7) ** 1.1
    lengths = np.clip(random.gamma(3.5, 22 / 3.5, count), 2, LONGEST).astype(int)
    drawn = random.choice(types, size=int(lengths.sum()), p=chances / chances.sum())
    ends = lengths.cumsum()
    return [[words[i] for i in drawn[end - n : end]] for n, end in zip(lengths, ends, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for tokens in read(None, seed=options.seed).drawn(options.count, options.seed):
        print(*tokens)


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        sys.exit(f"sentences.py: {error}")
