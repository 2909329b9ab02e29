"""The text a model is trained on, from files of any kind to arrays of type ids on disk.

files.py        the CORPUS arguments: files, globs, folders, standard input → inputs in a fixed order
reading.py      inputs → pieces of bytes that end where a line or a paragraph ends
splitting.py    paragraphs → sentences
sentences.py    pieces → sentences of tokens, with a note of what was skipped
encoding.py     pieces → type ids; workers.py does it in several processes, quick_jieba.py is for these
report.py       what was read, kept and skipped, for a person and for corpus.json
building.py     type ids → the files of a prepared corpus, in a folder of storing.py
prepared.py     these files, memory-mapped
shelf.py        the folder that prepared corpora share, and their names there
prepare.py      all of it: found in the cache or built there, once for all processes that ask
vocabulary.py   counts → vocab.txt
"""
