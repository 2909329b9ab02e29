"""The base class of a task, and the registry of tasks.

To add a task, write a module that defines a subclass of `Task` as `TASK`, and add the module's name to `_BUILT_IN`.
From outside the package, call `register_task`. `classify.py` is the shortest example.
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
"""The modules of the built-in tasks, each named after its task."""


class Example:
    """One example of a task; a subclass is a dataclass of the tokens of its texts, its answer, `line` and `raw`."""

    line: int
    """The line of the example in its file, from 1; 0 without a file."""
    raw: tuple[str, ...]
    """The original strings of its texts, one per side; empty if tokens were given."""
    texts: ClassVar[tuple[str, ...]] = ("tokens",)
    """The names of the fields with the tokens of its texts, one per side of the task."""

    @property
    def sentences(self) -> tuple[Tokens, ...]:
        """The tokens of its texts, one tuple per side of the task."""
        return tuple(getattr(self, name) for name in self.texts)

    @property
    def shown(self) -> tuple[str, ...]:
        """The original strings of its texts, or their tokens joined by spaces."""
        return self.raw or tuple(map(" ".join, self.sentences))


class Answer:
    """The answer of a model for one example; a subclass is a dataclass."""

    def to_dict(self) -> dict[str, Any]:
        """The answer for JSON; strings and floats at the top level are also the columns of a table."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def on_screen(self) -> str:
        """The answer as text for people."""
        return "  ".join(
            f"{value:.3f}" if isinstance(value, float) else str(value) for value in self.to_dict().values()
        )


ExampleT = TypeVar("ExampleT", bound=Example)
AnswerT = TypeVar("AnswerT", bound=Answer)


