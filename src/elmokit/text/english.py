"""The tokeniser for raw English text, which follows the Penn Treebank.

The released models were trained on news text with punctuation and contractions split off: `do n't`, `It 's`, `U.S.`.
Where the Treebank leaves a choice, this tokeniser does the following:

- No character is rewritten, not even quotes and brackets, so each token is a slice of the text.
- `cannot`, `gonna`, `'tis`, `o'clock` and `rock'n'roll` are one token; `can't` is `ca n't`.
- An abbreviation that ends a sentence keeps its period (`in the U.S.`); `No.` and `Jan.` keep theirs only if the
  text continues (`No. 5`, `Jan. 3`), `J.` only before a name.
- A hyphen joins words (`self-made`, `1917-23`, `pre- and post-war`); a dash or a slash between letters separates them.
- `!!!`, `???`, brackets and quotes are one token per character; a run of dots, dashes or `* = _ ~ # @ + |` is one.
- Each Han character is one token, and so is a run of kana; all other scripts are split into words like English.
"""

import re
from collections.abc import Iterator
from functools import cache

from elmokit.text.graphemes import EMOJI, HAN, KANA, marks, word_characters

_TITLES = """Mr Mrs Ms Mx Messrs Mme Mmes Mlle Dr Drs Prof Profs Rev Hon Fr Msgr Mgr St Sts Ste Esq Jr Sr Supt Insp Sgt
Cpl Pvt Pfc Lt Capt Cpt Cmdr Cdr Col Maj Brig Gen Adm Gov Sen Sens Rep Reps Pres Amb Atty Asst Assoc Det"""
_NAMES = "Inc Corp Ltd Co Cos Bros Mfg Dept Depts Univ Assn Intl Natl Ave Blvd Rd Hwy Mt Mts Ft Pty"
_LOWER_CASE = "mr mrs ms dr prof jr sr inc corp ltd st vs v etc viz cf al ibid approx dept esp incl"
_ALWAYS = frozenset(f"{_TITLES} {_NAMES} {_LOWER_CASE} MR MRS DR REV ST Etc Vs Cf".split())
"""Abbreviations that always keep their period."""

_MONTHS_AND_DAYS = "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thur Thurs Fri Sat Sun"
_STATES = """Ala Ariz Ark Calif Colo Conn Del Fla Ga Ill Ind Kan Kans Ky La Mass Md Mich Minn Miss Mo Mont Neb Nebr Nev
Okla Ore Oreg Pa Penn Tenn Tex Va Vt Wash Wis Wisc Wyo Ont Que"""
_UNITS = "ft lb lbs oz yd yds sq cu hr hrs min mins sec secs ed eds trans sp spp ssp subsp var"
_IF_CONTINUED = frozenset(_MONTHS_AND_DAYS.split() + _STATES.split() + _UNITS.split())
"""Abbreviations that are also words or names: they keep the period before a comma, a number or a lower-case letter."""

_NUMBERED = "no nos p pp c ca b d r fl m n l vol vols fig figs ch chap sec art op eq eqs ref pt pl para est"
_BEFORE_NUMBERS = frozenset(_NUMBERED.split())
"""Abbreviations, in upper or lower case, that keep their period only before a number."""

_OPENERS = """A After All Also Although An And As At Because Before But By For From Had He Her His How However I If In
Is It Its Later My No Not Now On Once One Our She Since So Some Such That The Their Then There These They This Those
Though Thus To Under Until Was We What When Where Which While Who With Yet You Your"""
_SENTENCE_OPENERS = frozenset(_OPENERS.split())
"""Words that begin sentences rather than names: in `plan B. The` the period ends the sentence."""

ABBREVIATIONS = {
    "always": _ALWAYS,
    "continued": _IF_CONTINUED,
    "numbered": _BEFORE_NUMBERS,
    "openers": _SENTENCE_OPENERS,
}
"""The lists above by name, for reimplementations of this tokeniser in other programming languages."""

_NEXT_WORD = re.compile(r"\s{0,4}(\w{1,12}|\S)")
_AFTER_INITIAL = re.compile(r"(?:^|[^\w.])[A-Z]\.\s?\Z")


def _keeps_period(text: str, start: int, period: int) -> bool:
    """Whether the word `text[start:period]` is an abbreviation that the period after it belongs to."""
    word = text[start:period].rpartition("-")[2]  # the last part decides for Lt.-Gov. and Maj-Gen.
    if word in _ALWAYS:
        return True
    following = _NEXT_WORD.match(text, period + 1)
    after = following[1] if following else ""
    first = after[:1]
    if word in _IF_CONTINUED:
        return first.islower() or first.isdigit() or first in (",", ";", ":", ")")
    if first.isdigit():
        return word.lower() in _BEFORE_NUMBERS
    if len(word) > 1 or not word.isupper() or not (first.isalpha() or first == ","):
        return False
    # A capital letter: an initial among initials, before a comma, or before a name or a species (E. coli).
    among_initials = _AFTER_INITIAL.search(text, max(0, start - 5), start) is not None
    if among_initials or (following is not None and len(after) == 1 and text.startswith(".", following.end())):
        return True
    return word != "I" and after not in _SENTENCE_OPENERS  # World War I. Britain


