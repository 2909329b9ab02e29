"""Shared by the compat modules: loading a model by path, name or URL, and checking sentences that are lists.

The file at a URL is downloaded once, complete or not at all, and then stored in the cache.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote
from urllib.request import Request, urlopen

import torch
from tqdm import tqdm

from elmokit.elmo import Elmo
from elmokit.errors import DamagedFileError, ElmoError
from elmokit.formats.bundled import SCHEME
from elmokit.storage.atomic import atomic_file, disk_errors
from elmokit.storage.cache import cache_folder


def load_elmo(
    model: str | Path,
    options: str | Path | None = None,
    *,
    stateful: bool = False,
    device: str | torch.device | None = None,
) -> Elmo:
    """Load a model of any format: a path, a bundled name, `owner/name` on the Hub, or an http(s) address.

    `stateful` carries state from call to call, as the old systems did; it has no effect on a Transformer, which has no
    state.
    """
    elmo = Elmo.load(model_path(model), options=None if options is None else model_path(options), device=device)
    if stateful and elmo.bilm.context.carries_state:
        elmo.state = "carry"
    return elmo


def model_path(path: str | Path) -> str | Path:
    """The path for `Elmo.load`; the file at an http(s) address is downloaded once."""
    return local_path(path) if str(path).lower().startswith(("http://", "https://")) else path


def token_lists(sentences: Iterable[Sequence[str]], argument: str) -> list[list[str]]:
    """Sentences as lists of words; a string is refused, because its characters would become words."""
    if isinstance(sentences, str):
        raise ElmoError(f"{argument} must be a list of sentences, got the string {sentences[:40]!r}", argument)
    rows = []
    for sentence in sentences:
        if isinstance(sentence, str):
            raise ElmoError(
                f"{argument} must be lists of words, got the string {sentence[:40]!r}: split it into words, or into "
                "characters with list(…)",
                argument,
            )
        rows.append(list(sentence))
        if not all(isinstance(word, str) for word in rows[-1]):
            raise ElmoError(f"{argument} must be lists of words, got {rows[-1][:3]!r}", argument)
    return rows


_PLAIN = frozenset(string.ascii_letters + string.digits + "._-")
_BY_HAND = "download the file by hand and pass its path"
_LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?(/|\Z)", re.IGNORECASE)
_DIGEST = re.compile(r"#sha256=([0-9A-Fa-f]{64})\Z")
_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60


def local_path(path: str | Path) -> str | Path:
    """The local file of an http(s) address, downloaded once; a path or the name of a model is returned as it is.

    Files are stored in the folder named by ELMOKIT_CACHE, or in ~/.cache/elmokit. An address may end in
    `#sha256=` and the digest of the file, which is then checked; an http:// address must have a digest.
    """
    if isinstance(path, Path) or "://" not in path or path.startswith(SCHEME):
        return path
    _check_address(path, path)
    target = cached_as(path)
    if not target.is_file():
        with disk_errors(f"the cache folder {target.parent}", "name another with ELMOKIT_CACHE"):
            target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(target) as temporary, temporary.open("wb") as file:
            for block in _download(path):
                file.write(block)
    return target


@contextmanager
def local_paths(*paths: str | Path | None) -> Iterator[list[Any]]:
    """The local files of several paths, for a block that reads them.

    A download that the block finds damaged is removed from the cache.
    """
    files = [None if path is None else local_path(path) for path in paths]
    try:
        yield files
    except DamagedFileError as error:
        for path, file in zip(paths, files, strict=True):
            if isinstance(file, Path) and file != path and str(file) in str(error):
                file.unlink(missing_ok=True)
                raise DamagedFileError(f"{error} (it is removed from the cache; the next call downloads it)") from error
        raise


def cached_as(url: str) -> Path:
    """The path of an address in the cache: a short hash of the whole address and its base name."""
    base = unquote(url.partition("?")[0].partition("#")[0]).rpartition("/")[2]
    name = "".join(letter if letter in _PLAIN else "_" for letter in base)[-100:]
    return cache_folder() / f"{hashlib.sha256(url.encode('utf-8', 'replace')).hexdigest()[:12]}-{name}"


def _check_address(url: str, given: str) -> None:
    """Refuse an address whose file could be replaced in transit, unless `given` has the file's digest."""
    address = url.partition("://")
    if address[0].lower() not in ("http", "https"):
        raise ElmoError(f"an address must begin with https:// or http://, got {url}: {_BY_HAND}")
    on_this_machine = _LOCAL.match(address[2]) is not None
    if address[0].lower() == "http" and not on_this_machine and _DIGEST.search(given) is None:
        raise ElmoError(
            f"a file from {url} could be replaced in transit: use https://, or end the address in #sha256= and the "
            "file's digest"
        )


def _download(url: str) -> Iterator[bytes]:
    """Yield the blocks of a file; an error at the end if the file is not complete or has another digest."""
    got, digest, expected = 0, hashlib.sha256(), _DIGEST.search(url)
    try:
        with urlopen(Request(url, headers={"User-Agent": "elmokit"}), timeout=_TIMEOUT_SECONDS) as response:
            _check_address(response.geturl(), url)  # of a redirect
            announced = response.headers.get("Content-Length", "")
            size = int(announced) if announced.isascii() and announced.isdigit() else None
            with tqdm(total=size, desc=cached_as(url).name, unit="B", unit_scale=True, disable=None) as bar:
                while block := response.read(_BLOCK):
                    got += len(block)
                    digest.update(block)
                    bar.update(len(block))
                    yield block
    except ElmoError:
        raise
    except HTTPError as error:
        error.close()
        raise _failed(url, f"the server answered {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise _failed(url, str(reason) or type(error).__name__) from error
    if size is not None and got != size:
        raise _failed(url, f"only {got} of {size} bytes arrived")
    if expected is not None and digest.hexdigest() != expected[1].lower():
        raise _failed(url, f"its sha256 is {digest.hexdigest()}")


def _failed(url: str, reason: str) -> ElmoError:
    return ElmoError(f"{url} could not be downloaded ({reason.splitlines()[0]}): {_BY_HAND}")
