"""Make an environment in which AllenNLP's Elmo module imports on today's Python.

    python benchmarks/peers/allennlp_environment.py [FOLDER]

It is `pip install --no-deps allennlp==2.10.1` in a virtual environment that shares this one's torch, numpy and h5py, so
that both systems run on the same build of them. What else AllenNLP imports and ELMo never calls is replaced by empty
modules (`stand_ins.py`); AllenNLP itself is not edited.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.storage.cache import cache_folder

VERSION = "2.10.1"
SHARED = ("torch", "numpy", "h5py")
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def default_folder() -> Path:
    """Where the environment is kept from one run to the next."""
    return cache_folder() / "peers" / f"allennlp-{VERSION}-python{_PYTHON}"


def python_of(folder: Path) -> Path:
    """The environment's interpreter."""
    return folder / "bin" / "python"


def make(folder: Path) -> Path:
    """The interpreter of an environment that has AllenNLP, made where it is not there yet."""
    if _works(folder):
        return python_of(folder)
    _run(sys.executable, "-m", "venv", "--clear", str(folder))
    _run(str(python_of(folder)), "-m", "pip", "install", "--quiet", "--no-deps", f"allennlp=={VERSION}")
    packages = next(folder.glob("lib/python*/site-packages"))
    places = dict.fromkeys(str(Path(_found(name)).parents[1]) for name in SHARED)
    (packages / "shared.pth").write_text("\n".join(places) + "\n", encoding="utf-8")
    if not _works(folder):
        raise ElmoError(f"AllenNLP {VERSION} was installed in {folder} and does not import there")
    return python_of(folder)


def _found(name: str) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ElmoError(f"the package {name} is needed to run AllenNLP, and it is not installed")
    return spec.origin


def _works(folder: Path) -> bool:
    if not python_of(folder).exists():
        return False
    code = "from peers import stand_ins; stand_ins.install(); import allennlp.modules.elmo"
    where = Path(__file__).resolve().parents[1]
    return not subprocess.run(
        [python_of(folder), "-W", "ignore", "-c", code], cwd=where, check=False, capture_output=True
    ).returncode


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        raise ElmoError(f"AllenNLP's environment could not be made: {said[-1] if said else error}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=default_folder(), help="[%(default)s]")
    print(make(parser.parse_args().folder))


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        sys.exit(f"allennlp_environment.py: {error}")
