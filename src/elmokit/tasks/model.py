"""A trained task model, which answers for texts and is stored as one folder.

task.json             its description: task, labels, tag scheme, options, tokenisation of strings
network.safetensors   the weights of the task network
words.txt             the words of its static vectors, one JSON string per line, if it has any
elmo/                 its ELMo model without the softmax, if it uses one
report/               scores and pictures, if `elmo task train` made the folder
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_in
from torch import Tensor

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.save import write_checkpoint
from elmokit.model.placement import choose_device
from elmokit.storage.atomic import new_folder, read_description, write_tensors, write_text
from elmokit.tasks.inputs import ExampleInputs, batches_of
from elmokit.tasks.network import InputSpec, TaskNetwork
from elmokit.tasks.reading import Segment, Tokens
from elmokit.tasks.scores import TaskScores
from elmokit.tasks.static import StaticVectors
from elmokit.tasks.task import Answer, AnyTask, Example, task_named
from elmokit.text.policy import TextPolicy, check_texts

FORMAT, VERSION = "elmokit-task", 1
LAST = "task.json"
"""The file that is written last: a folder that has it is complete."""
Text = str | Sequence[str]
_BATCH_SIZE = 64
_READ_AHEAD = 512
"""Number of examples that `stream` reads at a time."""


class TaskModel:
    """A trained network with its task and its ELMo model; `elmokit.tasks.load` opens one."""

    def __init__(
        self,
        network: TaskNetwork,
        task: AnyTask,
        elmo: Elmo | None,
        *,
        segment: Segment = "whitespace",
        device: torch.device | None = None,
    ) -> None:
        """`segment`: how strings are split into tokens; it should be the same as for the training texts."""
        self.network, self.task, self.elmo = network.eval(), task, elmo
        self.text_policy = TextPolicy.of(segment)
        self.segment = self.text_policy.name
        """How strings are split into tokens: english, jieba, chars or whitespace."""
        self.device = device or torch.device("cpu")
        self.kind, self.options = task.name, network.options
        self.labels = task.labels
        """The labels that it can predict, tags as the training file spells them; empty if it predicts a score."""

    def predict(self, texts: Any) -> Any:  # noqa: ANN401 - one answer for one text, a list for a list of texts
        """The answer for a text, or a list of answers for a list of texts.

        A text is a string, which is split into tokens as in training, or a tuple of tokens. In a list of texts, a text
        can also be a list of tokens. For the task `pair`, each item is a tuple of two texts. A text without words gets
        no tags, or the label that the network gives to an empty input.
        """
        check_texts(texts, "predict takes a text or a list of texts")
        if isinstance(texts, tuple) or (isinstance(texts, str) and len(self.task.sides) == 1):
            return next(self.stream([self.example(texts)]))
        return list(self.stream(self.example(text) for text in texts))

    def score(self, examples: Sequence[Example]) -> TaskScores:
        """The scores of the model's answers to labelled examples."""
        self.task.check_examples(examples)
        self.task.check(examples)
        return self.task.score(examples, list(self.stream(examples)))

    def stream(self, examples: Iterable[Example]) -> Iterator[Any]:
        """An answer for each example, in order; a few hundred examples are read ahead."""
        remaining = iter(examples)
        while group := list(islice(remaining, _READ_AHEAD)):
            yield from self.answer(group)

    def answer(self, examples: Sequence[Example], inputs: ExampleInputs | None = None) -> list[Answer]:
        """An answer for each example; `inputs` are the inputs of these examples if they already exist."""
        self.task.check_examples(examples)
        if inputs is None:
            sides, static = self.task.cut_sentences(examples, self.options), self.network.encoder.static
            inputs = ExampleInputs(sides, self.options, elmo=self.elmo, static=static, store=False)
        found: dict[int, Answer] = {}
        with torch.no_grad():
            for numbers in batches_of(inputs.lengths, _BATCH_SIZE):
                decoded = [part.cpu() for part in self.network.predict(inputs.batch(numbers, self.device))]
                for row, number in enumerate(numbers):
                    found[number] = self.task.answer(examples[number], tuple(part[row] for part in decoded))
        return [found[number] for number in range(len(examples))]

    def example(self, text: Any) -> Example:  # noqa: ANN401 - checked here
        """An unlabelled example from one text or, for a task with two sides, from a tuple of two texts."""
        parts = [text]
        if len(self.task.sides) > 1:
            if not isinstance(text, list | tuple) or len(text) != len(self.task.sides):
                raise ElmoError(f"the task {self.kind} takes a tuple of {len(self.task.sides)} texts, got {text!r}")
            parts = list(text)
        raw = tuple(parts) if all(isinstance(part, str) for part in parts) else ()
        example: Example = self.task.example(*map(self.tokens, parts), raw=raw)
        return example

    def tokens(self, text: Text) -> Tokens:
        """The tokens of a text: a string is split as the training texts were, and tokens are returned unchanged."""
        if isinstance(text, str):
            return tuple(self.text_policy.split(text))
        check_texts(text, rule := "a text is a string or a list of tokens")
        tokens = tuple(text)
        if not all(isinstance(token, str) for token in tokens):
            raise ElmoError(f"{rule}, got {text!r}")
        return tokens


