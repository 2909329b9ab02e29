"""Classifiers, taggers and sentence-pair models on the vectors of any ELMo.

reading/      files → examples                     training.py   examples → a trained model
schemes.py    how tags mark spans                  model.py      a trained model: texts → answers
features.py   ELMo vectors, computed once          folder.py     a trained model as one folder
network.py    the three heads                      report.py     scores and pictures of a training
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elmokit.tasks.examples import PairExample as PairExample
    from elmokit.tasks.examples import TaggedExample as TaggedExample
    from elmokit.tasks.examples import TextExample as TextExample
    from elmokit.tasks.folder import load as load
    from elmokit.tasks.folder import save as save
    from elmokit.tasks.model import TaskModel as TaskModel
    from elmokit.tasks.options import TaskOptions as TaskOptions
    from elmokit.tasks.reading.columns import read_tagged as read_tagged
    from elmokit.tasks.reading.tables import read_pairs as read_pairs
    from elmokit.tasks.reading.tables import read_texts as read_texts
    from elmokit.tasks.training import Fitted as Fitted
    from elmokit.tasks.training import fit as fit

# Looked up on first use, so that `elmo --help` does not wait for torch.
_HOMES = {
    "Fitted": "training",
    "PairExample": "examples",
    "TaggedExample": "examples",
    "TaskModel": "model",
    "TaskOptions": "options",
    "TextExample": "examples",
    "fit": "training",
    "load": "folder",
    "read_pairs": "reading.tables",
    "read_tagged": "reading.columns",
    "read_texts": "reading.tables",
    "save": "folder",
}
__all__ = [
    "Fitted",
    "PairExample",
    "TaggedExample",
    "TaskModel",
    "TaskOptions",
    "TextExample",
    "fit",
    "load",
    "read_pairs",
    "read_tagged",
    "read_texts",
    "save",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute can be anything
    if name not in _HOMES:
        raise AttributeError(f"module 'elmokit.tasks' has no attribute {name!r}")
    return getattr(import_module(f"elmokit.tasks.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
