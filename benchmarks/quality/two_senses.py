"""Whether the senses of a word separate in everyday sentences.

    python benchmarks/quality/two_senses.py MODEL                  # two lists of English words
    python benchmarks/quality/two_senses.py MODEL --language zh    # two lists of Chinese words

The English lists are 12 words of 2 senses x 4 sentences, and 60 words of 2 or 3 senses x 3 sentences, which are harder.
The Chinese lists are 25 and 40 words of 2 senses x 3 sentences. The score is the share of uses whose nearest other use
has the same sense. Chance is 43 %, in the second English list 31 %, in Chinese 40 %. In layer 0, which has no context,
all uses of a word are equally near, and a tie counts as chance. The vector of a Chinese word is the mean of its
characters' vectors. The sentences were written for this project.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elmokit import Elmo
from elmokit.analyse.probes.sources import LayerSource, source_of
from elmokit.errors import ElmoError
from elmokit.text.tokens import Token, segmenter

Language = Literal["en", "zh"]
Tokenizer = Callable[[str], list[Token]]
SENTENCES: dict[Language, tuple[str, ...]] = {
    "en": ("two_senses.toml", "everyday_senses.toml"),
    "zh": ("two_senses_zh.toml", "everyday_senses_zh.toml"),
}
WordList = dict[str, dict[str, list[str]]]
"""Word → sense → sentences."""
_TIE = 1e-6


def read_lists(language: Language) -> list[WordList]:
    """The lists of words of a language."""
    files = (Path(__file__).with_name(name) for name in SENTENCES[language])
    return [tomllib.loads(file.read_text(encoding="utf-8")) for file in files]


def tokenizer_of(elmo: Elmo, language: Language) -> Tokenizer:
    """White space for English sentences, which are tokenised already; the model's tokeniser for Chinese text."""
    return segmenter("whitespace") if language == "en" else elmo.tokenize


def span_of(word: str, text: str, tokens: Sequence[Token]) -> slice:
    """The tokens of a word: the token with this spelling, or all tokens that contain its characters."""
    if exact := [position for position, token in enumerate(tokens) if token.text == word]:
        return slice(exact[0], exact[0] + 1)
    start, end = text.index(word), text.index(word) + len(word)
    positions = [position for position, token in enumerate(tokens) if token.start < end and token.end > start]
    return slice(positions[0], positions[-1] + 1)


def uses_of(
    source: LayerSource, tokenize: Tokenizer, word: str, senses: Mapping[str, Sequence[str]]
) -> tuple[NDArray[np.float32], list[str]]:
    """The vectors of a word in its sentences [uses, L + 1, D], and the sense of each."""
    labels = [sense for sense, sentences in senses.items() for _ in sentences]
    texts = [text for sentences in senses.values() for text in sentences]
    tokens = [tokenize(text) for text in texts]
    layers = source.stream([token.text for token in sentence] for sentence in tokens)
    spans = [span_of(word, text, sentence) for text, sentence in zip(texts, tokens, strict=True)]
    return np.stack([found[:, span].mean(axis=1) for found, span in zip(layers, spans, strict=True)]), labels


def share_right(vectors: NDArray[np.float32], labels: Sequence[str]) -> float:
    """The share of vectors [uses, D] whose nearest neighbour has the same sense; ties count in part."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    similar = units @ units.T
    np.fill_diagonal(similar, -np.inf)
    same = np.array([[one == other for other in labels] for one in labels])
    nearest = similar >= similar.max(axis=1, keepdims=True) - _TIE
    return float(((nearest & same).sum(axis=1) / nearest.sum(axis=1)).mean())


def shares_by_layer(source: LayerSource, tokenize: Tokenizer, words: WordList) -> dict[str, list[float]]:
    """Word → the share of right uses in each layer."""
    shares = {}
    for word, senses in words.items():
        vectors, labels = uses_of(source, tokenize, word, senses)
        shares[word] = [share_right(vectors[:, layer], labels) for layer in range(vectors.shape[1])]
    return shares


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="model of any format [the bundled one]")
    parser.add_argument(
        "--language", choices=tuple(SENTENCES), default="en", help="language of the words [%(default)s]"
    )
    options = parser.parse_args(given)
    elmo = Elmo.load(options.model or options.language)
    for number, words in enumerate(read_lists(options.language)):
        if number:
            print()
        shares = shares_by_layer(source_of(elmo), tokenizer_of(elmo, options.language), words)
        mean = np.mean(list(shares.values()), axis=0).tolist()
        print(f"| word | {' | '.join(f'layer {layer}' for layer in range(len(mean)))} |")
        print(f"| --- |{' ---: |' * len(mean)}")
        for name, row in [*shares.items(), ("all", mean)]:
            print(f"| {name} | {' | '.join(f'{100 * value:.0f} %' for value in row)} |")


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        sys.exit(f"two_senses.py: {error}")
