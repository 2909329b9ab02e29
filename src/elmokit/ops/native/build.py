"""The C sources beside this file, compiled once for this machine and kept in the cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from elmokit.storage.atomic import sync
from elmokit.storage.cache import cache_folder

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "source"
FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-shared", "-fPIC", "-pthread")
MACHINES = (("-march=native",), ("-mcpu=native",), ())
"""How compilers are told to use all that this CPU has; the first that a compiler takes."""
SECONDS = 120
"""A compiler that takes longer hangs."""


class BuildError(Exception):
    """There is no library for this machine; the message says why in a sentence without an end."""


def find_compiler() -> list[str]:
    """The command of a C compiler: $CC, cc, gcc, clang, or the one in the wheel ziglang."""
    named = os.environ.get("CC")
    if named:
        command = shlex.split(named)
        if shutil.which(command[0]):
            return command
        raise BuildError(f"the compiler that CC names, {named}, is not there")
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            return [path]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise BuildError("there is no C compiler here (cc, gcc, clang, or: pip install ziglang)")


def load(compiler: Sequence[str] | None = None, machines: Sequence[Sequence[str]] = MACHINES) -> ctypes.CDLL:
    """The library for this machine, compiled where it has not been before."""
    if os.name == "nt":  # its threads and its memory are others
        raise BuildError("they are not made for Windows")
    command = list(compiler or find_compiler())
    name = f"{_fingerprint(command, machines)}.so"
    folder = cache_folder() / "native"
    kept = folder / name
    with suppress(OSError):  # a file that cannot be loaded is made anew
        if kept.exists():
            return ctypes.CDLL(str(kept))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work = tempfile.TemporaryDirectory(prefix=".building.", dir=folder)
    except OSError as error:
        log.info("%s cannot keep the compiled kernels: %s", folder, error)
        work = tempfile.TemporaryDirectory(prefix="elmokit.", ignore_cleanup_errors=True)
    with work:
        made = Path(work.name) / name
        _compile(command, machines, made)
        try:
            library = ctypes.CDLL(str(made))
        except OSError as error:
            raise BuildError(f"what the compiler {command[0]} made cannot be loaded: {error}") from error
        with suppress(OSError):
            if made.parent.parent == folder:
                # Another process may do the same at this moment: both files are whole, and either may win.
                sync(made)
                made.replace(kept)
    return library


def _compile(command: list[str], machines: Sequence[Sequence[str]], target: Path) -> None:
    log.info("compiling the kernels for this CPU with %s, once", " ".join(command))
    failure = ""
    for machine in machines:
        whole = [*command, *FLAGS, *machine, "-o", str(target), str(SOURCES / "library.c"), "-lm"]
        try:
            done = subprocess.run(whole, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(f"the compiler {command[0]} did not run: {error}") from error
        if done.returncode == 0 and target.exists():
            return
        failure = next((line for line in done.stderr.splitlines() if "error" in line), f"status {done.returncode}")
        log.debug("%s failed:\n%s", shlex.join(whole), done.stderr)
    raise BuildError(f"the compiler {command[0]} failed: {failure}")


def _fingerprint(command: list[str], machines: Sequence[Sequence[str]]) -> str:
    """What the compiled library depends on: the sources, the flags, the compiler and the CPU."""
    found = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        found.update(source.name.encode() + b"\0" + source.read_bytes())
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
    found.update(repr(parts).encode())
    return found.hexdigest()[:32]


def _cpu() -> str:
    """The CPU's name and what it can do, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    kept = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(line for line in lines if line.startswith(kept))
