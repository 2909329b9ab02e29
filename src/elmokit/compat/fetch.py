"""Downloads the file at an address once, complete or not at all; from then on it is in the cache."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote
from urllib.request import Request, urlopen

from tqdm import tqdm

from elmokit.errors import ElmoError
from elmokit.formats.hub import SCHEME, fetched, repository_of
from elmokit.storage.atomic import atomic_file, disk_errors
from elmokit.storage.cache import cache_folder

_PLAIN = frozenset(string.ascii_letters + string.digits + "._-")
_BY_HAND = "download the file by hand and pass its path"
_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60


def local_path(path_or_url: str | Path) -> Path:
    """A path as it is; or the local file of an http(s) address, or the folder of hf://owner/name, downloaded once.

    Files are stored in the folder named by ELMOKIT_CACHE, or in ~/.cache/elmokit; models of the Hub in its own cache.
    """
    if isinstance(path_or_url, Path) or "://" not in path_or_url:
        return Path(path_or_url).expanduser()
    if path_or_url.startswith(SCHEME) and (repository := repository_of(path_or_url)) is not None:
        return fetched(repository)
    if not path_or_url.lower().startswith(("http://", "https://")):
        raise ElmoError(f"an address must begin with http:// or https://, got {path_or_url}: {_BY_HAND}")
    target = cached_as(path_or_url)
    if not target.is_file():
        with disk_errors(f"the cache folder {target.parent}", "name another with ELMOKIT_CACHE"):
            target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as temporary, temporary.open("wb") as file:
            for block in _download(path_or_url):
                file.write(block)
    return target


def cached_as(url: str) -> Path:
    """The path of an address in the cache: a short hash of the whole address and its base name."""
    base = unquote(url.partition("?")[0].partition("#")[0]).rpartition("/")[2]
    name = "".join(letter if letter in _PLAIN else "_" for letter in base)[-100:]
    return cache_folder() / f"{hashlib.sha256(url.encode('utf-8', 'replace')).hexdigest()[:12]}-{name}"


def _download(url: str) -> Iterator[bytes]:
    """Yield the blocks of a file; an error if fewer bytes came than were announced."""
    got = 0
    try:
        with urlopen(Request(url, headers={"User-Agent": "elmokit"}), timeout=_TIMEOUT_SECONDS) as response:
            announced = response.headers.get("Content-Length", "")
            size = int(announced) if announced.isascii() and announced.isdigit() else None
            with tqdm(total=size, desc=cached_as(url).name, unit="B", unit_scale=True, disable=None) as bar:
                while block := response.read(_BLOCK):
                    got += len(block)
                    bar.update(len(block))
                    yield block
    except HTTPError as error:
        error.close()
        raise _failed(url, f"the server answered {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise _failed(url, str(reason) or type(error).__name__) from error
    if size is not None and got != size:
        raise _failed(url, f"{got} of {size} bytes came")


def _failed(url: str, reason: str) -> ElmoError:
    return ElmoError(f"{url} could not be downloaded ({reason.splitlines()[0]}): {_BY_HAND}")
