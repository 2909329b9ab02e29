"""The quicker loops find what jieba finds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.corpus.prepare import prepare
from elmokit.corpus.quick_jieba import quicken
from elmokit.text.tokens import split_jieba, words

jieba = pytest.importorskip("jieba", reason="jieba is an extra")

TEXT = (
    "他来到了网易杭研大厦。小明硕士毕业于中国科学院计算所，后在日本京都大学深造！"
    "《台北時報》是在台灣發行的綜合性英文報紙，由自由報系負責發售，1999年6月15日創刊。"
    "结婚的和尚未结婚的，研究生命的起源；李小福是创新办主任也是云计算方面的专家 iPhone 3.5% café。"
)


@pytest.fixture(scope="module")
def quick():
    """A segmenter with the quick loops; jieba is as it was after each call."""
    with pytest.MonkeyPatch.context() as patch:
        jieba.initialize()
        for owner, name in ((jieba.dt, "get_DAG"), (jieba.dt, "calc"), (jieba.finalseg, "viterbi")):
            patch.setattr(owner, name, getattr(owner, name))
        quicken()
        replaced = jieba.dt.get_DAG, jieba.dt.calc, jieba.finalseg.viterbi

    def segment(text):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jieba.dt, "get_DAG", replaced[0])
            patch.setattr(jieba.dt, "calc", replaced[1])
            patch.setattr(jieba.finalseg, "viterbi", replaced[2])
            return words(split_jieba(text))

    return segment


def test_the_loops_are_replaced_and_put_back(quick):
    assert jieba.__version__ == "0.42.1", "another jieba: see whether its loops are still the same"
    assert jieba.finalseg.viterbi.__module__ == "jieba.finalseg"
    assert quick(TEXT) == words(split_jieba(TEXT))


@given(st.text(st.sampled_from(sorted(set(TEXT))) | st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)))
def test_any_text(quick, text):
    assert quick(text) == words(split_jieba(text))


def test_workers_and_this_process_agree(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(TEXT[place:] + TEXT[:place] + "\n" for place in range(len(TEXT))), encoding="utf-8")
    contents = {
        prepare([str(path)], segment="jieba", split="line", folder=tmp_path / str(count), workers=count).content
        for count in (1, 2)
    }
    assert len(contents) == 1
