"""Classifiers, taggers and sentence-pair models on the vectors of any ELMo.

classify.py, tag.py, pair.py   one task each: how it is read, its network, its answers and its scores
task.py                        what a task is, and the registry
trainer.py                     examples → a trained model
model.py                       a trained model: texts → answers; stored as one folder
reading.py, inputs.py          files → examples → batches of ELMo layers and static vectors
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmokit.tasks.classify import TextExample as TextExample
    from elmokit.tasks.classify import read_texts as read_texts
    from elmokit.tasks.model import TaskModel as TaskModel
    from elmokit.tasks.model import load as load
    from elmokit.tasks.model import save as save
    from elmokit.tasks.options import TaskOptions as TaskOptions
    from elmokit.tasks.pair import PairExample as PairExample
    from elmokit.tasks.pair import read_pairs as read_pairs
    from elmokit.tasks.tag import TaggedExample as TaggedExample
    from elmokit.tasks.tag import read_tagged as read_tagged
    from elmokit.tasks.task import Task as Task
    from elmokit.tasks.task import register_task as register_task
    from elmokit.tasks.task import task_named as task_named
    from elmokit.tasks.task import task_names as task_names
    from elmokit.tasks.task import unregister_task as unregister_task
    from elmokit.tasks.trainer import Fitted as Fitted
    from elmokit.tasks.trainer import TrainingListener as TrainingListener
    from elmokit.tasks.trainer import fit as fit

# Imported on first use, so that `elmo --help` does not wait for torch.
_MODULES = {
    "classify": ("TextExample", "read_texts"),
    "model": ("TaskModel", "load", "save"),
    "options": ("TaskOptions",),
    "pair": ("PairExample", "read_pairs"),
    "tag": ("TaggedExample", "read_tagged"),
    "task": ("Task", "register_task", "task_named", "task_names", "unregister_task"),
    "trainer": ("Fitted", "TrainingListener", "fit"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute can be anything
    if name not in _HOMES:
        raise AttributeError(f"module 'elmokit.tasks' has no attribute {name!r}")
    return getattr(import_module(f"elmokit.tasks.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
