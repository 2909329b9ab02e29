"""A task model as one folder.

task.json             what it is: kind, labels, scheme, options, how strings are split
network.safetensors   the task's own weights
words.txt             the words of its static vectors, a word a line in JSON, where it has any
elmo/                 the biLM it reads, without its softmax, where it reads one
report/               scores and pictures, where it was trained by `elmo task train`
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.save import write_checkpoint
from elmokit.model.placement import choose_device
from elmokit.storage.atomic import new_folder, read_description, write_tensors, write_text
from elmokit.tasks.answers import Answers
from elmokit.tasks.model import TaskModel
from elmokit.tasks.network import TaskNetwork
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.static import StaticVectors
from elmokit.text.policy import TextPolicy

FORMAT, VERSION = "elmokit-task", 1
LAST = "task.json"
"""The file that is written last: a folder that has it is whole."""


def save(model: TaskModel, folder: str | Path) -> None:
    """Write a task model to a folder that is new or empty."""
    with new_folder(Path(folder), last=LAST) as staging:
        write_model(model, staging)


def write_model(model: TaskModel, folder: Path) -> None:
    """Write a task model's files into a folder; task.json comes last."""
    network, static = model.network, model.network.encoder.static
    write_tensors(folder / "network.safetensors", network.state_dict())
    if static is not None:
        write_text(folder / "words.txt", "".join(json.dumps(word) + "\n" for word in static.words))
    if model.elmo is not None:
        checkpoint = model.elmo.checkpoint()
        compact = {name: _halved(value) for name, value in checkpoint.weights.items()}
        write_checkpoint(replace(checkpoint, weights=compact, head={}, optimizer={}), folder / "elmo")
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "answers": model.answers.to_dict(),
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
    facts = read_description(folder / LAST, FORMAT, VERSION, "a task model", "`elmo task train` makes such a folder")
    words = None if facts.get("static") is None else _words(folder / "words.txt")
    try:
        stored = {"words_beside": False, **facts["options"]}  # models made before that option have no such part
        if unknown := sorted(stored.keys() - {item.name for item in fields(TaskOptions)}):
            raise ElmoError(f"it was made by a newer elmokit, which knows {', '.join(unknown)}")
        answers, options = Answers.from_dict(facts["answers"]), TaskOptions(**stored)
        policy = TextPolicy(facts["segment"])
        if (answers.labels is None) != (options.target == "score"):
            raise ElmoError(f"a task with the target {options.target} must have labels where it gives them")
        static = None if words is None else StaticVectors(words, **facts["static"])
    except ElmoError as error:
        raise ElmoError(f"{folder / LAST}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ElmoError(f"{folder / LAST} is damaged ({error!r}): get the folder again") from error
    elmo = None if options.elmo == "none" else Elmo.load(folder / "elmo", device=chosen)
    network = TaskNetwork(
        answers.kind,
        options,
        n_outputs=answers.n_outputs,
        elmo_layers=elmo.config.n_outputs if elmo else 0,
        elmo_size=elmo.config.vector_size if elmo else 0,
        static=static,
        allowed=answers.allowed(),
    )
    try:
        network.load_state_dict(load_file(folder / "network.safetensors"))
    except (OSError, SafetensorError, RuntimeError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        reason = lines[min(1, len(lines) - 1)].strip()  # torch's first line names a class
        raise ElmoError(f"{folder / 'network.safetensors'} cannot be read: {reason}") from error
    return TaskModel(network.to(chosen), answers, elmo, segment=policy, device=chosen)


def _words(path: Path) -> list[str]:
    try:
        words = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise ElmoError(f"{path} cannot be read: {error}") from error
    if not all(isinstance(word, str) for word in words):
        raise ElmoError(f"{path} is damaged: it must have a word in quotes a line")
    return words


def _halved(value: Tensor) -> Tensor:
    """As float16 where that loses nothing, as in a model that was stored so."""
    if not value.is_floating_point():
        return value
    half = value.half()
    return half if torch.equal(half.to(value.dtype), value) else value