class Task(ABC, Generic[ExampleT, AnswerT]):
    """One kind of task: it reads files, builds the network, makes answers of the network's outputs, and scores them.

    An instance contains what training learned from the examples besides the weights, such as the labels.
    """

    name: ClassVar[str]
    example: ClassVar[type[Any]]
    """The class of its examples, called with the tokens of each side, the answer, the line in the file and `raw`."""
    columns: ClassVar[tuple[str, ...]] = ("text", "label")
    """The arguments of `read` that name columns; `elmo task` has an option for each."""
    sides: ClassVar[tuple[str, ...]] = ("text",)
    """The texts of an example, called its sides: one name for each, used in files of answers."""
    own_options: ClassVar[tuple[str, ...]] = ()
    """The options that this task reads but not every task does."""
    options: ClassVar[type[TaskOptions]] = TaskOptions
    """The class of its options: a subclass of TaskOptions if the task has options of its own."""
    hidden: ClassVar[int] = 200
    """The default size of its LSTM in each direction."""
    splits_text: ClassVar[bool] = True
    """Whether texts of its training files are split into tokens; false if the files contain tokens."""
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".tsv")
    """The suffixes of files that answers can be written to."""
    labels: tuple[str, ...] = ()
    """The labels as the training file spells them; empty if the answer is a score."""

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
        """The examples of a file, by default of a table; a subclass overrides this to read other files."""
        names = {name: columns.get(name) for name in cls.columns if labelled or name != "label"}
        for line, texts, tokens, label in read_table(path, names, segment):
            raw = () if labelled else tuple(texts[side] for side in cls.sides)  # training needs only the tokens
            yield cls.example(*(tokens[side] for side in cls.sides), label, line, raw)

    @classmethod
    @abstractmethod
    def from_examples(
        cls, examples: Sequence[ExampleT], options: TaskOptions, path: FilePath | None = None
    ) -> tuple[Self, list[str]]:
        """The task that training examples define, and warnings about anything odd in them."""

    @classmethod
    @abstractmethod
    def from_dict(cls, stored: Mapping[str, Any], options: TaskOptions) -> Self:
        """The task that `to_dict` describes."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The task for JSON; `kind` is its name."""

    @abstractmethod
    def check(self, examples: Sequence[ExampleT], path: FilePath | None = None, *, held_out: bool = False) -> list[str]:
        """Refuse examples that cannot be scored; return warnings about anything odd in them.

        `held_out`: the examples are a part of the training file, which was checked as a whole.
        """

    def label(self, example: ExampleT) -> str | None:
        """The label of an example, or None; each label keeps at least one example to train on."""
        return None

    # --- Network and answers ------------------------------------------------------------------------------------------

    @abstractmethod
    def build_network(self, options: TaskOptions, spec: InputSpec) -> TaskNetwork:
        """The network of this task, with new weights."""

    def prepare_network(self, network: TaskNetwork, examples: Sequence[ExampleT]) -> None:
        """Set values in the network that depend on all training examples; called before the first update."""

    @abstractmethod
    def targets(self, examples: Sequence[ExampleT]) -> Tensor:
        """The targets of the network's loss for a batch of training examples."""

    @abstractmethod
    def answer(self, example: ExampleT, decoded: tuple[Tensor, ...]) -> AnswerT:
        """The answer for one example; `decoded` is its row of each tensor that the network's `decode` returned."""

    @abstractmethod
    def score(self, examples: Sequence[ExampleT], answers: Sequence[AnswerT]) -> TaskScores:
        """The scores of answers, one for each labelled example."""

    @classmethod
    def baselines(cls, train: Sequence[ExampleT], dev: Sequence[ExampleT]) -> list[tuple[str, TaskScores]]:
        """Simple models without ELMo to compare with: their names and their scores."""
        return []

    # --- Answers as text ----------------------------------------------------------------------------------------------

    def on_screen(self, example: ExampleT, answer: AnswerT) -> str:
        """An example and its answer as one line of text for people."""
        return f"{answer.on_screen()}  {' | '.join(example.shown)}"

    def to_dict_with_texts(self, example: ExampleT, answer: AnswerT) -> dict[str, Any]:
        """An answer with the texts of its example, for JSON."""
        return {**dict(zip(self.sides, example.shown, strict=True)), **answer.to_dict()}

    def table_lines(self, answered: Iterable[tuple[ExampleT, AnswerT]], suffix: str) -> Iterator[str]:
        """The lines of a .tsv file, or a file with another of `suffixes`, which `read` can read again."""
        for number, (example, answer) in enumerate(answered):
            cells = {name: value for name, value in answer.to_dict().items() if isinstance(value, str | float)}
            if not number:
                yield "\t".join([*cells, *self.sides])
            shown = (f"{value:.6f}" if isinstance(value, float) else value for value in cells.values())
            yield "\t".join(escape_formula(" ".join(cell.split())) for cell in (*shown, *example.shown))

    def lines(self, answered: Iterable[tuple[ExampleT, AnswerT]], suffix: str) -> Iterator[str]:
        """Examples with their answers as the lines of a file with one of `suffixes`; "" is for the screen."""
        if suffix == "":
            return (printable(self.on_screen(*pair)) for pair in answered)
        if suffix == ".jsonl":
            return (_json_line(self.to_dict_with_texts(*pair)) for pair in answered)
        return self.table_lines(answered, suffix)

    # --- Checks that all tasks share ----------------------------------------------------------------------------------

    @classmethod
    def check_examples(cls, examples: Iterable[Example]) -> None:
        """Refuse examples of another task, and a string in place of tokens."""
        for example in examples:
            if not isinstance(example, cls.example):
                raise ElmoError(f"the task {cls.name} takes {cls.example.__name__}, got {type(example).__name__}")
            if text := next((text for text in example.sentences if isinstance(text, str)), ""):
                raise ElmoError(f"an example must have a list of tokens, got the string {text!r}: split it into tokens")

    @classmethod
    def completed(cls, options: TaskOptions) -> TaskOptions:
        """The options, with this task's defaults for values that are not set."""
        return replace(options, hidden=options.hidden or cls.hidden)

    @classmethod
    def unused(cls, options: TaskOptions) -> dict[str, str]:
        """The options that have no effect in this task or because of the values of others, each with its purpose."""
        readers = {
            item.name: " and ".join(name for name in _registered if item.name in task_named(name).own_options)
            for item in fields(options)
            if not item.metadata.get("shared", True) and item.name not in cls.own_options
        }
        return options.unused() | readers

    @classmethod
    def refuse_unused(cls, options: TaskOptions, given: Iterable[str] | None = None) -> None:
        """Refuse an option in `given` that has no effect.

        Without `given`, refuse only an option of other tasks that differs from its default, unless it is lenient.
        Other options are accepted then, because a comparison trains several models with the same options.
        """
        known = {item.name: item for item in fields(options)}
        for name, purpose in cls.unused(options).items():
            strict = not known[name].metadata.get("shared", True) and not known[name].metadata.get("lenient", False)
            changed = strict and getattr(options, name) != known[name].default
            if changed if given is None else name in given:
                raise ElmoError(
                    f"{name} is for {purpose}: it has no effect in this task ({cls.name}), so leave it out",
                    name,
                    *(other for other in ("elmo", "static", "fine_tune", "alignment") if other in purpose.split()),
                )

    @classmethod
    def cut_sentences(cls, examples: Iterable[Example], options: TaskOptions) -> list[list[Tokens]]:
        """The sentences of examples, one list per side, cut to max_tokens if the task reads that option."""
        limit = options.max_tokens if "max_tokens" in cls.own_options else None
        rows = [example.sentences for example in examples]
        return [[row[side][:limit] for row in rows] for side in range(len(cls.sides))]

    @classmethod
    def count_cut(cls, examples: Iterable[Example], options: TaskOptions) -> int:
        """The number of examples with a text that is longer than max_tokens, if the task reads that option."""
        if "max_tokens" not in cls.own_options:
            return 0
        return sum(max(map(len, example.sentences)) > options.max_tokens for example in examples)

    @classmethod
    def cut_notes(cls, examples: Sequence[Example], options: TaskOptions, path: str | None = None) -> list[str]:
        """A warning about examples with texts that are cut, if there are any."""
        if not (cut := cls.count_cut(examples, options)):
            return []
        are = "is" if cut == 1 else "are"
        of_all = f"{cut:,} of {len(examples):,} texts" + (f" of {path}" if path else "")
        return [f"{of_all} {are} longer than {options.max_tokens} tokens (max_tokens) and {are} cut"]


AnyTask = Task[Any, Any]


def _json_line(values: Mapping[str, Any]) -> str:
    """The values as one line of JSON, with all control characters escaped, also those that JSON allows."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(values, ensure_ascii=False))


_registered: dict[str, type[AnyTask] | None] = dict.fromkeys(_BUILT_IN)  # None: module not imported yet


def register_task(task: type[AnyTask]) -> None:
    """Add a task from outside the package; `fit`, `load` and `elmo task` then take its name."""
    if task.name in _registered:
        raise ElmoError(f"a task named {task.name} is registered already: unregister_task({task.name!r}) removes it")
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
    """The task with this name."""
    if name not in _registered and name not in task_names():
        raise ElmoError(f"a task is one of {', '.join(_registered)}, got {name!r}")
    task = _registered[name] = _registered[name] or import_module(f"elmokit.tasks.{name}").TASK
    return task
