"""Files of vectors, as `elmo embed --input FILE --output FILE` writes them.

lines → embed_lines.py → OUTPUT.partial → a writer → OUTPUT → read_vectors

embed_lines.py        tokenise, encode, append, commit, write; the crash-safe folder OUTPUT.partial of a run
embed_folder.py       a folder of texts → a folder of vector files, by several processes
sentence_vectors.py   the content of OUTPUT.partial, as writers read it
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
