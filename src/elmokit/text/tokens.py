"""Tokenisers: from text to tokens with character offsets."""

import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from math import log
from types import ModuleType
from typing import Any, Literal, NamedTuple

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.text.english import english_spans
from elmokit.text.graphemes import BOPOMOFO, EMOJI, HAN, HANGUL, JAMO, KANA, marks, word_characters


class Token(NamedTuple):
    """A token and its offsets in a text. No tokeniser here rewrites a character, so `text[start:end]` is the token."""

    text: str
    start: int
    """Index of the token's first character."""
    end: int
    """Index after the token's last character."""


Segmenter = Callable[[str], list[Token]]
"""A function from a text to its tokens, which contain all characters but white space, in order."""

SegmenterName = Literal["english", "jieba", "chars", "whitespace", "none"]
"""The names of the tokenisers; "none" is the name of "whitespace" in files and means the same everywhere."""

WordSplitter = Callable[[str], list[str]]
"""A function from a text to the texts of its tokens."""

Spans = Iterator[tuple[int, int]]
"""The start and end of each token."""


def segmenter(name: SegmenterName) -> Segmenter:
    """The tokeniser of that name.

    >>> words(segmenter("english")("The U.S. didn't pay $1,000 (yet)."))
    ['The', 'U.S.', 'did', "n't", 'pay', '$', '1,000', '(', 'yet', ')', '.']
    """
    return partial(_tokens, _spans_named(name))


def word_splitter(name: SegmenterName) -> WordSplitter:
    """A function that returns the same as `words(segmenter(name)(text))`, but faster.

    >>> word_splitter("english")("It's done.")
    ['It', "'s", 'done', '.']
    """
    return _FAST_SPLITTERS.get(name) or partial(_texts, _spans_named(name))


def name_in_files(name: SegmenterName) -> SegmenterName:
    """The name of a tokeniser in files: "none" for white space, as in the first models."""
    _spans_named(name)
    return "none" if name == "whitespace" else name


def words(tokens: Iterable[Token]) -> list[str]:
    """The tokens' texts, a list that `Elmo.encode` accepts as a sentence."""
    return [token.text for token in tokens]


def _spans_named(name: SegmenterName) -> Callable[[str], Spans]:
    if name not in _SPANS:
        allowed = ", ".join(shown for shown in _SPANS if shown != "none")
        raise ElmoError(f"the segmenter must be one of {allowed}, got {name!r}")
    return _SPANS[name]


def _tokens(spans: Callable[[str], Spans], text: str) -> list[Token]:
    return [Token(text[start:end], start, end) for start, end in spans(text)]


def _texts(spans: Callable[[str], Spans], text: str) -> list[str]:
    return [text[start:end] for start, end in spans(text)]


def _space_spans(text: str) -> Spans:
    """Split at white space, like `str.split()`: for text that is already tokenised."""
    return (match.span() for match in _NON_SPACE.finditer(text))


def _char_spans(text: str) -> Spans:
    """Split Chinese, Japanese and Korean by character; words of other scripts and numbers stay whole.

    Marks and variation selectors stay with their character. An emoji sequence or any other symbol is one token.
    """
    return (match.span() for match in _characters().finditer(text))


def _char_texts(text: str) -> list[str]:
    return _characters().findall(text)


def _jieba_spans(text: str) -> Spans:
    """Split Chinese into words with jieba.

    The tokens are jieba's, without white space, with three exceptions that jieba would split: a word with letters that
    are neither ASCII nor Chinese (`Zürich`), a character with its marks, and an emoji sequence are one token each.
    Words that were added to jieba (`jieba.load_userdict`) are used.
    """
    jieba, done = _jieba(), 0
    for match in (*_jieba_wholes().finditer(text), None):
        if match is not None and match[0].isascii():
            continue
        for piece in _JIEBA_PIECE.finditer(text, done, match.start() if match else len(text)):
            for word, first, last in jieba.tokenize(piece[0]):
                if not word.isspace():
                    yield piece.start() + first, piece.start() + last
        if match is not None:
            yield match.span()
            done = match.end()


_SPANS: dict[str, Callable[[str], Spans]] = {
    "english": english_spans,
    "jieba": _jieba_spans,
    "chars": _char_spans,
    "whitespace": _space_spans,
    "none": _space_spans,
}
_FAST_SPLITTERS: dict[str, WordSplitter] = {"whitespace": str.split, "none": str.split, "chars": _char_texts}
_NON_SPACE = re.compile(r"\S+")


@cache
def _characters() -> re.Pattern[str]:
    by_character = HAN + KANA + HANGUL + BOPOMOFO
    letters = word_characters(by_character, r"\u1100-\u11ff\ua960-\ua97c\ud7b0-\ud7ff")
    return re.compile(rf"(?:[{by_character}]|{EMOJI}|[{letters}]+|{JAMO}|\S)[{marks()}]*")


_JIEBA_PIECE = re.compile(r".{0,1000}[\s，。、；：？！]|.{1,1000}", re.DOTALL)
"""The text that jieba reads at once: its time grows with the square of a run of unknown words. Pieces end at
separators, so only a run of more than 1,000 characters without one may be split inside a word."""


