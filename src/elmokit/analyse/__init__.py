"""Analysis of contextual vectors: search for similar contexts, senses of a word, pictures, and probes of the layers.

choice.py              the selection of the occurrences that an index contains, and their rows
index_builder.py       a model and a corpus → an index on the disk
index.py               the index, memory-mapped, and its search
index_cache.py         finds or builds the index that a command uses
neighbours.py          nearest contexts
senses.py              the occurrences of a word in clusters (clusters.py)
pictures.py            pictures, in the style of elmokit.plots
sentence_display.py    sentences on a terminal
probes/                how well each layer predicts parts of speech and senses
"""

from elmokit.analyse.choice import Choice
from elmokit.analyse.index import OccurrenceIndex
from elmokit.analyse.index_builder import build_index
from elmokit.analyse.neighbours import Neighbour, neighbours
from elmokit.analyse.senses import Sense, Senses, find_senses

__all__ = ["Choice", "Neighbour", "OccurrenceIndex", "Sense", "Senses", "build_index", "find_senses", "neighbours"]
