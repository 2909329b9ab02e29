"""From text files to a prepared, memory-mapped corpus, for pre-training, analysis and embedding.

reading.py          sources (files, folders, patterns, standard input) → text files → sentences of tokens
encoding.py         sentences → type ids, in several processes
worker_process.py   a second Python process and the messages between it and this one
prepared.py         type ids → the files of a prepared corpus; opening these files; the vocabulary
prepare.py          the whole process: a corpus is found in the cache, or built there
report.py           counts of the text that was read, stored and skipped; progress
lines.py            the lines of one text file, without a prepared corpus; input formats with given words
"""
