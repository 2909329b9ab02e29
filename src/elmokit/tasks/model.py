"""A trained task model: predicts on text, says its labels with probabilities, is kept as one folder."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.tasks.answers import Answers, check_kind
from elmokit.tasks.batches import batches_of
from elmokit.tasks.examples import Example, Kind, PairExample, TaggedExample, TextExample, Tokens
from elmokit.tasks.network import Predictions, TaskNetwork
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.schemes import spans
from elmokit.tasks.scores import Scores
from elmokit.tasks.sources import Source
from elmokit.text.graphemes import HAN, KANA
from elmokit.text.policy import PolicyName, TextPolicy
from elmokit.text.tokens import SegmenterName

_UNSPACED = re.compile(rf"([{HAN}{KANA}]) (?=[{HAN}{KANA}])")
_BATCH = 64
_AT_A_TIME = 512
"""Examples whose answers are worked out before the next are read, so that input of any length streams."""


@dataclass(frozen=True)
class LabelAnswer:
    """A text's or a pair's label, and the probability of each."""

    label: str
    probabilities: dict[str, float]

    @property
    def answer(self) -> str:
        """The label."""
        return self.label

    @property
    def probability(self) -> float:
        """Of the label."""
        return self.probabilities[self.label]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"label": self.label, "probability": self.probability, "probabilities": self.probabilities}


@dataclass(frozen=True)
class Entity:
    """A span of tokens that the tags mark, from `start` up to but not including `end`."""

    start: int
    end: int
    type: str
    text: str
    """Its tokens as they are written: with spaces between them, without where both sides are Chinese or Japanese."""


@dataclass(frozen=True)
class TagAnswer:
    """A sentence's tags, spelled as in training, each with its probability, and the spans that they mark."""

    tokens: Tokens
    tags: Tokens
    probabilities: tuple[float, ...]
    entities: tuple[Entity, ...]

    @property
    def answer(self) -> Tokens:
        """The tags."""
        return self.tags

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = [vars(entity) for entity in self.entities]
        return {
            "tokens": list(self.tokens),
            "tags": list(self.tags),
            "probabilities": list(self.probabilities),
            "entities": found,
        }


@dataclass(frozen=True)
class ScoreAnswer:
    """A pair's score."""

    score: float

    @property
    def answer(self) -> float:
        """The score."""
        return self.score

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"score": self.score}


Answer = LabelAnswer | TagAnswer | ScoreAnswer
Text = str | Sequence[str]


class TaskModel:
    """A network, what its outputs mean, and the ELMo it reads; `elmokit.tasks.load` opens one."""

    def __init__(
        self,
        network: TaskNetwork,
        answers: Answers,
        elmo: Elmo | None,
        *,
        segment: SegmenterName | TextPolicy = "whitespace",
        device: torch.device | None = None,
    ) -> None:
        """`segment`: how a string becomes tokens, as the training texts did."""
        self.network, self.answers, self.elmo = network.eval(), answers, elmo
        self.text_policy = TextPolicy.of(segment)
        self.device = device or torch.device("cpu")

    @property
    def segment(self) -> PolicyName:
        """How strings become tokens: english, jieba, chars or whitespace."""
        return self.text_policy.name

    @property
    def kind(self) -> Kind:
        """classify, tag or pair."""
        return self.answers.kind

    @property
    def options(self) -> TaskOptions:
        """How it was built and trained."""
        return self.network.options

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels it knows; tags in the spelling of the training file; none where it gives a score."""
        return self.answers.spelled

    def predict(self, texts: Any) -> Any:  # noqa: ANN401 - an answer for one text, a list of them for many
        """Answer for texts: a string is split into tokens as in training, a list of strings is many texts.

        A pair is a tuple of two texts. One text, or one pair, gives one answer; a list gives a list. Tokens that are
        split already go in as a tuple of strings, or as a list of lists for many. A text without words has no tags,
        and the label that the model gives when it knows nothing.
        """
        if not isinstance(texts, Iterable):
            raise ElmoError(f"predict takes a text or a list of them, got {texts!r}")
        if self.kind == "pair":
            if isinstance(texts, tuple):
                return next(self.stream([self._example(texts)]))
            return list(self.stream(self._example(pair) for pair in texts))
        if isinstance(texts, str | tuple):
            return next(self.stream([self._example(texts)]))
        return list(self.stream(self._example(text) for text in texts))

    def score(self, examples: Sequence[Example]) -> Scores:
        """How good the model's answers to labelled examples are."""
        check_kind(self.kind, examples)
        self.answers.check(examples)
        return self.answers.score(examples, [answer.answer for answer in self.stream(examples)])

    def stream(self, examples: Iterable[Example]) -> Iterator[Answer]:
        """An answer for each example, in order; reads some hundred of them ahead."""
        return (answer for _, answer in self.answered(examples))

    def answered(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer]]:
        """Each example with its answer, as `stream` gives it."""
        left = iter(examples)
        while group := list(islice(left, _AT_A_TIME)):
            yield from zip(group, self.answer(group), strict=True)

    def answer(self, examples: Sequence[Example], source: Source | None = None) -> list[Answer]:
        """An answer for each example; `source` gives their batches where they are at hand."""
        check_kind(self.kind, examples)
        if source is None:
            source = Source(examples, self.options, elmo=self.elmo, static=self.network.encoder.static, keep=False)
        found: list[Answer | None] = [None] * len(examples)
        with torch.no_grad():
            for numbers in batches_of(source.lengths, _BATCH):
                predictions = self.network.predict(source.batch(numbers, self.device)).cpu()
                for row, number in enumerate(numbers):
                    found[number] = self._answer(examples[number], predictions, row)
        return cast(list[Answer], found)

    def _answer(self, example: Example, predictions: Predictions, row: int) -> Answer:
        if predictions.scores is not None:
            return ScoreAnswer(float(predictions.scores[row]))
        assert predictions.labels is not None
        assert predictions.probabilities is not None
        if isinstance(example, TaggedExample):
            n = len(example.tokens)
            ids = predictions.labels[row, :n].tolist()
            tags = self.answers.tags(ids)
            sure = self.answers.sure(tags, ids, predictions.probabilities[row, :n])
            found = spans(tags, self.answers.scheme) if self.answers.scheme.has_spans else []
            marked = tuple(Entity(s.start, s.end, s.type, _joined(example.tokens[s.start : s.end])) for s in found)
            return TagAnswer(example.tokens, tags, sure, marked)
        values = predictions.probabilities[row].tolist()
        return LabelAnswer(
            self.answers.names[int(predictions.labels[row])], dict(zip(self.answers.names, values, strict=True))
        )

    def _example(self, text: Any) -> Example:  # noqa: ANN401
        if self.kind == "pair":
            if not isinstance(text, list | tuple) or len(text) != 2:
                raise ElmoError(f"a pair is a tuple of two texts, got {text!r}")
            return PairExample(self.tokens(text[0]), self.tokens(text[1]))
        tokens = self.tokens(text)
        return TaggedExample(tokens) if self.kind == "tag" else TextExample(tokens)

    def tokens(self, text: Text) -> Tokens:
        """A string as the training texts were split; tokens as they are."""
        if isinstance(text, str):
            return tuple(self.text_policy.split(text))
        tokens = tuple(text) if isinstance(text, Iterable) else (text,)
        if not all(isinstance(token, str) for token in tokens):
            raise ElmoError(f"a text is a string or a list of tokens, got {text!r}")
        return tokens


def _joined(tokens: Sequence[str]) -> str:
    return _UNSPACED.sub(r"\1", " ".join(tokens))
