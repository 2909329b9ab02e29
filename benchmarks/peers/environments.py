"""Create the environments of the peers: AllenNLP, and all-MiniLM-L6-v2 in several runtimes.

    python benchmarks/peers/environments.py allennlp [FOLDER]
    python benchmarks/peers/environments.py minilm [FOLDER]

Each is a virtual environment that shares this one's torch and numpy, so that all systems use the same builds and pip
downloads no others. AllenNLP is installed without its dependencies: the packages that it imports but ELMo never calls
are replaced by empty modules (`stand_ins.py`). AllenNLP itself is not changed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.storage.cache import cache_folder

BENCHMARKS = Path(__file__).resolve().parents[1]
CONSTRAINTS = BENCHMARKS.parent / "constraints.txt"
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Environment:
    """The environment of one peer."""

    title: str
    name: str
    """Name of the folder."""
    shared: tuple[str, ...]
    """Packages that it shares with this environment."""
    packages: tuple[str, ...]
    """Arguments of pip install."""
    check: str
    """Python code that runs without an error if the environment is complete."""

    def default_folder(self) -> Path:
        """The folder that stores the environment for later runs."""
        return cache_folder() / "peers" / f"{self.name}-python{_PYTHON}"

    def make(self, folder: Path | None = None) -> Path:
        """The environment's Python interpreter; an incomplete environment is first installed."""
        folder = folder or self.default_folder()
        python = folder / "bin" / "python"
        if self._works(python):
            return python
        self.run(Path(sys.executable), "-m", "venv", "--clear", str(folder))
        # The shared packages come first, so that pip sees them and installs no other torch.
        packages = next(folder.glob("lib/python*/site-packages"))
        folders = dict.fromkeys(str(Path(_found(name)).parents[1]) for name in self.shared)
        (packages / "shared.pth").write_text("\n".join(folders) + "\n", encoding="utf-8")
        self.run(python, "-m", "pip", "install", "--quiet", *self.packages)
        if not self._works(python):
            raise ElmoError(f"{self.title} was installed in {folder}, but it cannot be imported there")
        return python

    def run(self, python: Path, *arguments: str) -> None:
        """Run Python in the folder of the benchmarks; if it fails, the error contains its last line of output."""
        try:
            subprocess.run([python, *arguments], cwd=BENCHMARKS, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            written = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            reason = written[-1] if written else str(error)
            raise ElmoError(f"{self.title} could not be prepared: {reason}") from error

    def _works(self, python: Path) -> bool:
        if not python.exists():
            return False
        command = [python, "-W", "ignore", "-c", self.check]
        return not subprocess.run(command, cwd=BENCHMARKS, check=False, capture_output=True).returncode


def _found(name: str) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ElmoError(f"a peer needs the package {name}, which is not installed: install it first")
    return spec.origin


ALLENNLP = Environment(
    title="AllenNLP 2.10.1",
    name="allennlp-2.10.1",
    shared=("torch", "numpy", "h5py"),
    packages=("--no-deps", "allennlp==2.10.1"),
    check="from peers import stand_ins; stand_ins.install(); import allennlp.modules.elmo",
)

MINILM = Environment(
    title="all-MiniLM-L6-v2",
    name="minilm",
    shared=("torch", "numpy", "safetensors"),
    packages=("--constraint", os.fspath(CONSTRAINTS), "onnxruntime", "onnx", "tokenizers", "transformers"),
    check="import onnx, onnxruntime, tokenizers, torch; from transformers import BertModel",
)
ENVIRONMENTS = {"allennlp": ALLENNLP, "minilm": MINILM}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=ENVIRONMENTS)
    parser.add_argument("folder", nargs="?", type=Path, help="[in elmokit's cache]")
    given = parser.parse_args()
    print(ENVIRONMENTS[given.name].make(given.folder))


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        sys.exit(f"environments.py: {error}")
