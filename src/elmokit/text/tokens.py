"""From text to tokens that know where in the text they are."""

import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Literal, NamedTuple

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.text.english import english_spans
from elmokit.text.graphemes import BOPOMOFO, EMOJI, HAN, HANGUL, JAMO, KANA, marks, word_characters


class Token(NamedTuple):
    """A token and its place in a text; no tokenizer here rewrites a character, so `text[start:end]` is the token."""

    text: str
    start: int
    """Index in the text of the token's first character."""
    end: int
    """Index in the text after the token's last character."""


Segmenter = Callable[[str], list[Token]]
"""Text in, its tokens out: all of its characters but white space, in order."""

SegmenterName = Literal["english", "jieba", "chars", "whitespace", "none"]
"""The names of the tokenizers; "none" is the name that files have for "whitespace", and means the same everywhere."""

WordSplitter = Callable[[str], list[str]]
"""Text in, the texts of its tokens out."""


def split_spaces(text: str) -> list[Token]:
    """Split at white space, as `str.split()` does: for text whose tokens stand apart already.

    >>> words(split_spaces("It 's  done ."))
    ['It', "'s", 'done', '.']
    """
    return [Token(match[0], *match.span()) for match in _NON_SPACE.finditer(text)]


def split_english(text: str) -> list[Token]:
    """Split raw English text in the manner of the text that the released models were trained on.

    The rules, and what they choose where there is a choice, are in `elmokit.text.english`.

    >>> words(split_english("The U.S. didn't pay $1,000 (yet)."))
    ['The', 'U.S.', 'did', "n't", 'pay', '$', '1,000', '(', 'yet', ')', '.']
    """
    return [Token(text[start:end], start, end) for start, end in english_spans(text)]


def split_chars(text: str) -> list[Token]:
    """Split Chinese, Japanese and Korean by character; words of other scripts and numbers stay whole.

    Marks and variation selectors stay with their character, an emoji sequence is one token, so is any other symbol.

    >>> words(split_chars("我有2只café的猫。"))
    ['我', '有', '2', '只', 'café', '的', '猫', '。']
    """
    return [Token(match[0], *match.span()) for match in _characters().finditer(text)]


def split_jieba(text: str) -> list[Token]:
    """Split Chinese into words with jieba.

    The tokens are jieba's own, white space aside, but for what it would take apart: a word with letters that are
    neither ASCII nor Chinese (`Zürich`), a character with its marks, and an emoji sequence are one token each. Words
    that were added to jieba (`jieba.load_userdict`) count.

    >>> words(split_jieba("我来到北京清华大学"))
    ['我', '来到', '北京', '清华大学']
    """
    jieba = _jieba()
    tokens = []
    for start, end, whole in _jieba_pieces(text):
        if whole:
            tokens.append(Token(text[start:end], start, end))
            continue
        for word, first, last in jieba.tokenize(text[start:end]):
            if not word.isspace():
                tokens.append(Token(word, start + first, start + last))
    return tokens


def segmenter(name: SegmenterName) -> Segmenter:
    """Return the tokenizer of that name.

    >>> words(segmenter("chars")("你好"))
    ['你', '好']
    """
    if name not in _SEGMENTERS:
        allowed = ", ".join(shown for shown in _SEGMENTERS if shown != "none")
        raise ElmoError(f"the segmenter must be one of {allowed}, got {name!r}")
    return _SEGMENTERS[name]


def word_splitter(name: SegmenterName) -> WordSplitter:
    """Return what `words(segmenter(name)(text))` returns, as one function that is faster where it can be.

    >>> word_splitter("english")("It's done.")
    ['It', "'s", 'done', '.']
    """
    return _FAST_SPLITTERS.get(segmenter(name)) or _jieba_words


def name_in_files(name: SegmenterName) -> SegmenterName:
    """The name under which files store a tokenizer: "none" for white space, as in the first models."""
    segmenter(name)
    return "none" if name == "whitespace" else name


def words(tokens: Iterable[Token]) -> list[str]:
    """Return the tokens' texts, which is what `Elmo.encode` takes as a sentence."""
    return [token.text for token in tokens]


def _english_words(text: str) -> list[str]:
    return [text[start:end] for start, end in english_spans(text)]


def _chars_words(text: str) -> list[str]:
    return _characters().findall(text)


def _jieba_words(text: str) -> list[str]:
    return words(split_jieba(text))


_SEGMENTERS: dict[str, Segmenter] = {
    "english": split_english,
    "jieba": split_jieba,
    "chars": split_chars,
    "whitespace": split_spaces,
    "none": split_spaces,
}
_FAST_SPLITTERS: dict[Segmenter, WordSplitter] = {
    split_spaces: str.split,
    split_english: _english_words,
    split_chars: _chars_words,
}

_NON_SPACE = re.compile(r"\S+")


@cache
def _characters() -> re.Pattern[str]:
    by_character = HAN + KANA + HANGUL + BOPOMOFO
    letters = word_characters(by_character, r"\u1100-\u11ff\ua960-\ua97c\ud7b0-\ud7ff")
    return re.compile(rf"(?:[{by_character}]|{EMOJI}|[{letters}]+|{JAMO}|\S)[{marks()}]*")


_JIEBA_PIECE = re.compile(r".{0,1000}[\s，。、；：？！]|.{1,1000}", re.DOTALL)
"""What jieba gets at once, for its time grows with the square of a run of unknown words. Words end at a separator, so
only a run of more than 1,000 characters without one is cut where jieba might not have cut it."""


@cache
def _jieba_wholes() -> re.Pattern[str]:
    """Compile what jieba must not see: emoji, words (those in ASCII are let through), characters with marks."""
    return re.compile(rf"(?:{EMOJI}|[{word_characters(HAN, KANA)}]+)[{marks()}]*|\S[{marks()}]+")


def _jieba_pieces(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield pieces of the text as start, end, and whether the piece is one token already."""
    done = 0
    for match in _jieba_wholes().finditer(text):
        if match[0].isascii():
            continue
        yield from ((piece.start(), piece.end(), False) for piece in _JIEBA_PIECE.finditer(text, done, match.start()))
        yield *match.span(), True
        done = match.end()
    yield from ((piece.start(), piece.end(), False) for piece in _JIEBA_PIECE.finditer(text, done))


@cache
def _jieba() -> ModuleType:
    """Import jieba without its progress lines and the warnings of its old code."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "invalid escape sequence")
        warnings.filterwarnings("ignore", ".*pkg_resources")
        try:
            jieba = import_module("jieba")
        except ImportError as error:
            raise MissingExtraError("jieba", "chinese", "Chinese word segmentation") from error
    jieba.setLogLevel(logging.WARNING)
    return jieba
