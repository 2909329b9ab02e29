"""A model by its name: those that come with the package, and those on the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.formats.hub import SCHEME, fetched, repository_of
from elmokit.formats.registry import find

DEFAULT = "en"
"""What `Elmo.load()` opens."""
FOLDER = Path(__file__).parent.parent / "models"
# Names that many users know; some of these are large downloads.
_TRANSFORMERS = re.compile(r"[a-z]*bert|gpt-?\d|t5-|electra|xlnet|xlm-|all-mini|all-mpnet|llama")


def bundled_models() -> list[str]:
    """The names of the models in the package."""
    return sorted(config.parent.name for config in FOLDER.glob("*/config.json"))


def name_of(where: str) -> str:
    """The name of the bundled model whose files are at `where`; any other path as it is."""
    path = Path(where)
    return path.relative_to(FOLDER).parts[0] if FOLDER in path.parents else where


def resolved(path: str | Path) -> str | Path:
    """The folder of a model that is given by its name: a bundled one, or owner/name on the Hub.

    Anything that exists as a path is that path; anything else is returned as it is.
    """
    if isinstance(path, Path) or (not path.startswith(SCHEME) and _exists(path)):
        return path
    if path in bundled_models():
        return FOLDER / path
    if _TRANSFORMERS.match(name := path.lower().rsplit("/", maxsplit=1)[-1]) and "elmo" not in name:
        ready = "zh (Chinese)" if "chinese" in name else f"{DEFAULT} (English)"
        raise ElmoError(f"{path} is a model of another kind, and elmokit reads ELMo models: {ready} is in the package")
    repository = repository_of(path)
    if repository is None or (not path.startswith(SCHEME) and _is_beginning(path)):
        return path
    return fetched(repository)


def _is_beginning(path: str) -> bool:
    """Whether a path that does not exist is the common beginning of a model's files."""
    try:
        return find(Path(path)) is not None
    except ElmoError:  # the files are there and damaged
        return True
    except OSError:
        return False


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, an unknown user: the loader reports it
        return False
