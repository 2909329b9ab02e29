"""What a task is, and the registry of tasks.

To add a task, write a module with a subclass of `Task` named `TASK` and add its name to `_BUILT_IN`; from outside the
package, call `register_task`. `classify.py` is the shortest example.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from importlib import import_module
from typing import Any, ClassVar, Generic, Self, TypeVar

from torch import Tensor

from elmokit.errors import ElmoError
from elmokit.extensions import load_extensions
from elmokit.messages import printable
from elmokit.tasks.network import InputSpec, TaskNetwork
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.reading import FilePath, Segment, Tokens, escape_formula, read_table
from elmokit.tasks.scores import TaskScores

_CONTROLS = re.compile("[\x7f-\x9f]")
_BUILT_IN = ("classify", "tag", "pair")
"""The modules of our own tasks, each named after its task."""


class Example:
    """One example of a task; a subclass is a dataclass of its texts, its answer and its line in the file, or 0."""

    line: int
    raw: tuple[str, ...]
    """The texts as they were given, one per side, if they were not given as tokens."""
    texts: ClassVar[tuple[str, ...]] = ("tokens",)
    """The fields that contain texts as tokens, one per side of the task."""

    @property
    def sentences(self) -> tuple[Tokens, ...]:
        """Its texts as tokens, one per side of the task."""
        return tuple(getattr(self, name) for name in self.texts)

    @property
    def shown(self) -> tuple[str, ...]:
        """Its texts as they were given, or their tokens with spaces between them."""
        return self.raw or tuple(map(" ".join, self.sentences))


class Answer:
    """What a model says of one example; a subclass is a dataclass."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON; texts and numbers at its top level are also the columns of a table."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def on_screen(self) -> str:
        """As a person reads it."""
        return "  ".join(
            f"{value:.3f}" if isinstance(value, float) else str(value) for value in self.to_dict().values()
        )


ExampleT = TypeVar("ExampleT", bound=Example)
AnswerT = TypeVar("AnswerT", bound=Answer)


