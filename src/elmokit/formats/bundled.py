"""Models by name: those in the package, and those on the Hugging Face Hub, which are downloaded once."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats.registry import find, formats

DEFAULT = "en"
"""The name of the model that `Elmo.load()` opens."""
FOLDER = Path(__file__).parent.parent / "models"
# Names of well-known models of other kinds; some of them are large downloads.
_TRANSFORMERS = re.compile(r"[a-z]*bert|gpt-?\d|t5-|electra|xlnet|xlm-|all-mini|all-mpnet|llama")


def bundled_models() -> list[str]:
    """The names of the models in the package."""
    return sorted(config.parent.name for config in FOLDER.glob("*/config.json"))


def name_of(where: str) -> str:
    """The name of the bundled model whose files are at `where`; any other path is returned unchanged."""
    path = Path(where)
    return path.relative_to(FOLDER).parts[0] if FOLDER in path.parents else where


def resolve_model(path: str | Path) -> str | Path:
    """The folder of a model that is given by its name: a bundled model, or owner/name on the Hub.

    An existing path and any other string are returned unchanged.
    """
    if not isinstance(path, str | os.PathLike):
        raise ElmoError(f"a model is given by its path or its name, got {path!r}: is a variable unset?")
    if not isinstance(path, str) or (not path.startswith(SCHEME) and _exists(path)):
        return path
    if path in bundled_models():
        return FOLDER / path
    if _TRANSFORMERS.match(name := path.lower().rsplit("/", maxsplit=1)[-1]) and "elmo" not in name:
        ready = "zh (Chinese)" if "chinese" in name else f"{DEFAULT} (English)"
        raise ElmoError(f"{path} is a model of another kind, and elmokit reads ELMo models: {ready} is in the package")
    repository = repository_of(path)
    if repository is None or (not path.startswith(SCHEME) and _is_prefix(path)):
        return path
    return download(repository)


def _is_prefix(path: str) -> bool:
    """Whether a path that does not exist is the common prefix of a model's files."""
    try:
        return find(Path(path)) is not None
    except ElmoError:  # the files exist and are damaged
        return True
    except OSError:
        return False


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, with NUL, or of an unknown user: the loader reports it
        return False


# Models on the Hugging Face Hub

SCHEME = "hf://"
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_ID = re.compile(rf"(?P<name>{_PART}/{_PART})(?:@(?P<revision>[\w./-]+))?")
_OTHER_ENDINGS = {".zip", ".gz", ".meta"}
"""Suffixes of files that are not downloaded but may be given as a path."""
_OFFLINE = ("1", "ON", "YES", "TRUE")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Repository:
    """A model on the Hub."""

    name: str
    """owner/name."""
    revision: str | None = None
    """A branch, tag or commit; None: the main branch."""

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def repository_of(path: str) -> Repository | None:
    """The repository of owner/name, owner/name@revision or hf://owner/name; None for any other path.

    >>> repository_of("someone/elmo-is@v2")
    Repository(name='someone/elmo-is', revision='v2')
    >>> repository_of("folder/weights.hdf5") is repository_of("./elmo") is repository_of("en") is None
    True
    """
    match = _ID.fullmatch(path.removeprefix(SCHEME))
    if path.startswith(SCHEME):
        if match is None:
            raise ElmoError(f"a model on the Hub is {SCHEME}owner/name or {SCHEME}owner/name@revision, got {path}")
    elif match is None or _is_file_name(match["name"]):
        return None
    return Repository(match["name"], match["revision"])


def _is_file_name(path: str) -> bool:
    """Whether a path that does not exist ends with the suffix of a model file."""
    ending = Path(path).suffix.lower()
    return bool(ending) and ending in {*_OTHER_ENDINGS, *(Path(pattern).suffix for pattern in file_patterns())}


def file_patterns() -> list[str]:
    """Patterns of the files of a repository to download: those that any format reads."""
    return sorted({pattern for format in formats() for pattern in format.files})


@cache  # a process asks the Hub once and uses the same files until it ends
def download(repository: Repository) -> Path:
    """The folder of a model in the Hub's cache, downloaded if it is missing or outdated.

    huggingface_hub reads HF_HOME, HF_HUB_CACHE, HF_TOKEN and HF_HUB_OFFLINE. If the Hub cannot be reached, the copy in
    the cache is used.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        what = f"{repository} does not exist as a path, and a model of that name on the Hugging Face Hub"
        raise MissingExtraError("huggingface_hub", "hub", what) from error
    fetch = partial(
        snapshot_download,
        repo_id=repository.name,
        revision=repository.revision,
        allow_patterns=file_patterns(),
        ignore_patterns=["*/*"],  # no folders
        library_name="elmokit",
    )
    try:
        return Path(fetch(local_files_only=False))
    except Exception as failure:  # noqa: BLE001 - a broken connection has another class in each version
        _refuse(repository, failure)
        try:
            found = Path(fetch(local_files_only=True))
        except Exception:  # noqa: BLE001
            raise _unreachable(repository, failure) from failure
        log.warning("the Hub cannot be reached (%s): %s is the copy in the cache", _reason(failure), repository)
        return found


def _refuse(repository: Repository, error: Exception) -> None:
    """Raise an ElmoError if the Hub itself refused the request."""
    kinds = {kind.__name__ for kind in type(error).__mro__}  # by name: the classes have moved between modules
    if "GatedRepoError" in kinds:
        raise ElmoError(
            f"{repository} is a gated model on the Hugging Face Hub: accept its terms at "
            f"https://huggingface.co/{repository.name} and set HF_TOKEN"
        ) from error
    if "RevisionNotFoundError" in kinds:
        raise ElmoError(
            f"{repository.name} on the Hugging Face Hub has no revision {repository.revision or 'main'}: give one that "
            "its page lists"
        ) from error
    if kinds & {"RepositoryNotFoundError", "HFValidationError"}:
        raise ElmoError(
            f"{repository} does not exist, neither as a path nor as a model on the Hugging Face Hub: check the name, "
            "or set HF_TOKEN if it is private"
        ) from error


def _unreachable(repository: Repository, error: Exception) -> ElmoError:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in _OFFLINE:
        return ElmoError(
            f"{repository} is neither a path nor complete in the cache of the Hugging Face Hub: unset "
            "HF_HUB_OFFLINE to fetch it"
        )
    return ElmoError(
        f"{repository} does not exist as a path, and could not be fetched from the Hugging Face Hub "
        f"({_reason(error)}): check the name and the connection"
    )


def _reason(error: Exception) -> str:
    """The first line of the original error, which the package wraps in other errors with advice."""
    while isinstance(cause := error.__cause__ or error.__context__, Exception):
        error = cause
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
