"""Vectors on disk: what `elmo embed --input FILE --output FILE` writes.

lines → embed_lines.py → OUTPUT.partial → a writer of sentence_vectors.py → OUTPUT → read_vectors

embed_lines.py        tokenise, encode, append, commit, write; the crash-safe folder of a run
sentence_vectors.py   what is in that folder, as writers read it
writers/              the registry of formats, and one module per format
"""

from elmokit.output.embed_lines import Summary, check_output, embed_lines
from elmokit.output.sentence_vectors import SentenceVectors, VectorShape
from elmokit.output.writers import read_vectors, register_writer, unregister_writer, writer_for

__all__ = [
    "SentenceVectors",
    "Summary",
    "VectorShape",
    "check_output",
    "embed_lines",
    "read_vectors",
    "register_writer",
    "unregister_writer",
    "writer_for",
]
