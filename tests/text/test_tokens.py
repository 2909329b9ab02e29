import doctest
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.text import english, graphemes, tokens
from elmokit.text.tokens import Token, name_in_files, segmenter, word_splitter, words

split_spaces, split_english, split_chars, split_jieba = map(segmenter, ("none", "english", "chars", "jieba"))

needs_jieba = pytest.mark.skipif(find_spec("jieba") is None, reason="jieba is the extra 'chinese'")

# What the rules look for, to meet in odd ways; beside it, any code point at all, lone surrogates too.
PIECES = """a A n I s t ll don word Mr No Jan U.S 1 90s 12 . , ' ’ ‘ " - -- – … ... _ @ # / : ( ) [ ] & + − % $ * =
http:// www. .com é e\u0301 \u0301 \u200d \u200b \ufeff \ufe0f \x00 \x1b \ud83d \udc4d \udfff 👍 👍🏽 👨‍👩‍👧 🇺🇸 🇺
1\ufe0f\u20e3 中 文 北京 〇 葛\U000e0100 カ が 서울 ᄒ ᅡ ᆫ नमस्ते ไทย עברית עִ \u200f Ж ½ ² ① 。 ，"""
SPACES = [" ", "  ", "\n", "\t", "\r\n", "\x1c", "\x85", "\xa0", "\u2028", "\u3000"]
ANY_TEXT = st.one_of(
    st.text(st.characters(), max_size=40),
    st.lists(st.sampled_from(PIECES.split() + SPACES), max_size=25).map("".join),
)

SEGMENTERS = [
    pytest.param(split_spaces, id="none"),
    pytest.param(split_english, id="english"),
    pytest.param(split_chars, id="chars"),
    pytest.param(split_jieba, id="jieba", marks=needs_jieba),
]


@pytest.mark.parametrize("split", SEGMENTERS)
@settings(deadline=None, max_examples=300)
@given(text=ANY_TEXT)
def test_tokens_are_slices_of_the_text_and_only_white_space_is_lost(split, text):
    found = split(text)
    assert all(text[token.start : token.end] == token.text != "" for token in found)
    assert "".join(words(found)) == "".join(text.split())
    ends = [0] + [token.end for token in found]
    assert all(end <= token.start for end, token in zip(ends, found, strict=False))


@pytest.mark.parametrize("name", ["whitespace", "english", "chars", pytest.param("jieba", marks=needs_jieba)])
@settings(deadline=None)
@given(text=ANY_TEXT)
def test_a_word_splitter_gives_the_words_of_the_segmenter(name, text):
    assert word_splitter(name)(text) == words(segmenter(name)(text))


@pytest.mark.parametrize("split", SEGMENTERS)
def test_every_code_point_survives_alone_and_next_to_a_letter(split):
    for first in range(0, 0x110000, 0x1000):
        characters = [chr(code) for code in range(first, first + 0x1000, 7)]
        text = " ".join(characters) + " " + "a".join(characters)
        assert "".join(words(split(text))) == "".join(text.split())


