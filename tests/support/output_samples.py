"""Sentences that are hard to store, and a stand-in for the model whose vectors depend on the tokens alone."""

import itertools
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from elmokit.output import Summary, embed_lines

D, LAYERS = 8, 3
KINDS = ("one", "all", "pooled", "pooled-all")
FORMATS = (
    ("out.h5", "elmokit"),
    ("out.h5", "bilm"),
    ("out.hdf5", "allennlp"),
    ("out.npz", "elmokit"),
    ("out.npy", "elmokit"),
    ("out.parquet", "elmokit"),
    ("out.jsonl", "elmokit"),
    ("out.csv", "elmokit"),
)
AWKWARD = (
    "",
    "plain words here",
    "   ",
    "a/b c/d /",
    "NUL \0 inside in\0side",
    "lone \ud800 and \udfff x\udc80y",
    "😀 👩‍👩‍👧 emoji",
    "w" * 10_000 + " " + "長" * 10_000,
    "same words",
    "same words",
    "日本 語",
    '{"json": [1]} \\u0000 "',
    "sep\u2028arator next\x85line \x0b",
    ".",
    "0 1",
    "sentence_to_index",
    "",
)
SETTINGS = {
    "model": "sha256:abc",
    "layer": "mix",
    "pool": "none",
    "input": "corpus.txt",
    "limits": [1, 2],
    "none": None,
}


def tokenise(line: str) -> list[str]:
    return line.split()


def vectors_for(tokens: list[str], kind: str) -> np.ndarray:
    shape = {"one": (len(tokens), D), "all": (LAYERS, len(tokens), D), "pooled": (D,), "pooled-all": (LAYERS, D)}[kind]
    seed = zlib.crc32("\n".join(tokens).encode("utf-8", "surrogatepass"))
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def encoder(kind: str, window: int = 4):
    def encode(sentences: Iterable[list[str]]) -> Iterator[np.ndarray]:
        source = iter(sentences)
        while batch := list(itertools.islice(source, window)):
            for tokens in batch:
                yield vectors_for(tokens, kind)

    return encode


def embed(lines: Iterable[str], output: Path, kind: str = "one", **options) -> Summary:
    options = {"encode": encoder(kind), "settings": SETTINGS, "pooled": kind.startswith("pooled"), **options}
    return embed_lines(lines, tokenise=tokenise, output=output, **options)


def numbered_lines(count: int) -> list[str]:
    return [" ".join(f"w{number}.{word}" for word in range(number % 7)) for number in range(count)]