@cache
def _pattern() -> re.Pattern[str]:
    """The compiled rules: the first match wins; every repetition is bounded or runs once over the text it matches."""
    letters = word_characters(HAN, KANA)  # the characters of words: letters, digits and marks
    letter = rf"[^\W\d_{HAN}{KANA}]"
    end = rf"(?![{letters}]|-[{letters}])"  # the word is over
    clitic = r"['’](?:[sSdDmM]|[lL][lL]|[rRvV][eE])"
    part = rf"[{letters}]+ (?! (?<=[nN])['’][tT]{end} )"  # do|n't: the n belongs to the next token
    address = r"""[^\s.,;:!?'’*()\[\]{}<>"“”‘«»|\\^`…\u3000-\u303f\uff00-\uff65]"""
    return re.compile(
        rf"""
        (?!\s)                                # first for speed, like the next two choices, which match most tokens
        (?:
          [A-Za-z]++(?=[ ,\n])
        | [,;:?!"“”()]
        | (?P<emoji> {EMOJI} )

        # Addresses: punctuation belongs to an address only if more of the address follows.
        | (?P<url> (?: (?:[Hh]ttps?|HTTPS?|[Ff]tp)://(?=\S) | [Ww]ww\.(?={letter}) )
            (?: {address}++ | [.,;:!?'’*\[\]{{}}|]++ (?={address}) | \([^\s()<>]*\) )* )
        | (?P<page> (?:[A-Za-z0-9][A-Za-z0-9-]{{0,62}}\.){{1,8}} [a-z]{{2,12}}
            /(?:[A-Za-z0-9_/.~%?=&+-]*[A-Za-z0-9_/])? )
        | (?P<email> [A-Za-z0-9][A-Za-z0-9._%+-]{{0,63}} @ [A-Za-z0-9-]{{1,63}}(?:\.[A-Za-z0-9-]{{1,63}}){{1,8}}(?<!-) )
        | (?P<tag> (?<![{letters}]) (?: @[A-Za-z0-9_]+ | \#[0-9]*{letter}[{letters}_]* ) )

        # Apostrophes at the start of a word: 'tis, '90s, rock 'n' roll; then do|n't and it|'s; then o' and ol'.
        | (?P<elided> ['’‘](?: [tT](?:is|was|were|will|would|wixt|il) | [eE]m | [cC](?:ause|os|uz) | [bB]out | [nN]eath
            | [mM]ong | [gG]ainst | [0-9][0-9]s? ){end}(?!['’]) | ['’‘][nN]['’](?![{letters}]) )
        | (?P<clitic> (?: {clitic} | [nN]['’][tT] ){end} )
        | (?P<clipped> (?:ol?|th|wi|an)['’](?=\s) )

        # U.S., e.g., J.R.R., a.k.a, Ph.D., and U.S.-led
        | (?P<acronym> (?: {letter}(?:\.{letter}(?![{letters}]))+ | (?:Ph|Ed|Th|Sc|Litt)\.D(?![{letters}])
            | [BMD]\.(?:Sc|Ed|Phil|Eng|Tech|Com|Litt)(?![{letters}]) ) (?:\.(?!\.))? (?:-[{letters}]+)* )

        | (?P<word>
            (?: (?<![{letters}.)\]]) (?: [+−-]?\.?(?=[0-9]) | -(?=[{letters}]) ) )?      # -5, .5, -ism
            {part}
            (?: -(?:{letter}\.){{2,}}           # anti-U.S.
              | (?: [‐‑&-] | _++               # self-made, 1917-23, AT&T, snake_case
                | (?!{clitic}{end}) ['’‘]      # O'Brien, rock'n'roll
                | ['’]-                        # will-o'-the-wisp
                | \.(?=[a-z0-9])               # node.js, 3.14
                | (?<=[0-9])[,:/⁄](?=[0-9])    # 1,000  10:30  3/4
                ) {part} )*
            (?: -(?=\s) )?                     # pre- and post-war
          ) (?P<stop> \.(?!\.) )?              # a period, of the word or of the sentence
        | (?P<han> [{HAN}] )
        | (?P<kana> [{KANA}][{KANA}{marks()}]* )
        | (?P<run> \.{{2,}} | …+ | -{{2,}} | [–—―]+ | \*+ | =+ | _+ | ~+ | \#+ | @+ | \++ | \|+ | \'\' | `` )
        | (?P<other> \S )
        )
        [{marks()}]*                           # a mark stays with its base character
        """,
        re.VERBOSE,
    )


def english_spans(text: str) -> Iterator[tuple[int, int]]:
    """The start and end of each token of English text, in order; only white space is between tokens.

    >>> [text[start:end] for text in ["Mr. Li didn't go."] for start, end in english_spans(text)]
    ['Mr.', 'Li', 'did', "n't", 'go', '.']
    """
    for match in _pattern().finditer(text):
        start, end = match.span()
        if match.lastgroup == "stop":
            period = match.start("stop")
            if not _keeps_period(text, start, period):
                yield start, period
                start = period
        yield start, end
