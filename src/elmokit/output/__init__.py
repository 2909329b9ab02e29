"""Vectors on disk: what `elmo embed --input FILE --output FILE` does with them.

lines → embed_lines → OUTPUT.partial (spool) → writer → OUTPUT → read_vectors

embed_lines.py   the driver: tokenise, encode, append, commit, write
spool.py         the crash-safe folder, with journal.py
stored.py        what is in it, as writers read it; shape.py is the order of its numbers
writers.py       which writer by the file's ending: hdf5.py (guarded_hdf5.py), npz.py, parquet.py, jsonl.py
read.py          vectors back from any of these
"""

from elmokit.output.embed_lines import Summary, check_output, embed_lines
from elmokit.output.read import read_vectors
from elmokit.output.writers import ENDINGS, LAYOUTS, writer_for

__all__ = [
    "ENDINGS",
    "LAYOUTS",
    "Summary",
    "check_output",
    "embed_lines",
    "read_vectors",
    "writer_for",
]
