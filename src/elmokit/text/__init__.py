"""Text in memory: sentences, tokens, characters and the vocabulary; packed.py opens text files.

splitting.py   paragraphs → sentences
tokens.py      text → tokens with offsets, by name (english.py, graphemes.py; fast_jieba.py for large texts)
sentences.py   what a user may pass to `Elmo` → lists of tokens
chars.py       tokens → character ids
vocab.py       the word list of a model
"""
