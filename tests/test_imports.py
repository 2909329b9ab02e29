"""The order of the package: imports go one way, and nothing heavy or optional comes before it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import elmokit

SOURCE = Path(elmokit.__file__).parent
MODULES = sorted(
    ".".join(("elmokit", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
)
# From the bottom to the top; a module imports from its own level and from those below.
LEVELS = [
    {"errors"},
    {"extensions"},
    {"storage", "config", "layers", "messages", "options", "progress"},
    {"plots"},
    {"text"},
    {"corpus"},
    {"ops"},
    {"model"},
    {"formats", "encode", "output"},
    {"elmo"},
    {"pretrain"},
    {"tasks", "compat"},
    {"analyse"},
    {"integrations", "sklearn"},
    {"serve"},
    {"cli", "__main__"},
]
LEVEL = {package: number for number, packages in enumerate(LEVELS) for package in packages}
EXTRAS = (
    "jieba", "pyarrow", "matplotlib", "sklearn", "zstandard", "tensorboard", "huggingface_hub", "triton", "tensorflow",
    "allennlp", "starlette", "uvicorn", "prometheus_client", "orjson",
    "spacy", "transformers", "sentence_transformers", "langchain_core", "llama_index", "flair", "gensim", "datasets",
    "ray", "onnx", "onnxruntime",
)  # fmt: skip

LIGHT = {"elmokit.serve", "elmokit.serve.settings", "elmokit.serve.errors"}
SERVER = {module for module in MODULES if module.startswith("elmokit.serve.")} - LIGHT
"""Only `elmo serve` imports them, and says which extra they need."""


def package_of(module: str) -> str:
    return module.split(".")[1]


def imports_of(module: str) -> set[str]:
    path = SOURCE.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("elmokit"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("elmokit")}
    return found - {"elmokit"}


@pytest.mark.parametrize("module", [module for module in MODULES if module != "elmokit"])
def test_imports_go_one_way(module):
    for imported in imports_of(module):
        assert LEVEL[package_of(imported)] <= LEVEL[package_of(module)], (
            f"{module} imports {imported}, which is above it"
        )


def test_no_module_imports_itself_in_a_circle():
    edges = {
        module: {name for name in imports_of(module) if name != module} for module in MODULES if module != "elmokit"
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " → ".join((*path, module))
        if module not in done:
            for name in edges.get(module, ()):
                visit(name, (*path, module))
            done.add(module)

    for module in edges:
        visit(module, ())


def run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_every_module_imports_without_extras():
    """As on a machine where nobody installed an extra: importing one is an error."""
    code = f"""
import importlib, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from elmokit.errors import MissingExtraError
for name in {[each for each in MODULES if each not in SERVER]!r}:
    if name != "elmokit.__main__":
        try:
            importlib.import_module(name)
        except MissingExtraError as error:
            print(name, error)
"""
    # A class of another library's cannot be without it; the adapter's module says so.
    lines = run(code).splitlines()
    assert any(line.startswith("elmokit.sklearn ElmoVectorizer needs the package scikit-learn") for line in lines)
    for line in lines:
        assert line.startswith(("elmokit.integrations.", "elmokit.sklearn "))
        assert " needs the package " in line


def test_help_does_not_wait_for_torch():
    code = """
import sys
import elmokit.cli
try:
    elmokit.cli.main(["--help"])
except SystemExit as stop:
    assert stop.code == 0, stop.code
print([name for name in ("torch", "numpy", "h5py") if name in sys.modules])
"""
    assert run(code).strip().endswith("[]")


def test_public_names():
    assert set(elmokit.__all__) == {"BiLM", "Elmo", "ElmoConfig", "ElmoError", "ScalarMix"}
    for name in elmokit.__all__:
        assert getattr(elmokit, name).__name__ == name
        assert name in dir(elmokit)
    with pytest.raises(AttributeError, match="no attribute 'Bert'"):
        elmokit.Bert  # noqa: B018
