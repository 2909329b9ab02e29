"""The fast searches give jieba's own results."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.text.tokens import segmenter, speed_up_jieba, words

jieba = pytest.importorskip("jieba", reason="jieba is an extra")

TEXT = (
    "他来到了网易杭研大厦。小明硕士毕业于中国科学院计算所，后在日本京都大学深造！"
    "《台北時報》是在台灣發行的綜合性英文報紙，由自由報系負責發售，1999年6月15日創刊。"
    "结婚的和尚未结婚的，研究生命的起源；李小福是创新办主任也是云计算方面的专家 iPhone 3.5% café。"
)


@pytest.fixture(scope="module")
def fast():
    """A segmenter with the fast searches; after each call jieba is as it was before."""
    with pytest.MonkeyPatch.context() as patch:
        jieba.initialize()
        for owner, name in ((jieba.dt, "get_DAG"), (jieba.dt, "calc"), (jieba.finalseg, "viterbi")):
            patch.setattr(owner, name, getattr(owner, name))
        speed_up_jieba()
        replaced = jieba.dt.get_DAG, jieba.dt.calc, jieba.finalseg.viterbi

    def segment(text):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jieba.dt, "get_DAG", replaced[0])
            patch.setattr(jieba.dt, "calc", replaced[1])
            patch.setattr(jieba.finalseg, "viterbi", replaced[2])
            return words(segmenter("jieba")(text))

    return segment


def test_the_searches_are_replaced_and_put_back(fast):
    assert jieba.__version__ == "0.42.1", "a new jieba: check that its searches are still the same"
    assert jieba.finalseg.viterbi.__module__ == "jieba.finalseg"
    assert fast(TEXT) == words(segmenter("jieba")(TEXT))


@given(st.text(st.sampled_from(sorted(set(TEXT))) | st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)))
def test_any_text(fast, text):
    assert fast(text) == words(segmenter("jieba")(text))
