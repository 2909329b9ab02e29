"""`elmo export onnx`: writes a model as one ONNX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmokit.cli.registry import command, group
from elmokit.cli.shared import MODEL_HELP, ModelFileOptions
from elmokit.messages import printable
from elmokit.options import REQUIRED, argument, option

group("export", "Export a model for other programs.")


@command("export onnx")
@dataclass(frozen=True, kw_only=True)
class ExportOnnxCommand(ModelFileOptions):
    """Write a model as one ONNX file for Python without torch, a browser, or anything else that reads ONNX.

    Before the file is stored, its vectors are compared with those of elmokit.
    """

    model: str = argument(MODEL_HELP, "MODEL")
    output: Path = option(REQUIRED, "The file to write, which ends in .onnx.", metavar="FILE")
    dtype: Literal["float32", "float16", "int8"] = option(
        "float32", "dtype in which the weights are stored; the file computes in float32."
    )

    def run(self) -> None:
        """Read the model, write the file and print its largest difference from elmokit."""
        from elmokit.elmo import Elmo
        from elmokit.integrations.onnx_export import export_onnx

        elmo = Elmo.load(self.model, options=self.options, vocab=self.vocab, device="cpu")
        print(printable(str(export_onnx(elmo, self.output, dtype=self.dtype))))
