"""A model by its name: those that come with the package, and those on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from elmokit.formats.hub import SCHEME, fetched, repository_of

DEFAULT = "en"
"""What `Elmo.load()` opens."""
FOLDER = Path(__file__).parent.parent / "models"


def bundled_models() -> list[str]:
    """The names of the models in the package."""
    return sorted(config.parent.name for config in FOLDER.glob("*/config.json"))


def resolved(path: str | Path) -> str | Path:
    """The folder of a model that is named and not there as a path: a bundled one, or owner/name on the Hub.

    Anything else stays as it is, and a path goes before a name.
    """
    if isinstance(path, Path) or (not path.startswith(SCHEME) and _is_path(path)):
        return path
    if path in bundled_models():
        return FOLDER / path
    repository = repository_of(path)
    return path if repository is None else fetched(repository)


def _is_path(path: str) -> bool:
    """Whether something lies there, be it the files of a TensorFlow checkpoint, whose prefix is no file."""
    try:
        return Path(path).expanduser().exists() or Path(f"{path}.index").expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, nobody's home: the loader says so
        return False