def save(model: TaskModel, folder: str | Path) -> None:
    """Write a task model to a folder, which must be new or empty."""
    if not isinstance(model, TaskModel):
        raise ElmoError(f"save takes a TaskModel, got {type(model).__name__}: what fit returns has it as .model")
    with new_folder(Path(folder), last=LAST) as staging:
        write_model(model, staging)


def write_model(model: TaskModel, folder: Path) -> None:
    """Write a task model's files into a folder, task.json last."""
    network, static = model.network, model.network.encoder.static
    tensors = network.state_dict()
    if static is not None:
        fixed = "encoder.static.fixed"
        tensors[fixed] = _as_float16(tensors[fixed])
        write_text(folder / "words.txt", "".join(json.dumps(word) + "\n" for word in static.words))
    write_tensors(folder / "network.safetensors", tensors)
    if model.elmo is not None:
        checkpoint = model.elmo.checkpoint()
        compact = {name: _as_float16(value) for name, value in checkpoint.weights.items()}
        write_checkpoint(replace(checkpoint, weights=compact, head={}, optimizer={}), folder / "elmo")
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "answers": model.task.to_dict(),
        "options": model.options.to_dict(),
        "segment": model.text_policy.name_in_files,
        "static": static and {"size": static.size, "n_trained": static.n_trained, "frozen": static.frozen},
    }
    write_text(folder / LAST, json.dumps(facts, ensure_ascii=False, indent=2) + "\n")


def load(folder: str | Path, *, device: str | torch.device | None = None) -> TaskModel:
    """Open a task model.

    >>> model = load("my-tagger")  # doctest: +SKIP
    >>> model.predict("Ada Lovelace was born in London").tags  # doctest: +SKIP
    ('B-PER', 'I-PER', 'O', 'O', 'O', 'B-LOC')
    """
    folder, chosen = Path(folder), choose_device(device)
    made_by = "`elmo task train` makes such a folder"
    facts = read_description(folder / LAST, FORMAT, VERSION, "a task model", made_by, absent=made_by)
    words = None if facts.get("static") is None else _words(folder / "words.txt")
    try:
        kind = task_named(facts["answers"]["kind"])
        if unknown := sorted(facts["options"].keys() - {item.name for item in fields(kind.options)}):
            raise ElmoError(
                f"the folder was made by a newer elmokit, which knows {', '.join(unknown)}: install a newer version"
            )
        options = kind.completed(kind.options(**facts["options"]))
        task, policy = kind.from_dict(facts["answers"], options), TextPolicy(facts["segment"])
        static = None if words is None else StaticVectors(words, **facts["static"])
    except ElmoError as error:
        raise ElmoError(f"{folder / LAST}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ElmoError(f"{folder / LAST} is damaged ({error!r}): get the folder again") from error
    elmo = None if options.elmo == "none" else Elmo.load(folder / "elmo", device=chosen)
    network = task.build_network(options, InputSpec.of(elmo, static))
    try:
        # The file is read, not mapped: a change to a mapped file could crash the process.
        network.load_state_dict(tensors_in((folder / "network.safetensors").read_bytes()))
    except (OSError, KeyError, SafetensorError, RuntimeError) as error:
        lines = str(getattr(error, "strerror", None) or error).splitlines() or [type(error).__name__]
        reason = lines[min(1, len(lines) - 1)].strip()  # torch's first line names a class
        advice = "train the model again if an older elmokit made it, otherwise get the folder again"
        raise ElmoError(f"{folder / 'network.safetensors'} cannot be read ({reason}): {advice}") from error
    return TaskModel(network.to(chosen), task, elmo, segment=policy, device=chosen)


def _words(path: Path) -> list[str]:
    try:
        words = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise ElmoError(f"{path} cannot be read: {error}") from error
    if not all(isinstance(word, str) for word in words):
        raise ElmoError(f"{path} is damaged: each line must be a word in quotes: get the folder again")
    return words


def _as_float16(value: Tensor) -> Tensor:
    """The tensor as float16 if that is exact, as in a model that was stored in float16; otherwise unchanged."""
    half = value.half() if value.is_floating_point() else value
    return half if torch.equal(half.to(value.dtype), value) else value
