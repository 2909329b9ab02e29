"""What a task's outputs stand for: labels, tags in the file's own scheme, or a score."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.tasks.examples import Example, Kind, PairExample, TaggedExample, TextExample, Tokens
from elmokit.tasks.labels import Labels, check_scores, label_of, scores_of
from elmokit.tasks.layers.crf import Allowed
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.schemes import OUTSIDE, Scheme, check_scheme, detect_scheme, from_bioes, to_bioes, transitions
from elmokit.tasks.scores import Scores, score_labels, score_numbers, score_tags


@dataclass(frozen=True)
class Answers:
    """The outputs of a network and their names; without labels the output is a score."""

    kind: Kind
    labels: Labels | None
    scheme: Scheme = field(default_factory=Scheme)
    """Of the training file's tags; the network works on BIOES."""

    @classmethod
    def of(
        cls, kind: Kind, examples: Sequence[Example], options: TaskOptions, path: str | Path | None = None
    ) -> tuple[Answers, list[str]]:
        """What training examples can be answered with, and sentences on what looks odd in them."""
        if not examples:
            raise ElmoError("there must be examples to train on, got none")
        if kind == "tag":
            tagged = cast(Sequence[TaggedExample], examples)
            scheme = detect_scheme(_tags(example) for example in tagged)
            note = check_scheme(tagged, scheme, path)
            labels = Labels.of(tag for example in tagged for tag in to_bioes(_tags(example), scheme))
            labels.check_training(path)  # its sentences are on classes; a rare tag of a span is nothing odd
            return cls(kind, labels, scheme), [note] if note else []
        if kind == "pair" and options.target == "score":
            check_scores(scores_of(cast(Sequence[PairExample], examples), path), path)
            return cls(kind, None), []
        labels = Labels.of(label_of(cast(TextExample | PairExample, example), path) for example in examples)
        return cls(kind, labels), labels.check_training(path)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Answers:
        """What `to_dict` gave."""
        labels = stored["labels"]
        check_kind(stored["kind"], ())
        return cls(stored["kind"], labels and Labels.from_dict(labels), Scheme(**stored["scheme"]))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kind": self.kind,
            "labels": self.labels and self.labels.to_dict(),
            "scheme": asdict(self.scheme),
        }

    @property
    def n_outputs(self) -> int:
        """Numbers that the network gives out, for a token or an example."""
        return 1 if self.labels is None else len(self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        """The labels, or tags as BIOES; none for a score."""
        return () if self.labels is None else self.labels.names

    @property
    def spelled(self) -> tuple[str, ...]:
        """The labels, or tags in the scheme and spelling of the training file."""
        if not self.scheme.has_spans:
            return self.names
        found = {OUTSIDE} & set(self.names)
        for kind in {name[2:] for name in self.names if name != OUTSIDE}:
            for letters in ("SS", "BEBE", "BIE"):  # one after another, for in IOB1 that is spelled in its own way
                tags = [f"{letter}-{kind}" if kind else letter for letter in letters]
                if set(tags) <= set(self.names):
                    found.update(from_bioes(tags, self.scheme))
        return Labels.of(found).names

    def allowed(self) -> Allowed | None:
        """Which tags may follow which."""
        return transitions(self.names, self.scheme) if self.kind == "tag" else None

    def check(
        self, examples: Sequence[Example], path: str | Path | None = None, *, held_out: bool = False
    ) -> list[str]:
        """Refuse examples to score that have no answers; sentences on labels that training never saw.

        `held_out`: they are part of a training file that was checked as a whole; its few broken spans may be many here.
        """
        if self.labels is None:
            scores_of(cast(Sequence[PairExample], examples), path)
            return []
        if self.kind != "tag":
            for example in examples:
                label_of(cast(TextExample | PairExample, example), path)
            return self.labels.check_dev(examples, path)
        tagged = cast(Sequence[TaggedExample], examples)
        for example in tagged:
            _tags(example)
        notes = [check_scheme(tagged, self.scheme, path, refuse=not held_out) or ""]
        if self.scheme.has_spans and all(tag == OUTSIDE for example in tagged for tag in _tags(example)):
            notes.append("every tag to score on is O, so the entity F1 is 0 whatever the answers")
        # A broken span counts as what it is read as.
        read = [replace(example, tags=self._repaired(_tags(example))) for example in tagged]
        return [*filter(None, notes), *Labels.of(self.spelled).check_dev(read, path)]

    def _repaired(self, tags: Tokens) -> Tokens:
        return from_bioes(to_bioes(tags, self.scheme), self.scheme)

    def targets(self, examples: Sequence[Example]) -> Tensor:
        """What the network is to give for a batch of training examples: labels [B], tags [B, T] or scores [B]."""
        if self.labels is None:
            return torch.tensor(scores_of(cast(Sequence[PairExample], examples)), dtype=torch.float32)
        labels = self.labels
        if self.kind == "tag":
            rows = [
                [labels.id(tag) for tag in to_bioes(_tags(example), self.scheme)]
                for example in cast(Sequence[TaggedExample], examples)
            ]
            width = max(map(len, rows), default=0)
            return torch.tensor([row + [0] * (width - len(row)) for row in rows]).reshape(len(rows), width)
        return torch.tensor([labels.id(label_of(cast(TextExample | PairExample, example))) for example in examples])

    def tags(self, ids: Sequence[int]) -> Tokens:
        """A sentence's tags in the scheme and spelling of the training file."""
        return from_bioes([self.names[number] for number in ids], self.scheme)

    def sure(self, tags: Tokens, ids: Sequence[int], probabilities: Tensor) -> tuple[float, ...]:
        """How probable each tag of a sentence is: probabilities [T, K] of the BIOES tags that its spelling stands for.

        `ids` are the tags that were chosen, `tags` are these as the file spells them.
        """
        rows = zip(probabilities.tolist(), tags, ids, strict=True)
        return tuple(
            min(1.0, sum(row[reading] for reading in {number, *self._readings(tag)})) for row, tag, number in rows
        )

    def _readings(self, tag: str) -> list[int]:
        """The BIOES tags, by number, that a file means with a tag: in BIO a B is the first of a span or all of it."""
        assert self.labels is not None
        letters = {"BIO": {"B": "BS", "I": "IE"}, "IOB1": {"B": "BS", "I": "BIES"}}.get(self.scheme.name)
        if letters is None or tag == OUTSIDE:
            return []
        names = [letter + tag[1:].replace(self.scheme.separator, "-", 1) for letter in letters[tag[0]]]
        return [self.labels.id(name) for name in names if name in self.labels]

    def score(self, examples: Sequence[Example], answers: Sequence[str | float | Tokens]) -> Scores:
        """Compare answers, one for each example, with what the examples say."""
        if self.kind == "tag":
            gold = [_tags(example) for example in cast(Sequence[TaggedExample], examples)]
            return score_tags(gold, cast(Sequence[Tokens], answers), self.scheme)
        if self.labels is None:
            return score_numbers(scores_of(cast(Sequence[PairExample], examples)), cast(Sequence[float], answers))
        right = [label_of(cast(TextExample | PairExample, example)) for example in examples]
        return score_labels(right, cast(Sequence[str], answers), self.names)


def check_kind(kind: Kind, examples: Iterable[Example]) -> None:
    """Refuse a kind of task that there is not, and examples of another kind."""
    made = {"classify": TextExample, "tag": TaggedExample, "pair": PairExample}
    if kind not in made:
        raise ElmoError(f"a task is one of {', '.join(made)}, got {kind!r}")
    for example in examples:
        if not isinstance(example, made[kind]):
            raise ElmoError(f"a task of the kind {kind} takes {made[kind].__name__}, got {type(example).__name__}")


def _tags(example: TaggedExample) -> Tokens:
    if example.tags is None:
        raise ElmoError(f"line {example.line}: every token must have a tag here, got none")
    return example.tags
