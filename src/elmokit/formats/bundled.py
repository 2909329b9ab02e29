"""The models that come with the package, by name."""

from __future__ import annotations

from pathlib import Path

DEFAULT = "en"
"""What `Elmo.load()` opens."""
FOLDER = Path(__file__).parent.parent / "models"


def bundled_models() -> list[str]:
    """The names of the models in the package."""
    return sorted(config.parent.name for config in FOLDER.glob("*/config.json"))


def resolved(path: str | Path) -> str | Path:
    """The folder of a bundled model where one is named and nothing lies at that path; else the path as it is."""
    if isinstance(path, str) and path in bundled_models() and not Path(path).exists():
        return FOLDER / path
    return path