@cache
def _jieba_wholes() -> re.Pattern[str]:
    """Matches tokens that jieba must not split: emoji, words (ASCII ones are left to it), characters with marks."""
    return re.compile(rf"(?:{EMOJI}|[{word_characters(HAN, KANA)}]+)[{marks()}]*|\S[{marks()}]+")


@cache
def _jieba() -> ModuleType:
    """Import jieba without its progress messages and the warnings about its old code."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "invalid escape sequence")
        warnings.filterwarnings("ignore", ".*pkg_resources")
        try:
            jieba = import_module("jieba")
        except ImportError as error:
            raise MissingExtraError("jieba", "chinese", "Chinese word segmentation") from error
    jieba.setLogLevel(logging.WARNING)
    return jieba


# A faster jieba with the same results, for processes that only segment a corpus.
#
# jieba searches for the most likely words of a sentence in two ways: with its dictionary and, for runs of single
# characters, with a hidden Markov model of each character's position in its word. Both searches are replaced by loops
# that add the same numbers in the same order, so every comparison, including ties, has the same result.

_KNOWN_VERSION = "0.42.1"
_ABSENT = object()


def speed_up_jieba() -> None:
    """Replace jieba's two searches in this process; words that are added to jieba later are ignored."""
    jieba: Any = _jieba()
    finalseg: Any = import_module("jieba.finalseg")
    jieba.initialize()
    if jieba.__version__ != _KNOWN_VERSION:  # its searches may be different
        return
    search = _dictionary_search(jieba.dt.FREQ, jieba.dt.total)
    jieba.dt.get_DAG = lambda sentence: None  # the search below does not use it
    jieba.dt.calc = search
    finalseg.viterbi = _tag_search(finalseg.start_P, finalseg.trans_P, finalseg.emit_P, finalseg.MIN_FLOAT)


def _dictionary_search(counts: Mapping[str, int], total: int) -> Any:  # noqa: ANN401 -- takes jieba's own arguments
    """A function that fills `route`: for each start, the weight of the best words and the end of the first word."""
    log_total = log(total)
    # A count of 0 marks the prefix of a longer word.
    weight_of = {word: log(count) - log_total if count else None for word, count in counts.items()}.get
    unknown = log(1) - log_total

    def search(sentence: str, _: None, route: dict[int, tuple[float, int]]) -> None:
        length = len(sentence)
        best = [0.0] * (length + 1)
        route[length] = (0, 0)
        for start in range(length - 1, -1, -1):
            top, last, end = None, start, start + 1
            weight: Any = weight_of(sentence[start], _ABSENT)
            while weight is not _ABSENT:
                if weight is not None:
                    value = weight + best[end]
                    if top is None or value >= top:  # of equal weights, the longest word wins
                        top, last = value, end - 1
                end += 1
                if end > length:
                    break
                weight = weight_of(sentence[start:end], _ABSENT)
            best[start] = unknown + best[start + 1] if top is None else top
            route[start] = (best[start], last)

    return search


def _tag_search(
    start: Mapping[str, float],
    steps: Mapping[str, Mapping[str, float]],
    emissions: Mapping[str, Mapping[str, float]],
    never: float,
) -> Any:  # noqa: ANN401 -- takes jieba's own arguments
    """A function that finds the most likely tags: begin, middle or end of a word, or a single-character word."""
    begin_of, middle_of, end_of, single_of = (emissions[tag].get for tag in "BMES")
    known: dict[str, tuple[float, float, float, float]] = {}

    def emitted(character: str) -> tuple[float, float, float, float]:
        values = (
            begin_of(character, never),
            middle_of(character, never),
            end_of(character, never),
            single_of(character, never),
        )
        known[character] = values
        return values

    end_begin, single_begin = (steps[tag].get("B", never) for tag in "ES")
    middle_middle, begin_middle = (steps[tag].get("M", never) for tag in "MB")
    begin_end, middle_end = (steps[tag].get("E", never) for tag in "BM")
    single_single, end_single = (steps[tag].get("S", never) for tag in "SE")

    def search(text: str, *_: object) -> tuple[float, list[str]]:
        values = known.get(text[0]) or emitted(text[0])
        begin, middle, end, single = (start[tag] + value for tag, value in zip("BMES", values, strict=True))
        came_from = []
        for character in text[1:]:
            b, m, e, s = known.get(character) or emitted(character)
            # Of equal weights, the tag that is later in the alphabet wins.
            one, other = end + end_begin + b, single + single_begin + b
            new_begin, before_begin = (one, "E") if one > other else (other, "S")
            one, other = begin + begin_middle + m, middle + middle_middle + m
            new_middle, before_middle = (one, "B") if one > other else (other, "M")
            one, other = begin + begin_end + e, middle + middle_end + e
            new_end, before_end = (one, "B") if one > other else (other, "M")
            one, other = end + end_single + s, single + single_single + s
            new_single, before_single = (one, "E") if one > other else (other, "S")
            begin, middle, end, single = new_begin, new_middle, new_end, new_single
            came_from.append({"B": before_begin, "M": before_middle, "E": before_end, "S": before_single})
        weight, tag = (end, "E") if end > single else (single, "S")
        tags = [tag]
        for before in reversed(came_from):
            tag = before[tag]
            tags.append(tag)
        tags.reverse()
        return weight, tags

    return search
