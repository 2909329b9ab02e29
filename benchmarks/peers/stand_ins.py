"""Empty modules that replace packages that AllenNLP imports but ELMo never calls.

The packages that ELMo uses (torch, numpy, h5py) are never replaced, and an installed package is used if there is one.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

_PACKAGES = """_jsonnet base58 cached_path dill fairscale filelock huggingface_hub jsonnet lmdb more_itertools nltk
overrides pytz regex requests scipy sentencepiece six sklearn spacy tensorboardX termcolor torchvision transformers
wandb yaml"""
NAMES = frozenset(_PACKAGES.split())


def install() -> None:
    """Make the import of a package of `NAMES` that is not installed give an empty module."""
    sys.meta_path.append(_Finder())


def _same(value: Any, **options: object) -> Any:  # noqa: ANN401
    """Return the value: a decorator that does nothing, or the path of a local file."""
    return value


class _Blank(type):
    """The metaclass of a class that has every attribute; each attribute is another empty class."""

    def __getattr__(cls, name: str) -> _Blank:
        if name.startswith("__"):
            raise AttributeError(name)
        return _blank(name)

    def __iter__(cls) -> Iterator[object]:
        return iter(())


def _blank(name: str) -> _Blank:
    return _Blank(name, (), {"__init__": lambda self, *given, **named: None})


class _StandIn(types.ModuleType):
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _same if name in ("overrides", "cached_path") else _blank(name)
        setattr(self, name, value)
        return value


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in NAMES else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module is empty."""
