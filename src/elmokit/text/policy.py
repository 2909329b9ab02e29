"""The text policy of a model: how strings become tokens, in Python, on the command line and in every adapter.

A string is tokenised like the model's training text; a list of tokens is used unchanged. A model of characters also
accepts whole words: it reads each character by character (`CharacterPieces`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from operator import index
from typing import Literal, SupportsIndex, cast

from elmokit.errors import ElmoError
from elmokit.text.english import english_spans
from elmokit.text.graphemes import HAN, KANA
from elmokit.text.tokens import SegmenterName, Token, name_in_files, segmenter, word_splitter

log = logging.getLogger(__name__)

Sentence = str | Sequence[str]
"""A string, or a list of tokens."""
PolicyName = Literal["english", "jieba", "chars", "whitespace"]

_WORD_AND_MARK = re.compile(r"\w[.,;:!?)。，、；：？！]+(?=\s|\Z)")
_UNSPACED = re.compile(f"[{HAN}{KANA}]")


class TextPolicy:
    """How strings become tokens: `name` is english, jieba, chars or whitespace.

    >>> policy = TextPolicy("english")
    >>> policy.split("A river bank."), policy.tokenize("A bank.")[1]
    (['A', 'river', 'bank', '.'], Token(text='bank', start=2, end=6))
    """

    def __init__(self, segment: SegmenterName | None = None, *, model: str = "this model") -> None:
        """`segment`: the name of the tokeniser; None if `model` does not say how its training text was tokenised.

        Without a name, strings are split at white space, and a warning is logged once if punctuation sticks to words.
        """
        segmenter("whitespace" if segment is None else segment)  # refuses an unknown name
        self.name: PolicyName = "whitespace" if segment in (None, "none") else segment  # type: ignore[assignment]
        self.model = model
        self._may_warn = segment is None

    @classmethod
    def of_model(
        cls, text: Mapping[str, str], segment: SegmenterName | None, where: str
    ) -> tuple[dict[str, str], TextPolicy]:
        """The known facts about a model's training text, and the model's policy; `segment` overrides the tokeniser.

        If the model does not say how its text was tokenised, `segment` becomes part of the facts.
        """
        facts = {**text} if segment is None else {"segment": name_in_files(segment), **text}
        try:
            return facts, cls(segment or cast(SegmenterName | None, facts.get("segment")), model=where)
        except ElmoError as error:
            raise ElmoError(f"{where}: {error}", *error.arguments) from error

    @classmethod
    def of(cls, segment: SegmenterName | TextPolicy) -> TextPolicy:
        """The policy of a name; a policy is returned unchanged."""
        return segment if isinstance(segment, TextPolicy) else cls(segment)

    def __repr__(self) -> str:
        return f"TextPolicy({self.name!r})"

    @property
    def name_in_files(self) -> SegmenterName:
        """The name of the tokeniser in model files, prepared corpora and task folders."""
        return name_in_files(self.name)

    def override(self, segment: SegmenterName | None) -> TextPolicy:
        """The policy of `segment` or, if it is None, this policy."""
        return self if segment is None else TextPolicy(segment, model=self.model)

    def tokenize(self, text: str) -> list[Token]:
        """The tokens of a string with their character offsets."""
        self._warn_once(text)
        return segmenter(self.name)(text)

    def split(self, text: str) -> list[str]:
        """The texts of the tokens of a string, which is faster than `tokenize`."""
        self._warn_once(text)
        return word_splitter(self.name)(text)

    def tokens_of(self, sentence: Sentence) -> list[str]:
        """The tokens of a sentence: a string is split, a list of tokens is returned as a list of strings."""
        if isinstance(sentence, str):
            return self.split(sentence)
        check_texts(sentence, "a sentence must be a string or a list of tokens")
        tokens = list(sentence)
        if wrong := [token for token in tokens if not isinstance(token, str)]:
            _refuse_bytes(wrong[0])
            raise ElmoError(f"a token must be a string, got {wrong[0]!r}")
        return tokens

    def sentences_of(self, sentences: Sentence | Iterable[Sentence]) -> list[list[str]]:
        """The tokens of any number of sentences; one string is one sentence."""
        if isinstance(sentences, str):
            return [self.split(sentences)]
        check_texts(sentences, "sentences must be a list of strings or of token lists")
        return [self.tokens_of(sentence) for sentence in sentences]

    def _warn_once(self, text: str) -> None:
        """Warn once if the model does not say how its training text was tokenised and punctuation sticks to words."""
        if not self._may_warn or (stuck := _stuck_word(text)) is None:
            return
        self._may_warn = False
        better = "jieba" if _UNSPACED.search(stuck) else "english"
        shown = stuck if len(stuck) <= _SHOWN else f"{stuck[: _SHOWN - 1]}…"
        log.warning(
            "%s does not say how its training text was tokenised, so strings are split at white space and punctuation "
            'sticks to words (%r): give segment="%s", or lists of tokens',
            self.model,
            shown,
            better,
        )


_SHOWN = 20


def check_texts(value: object, rule: str) -> None:
    """Refuse a value that is not a list: bytes would be read as numbers, a dict or data frame as its column names."""
    _refuse_bytes(value)
    kind = type(value).__name__
    if not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        raise ElmoError(f"{rule}, got {kind}")
    if isinstance(value, Mapping) or hasattr(value, "columns"):
        raise ElmoError(f"{rule}, got {kind}: choose one of its columns or values")


def _refuse_bytes(value: object) -> None:
    """Refuse bytes, which would be read as a list of numbers."""
    if isinstance(value, bytes | bytearray | memoryview):
        shown = repr(bytes(value[:_SHOWN]))
        raise ElmoError(f"text must be a string, got bytes {shown}: decode them first, as in data.decode('utf-8')")


def _stuck_word(text: str) -> str | None:
    """The first word in the text with punctuation stuck to it, or None; abbreviations do not count."""
    if not (found := _WORD_AND_MARK.search(text)):  # nearly all text that is already tokenised returns here
        return None
    starts = {start for start, _ in english_spans(text)}
    for match in _WORD_AND_MARK.finditer(text, found.start()):
        if match.start() + 1 in starts:
            return text[: match.end()].split()[-1]
    return None


def rows_of_tokens(
    tokens: Sequence[Sequence[str]], sequence_len: Iterable[SupportsIndex] | None = None
) -> list[list[str]]:
    """Rows of tokens; with `sequence_len`, padded rows are cut to these lengths (TF-Hub's `tokens` signature)."""
    rows = TextPolicy("whitespace").sentences_of(tokens)
    if (text := next((row for row in tokens if isinstance(row, str)), None)) is not None:
        raise ElmoError(f"tokens must be rows, each a list of tokens, got the string {text!r} as a row")
    if sequence_len is None:
        return rows
    if not isinstance(sequence_len, Iterable):
        raise ElmoError(f"sequence_len must be a list of lengths, got {sequence_len!r}")
    try:
        lengths = [index(length) for length in sequence_len]
    except TypeError:
        raise ElmoError(f"sequence_len must be a list of whole numbers, got {sequence_len!r}") from None
    if len(rows) != len(lengths):
        raise ElmoError(f"sequence_len must have a length for each of the {len(rows)} sentences, got {len(lengths)}")
    for row, length in zip(rows, lengths, strict=True):
        if not 0 <= length <= len(row):
            raise ElmoError(f"sequence_len must be between 0 and the {len(row)} tokens of its row, got {length}")
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


class CharacterPieces:
    """Splits tokens for a model of characters: each token becomes the tokens that the tokeniser `chars` finds in it.

    >>> CharacterPieces().of("2020年"), CharacterPieces().of("银行"), CharacterPieces().of("GPU")
    (('2020', '年'), ('银', '行'), ('GPU',))
    """

    def __init__(self, specials: Iterable[str] = ()) -> None:
        """`specials`: tokens such as `<UNK>` that stay whole."""
        self._specials = frozenset(specials)

    def of(self, token: str) -> tuple[str, ...]:
        """The pieces of a token, at least one."""
        return (token,) if len(token) == 1 or token in self._specials else _pieces(token)

    def count(self, tokens: Iterable[str]) -> int:
        """The number of pieces of all tokens."""
        return sum(1 if len(token) == 1 else len(self.of(token)) for token in tokens)

    def split(self, sentences: Iterable[Sequence[str]]) -> tuple[list[list[str]], list[list[int]]]:
        """The pieces of each sentence, and the number of pieces of each of its tokens."""
        by_token = [[self.of(token) for token in sentence] for sentence in sentences]
        return [[*chain.from_iterable(pieces)] for pieces in by_token], [[*map(len, pieces)] for pieces in by_token]


@lru_cache(1 << 16)
def _pieces(token: str) -> tuple[str, ...]:
    return tuple(word_splitter("chars")(token)) or (token,)
