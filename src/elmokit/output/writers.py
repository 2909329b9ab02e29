"""Which writer an output gets: by the ending of its name, and for HDF5 by the layout asked for."""

from collections.abc import Callable
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.output.stored import Stored

Writer = Callable[[Stored, Path], None]

LAYOUTS = ("elmokit", "bilm", "allennlp")
ENDINGS = (".h5", ".hdf5", ".npz", ".parquet", ".jsonl")


def writer_for(path: Path, layout: str = "elmokit") -> Writer:
    """The writer for a path like out.h5; raises an ElmoError for an unknown ending, layout or a missing package."""
    ending = path.suffix.lower()
    if layout not in LAYOUTS:
        raise ElmoError(f"--format must be one of {', '.join(LAYOUTS)}, got {layout}")
    if ending not in ENDINGS:
        raise ElmoError(f"--output must end in one of {', '.join(ENDINGS)}, got {path}")
    if ending in (".h5", ".hdf5"):
        from elmokit.output import hdf5

        return {"elmokit": hdf5.write_elmokit, "bilm": hdf5.write_bilm, "allennlp": hdf5.write_allennlp}[layout]
    if layout != "elmokit":
        raise ElmoError(f"--format {layout} is a layout of HDF5, got {path}: let --output end in .h5 or drop --format")
    if ending == ".npz":
        from elmokit.output import npz

        return npz.write
    if ending == ".jsonl":
        from elmokit.output import jsonl

        return jsonl.write
    from elmokit.output import parquet

    parquet.load_pyarrow("Writing parquet")  # missing packages must show before hours of work, not after
    return parquet.write
