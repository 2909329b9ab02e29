"""Looking inside: where words occur, what their neighbours are, what each layer knows.

choosing.py           which occurrences of a corpus are kept → their rows
building.py           a model and a corpus → an index on the disk; index_text.py is a part of it
index.py              the index, memory-mapped; vectors.py and coarse.py are how it is searched
finding.py            the index that a command asks, named or in the cache
nearest.py            nearest contexts
clusters.py, senses.py    occurrences of a word → clusters, with examples and typical words
plane.py              many numbers a point → two
*_picture.py          the pictures, on figures.py, labels.py and fonts.py
showing.py            sentences on a terminal
probes/               what a layer knows about parts of speech and senses
"""

from elmokit.analyse.building import build_index
from elmokit.analyse.choosing import Choice
from elmokit.analyse.index import OccurrenceIndex
from elmokit.analyse.nearest import Neighbour, neighbours
from elmokit.analyse.senses import Sense, Senses, find_senses

__all__ = ["Choice", "Neighbour", "OccurrenceIndex", "Sense", "Senses", "build_index", "find_senses", "neighbours"]
