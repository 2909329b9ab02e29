"""`elmo convert`: converts a model to another format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmokit.cli.registry import command
from elmokit.cli.shared import MODEL_HELP, ModelFileOptions
from elmokit.formats.registry import DEFAULT_FORMAT
from elmokit.messages import printable
from elmokit.options import argument, option


@command("convert")
@dataclass(frozen=True, kw_only=True)
class ConvertCommand(ModelFileOptions):
    """Convert a model to another format. The default is elmokit's own; bilm is options.json with weights.hdf5."""

    source: str = argument(MODEL_HELP, "SRC")
    target: Path = argument("The folder to write; a .hdf5 file for --to tokens.", "DST")
    to: str = option(DEFAULT_FORMAT, "The format to write, such as elmokit, bilm or tokens.", metavar="FORMAT")
    dtype: Literal["float32", "float16", "int8"] | None = option(
        None, "dtype in which the network is stored; int8 is the smallest.", shown="unchanged"
    )
    softmax: Literal["float32", "float16", "int8", "none"] | None = option(
        None, "dtype in which the softmax is stored; none leaves it out.", shown="a float --dtype, otherwise unchanged"
    )
    overwrite: bool = option(False, "Replace the files of a model that is already in DST.")

    def run(self) -> None:
        """Read the model and write it."""
        from elmokit.formats.save import convert_model

        written = convert_model(
            self.source,
            self.target,
            to=self.to,
            dtype=self.dtype,
            softmax=self.softmax,
            options=self.options,
            vocab=self.vocab,
            overwrite=self.overwrite,
        )
        print(printable(f"wrote {written}"))
