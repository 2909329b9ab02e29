"""Make the environments in which the peers run: AllenNLP, and all-MiniLM-L6-v2 in several runtimes.

    python benchmarks/peers/environments.py allennlp [FOLDER]
    python benchmarks/peers/environments.py minilm [FOLDER]

Each is a virtual environment that shares this one's torch and numpy, so that all systems run on the same build of them
and pip downloads no other. Of AllenNLP only the package itself is installed: what else it imports and ELMo never calls
is replaced by empty modules (`stand_ins.py`); AllenNLP itself is not edited.
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
    """What one peer needs."""

    title: str
    name: str
    """Of its folder."""
    shared: tuple[str, ...]
    """Packages of this environment that it uses."""
    packages: tuple[str, ...]
    """What pip installs, with its options."""
    check: str
    """Python code that runs where the environment is complete."""

    def default_folder(self) -> Path:
        """Where the environment is stored from one run to the next."""
        return cache_folder() / "peers" / f"{self.name}-python{_PYTHON}"

    def make(self, folder: Path | None = None) -> Path:
        """The environment's interpreter; what is missing is installed first."""
        folder = folder or self.default_folder()
        python = folder / "bin" / "python"
        if self._works(python):
            return python
        self.run(Path(sys.executable), "-m", "venv", "--clear", str(folder))
        # The shared packages come first, so that pip sees them and installs no other torch.
        packages = next(folder.glob("lib/python*/site-packages"))
        places = dict.fromkeys(str(Path(_found(name)).parents[1]) for name in self.shared)
        (packages / "shared.pth").write_text("\n".join(places) + "\n", encoding="utf-8")
        self.run(python, "-m", "pip", "install", "--quiet", *self.packages)
        if not self._works(python):
            raise ElmoError(f"{self.title} was installed in {folder} and does not import there")
        return python

    def run(self, python: Path, *arguments: str) -> None:
        """Run Python in the folder of the benchmarks; where it fails, the last line that it wrote is the reason."""
        try:
            subprocess.run([python, *arguments], cwd=BENCHMARKS, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            written = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            reason = written[-1] if written else str(error)
            raise ElmoError(f"{self.title} could not be made ready: {reason}") from error

    def _works(self, python: Path) -> bool:
        if not python.exists():
            return False
        command = [python, "-W", "ignore", "-c", self.check]
        return not subprocess.run(command, cwd=BENCHMARKS, check=False, capture_output=True).returncode


def _found(name: str) -> str:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ElmoError(f"the package {name} is needed to run a peer, and it is not installed")
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
