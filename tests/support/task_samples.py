"""Small data that a task model can learn, and its files, for tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from elmokit.errors import ElmoError
from elmokit.tasks import PairExample, TaggedExample, TaskOptions, TextExample
from elmokit.tasks.schemes import Scheme, from_bioes, to_bioes
from elmokit.tasks.task import Example

GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")
FILLERS = ("the", "film", "was", "a", "of", "it", "and")
FIRST, LAST, PLACES = ("Ann", "Bob", "Carl"), ("Smith", "Jones"), ("Paris", "Rome", "Oslo")
BIO, IOB1, BIOES, NONE = Scheme("BIO"), Scheme("IOB1"), Scheme("BIOES"), Scheme()


def tiny_options(**changes) -> TaskOptions:
    """A network that learns a sample within a second."""
    usual = {
        "hidden": 8,
        "epochs": 8,
        "dropout": 0.0,
        "elmo_dropout": 0.0,
        "learning_rate": 0.03,
        "batch_size": 8,
        "patience": 0,
        "static": "train",
        "static_size": 6,
        "static_min_count": 1,
    }
    return TaskOptions(**{**usual, **changes})


def texts(n: int, seed: int = 0) -> list[TextExample]:
    """A word of praise or of blame among fillers."""
    draw = random.Random(seed)
    examples = []
    for number in range(n):
        label = ("neg", "pos")[number % 2]
        words = draw.choices(FILLERS, k=draw.randint(1, 4))
        words.insert(draw.randint(0, len(words)), draw.choice(GOOD if label == "pos" else BAD))
        examples.append(TextExample(tuple(words), label, number + 1))
    return examples


def sentences(n: int, scheme: Scheme = BIO, seed: int = 0) -> list[TaggedExample]:
    """People, some of them with two names, and places; places touch each other now and then."""
    draw = random.Random(seed)
    examples = []
    for number in range(n):
        tokens, tags = ["film"], ["O"]
        for _ in range(draw.randint(1, 2)):
            name = [draw.choice(FIRST), *([draw.choice(LAST)] if draw.random() < 0.5 else [])]
            place = draw.choices(PLACES, k=draw.randint(1, 2))
            tokens += [*name, draw.choice(FILLERS), *place]
            tags += ["B-PER", *["I-PER"] * (len(name) - 1), "O", *["B-LOC"] * len(place)]
        if scheme.has_spans:
            spelled = from_bioes(to_bioes(tags, BIO), scheme)
        else:
            spelled = tuple("NOUN" if token[0].isupper() else "X" for token in tokens)
        examples.append(TaggedExample(tuple(tokens), spelled, number + 1))
    return examples


def pairs(n: int, seed: int = 0, *, scores: bool = False) -> list[PairExample]:
    """Two texts with the same word of praise or blame, or with two; as a score 5 and 1."""
    draw = random.Random(seed)
    examples = []
    for number in range(n):
        one, other = draw.sample((*GOOD, *BAD), k=2)
        same = number % 2 == 0
        label = ("5" if same else "1") if scores else ("same" if same else "other")
        first, second = (one, draw.choice(FILLERS)), (draw.choice(FILLERS), one if same else other)
        examples.append(PairExample(first, second, label, number + 1))
    return examples


def samples(kind: str, n: int, seed: int = 0) -> list[Example]:
    """Examples of a kind."""
    return {"classify": texts, "tag": sentences, "pair": pairs}[kind](n, seed=seed)


def write_samples(path: Path, examples: list[Example]) -> Path:
    """The examples as `elmo task train` reads them: a table with a header, or columns."""
    if isinstance(examples[0], TaggedExample):
        lines = []
        for example in examples:
            lines += [f"{token}\t{tag}" for token, tag in zip(example.tokens, example.tags, strict=True)] + [""]
    elif isinstance(examples[0], PairExample):
        lines = ["label\tsentence1\tsentence2"]
        lines += ["\t".join([e.label, " ".join(e.first), " ".join(e.second)]) for e in examples]
    else:
        lines = ["label\ttext", *(f"{example.label}\t{' '.join(example.tokens)}" for example in examples)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def refused(read: Callable[..., object], path: Path, *parts: str, **options: object) -> None:
    """Reading the file must end in one sentence that names the file and contains the parts."""
    with pytest.raises(ElmoError) as caught:
        read(path, **options)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    for part in parts:
        assert part in sentence
