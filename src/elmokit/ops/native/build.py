"""Compiles the C sources in the folder source for this machine, and caches the library.

A library runs with all rights of this user. So a cached one is loaded only if no other user could have written it or
its folder, and if the checksum in its last bytes is right. Otherwise each process compiles its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import logging
import os
import platform
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from elmokit.storage.cache import cache_folder
from elmokit.storage.trusted import UntrustedError, WorkFolder, open_file, open_folder

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "source"
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")
MACHINES = (("-march=native",), ("-mcpu=native",), ())
"""Options that let a compiler use all instructions of this CPU; the first ones that it accepts are used."""
SECONDS = 120
"""Time limit for the compiler."""
_ALONE = "for this process only"
_CHECKSUM_BYTES = hashlib.sha256().digest_size
_LARGEST = 1 << 26
"""The most bytes that are read from a cached library; real ones are far smaller."""


class BuildError(Exception):
    """There is no library for this machine; the message is the reason, without a full stop."""


def find_compiler() -> list[str]:
    """The command of a C compiler: $CC, cc, gcc, clang, or the one in the wheel ziglang."""
    named = os.environ.get("CC")
    if named:
        command = shlex.split(named)
        if shutil.which(command[0]):
            return command
        raise BuildError(f"the compiler that CC names, {named}, was not found")
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            return [path]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise BuildError("no C compiler was found (cc, gcc, clang, or: pip install ziglang)")


@dataclass(frozen=True)
class CompiledLibrary:
    """The functions of the C sources, and a note if the library is not in the usual cache."""

    functions: ctypes.CDLL
    note: str | None = None
    """Where the library is instead, and why; None if it is in the usual cache."""


def load(compiler: Sequence[str] | None = None, machines: Sequence[Sequence[str]] = MACHINES) -> CompiledLibrary:
    """The library for this machine, compiled if it is not cached."""
    if os.name == "nt":  # its functions for threads and memory are different
        raise BuildError("they do not support Windows")
    command = list(compiler or find_compiler())
    name = f"{_fingerprint(command, machines)}.so"
    cache, note = _open_cache()
    try:
        with suppress(OSError):  # a library that cannot be loaded is compiled again
            if cache is not None and (cached := _read(cache, name)) is not None:
                return CompiledLibrary(_loaded(cached, name), note)
        compiled = _compile(command, machines)
        try:
            functions = _loaded(compiled, name)
        except OSError as error:
            raise BuildError(f"the library that {command[0]} compiled cannot be loaded: {error}") from error
        if cache is not None:
            try:
                _store(cache, name, compiled)
            except (OSError, UntrustedError) as error:
                note = f"{_ALONE}: {cache_folder()} cannot be written ({getattr(error, 'strerror', None) or error})"
    finally:
        if cache is not None:
            os.close(cache)
    if note is not None:
        log.info("the kernels are compiled %s", note)
    return CompiledLibrary(functions, note)


def _open_cache() -> tuple[int | None, str | None]:
    """The descriptor of the folder of compiled libraries, or None if no folder can be trusted; and a note for the user.

    If users share a cache, the first of them has the usual folder, and each of the others has a folder with their id.
    """
    folder = cache_folder() / "native"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            return open_folder(folder), None
        except UntrustedError as error:
            own = folder.with_name(f"native-{os.geteuid()}")
            with suppress(UntrustedError):
                return open_folder(own), f"in {own}: {error}"
            return None, f"{_ALONE}: {error}"
    except OSError as error:
        return None, f"{_ALONE}: {folder} cannot be used ({error.strerror or error})"


def _read(cache: int, name: str) -> bytes | None:
    """A cached library; None if there is none that is complete and belongs to this user or root."""
    try:
        with open(open_file(name, dir_fd=cache, private=True), "rb") as file:  # noqa: PTH123 - a descriptor
            data = file.read(_LARGEST)
    except (UntrustedError, OSError) as error:
        log.debug("no cached kernels: %s", error)
        return None
    library, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    return library if hashlib.sha256(library).digest() == checksum else None


def _store(cache: int, name: str, library: bytes) -> None:
    """Cache a library; of several processes at once, any may be the last one, because all store the same library."""
    temporary = f".{name}.{secrets.token_hex(8)}.tmp"
    fd = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=cache)
    try:
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(library + hashlib.sha256(library).digest())
            file.flush()
            os.fsync(fd)
        os.rename(temporary, name, src_dir_fd=cache, dst_dir_fd=cache)
    except BaseException:
        os.unlink(temporary, dir_fd=cache)
        raise


def _loaded(library: bytes, name: str) -> ctypes.CDLL:
    """The library, from a copy that no other process can change."""
    with suppress(OSError, AttributeError):  # only some systems have memfd_create
        fd = os.memfd_create(name)
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(library)
            # The descriptor stays open: the loader identifies a library by this path, so it must not be used again.
            return ctypes.CDLL(f"/proc/self/fd/{fd}")
        except OSError:
            os.close(fd)
    with _private_folder() as folder:
        (folder / name).write_bytes(library)
        return ctypes.CDLL(str(folder / name))


@contextmanager
def _private_folder() -> Iterator[Path]:
    """A new folder for temporary files that no other user can change or replace."""
    with ExitStack() as stack:
        try:
            folder = tempfile.TemporaryDirectory(prefix="elmokit.", ignore_cleanup_errors=True)
            work = stack.enter_context(closing(WorkFolder(Path(stack.enter_context(folder)))))
        except (OSError, UntrustedError) as error:
            raise BuildError(f"there is no folder for temporary files ({error})") from error
        yield work.path


def _compile(command: list[str], machines: Sequence[Sequence[str]]) -> bytes:
    log.info("compiling the kernels for this CPU with %s", " ".join(command))
    with _private_folder() as folder:
        target = folder / "library.so"
        # The compiler's temporary files are in the same folder. A compiler in Python must not import modules from it.
        environment = {**os.environ, "TMPDIR": str(folder), "PYTHONSAFEPATH": "1"}
        failure = ""
        for machine in machines:
            whole = [*command, *FLAGS, *machine, "-o", str(target), str(SOURCES / "library.c"), "-lm"]
            try:
                done = subprocess.run(
                    whole,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=SECONDS,
                    check=False,
                    env=environment,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise BuildError(f"the compiler {command[0]} did not run: {error}") from error
            if done.returncode == 0 and target.exists():
                return target.read_bytes()
            failure = next((line for line in done.stderr.splitlines() if "error" in line), f"status {done.returncode}")
            log.debug("%s failed:\n%s", shlex.join(whole), done.stderr)
    raise BuildError(f"the compiler {command[0]} failed: {failure}")


def _fingerprint(command: list[str], machines: Sequence[Sequence[str]]) -> str:
    """A hash of everything that the compiled library depends on: the sources, the flags, the compiler and the CPU."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    program = Path(shutil.which(command[0]) or command[0]).resolve()
    stat = program.stat() if program.exists() else None
    parts = [
        command,
        FLAGS,
        machines,
        str(program),
        stat and (stat.st_size, stat.st_mtime_ns),
        platform.platform(),
        _cpu(),
    ]
    digest.update(repr(parts).encode())
    return digest.hexdigest()[:32]


def _cpu() -> str:
    """The name of the CPU and its features, as far as the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    chosen = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(line for line in lines if line.startswith(chosen))
