"""`elmo info`: what a model is."""

from __future__ import annotations

from dataclasses import dataclass

from elmokit.cli.registry import command
from elmokit.cli.shared import MODEL_HELP, ModelFileOptions, aligned
from elmokit.options import argument


@command("info")
@dataclass(frozen=True, kw_only=True)
class InfoCommand(ModelFileOptions):
    """Show what a model is. Its format, its sizes and what it contains."""

    model: str = argument(MODEL_HELP, "MODEL")

    def run(self) -> None:
        """Print one line for each fact."""
        from elmokit.formats.card import describe
        from elmokit.formats.load import read_checkpoint

        checkpoint = read_checkpoint(self.model, options=self.options, vocab=self.vocab)
        rows = [("file", checkpoint.where), *describe(checkpoint)]
        if checkpoint.text:
            rows.append(("text is read with", " ".join(f"--{name} {value}" for name, value in checkpoint.text.items())))
        print("\n".join(aligned(rows)))
