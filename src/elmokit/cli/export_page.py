"""`elmo export page`: writes the sense explorer as a folder of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmokit.cli.registry import command, group
from elmokit.cli.shared import MODEL_HELP, ModelFileOptions
from elmokit.messages import printable
from elmokit.options import REQUIRED, argument, option

group("export", "Export a model for other programs.")


@command("export page")
@dataclass(frozen=True, kw_only=True)
class ExportPageCommand(ModelFileOptions):
    """Write the sense explorer with its demo as a folder of files, which any file server can serve."""

    model: str = argument(MODEL_HELP, "MODEL")
    output: Path = option(REQUIRED, "The folder to write, which must be new or empty.", metavar="FOLDER")
    runtime: str = option(
        REQUIRED,
        "The folder dist of the npm package onnxruntime-web, which is copied, or its web address.",
        metavar="FOLDER|URL",
    )
    dtype: Literal["float32", "float16", "int8"] = option("float16", "dtype in which the model is stored.")

    def run(self) -> None:
        """Read the model and write the folder."""
        from elmokit.elmo import Elmo
        from elmokit.serve.static_page import export_page

        elmo = Elmo.load(self.model, options=self.options, vocab=self.vocab, device="cpu")
        about = export_page(elmo, self.output, runtime=self.runtime, dtype=self.dtype)
        print(printable(f"wrote {self.output} ({about})"))
