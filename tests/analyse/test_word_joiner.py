"""Words of several characters in text that was tokenised by character."""

from dataclasses import replace

import numpy as np
import pytest

from elmokit import ElmoError
from elmokit.analyse.choice import Choice, WordJoiner
from elmokit.analyse.index_builder import build_index
from elmokit.analyse.neighbours import neighbours
from elmokit.analyse.senses import find_senses
from elmokit.corpus.prepared import PreparedCorpus

LINES = ["他去银行存钱", "银的行", "银行提高利率银行", "行银", "他行", "GPU卡和gpu卡", "他去"]


@pytest.fixture
def elmo(make_elmo):
    return make_elmo(segment="chars")


@pytest.fixture
def corpus(tmp_path):
    sentences = [[c for c in line if c not in "GPUgpu"] for line in LINES]
    sentences[5] = ["GPU", "卡", "和", "gpu", "卡"]
    made = PreparedCorpus.from_sentences(sentences, tmp_path / "corpus")
    return replace(made, settings={"segment": "chars"})


def test_a_sentence(elmo):
    joiner = WordJoiner(elmo, "chars", ["银行", "银行利率", "GPU卡", "行"], ignore_case=False)
    assert joiner
    assert joiner.join(list("他去银行")) == ["他", "去", "银行"]
    assert joiner.join(list("银行利率银行利")) == ["银行利率", "银行", "利"]
    assert joiner.join(["GPU", "卡", "gpu", "卡"]) == ["GPU卡", "gpu", "卡"]
    folding = WordJoiner(elmo, "chars", ["GPU卡"], ignore_case=True)
    assert folding.join(["GPU", "卡", "gpu", "卡", "行"]) == ["GPU卡", "gpu卡", "行"]


def test_only_text_of_characters_has_anything_to_join(elmo, make_elmo):
    assert not WordJoiner(elmo, "chars", ["行", "GPU", "New York"], ignore_case=False)
    assert not WordJoiner(elmo, "chars", None, ignore_case=False)
    assert not WordJoiner(elmo, "jieba", ["银行"], ignore_case=False)
    assert not WordJoiner(make_elmo(segment="english"), "chars", ["银行"], ignore_case=False)


@pytest.mark.parametrize("at_once", [1, 3, 1 << 20])
def test_an_index_of_words(elmo, corpus, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr("elmokit.analyse.choice._TOKENS_AT_ONCE", at_once)
    index = build_index(elmo, corpus, tmp_path / "index", choice=Choice(("银行", "行")))
    rows = index.rows_of("银行")
    found = [index.occurrence(row) for row in rows.tolist()]
    assert [(occurrence.position, "".join(occurrence.tokens)) for occurrence in found] == [
        (2, "他去银行存钱"),
        (0, "银行提高利率银行"),
        (5, "银行提高利率银行"),
    ]
    assert [index.occurrence(row).position for row in index.rows_of("行").tolist()] == [2, 0, 1]
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", "index"}
    for row, occurrence in zip(rows.tolist(), found, strict=True):
        vector = elmo.encode([list(occurrence.tokens)], layer="top")[0][occurrence.position]
        unit = vector / np.linalg.norm(vector)
        np.testing.assert_allclose(index.vectors_of(np.array([row]))[0], unit, atol=0.02)
    (best, *_) = neighbours(elmo, index, ["他", "去", "银行", "存", "钱"], 2)
    assert best.similarity == pytest.approx(1, abs=0.01)
    assert best.word == "银行"
    assert find_senses(index, "银行", clusters=1).senses[0].size == 3


def test_case(elmo, corpus, tmp_path):
    exact = build_index(elmo, corpus, tmp_path / "exact", choice=Choice(("GPU卡",)))
    assert len(exact.rows_of("GPU卡", ignore_case=True)) == 1
    folded = build_index(elmo, corpus, tmp_path / "folded", choice=Choice(("gpu卡",), ignore_case=True))
    assert len(folded.rows_of("GPU卡", ignore_case=True)) == 2


def test_a_word_that_is_not_there(elmo, corpus, tmp_path):
    with pytest.raises(ElmoError, match="钱行"):
        build_index(elmo, corpus, tmp_path / "index", choice=Choice(("钱行",)))
    assert {path.name for path in tmp_path.iterdir()} == {"corpus"}
