"""elmokit: ELMo on today's Python and PyTorch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from elmokit.config import ElmoConfig as ElmoConfig
    from elmokit.elmo import Elmo as Elmo
    from elmokit.errors import ElmoError as ElmoError
    from elmokit.model.bilm import BiLM as BiLM
    from elmokit.model.scalar_mix import ScalarMix as ScalarMix

# Imported on first use, so that `elmo --help` does not wait for torch.
_MODULES = {
    "BiLM": "elmokit.model.bilm",
    "Elmo": "elmokit.elmo",
    "ElmoConfig": "elmokit.config",
    "ElmoError": "elmokit.errors",
    "ScalarMix": "elmokit.model.scalar_mix",
}
__all__ = ["BiLM", "Elmo", "ElmoConfig", "ElmoError", "ScalarMix"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module attribute can be anything
    if name not in _MODULES:
        raise AttributeError(f"module 'elmokit' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
