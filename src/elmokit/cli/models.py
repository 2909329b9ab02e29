"""`elmo models` lists the bundled models, and `elmo info` describes a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from elmokit.cli.registry import Command, command
from elmokit.cli.shared import MODEL_HELP, ModelFileOptions
from elmokit.formats.bundled import FOLDER, bundled_models
from elmokit.messages import aligned
from elmokit.options import argument


@command("models")
@dataclass(frozen=True, kw_only=True)
class ModelsCommand(Command):
    """List the models of the package. Use a name wherever a command takes a MODEL."""

    def run(self) -> None:
        """Print a table with one line for each model."""
        rows = [("name", "language", "vectors", "size", "softmax", "description"), *map(_row, bundled_models())]
        print("\n".join(aligned(rows)))


def _row(name: str) -> tuple[str, ...]:
    from elmokit.config import ElmoConfig
    from elmokit.formats.source import FolderSource, read_json

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
    from safetensors import safe_open

    if not path.exists():
        return "none"
    with safe_open(path, "np") as file:
        (n_words,) = file.get_slice("bias").get_shape()
        dtype = "" if "weight" in file.keys() else ", int8"  # noqa: SIM118 - it is no dictionary
    return f"{n_words:,} words{dtype}"


@command("info")
@dataclass(frozen=True, kw_only=True)
class InfoCommand(ModelFileOptions):
    """Describe a model: its format, its sizes and its parts."""

    model: str = argument(MODEL_HELP, "MODEL")

    def run(self) -> None:
        """Print one line for each property."""
        from elmokit.formats.card import describe
        from elmokit.formats.load import read_checkpoint

        checkpoint = read_checkpoint(self.model, options=self.options, vocab=self.vocab)
        rows = [("file", checkpoint.where), *describe(checkpoint)]
        if checkpoint.text:
            rows.append(("text is read with", " ".join(f"--{name} {value}" for name, value in checkpoint.text.items())))
        print("\n".join(aligned(rows)))
