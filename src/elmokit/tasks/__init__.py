"""Classifiers, taggers and sentence-pair models on the vectors of any ELMo.

classify.py, tag.py, pair.py   one task each: its files, network, answers and scores
task.py                        the base class of a task, and the registry
trainer.py                     examples → a trained model
model.py                       a trained model: texts → answers; stored as one folder
reading.py, inputs.py          files → examples → batches of ELMo layers and words
static.py                      static word vectors: trained, from GloVe or from a file
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmokit.tasks.classify import TextExample, read_texts
    from elmokit.tasks.model import TaskModel, load, save
    from elmokit.tasks.options import TaskOptions
    from elmokit.tasks.pair import PairExample, read_pairs
    from elmokit.tasks.tag import TaggedExample, read_tagged
    from elmokit.tasks.task import Task, register_task, task_named, task_names, unregister_task
    from elmokit.tasks.trainer import Fitted, TrainingListener, fit

__all__ = [
    "Fitted", "PairExample", "TaggedExample", "Task", "TaskModel", "TaskOptions", "TextExample", "TrainingListener",
    "fit", "load", "read_pairs", "read_tagged", "read_texts", "register_task", "save", "task_named", "task_names",
    "unregister_task",
]  # fmt: skip
# Searched on first use, so that `elmo --help` does not wait for torch.
_MODULES = ("options", "task", "classify", "pair", "tag", "model", "trainer")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute can be anything
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"elmokit.tasks.{module}")
            if hasattr(found, name):
                return getattr(found, name)
    raise AttributeError(f"module 'elmokit.tasks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
