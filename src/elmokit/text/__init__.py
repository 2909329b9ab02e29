"""Sentences, tokens, characters and vocabularies in memory; packed.py opens plain and compressed text files.

splitting.py     paragraphs → sentences
tokens.py        text → tokens with offsets, by a named tokeniser (english.py, graphemes.py)
policy.py        the tokeniser of a model; strings or lists that users pass to `Elmo` → lists of tokens
chars.py         tokens → character ids
vocab.py         the word list of a model
word_vectors.py  files of static word vectors
"""
