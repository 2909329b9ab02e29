"""Sentences of raw paragraphs: each case is the expected result, with bars between the sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.text.splitting import split_sentences

CASES = """
He left. | She stayed! | Did he? | Yes.
Mr. and Mrs. Li met Dr. J. R. Smith at St. Paul's. | He was late.
THE STORY OF MR. ELVESHAM AND LT. GEN. GRANT
It cost $1.50 at 3.30 p.m. on Friday. | The U.S. Army paid. | He moved to the U.S. | The rest is known.
See e.g. Smith et al. (1999), vol. 3, pp. 4-5, fig. 2 and No. 7. | No. | The answer was no. | That is all.
Acme Inc. Chairman Bo Li spoke for Acme Inc. | The others did not.
It was founded in 1905. | In 1906 it closed. | It had 12. | They left.
World War I. | Britain fought. | J. A. Lamb and George R. R. Martin agreed.
"Why?" he asked. | "I know." | She smiled. | (He left.) | Then it rained. | [No.] | "No!" | 'Yes.' | End.
He said "Good God! | I thought he was dead." | “Run!” | ‘Where?’ | «Là.» | Fin.
Wait... what? | A parable of ... Man's journey. | He fell silent.... | Then he spoke. | Well . . . Then no.
It was shown.[3] | Later it was not.[12][a] | The end.
1. The first item. | 2. The second item.
IV. The Duel. | A. Results of the year.
Einstein's. | Bohr's axioms. | It runs on PAL-M. | SECAM is older. node.js is fast. | It uses Node.js. | The end.
He paid Maj.-Gen. Grant. | He paid it (see p. 4). | The rest (2 Sam. 15:24) is silence.
Er kam am 3. Oktober. | Sie ging am 4. | Das war alles. | „Ja.“ | Er ging.
Он родился в Москве. | А. С. Пушкин был поэтом. | Кто? | Я.
¿Quién? | ¡Yo! | Nada más.
Adios! | He left. . "
at the end. | "Quoted first. | It goes on."
"""

CHINESE = """
他走了。|她没有！|为什么？|不知道
「走了。」|她說。|「誰？」他問。
他说：“你好。”|然后走了。|“再见！”他说。
《我愛你！》演唱會。|（是嗎？）；不是。|好。）|完。
他走了。。」|真的吗？！|真的……也许。|3.14是圆周率。|Hello. | 世界。
これは本です。|「はい。」|そうですか？|ええ
"""

OTHERS = """
यह एक वाक्य है। | यह दूसरा है॥ | तीसरा
هل هذا صحيح؟ | نعم. | لا
یہ ایک جملہ ہے۔ | یہ دوسرا ہے۔
ይህ ነው። | ያ ነው።
Սա է։ | Դա է։
"""


@pytest.mark.parametrize(
    "case", CASES.strip().splitlines() + CHINESE.strip().splitlines() + OTHERS.strip().splitlines()
)
def test_cases(case):
    sentences = [part.strip() for part in case.split("|")]
    text = case.replace(" | ", " ").replace("|", "")
    assert split_sentences(text) == sentences


def test_wrapped_lines():
    assert split_sentences("It was a dark\nand (see p.\n4) stormy night.\nIt rained.") == [
        "It was a dark\nand (see p.\n4) stormy night.",
        "It rained.",
    ]
    assert split_sentences("今天天气\n很好。\n  明天 \nalso good。") == ["今天天气很好。", "明天 \nalso good。"]


@pytest.mark.parametrize(
    "unit",
    [
        ".",
        ". ",
        "a. ",
        ".'",
        "。",
        "。 ",
        "。\n",
        "'",
        '!"',
        "J. ",
        "(1. ",
        "[1]",
        ".[1]",
        "。」",
        "no. 5 ",
        " \n",
        "我\n",
        "-",
        "I",
    ],
)
def test_a_long_run_of_anything_takes_no_longer_than_other_text(unit):
    """In time that grew with the square of the length, each of these would take far too long."""
    for text in (unit * 40_000, "A b." + unit * 40_000, "我。" + unit * 40_000 + "我"):
        assert split_sentences(text) or not text.strip()


def test_nothing_in_nothing_out():
    assert split_sentences("") == split_sentences(" \n ") == []


@given(st.text(st.sampled_from("ab AB.!?。！？”\"')」…,\n1。")) | st.text())
def test_only_white_space_is_lost(text):
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)
