"""Text files → a prepared, memory-mapped corpus; for pre-training, analysis and embedding.

files.py        sources (files, folders, patterns, standard input) → a list of text files
reading.py      text files → sentences of tokens
encoding.py     sentences → type ids, in several processes
prepared.py     type ids → the files of a prepared corpus, and these files, memory-mapped
prepare.py      all of it: a corpus is found in the cache, or built there
report.py       what was read, used and skipped; progress
vocabulary.py   a prepared corpus → vocab.txt
lines.py        one text file, line by line, for what needs no prepared corpus
"""
