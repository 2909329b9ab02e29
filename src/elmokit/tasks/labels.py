"""The classes of a task: their order, how often training saw them, and what is wrong or odd about them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.tasks.examples import Example, PairExample, TaggedExample, TextExample
from elmokit.tasks.reading.lines import place, shown, token_place

_LISTED = 5


@dataclass(frozen=True)
class Labels:
    """The names of the classes, each at its id, and how often each occurs in the training data."""

    names: tuple[str, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.names or len(self.names) != len(self.counts) or len(set(self.names)) != len(self.names):
            raise ElmoError(f"labels must be different names with a count each, got {self.names} and {self.counts}")

    @classmethod
    def of(cls, labels: Iterable[str]) -> Labels:
        """The labels of all examples, or the tags of all tokens: numbers by value, others by name, O first."""
        counts = Counter(labels)
        names = sorted(counts, key=_order)
        return cls(tuple(names), tuple(counts[name] for name in names))

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Labels:
        """What `to_dict` gave."""
        return cls(tuple(stored["names"]), tuple(stored["counts"]))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"names": list(self.names), "counts": list(self.counts)}

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._ids

    def id(self, name: str) -> int:
        """The id of a class that training saw."""
        return self._ids[name]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def check_training(self, path: str | Path | None = None) -> list[str]:
        """Refuse data that nothing can be learned from; sentences on what looks like a slip."""
        where = "the training data" if path is None else str(path)
        if len(self) == 1:
            raise ElmoError(
                f"there must be at least two classes to tell apart, got {shown(self.names[0])} alone, "
                f"{counted(sum(self.counts), 'time')}, in {where}: is that the column of the labels?"
            )
        if len(self) > 10 and 2 * len(self) > sum(self.counts):
            raise ElmoError(
                f"{where} has {len(self):,} classes in {sum(self.counts):,} examples ({self._listed(self.names)}): "
                "is that the column of the labels?"
            )
        single = [name for name, count in zip(self.names, self.counts, strict=True) if count == 1]
        if single and sum(self.counts) > 10:
            each = "" if len(single) == 1 else " each"
            return [f"{where} has only one example{each} of {self._listed(single)}: is that a slip?"]
        return []

    def check_dev(self, examples: Sequence[Example], path: str | Path | None = None) -> list[str]:
        """Sentences on labels that training never saw, which count as wrong, and on classes that dev data lacks.

        Where training saw none of them, that is an ElmoError. Tags must be spelled as these labels are; that some do
        not occur is no news and not said.
        """
        unseen: Counter[str] = Counter()
        seen: set[str] = set()
        first = ""
        for label, example, index in _labels(examples):
            seen.add(label)
            if label not in self:
                unseen[label] += 1
                if not first and isinstance(example, TaggedExample):
                    first = token_place(path, example, index)
                elif not first:
                    first = place(path, example.line)
        if unseen and not any(label in self for label in seen):
            raise ElmoError(
                f"{first}: training saw none of the labels here ({self._listed(unseen)}), only "
                f"{self._listed(self.names)}: is that the column of the labels?"
            )
        notes = []
        if unseen:
            total = sum(unseen.values())
            notes.append(
                f"{first}: training never saw the label{'' if len(unseen) == 1 else 's'} {self._listed(unseen)}; "
                f"{total:,} {'place' if total == 1 else 'places'} with {'it' if len(unseen) == 1 else 'them'} "
                "will count as wrong"
            )
        tagged = any(isinstance(example, TaggedExample) for example in examples)
        missing = [name for name in self.names if name not in seen]
        if missing and not tagged:
            notes.append(f"there is no example of {self._listed(missing)} to score on, so no score speaks for that")
        return notes

    @staticmethod
    def _listed(names: Iterable[str]) -> str:
        listed = [shown(name) for name in names]
        more = len(listed) - _LISTED
        return ", ".join(listed[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")


def label_of(example: TextExample | PairExample, path: str | Path | None = None) -> str:
    """The label of an example that must have one."""
    if example.label is None:
        raise ElmoError(f"{place(path, example.line)}: an example must have a label here, got none")
    return example.label


def scores_of(examples: Sequence[PairExample], path: str | Path | None = None) -> list[float]:
    """The examples' labels as numbers, for a similarity."""
    scores = []
    for example in examples:
        label = label_of(example, path)
        try:
            score = float(label)
        except ValueError:
            score = math.nan
        if not math.isfinite(score):
            raise ElmoError(
                f"{place(path, example.line)}: a score must be a number, got {shown(label)}: "
                "name the column of the scores with --label, or train with --target label"
            )
        scores.append(score)
    return scores


def check_scores(scores: Sequence[float], path: str | Path | None = None) -> None:
    """Refuse training scores that are all the same."""
    if len(set(scores)) < 2:
        where = "the training data" if path is None else str(path)
        raise ElmoError(f"scores must differ to be learned from, got {scores[0]:g} {len(scores):,} times in {where}")


def _labels(examples: Iterable[Example]) -> Iterator[tuple[str, Example, int]]:
    """Each label, its example and, for a tag, its token's index."""
    for example in examples:
        if isinstance(example, TaggedExample):
            yield from ((tag, example, index) for index, tag in enumerate(example.tags or ()))
        elif example.label is not None:
            yield example.label, example, 0


def _order(name: str) -> tuple[bool, bool, float, str]:
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    known = math.isfinite(number)
    return name != "O", not known, number if known else 0.0, name
