"""Splits paragraphs of raw text into sentences, by rules for the full stops of many scripts.

A sentence ends at `. ! ? …` if white space follows and the next letter is not lower-case, unless the word before the
full stop is an abbreviation, an initial or the number of a list item. It ends at the full stops of other scripts
(`。 ！ ？ । ؟ ۔ ። ։ ။ ។`) even without white space. Closing quotes and brackets belong to the sentence that they close.
In doubt the rules do not split: for a language model, two sentences in one are better than half a sentence.
"""

from __future__ import annotations

import re

# Full stops that need no white space after them, and the marks among them that also occur inside quoted titles.
_WIDE = "。｡！？।॥؟۔።፧։။។៕"
_WIDE_MARKS = "！？"
_CLOSING = "\"'”’»›)]}」』）】〕］｝〞"
_NARROW = ".!?…‼⁇⁈⁉"

# No repetition is tried twice on the same text, so the time for a long run of one character is linear in its length.
_END = re.compile(
    rf"(?P<narrow>(?<![{_NARROW}])[{_NARROW}]++)(?:[“«‹{re.escape(_CLOSING)}]|\[[0-9a-z]{{1,3}}\])*+(?=\s)"  # 1905.[3]
    rf"|(?P<wide>[{_WIDE}]+[{re.escape(_CLOSING)}]*)"
)
_NEXT = re.compile(r"[\s\"'“‘«»„‹›(\[{¿¡*_—–-]*+(?P<word>\w{0,40})")
_NEXT_MARK = re.compile(r"\s*+(?P<mark>\S?)")
_WORD_BEFORE = re.compile(r"(?:[^\s\"“”‘«»„()\[\]{}—–/-]|(?<!-)-(?!-))*\Z")
_ACRONYM = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,3}")  # U.S  e.g  Ph.D  J.R.R
_VERSE = re.compile(r"\s*\d+:\d")  # Sam. 15:24
_CJK = r"\u2e80-\u303f\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff"
_WRAPPED_CJK = re.compile(rf"(?<=[{_CJK}])[ \t\r]*+\n\s*+(?=[{_CJK}])")
_SPACED_DOTS = re.compile(r"\.\s\Z")
_BEFORE_SENTENCE = " \t\n\r\"'“‘([*_—-"
_LONGEST_LEAD = 40
_LETTER = re.compile(r"\w")
_ROMAN = re.compile(r"[IVXLCivxlc]+")

_TITLES = """Mr Mrs Ms Messrs Mme Mlle Mlles Dr Drs Prof Rev Revd Hon Fr Msgr Mgr St Ste SS Sgt Cpl Pvt Lt Lieut Capt
Cdr Cmdr Col Maj Brig Gen Adm Gov Sen Rep Pres Supt Insp Mt Ft vs viz cf Cf eg ie Esq Geo Wm Chas Thos Jas Jos Mons Hr
Hrn Nr bzw ca Ca Sra Srta"""
_NEVER_LAST = frozenset(_TITLES.split())
"""Abbreviations after which no sentence ends, because a name or the rest of a phrase follows."""

_NUMBERED = """no nos p pp vol vols fig figs ch chap chaps sec secs art arts op eq eqs pt pts bk cap lib ver ed para
approx est fl jan feb mar apr jun jul aug sep sept oct nov dec"""
_BEFORE_NUMBERS = frozenset(_NUMBERED.split())
"""Abbreviations, in upper or lower case, after which the sentence continues if a number follows."""

_NAMES = "Inc Corp Ltd Co Cos Bros Jr Sr etc al Bde Regt Univ Dept Assn Ave Blvd Rd sp spp subsp var ibid seq usw"
_MAYBE_LAST = frozenset(_NAMES.split())
"""Abbreviations that end a sentence only if the next word is in `_OPENERS`."""

_FIRST_WORDS = """A About According After All Also Although Among An And Another Are As At Because Before Both But By
Did Do During Each Early Even Every Few For From Further Furthermore Had Has He Hence Her Here His How However I If
In Instead Is It Its Later Many Meanwhile More Moreover Most Much My Nevertheless No Nor Not Now Of On Once One Only
Or Other Others Our Over She Since So Some Soon Still Such That The Their Then There Therefore These They This Those
Though Three Through Thus To Today Two Under Unlike Until Upon Was We What When Where Whether Which While Who Why
With Within Yet You Your Der Die Das Ein Eine Er Sie Es Im Le La Les Il Elle El Los Las En"""
_OPENERS = frozenset(_FIRST_WORDS.split())
"""Words that start a sentence more often than a name."""

_GERMAN = """Januar Februar März April Mai Juni Juli August September Oktober November Dezember Jänner Jahrhundert
Jahrhunderts"""
_AFTER_ORDINALS = frozenset(_GERMAN.split())
"""Words that follow a German ordinal number, which ends with a full stop: am 3. Oktober."""


