"""Text files → a prepared, memory-mapped corpus; for pre-training, analysis and embedding.

reading.py          sources (files, folders, patterns, standard input) → text files → sentences of tokens
encoding.py         sentences → type ids, in several processes
worker_process.py   a second Python process and the messages between it and this one
prepared.py         type ids → the files of a prepared corpus, and these files, memory-mapped; its vocabulary
prepare.py          all of it: a corpus is found in the cache, or built there
report.py           what was read, used and skipped; progress
lines.py            one text file, line by line, for what needs no prepared corpus; sentences as given words
"""