class Task(ABC, Generic[ExampleT, AnswerT]):
    """One kind of task: how its files are read, its network, what the network's outputs mean, and its scores.

    An instance is what training learned from the examples apart from weights, such as the labels.
    """

    name: ClassVar[str]
    example: ClassVar[type[Any]]
    """The class of its examples: a call takes the sentences, the answer, the line in the file and `raw`."""
    columns: ClassVar[tuple[str, ...]] = ("text", "label")
    """The arguments of `read` that name columns; `elmo task` has an option for each."""
    sides: ClassVar[tuple[str, ...]] = ("text",)
    """The names of an example's texts in files of answers."""
    own_options: ClassVar[tuple[str, ...]] = ()
    """The options that this task reads and not every task does."""
    options: ClassVar[type[TaskOptions]] = TaskOptions
    """A subclass for a task that has options which no other task has."""
    hidden: ClassVar[int] = 200
    """The size of its LSTM in each direction if the options leave it open."""
    splits_text: ClassVar[bool] = True
    """Whether the texts of its training files are split into tokens; false if files have tokens."""
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".tsv")
    """The files that answers can be written to."""
    labels: tuple[str, ...] = ()
    """The labels as the training file spells them; none if the answer is a score."""

    # --- Data ---------------------------------------------------------------------------------------------------------

    @classmethod
    def read(
        cls,
        path: FilePath,
        *,
        segment: Segment = "whitespace",
        labelled: bool = True,
        **columns: Any,  # noqa: ANN401
    ) -> Iterator[ExampleT]:
        """The examples of a file, one by one; with labelled=False no answers are read."""
        return cls.read_examples(path, columns, segment, labelled)

    @classmethod
    def read_examples(
        cls, path: FilePath, columns: Mapping[str, Any], segment: Segment, labelled: bool
    ) -> Iterator[ExampleT]:
        """What `read` returns, here of a table."""
        names = {name: columns.get(name) for name in cls.columns if labelled or name != "label"}
        for line, texts, tokens, label in read_table(path, names, segment):
            raw = () if labelled else tuple(texts[side] for side in cls.sides)  # training needs the tokens alone
            yield cls.example(*(tokens[side] for side in cls.sides), label, line, raw)

    @classmethod
    @abstractmethod
    def from_examples(
        cls, examples: Sequence[ExampleT], options: TaskOptions, path: FilePath | None = None
    ) -> tuple[Self, list[str]]:
        """The task that training examples define, and a sentence about each thing that looks odd in them."""

    @classmethod
    @abstractmethod
    def from_dict(cls, stored: Mapping[str, Any], options: TaskOptions) -> Self:
        """The task that `to_dict` describes."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """For JSON; `kind` is the name of the task."""

    @abstractmethod
    def check(self, examples: Sequence[ExampleT], path: FilePath | None = None, *, held_out: bool = False) -> list[str]:
        """Refuse examples that cannot be scored; a sentence about each thing that looks odd in them.

        `held_out`: they are part of a training file that was checked as a whole.
        """

    def label(self, example: ExampleT) -> str | None:
        """The label of a training example, each of which needs an example to train on; None if it has none."""
        return None

    # --- Network and answers ------------------------------------------------------------------------------------------

    @abstractmethod
    def build_network(self, options: TaskOptions, spec: InputSpec) -> TaskNetwork:
        """The network of this task, with new weights."""

    def prepare_network(self, network: TaskNetwork, examples: Sequence[ExampleT]) -> None:
        """Set what a network takes from all training examples before the first update."""

    @abstractmethod
    def targets(self, examples: Sequence[ExampleT]) -> Tensor:
        """What the network's loss compares its outputs with, for a batch of training examples."""

    @abstractmethod
    def answer(self, example: ExampleT, decoded: tuple[Tensor, ...]) -> AnswerT:
        """The answer for one example from its part of what the network's `decode` returned."""

    @abstractmethod
    def score(self, examples: Sequence[ExampleT], answers: Sequence[AnswerT]) -> TaskScores:
        """Compare answers, one for each example, with what the examples say."""

    @classmethod
    def baselines(cls, train: Sequence[ExampleT], dev: Sequence[ExampleT]) -> list[tuple[str, TaskScores]]:
        """Simple models without ELMo, by name, to compare with, and their scores."""
        return []

    # --- Answers as text ----------------------------------------------------------------------------------------------

    def on_screen(self, example: ExampleT, answer: AnswerT) -> str:
        """An answer as a person reads it, on one line."""
        return f"{answer.on_screen()}  {' | '.join(example.shown)}"

    def to_dict_with_texts(self, example: ExampleT, answer: AnswerT) -> dict[str, Any]:
        """An answer with the texts it is for, for JSON."""
        return {**dict(zip(self.sides, example.shown, strict=True)), **answer.to_dict()}

    def table_lines(self, answered: Iterable[tuple[ExampleT, AnswerT]], suffix: str) -> Iterator[str]:
        """The lines of a .tsv file (or of another of `suffixes`), which can be read as examples again."""
        for number, (example, answer) in enumerate(answered):
            cells = {name: value for name, value in answer.to_dict().items() if isinstance(value, str | float)}
            if not number:
                yield "\t".join([*cells, *self.sides])
            shown = (f"{value:.6f}" if isinstance(value, float) else value for value in cells.values())
            yield "\t".join(escape_formula(" ".join(cell.split())) for cell in (*shown, *example.shown))

    def lines(self, answered: Iterable[tuple[ExampleT, AnswerT]], suffix: str) -> Iterator[str]:
        """Examples with their answers as the lines of a file with one of `suffixes`, or for "" of a screen."""
        if suffix == "":
            return (printable(self.on_screen(*pair)) for pair in answered)
        if suffix == ".jsonl":
            return (_json_line(self.to_dict_with_texts(*pair)) for pair in answered)
        return self.table_lines(answered, suffix)

    # --- Checks that all tasks share ----------------------------------------------------------------------------------

    @classmethod
    def check_examples(cls, examples: Iterable[Example]) -> None:
        """Refuse examples of another task."""
        for example in examples:
            if not isinstance(example, cls.example):
                raise ElmoError(f"the task {cls.name} takes {cls.example.__name__}, got {type(example).__name__}")

    @classmethod
    def completed(cls, options: TaskOptions) -> TaskOptions:
        """The options with this task's values for what they leave open."""
        return replace(options, hidden=options.hidden or cls.hidden)

    @classmethod
    def unused(cls, options: TaskOptions) -> dict[str, str]:
        """The options that have no effect with the values of the others, and what each is for."""
        readers = {
            item.name: " and ".join(name for name in _registered if item.name in task_named(name).own_options)
            for item in fields(options)
            if not item.metadata.get("shared", True) and item.name not in cls.own_options
        }
        return options.unused() | readers

    @classmethod
    def refuse_unused(cls, options: TaskOptions, given: Iterable[str] | None = None) -> None:
        """Refuse an option that was given and changes nothing; without `given`, one of another task that was changed.

        Options of other inputs are accepted then, since a comparison shares its options.
        """
        known = {item.name: item for item in fields(options)}
        for name, purpose in cls.unused(options).items():
            strict = not known[name].metadata.get("shared", True) and not known[name].metadata.get("lenient", False)
            changed = strict and getattr(options, name) != known[name].default
            if changed if given is None else name in given:
                raise ElmoError(
                    f"{name} is for {purpose}: it would change nothing in this task ({cls.name}), so leave it out",
                    name,
                    *(other for other in ("elmo", "static", "fine_tune", "alignment") if other in purpose.split()),
                )

    @classmethod
    def cut_sentences(cls, examples: Iterable[Example], options: TaskOptions) -> list[list[Tokens]]:
        """The sentences of examples, one list per side, cut to max_tokens if the task reads that option."""
        most = options.max_tokens if "max_tokens" in cls.own_options else None
        rows = [example.sentences for example in examples]
        return [[row[side][:most] for row in rows] for side in range(len(cls.sides))]

    @classmethod
    def count_cut(cls, examples: Iterable[Example], options: TaskOptions) -> int:
        """The number of examples with a text that is longer than the network reads."""
        if "max_tokens" not in cls.own_options:
            return 0
        return sum(max(map(len, example.sentences)) > options.max_tokens for example in examples)

    @classmethod
    def cut_notes(cls, examples: Sequence[Example], options: TaskOptions, path: str | None = None) -> list[str]:
        """A sentence on examples that are cut, if there are any."""
        if not (cut := cls.count_cut(examples, options)):
            return []
        are = "is" if cut == 1 else "are"
        of_all = f"{cut:,} of {len(examples):,} texts" + (f" of {path}" if path else "")
        return [f"{of_all} {are} longer than {options.max_tokens} tokens (max_tokens) and {are} cut"]


AnyTask = Task[Any, Any]


def _json_line(values: Mapping[str, Any]) -> str:
    """A line of JSON in which characters that control a terminal are escaped, also those that JSON allows."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(values, ensure_ascii=False))


_registered: dict[str, type[AnyTask] | None] = dict.fromkeys(_BUILT_IN)  # None: its module is not imported yet


def register_task(task: type[AnyTask]) -> None:
    """Add a task from outside the package; `fit`, `load` and `elmo task` then take its name."""
    if task.name in _registered:
        raise ElmoError(f"a task named {task.name} is registered: unregister_task({task.name!r}) removes it")
    _registered[task.name] = task


def unregister_task(name: str) -> None:
    """Remove a task from the registry."""
    task_named(name)
    del _registered[name]


def task_names() -> list[str]:
    """The names of all tasks."""
    load_extensions()
    return list(_registered)


def task_named(name: str) -> type[AnyTask]:
    """The task of this name."""
    if name not in _registered and name not in task_names():
        raise ElmoError(f"a task is one of {', '.join(_registered)}, got {name!r}")
    task = _registered[name] = _registered[name] or import_module(f"elmokit.tasks.{name}").TASK
    return task
