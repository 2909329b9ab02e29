"""What `elmo models` does: a table of the models that come with the package, from their configurations alone."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open

from elmokit.config import ElmoConfig
from elmokit.formats.bundled import FOLDER, bundled_models
from elmokit.formats.source import FolderSource, read_json

_HEAD = ("name", "language", "vectors", "size", "softmax", "what it is")


def run_models() -> None:
    """Print a line for each bundled model, under a line that names the columns."""
    rows = [_HEAD, *(_row(name) for name in bundled_models())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{value:<{width}}" for value, width in zip(row, widths, strict=True)).rstrip())


def _row(name: str) -> tuple[str, ...]:
    folder = FOLDER / name
    values = read_json(FolderSource(folder), "config.json")
    config, about = ElmoConfig.from_dict(values["model"]), values.get("about", {})
    size = sum(file.stat().st_size for file in folder.iterdir())
    return (
        name,
        about.get("language", "-"),
        f"{config.n_outputs} layers x {config.vector_size}",
        f"{size / 1e6:.1f} MB",
        _softmax(folder / "lm_head.safetensors"),
        about.get("description", "-"),
    )


def _softmax(path: Path) -> str:
    if not path.exists():
        return "none"
    with safe_open(path, "np") as file:
        (n_words,) = file.get_slice("bias").get_shape()
        bits = "" if "weight" in file.keys() else ", 8 bits"  # noqa: SIM118 - it is no dictionary
    return f"{n_words:,} words{bits}"
