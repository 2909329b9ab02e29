"""Text in memory: sentences, tokens, characters and the vocabulary; packed.py opens text files.

splitting.py     paragraphs → sentences
tokens.py        text → tokens with offsets, by the name of a tokenizer (english.py, graphemes.py)
policy.py        the tokenizer of a model; what a user may pass to `Elmo` → lists of tokens
chars.py         tokens → character ids
vocab.py         the word list of a model
word_vectors.py  files of static word vectors
"""