def split_sentences(text: str) -> list[str]:
    """The sentences of a paragraph, in order and without the white space around them.

    A line end inside a paragraph counts as a space; between Chinese or Japanese characters it is removed.

    >>> split_sentences('Mr. Li paid $1.50. "Why?" he asked. 他走了。她没有。')
    ['Mr. Li paid $1.50.', '"Why?" he asked.', '他走了。', '她没有。']
    """
    if "\n" in text:
        text = _WRAPPED_CJK.sub("", text)
    ends: list[int] = []
    start = 0
    for match in _END.finditer(text):
        if _wide_ends(text, match) if match["wide"] else _narrow_ends(text, start, match):
            if ends and not _LETTER.search(text, start, match.end()):
                ends.pop()  # a full stop or quote without a word belongs to the sentence before it
            start = match.end()
            ends.append(start)
    if ends and not _LETTER.search(text, start):
        ends.pop()
    sentences = (text[first:last].strip() for first, last in zip([0, *ends], [*ends, len(text)], strict=True))
    return [sentence for sentence in sentences if sentence]


def _wide_ends(text: str, match: re.Match[str]) -> bool:
    """Whether a sentence ends at a full stop that needs no white space after it."""
    after = text[match.end() : match.end() + 1]
    if after.isspace():
        following = _NEXT_MARK.match(text, match.end())
        assert following is not None
        return following["mark"] not in ("，", "、", "；", "：", ",", ";", ":")
    if after and after in "，、；：,;:》〉…—～~・·.":
        return False
    marks = match["wide"].rstrip(_CLOSING)
    if len(marks) == len(match["wide"]) or not after:
        return True
    # The sentence continues in 「誰？」他問 and after a title such as 「來！」, but not in 「走了。」她.
    return marks[-1] not in _WIDE_MARKS


def _narrow_ends(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a sentence ends at a Latin, Greek or Cyrillic full stop, after which white space follows."""
    following = _NEXT.match(text, match.end())
    assert following is not None
    word = following["word"]
    if word[:1].islower():
        return False
    if not word:
        after = text[following.end() : following.end() + 1]
        return after == "" or after not in ",;:.!?)]}%&=<>/|…，。；：、）"
    stop = match["narrow"]
    if stop.endswith(("!", "?")) or any(mark in stop for mark in "‼⁇⁈⁉"):
        return True
    if stop != ".":
        # Dots after a space are an omission, and the sentence continues; others end it, but rarely before "I".
        return not text[match.start() - 1 : match.start()].isspace() and (len(stop) > 3 or word != "I")
    # The next word may be an initial itself: J. A. Lamb
    opener = word in _OPENERS and not (len(word) == 1 and text.startswith(".", following.end()))
    return not _is_abbreviation(text, start, match.start(), match.end(), word, opener)


def _is_abbreviation(text: str, start: int, period: int, end: int, following: str, opener: bool) -> bool:
    """Whether the full stop at `period` belongs to the word before it, so that the sentence continues."""
    if text[max(start, period - 1) : period] in (")", "]", "}", '"', "”", "’", "»"):
        return False
    found = _WORD_BEFORE.search(text, max(start, period - 40), period)
    word = found[0].lstrip("'’*_-") if found else ""
    if not word:
        return _SPACED_DOTS.search(text, max(start, period - 2), period) is not None  # well . . . Then
    last_part = word.rpartition("-")[2]  # Maj.-Gen.
    if last_part in _NEVER_LAST or (last_part.isupper() and len(last_part) > 1 and last_part.title() in _NEVER_LAST):
        return True
    if end > period + 1:
        return False  # a closing quote or bracket follows
    before = text[start : min(period - len(word), start + _LONGEST_LEAD)]
    if not before.strip(_BEFORE_SENTENCE) and _is_item(word):
        return True
    if following[:1].isdigit():
        continues = word.lower() in _BEFORE_NUMBERS or len(word) == 1 or word in _MAYBE_LAST
        continues = continues or _ACRONYM.fullmatch(word) is not None
        return continues or _VERSE.match(text, end) is not None
    if word in _MAYBE_LAST or _ACRONYM.fullmatch(word):
        return not opener
    if len(word) == 1 and word.isalpha():
        return word != "I" and not opener
    return word.isdigit() and len(word) <= 2 and following in _AFTER_ORDINALS


def _is_item(word: str) -> bool:
    """Whether the word is the number of an item or chapter: 3. Of Trade.  IV. The Duel.  A. Results."""
    return word.isdigit() or (len(word) == 1 and word.isalpha()) or _ROMAN.fullmatch(word) is not None