@pytest.mark.parametrize("split", SEGMENTERS)
@pytest.mark.parametrize(
    "unit",
    ["a", "7", "(", "a.", "A.", "'", "a'", "1.", "@", "a@", "\u0301", "e\u0301", "a-.", "http://(", "👍\u200d", "魑"],
)
def test_long_repetitions_end_soon(split, unit):
    text = unit * (30_000 // len(unit))
    assert "".join(words(split(text))) == text


@given(text=ANY_TEXT)
def test_none_is_str_split(text):
    assert words(split_spaces(text)) == text.split()


def test_a_token_knows_its_place():
    assert split_spaces(" a  bc\n") == [Token("a", 1, 2), Token("bc", 4, 6)]
    assert split_english("It's.") == [Token("It", 0, 2), Token("'s", 2, 4), Token(".", 4, 5)]
    assert split_chars("中 e\u0301x") == [Token("中", 0, 1), Token("e\u0301x", 2, 5)]


# In these samples | is no part of the text: it marks a place without white space where two tokens meet.
ENGLISH = [
    "do|n't it|'s we|'ll I|'m they|'ve he|'d you|'re ca|n't wo|n't would|n't|'ve I|'d|'ve IT|'S DO|N'T",
    "do|n’t it|’s we|’ll James|’s the students|’ books",
    "cannot gonna o'clock O'Brien rock'n'roll ma'am will-o'-the-wisp Qur'an Hawai‘i y'all can't-miss",
    "the students|' books James|'s the 1990|'s the U.S.|'s (|CNT|)|'s Amazon.com|'s",
    "'tis ’Twas '90s ’60s rock 'n' roll give 'em hell a cup o' tea",
    "\"|Yes|,|\" he said|. '|No|,|' she said|. “|Yes|” ‘|no|’ ``|so|'' «|oui|» \"|I said '|no|.|'|\"",
    "Mr. Smith and Dr. Who in St. Paul at 5 a.m. today|, e.g.|, i.e.|, Apple Inc. et al. in Smith v. Jones|, etc.|)",
    "the U.S.|, J.R.R. Tolkien|, a Ph.D.|, an M.Sc.|, U.S.-led|, anti-U.S. and D.C.",
    "J. Smith|, George W. Bush|, A. A. Milne|, I. M. Pei|, S. I. Hayakawa|, E. coli|, Maj-Gen. Lee|, Li|, S. R.|, too",
    "So am I|. The end of World War I|. Britain has a plan B|. The rest took vitamin C|.",
    "No. 5 said no|. On Jan. 3 he met Jan|. Springfield|, Ill.|, is on pp. 3 of c. 1850|. No|.",
    "The end|. It was 5|. It was 3.5|. It was 1,000|. Go|! Why|? It|'s|. dog|.|It",
    "1,000.50 10:30 3/4 1990s -5 .5 −3 $|5 20|% 20th 1917-23 3.5-inch 1.2.3 €|3 2|+|2|=|4 (|-1|) [|5|]|-|3",
    "self-made word|--|word 1914|–|1918 so|—|he pre- and post-war -ism to - from",
    "wait|... what|…|so|.... and ... yes|..|no",
    "(|a|) [|b|] {|c|} <|d|> (|(|e|)|)",
    "http://a.org/x_(y)|, (|https://a.org/?q=1&r=a,b|)|. www.a.com|. a.com/b/c|. a.b+c@d.co.uk|. <|ftp://a|>",
    "@some_one|: #elmo|! #|1 node.js snake_case AT&T x|@|y",
    "👨‍👩‍👧‍👦|👍🏽|🇺🇸|🇬🇧|1️⃣|#️⃣|❤️|🏴󠁧󠁢󠁥󠁮󠁧󠁿|🏳️‍🌈|☺️|ok|👍",
    "cafe\u0301 naïve d͡ʒ co\u00adop (\u0301|x\u0304|)",
    "東|京|タワー नमस्ते Добрый день สวัสดี العَرَبِيَّة ἀρχή 서울시 葛\U000e0100|飾",
    "!|!|! ?|! *** === _|very|_ he|/|she H₂O km² 5|°|C ©|2020 ① a|\u200b|b",
]


def test_english_leaves_split_text_as_it_is():
    text = "He said : \" It 's the U.S. 's , is n't it ? \" -- and they 've left ... ( 5 % )"
    assert words(split_english(text)) == text.split()


# The same notation.
CHARS = [
    "我|有|2|只|猫|。|GPT4|很|好|！",
    "caf\u00e9 e\u0301a|中 naïve|的|Добрый नमस्ते",
    "タ|ワ|ー|か\u3099|ｶﾞ 서|울 \u1112\u1161\u11ab|\u1100\u1173\u11af ㄅ|ㄆ 々|〇",
    "葛\U000e0100|飾|区 ❤️|👨‍👩‍👧‍👦|🇺🇸|1️⃣",
    "3|.|14 a|_|b —|— ①|②",
]


@pytest.mark.parametrize(
    ("split", "sample"),
    [*((split_english, sample) for sample in ENGLISH), *((split_chars, sample) for sample in CHARS)],
)
def test_samples_by_rule(split, sample):
    assert words(split(sample.replace("|", ""))) == sample.replace("|", " ").split()


@needs_jieba
@pytest.mark.parametrize(
    "text",
    [
        "我来到北京清华大学，他来到了网易杭研大厦。",
        "《台北時報》（）是在台灣發行的綜合性英文報紙，1999年6月15日創刊，約 12.43% 的 C++ 與 AT&T ok。\r\n第二行",
    ],
)
def test_jieba_decides_where_it_can_read(text):
    import jieba

    assert words(split_jieba(text)) == [word for word in jieba.cut(text) if not word.isspace()]


@needs_jieba
def test_jieba_does_not_take_apart_what_it_cannot_read():
    sample = "他|在|Zürich|说|Привет|，|cafe\u0301|葛\U000e0100|👨‍👩‍👧‍👦|。"
    assert words(split_jieba(sample.replace("|", ""))) == sample.split("|")


FIRST_IMPORT = """
import sys, warnings
from elmokit.text.tokens import segmenter
sys.pycache_prefix = sys.argv[1]  # so that jieba is compiled again, which is when old code warns
warnings.simplefilter("error")
segmenter("jieba")("我来到北京清华大学")
"""


@needs_jieba
def test_jieba_is_quiet_on_its_first_import(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FIRST_IMPORT, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_missing_jieba_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    tokens._jieba.cache_clear()
    with pytest.raises(MissingExtraError, match=r"Chinese word segmentation needs .* pip install 'elmokit\[chinese\]'"):
        split_jieba("你好")


def test_segmenter_looks_up_by_name():
    assert [words(segmenter(name)("It's 2我")) for name in ("english", "chars", "whitespace", "none")] == [
        ["It", "'s", "2", "我"],
        ["It", "'", "s", "2", "我"],
        ["It's", "2我"],
        ["It's", "2我"],
    ]
    assert [name_in_files(name) for name in ("whitespace", "none", "chars")] == ["none", "none", "chars"]
    for look_up in (segmenter, word_splitter, name_in_files):
        with pytest.raises(ElmoError, match="must be one of english, jieba, chars, whitespace, got 'moses'"):
            look_up("moses")


@pytest.mark.parametrize("module", [tokens, english, graphemes], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module):
    if module is tokens and find_spec("jieba") is None:
        pytest.skip("its examples use jieba")
    assert doctest.testmod(module).failed == 0
