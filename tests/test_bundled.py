"""The models in the package: found by name, good enough to tell the senses of a word apart."""

import subprocess
import sys

import numpy as np
import pytest

from elmokit import Elmo
from elmokit.cli import main
from elmokit.errors import ElmoError
from elmokit.formats.bundled import DEFAULT, FOLDER, bundled_models
from elmokit.integrations.models import open_model
from elmokit.output import read_vectors

# Two senses of a word, two sentences each. Words whose senses do separate, chosen as such: they keep the models from
# getting worse and say nothing of how often it is so, which benchmarks/quality/two_senses.py does.
SENSES = {
    "play": [
        ("The children play in the garden .", "They play football on Sunday ."),
        ("Shakespeare wrote the play in 1601 .", "She acted in a play at the theatre ."),
    ],
    "apple": [
        ("He ate an apple and a pear .", "The apple fell from the tree ."),
        ("the company apple sells computers .", "shares of apple and microsoft rose ."),
    ],
    "bank": [
        ("The bank lends money to small firms .", "She has an account at the bank ."),
        ("The boat lay at the bank of the river .", "They sat on the bank and fished ."),
    ],
    "star": [
        ("The star is ten times hotter than the Sun .", "Each star in the sky is very far away ."),
        ("The film made her a star .", "He became a star of Hollywood ."),
    ],
    "plant": [
        ("The plant has yellow flowers .", "Water the plant every day ."),
        ("The company closed its plant in Ohio .", "Cars are built in a plant near Detroit ."),
    ],
    "match": [
        ("The team won the match by two goals .", "He scored in the last match of the season ."),
        ("He struck a match and lit the candle .", "She lit her pipe with a match ."),
    ],
    "right": [
        ("Turn right at the next corner .", "The door on the right was open ."),
        ("Women gained the right to vote .", "Every citizen has the right to a fair trial ."),
    ],
    "court": [
        ("The court found him guilty of murder .", "The case was heard by the court ."),
        ("The players walked on to the court .", "She hit the ball across the court ."),
    ],
    "bat": [
        ("He hit the ball with his bat .", "The player dropped the bat and ran ."),
        ("A bat flew out of the cave .", "The bat hunts insects at night ."),
    ],
    "letter": [
        ("She wrote a letter to her mother .", "He received a letter from the king ."),
        ("The word begins with a capital letter .", "The letter A is the first of the alphabet ."),
    ],
    "board": [
        ("The board elected a new president .", "He is a member of the board of directors ."),
        ("He nailed a board over the window .", "She cut the bread on a wooden board ."),
    ],
    "bear": [
        ("The bear slept in its cave .", "A bear came out of the forest ."),
        ("She could not bear the pain .", "I can not bear to see him ."),
    ],
}
CHINESE_SENSES = {
    "长": [("这条河很长。", "全长三百公里。"), ("他是学校的校长。", "市长发表讲话。")],
    "会": [("他会说英语。", "明天会下雨。"), ("会议在北京召开。", "他参加了大会。")],
    "发": [("她的头发很长。", "理发店。"), ("他发现了新的行星。", "公司发布了新产品。")],
    "生": [("他出生于上海。", "她生于1950年。"), ("他是大学的学生。", "这些学生很努力。")],
    "米": [("他身高两米。", "桥长三百米。"), ("他们种植水稻和玉米。", "农民种小米。")],
    "东": [("广东省。", "他住在山东。"), ("这是什么东西？", "他买了很多东西。")],
}


@pytest.fixture(scope="module")
def english() -> Elmo:
    return Elmo.load(device="cpu")


@pytest.fixture(scope="module")
def chinese() -> Elmo:
    return Elmo.load("zh", device="cpu")


def test_the_default_is_english_and_small(english):
    assert DEFAULT in bundled_models()
    assert english.config.context.kind == "transformer"
    assert sum(file.stat().st_size for file in (FOLDER / DEFAULT).iterdir()) < 45_000_000
    np.testing.assert_array_equal(Elmo.load("en", device="cpu").encode("a bank")[0], english.encode("a bank")[0])
    np.testing.assert_array_equal(english.encode("a bank")[0], english.encode("a bank", layer=8)[0])


def test_the_classic_model_is_an_lstm_that_becomes_a_bilm_file(tmp_path):
    classic = Elmo.load("en-lstm", device="cpu", state="carry")
    first, again = (classic.encode([["a", "bank"]])[0] for _ in range(2))
    assert not np.allclose(first, again)
    classic = Elmo.load("en-lstm", device="cpu")
    np.testing.assert_array_equal(classic.encode("a bank")[0], classic.encode("a bank", layer="mix")[0])
    classic.save(tmp_path / "bilm", format="bilm")
    same = Elmo.load(tmp_path / "bilm", device="cpu", segment="english").encode("a bank")[0]
    np.testing.assert_allclose(same, classic.encode("a bank")[0], atol=0.05)


def test_a_path_goes_before_a_name(make_elmo, tmp_path, monkeypatch):
    make_elmo().save(tmp_path / "en")
    monkeypatch.chdir(tmp_path)
    assert Elmo.load("en", device="cpu").config.vector_size == 12


@pytest.mark.parametrize("wrong", [None, 3, ["en"]])
def test_a_model_has_a_path_or_a_name(wrong):
    with pytest.raises(ElmoError, match="its path or its name"):
        Elmo.load(wrong)


def test_chinese_is_there_and_small(chinese):
    assert "zh" in bundled_models()
    assert chinese.text["segment"] == "chars"
    assert chinese.config.n_outputs == 10
    assert sum(file.stat().st_size for file in (FOLDER / "zh").iterdir()) <= 25_000_000


def test_a_chinese_string_is_read_by_character_everywhere(chinese, tmp_path):
    tokens = ["他", "买", "了", "3", "本", "Python", "书", "。"]
    text = "他买了3本 Python 书。"
    (found,) = chinese.encode(text)
    assert found.shape == (8, chinese.config.vector_size)
    np.testing.assert_array_equal(found, chinese.encode([tokens])[0])
    output = tmp_path / "vectors.npz"
    assert run("embed", text, "--model", "zh", "--device", "cpu", "--output", str(output)) == 0
    ((words, vectors),) = read_vectors(output)
    assert list(words) == tokens
    np.testing.assert_array_equal(vectors, found)


def test_what_the_chinese_model_does_not_know_is_said(capsys):
    assert run("embed", "龘是一个字", "--model", "zh", "--device", "cpu") == 0
    message = capsys.readouterr().err
    assert "1 of 5 tokens (20.0%) is not among the 8,500 that this model knows and is read as <UNK>: 龘" in message
    assert run("embed", "这是一个字", "--model", "zh", "--device", "cpu") == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize("word", [*SENSES, *CHINESE_SENSES])
def test_senses_come_apart_in_context_and_not_before(english, chinese, word):
    elmo, senses = (english, SENSES) if word in SENSES else (chinese, CHINESE_SENSES)
    sentences = [sentence for sense in senses[word] for sentence in sense]
    places = [[token.text for token in elmo.tokenize(sentence)].index(word) for sentence in sentences]

    def cosines(layer):
        vectors = np.stack([v[at] for v, at in zip(elmo.encode(sentences, layer=layer), places, strict=True)])
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors @ vectors.T

    np.testing.assert_allclose(cosines(0), 1, atol=1e-5)
    distances = 1 - cosines("top")
    same, other = (distances[0, 1] + distances[2, 3]) / 2, distances[:2, 2:].mean()
    assert same < 0.75 * other  # not a difference: how large cosines are depends on what all vectors of a model share


@pytest.mark.parametrize(
    ("name", "text", "place", "expected"),
    [
        ("en", "He opened the door and went out .", 3, {"door"}),
        ("en", "I would like a cup of tea , please .", 6, {"tea", "water", "coffee", "wine"}),
        ("zh", "他是一名足球运动员。", 4, {"足"}),
        ("zh", "这部电影很好看。", 2, {"电", "電"}),
        ("zh", "臺灣的首都是台北。", 6, {"台", "臺"}),
    ],
)
def test_the_most_likely_words_of_a_clear_sentence(english, chinese, name, text, place, expected):
    elmo = english if name == "en" else chinese
    best = elmo.substitutes(text, place, k=len(expected))
    assert {word for word, _ in best} == expected
    assert 0.5 < sum(probability for _, probability in best) < 1


def test_plain_english_is_expected_and_shuffled_words_are_not(english):
    plain = ["The boy opened the door and went out of the house .", "He was born in London in 1902 ."]
    shuffled = ["of house the opened boy . out went the door The and", ". 1902 in He in London born was"]
    assert [sorted(s.split()) for s in plain] == [sorted(s.split()) for s in shuffled]
    assert 1 < english.perplexity(plain) < 100
    assert english.perplexity(shuffled) > 5 * english.perplexity(plain)


@pytest.mark.parametrize("plain", ["北京是中国的首都。", "北京是中國的首都。"])
def test_plain_chinese_is_expected_and_shuffled_characters_are_not(chinese, plain):
    shuffled = "".join(plain[place] for place in (6, 8, 1, 4, 0, 5, 3, 7, 2))
    assert 1 < chinese.perplexity(plain) < 50
    assert chinese.perplexity(shuffled) > 5 * chinese.perplexity(plain)


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return stop.value.code or 0


def test_what_a_conversion_loses_is_said(tmp_path, caplog, capsys):
    assert run("convert", "en-lstm", str(tmp_path / "old"), "--to", "bilm") == 0
    assert "english" in caplog.text
    assert run("convert", "zh", str(tmp_path / "other"), "--to", "bilm") == 2
    assert run("info", "zh") == 0
    assert "--segment chars --split line" in capsys.readouterr().out


def test_a_word_of_several_characters(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("我去银行取钱。\n他在中国银行工作。\n他行。\n", encoding="utf-8")
    asked = ["--model", "zh", "--device", "cpu", "--corpus", str(tmp_path / "text.txt")]
    for command in (["senses", "银行"], ["neighbours", "银行", "--context", "银行很大"]):
        assert run(*command, *asked) == 0
        assert capsys.readouterr().out.count("[银行]") == 2
    assert run("neighbours", "行", "--context", "银行很大", *asked) == 0
    assert capsys.readouterr().out.count("[行]") == 3
    index = ["--index", str(tmp_path / "index")]
    assert run("neighbours", "行", "--context", "银行很大", *asked, *index) == 0
    assert run("senses", "银行", *asked[:4], *index) == 2
    assert "words 银行" in capsys.readouterr().err


def test_the_command_line_uses_it(capsys, english):
    assert run("embed", "The bank raised rates.") == 0
    assert f"[5 x {english.config.vector_size}]" in capsys.readouterr().out
    assert run("info", "en") == 0
    assert f"10 layers x {english.config.vector_size}" in capsys.readouterr().out


@pytest.mark.parametrize("name", bundled_models())
def test_every_bundled_model_opens_by_its_name(name):
    elmo = Elmo.load(name, device="cpu")
    assert np.isfinite(elmo.encode("bank 银行")[0]).all()
    assert elmo.text.get("segment") in ("english", "jieba", "chars", "none")
    assert elmo.head is not None


def test_the_table_of_models(capsys):
    assert run("models") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "language", "vectors", "size", "softmax", "description"]
    assert [row.split()[0] for row in rows] == bundled_models()
    for row in rows:
        folder = FOLDER / row.split()[0]
        assert row[head.index("size") :].startswith(f"{sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.1f} MB")
        has_softmax = (folder / "lm_head.safetensors").exists()
        assert row[head.index("softmax") :].startswith("none") != has_softmax


def test_a_table_of_several(make_elmo, tmp_path, monkeypatch, capsys):
    for name, softmax in (("is", "int8"), ("a-long-name", "float16"), ("zh", "none")):
        elmo = make_elmo(head=True)
        elmo.about = {"language": "Icelandic", "description": "sagas; cased"} if name == "is" else {}
        elmo.save(tmp_path / name, softmax=softmax)
    for module in ("formats.bundled", "cli.models"):
        monkeypatch.setattr(f"elmokit.{module}.FOLDER", tmp_path)
    assert Elmo.load("zh", device="cpu").config.vector_size == 12
    assert run("models") == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    found = [[cell.strip() for cell in row if cell.strip()] for row in rows[1:]]
    assert [row[:3] + row[4:] for row in found] == [
        ["a-long-name", "-", "3 layers x 12", "10 words", "-"],
        ["is", "Icelandic", "3 layers x 12", "10 words, int8", "sagas; cased"],
        ["zh", "-", "3 layers x 12", "none", "-"],
    ]
    with pytest.raises(
        ElmoError, match=r"^xx does not exist; a model is one that comes with elmokit \(a-long-name, is, zh\)"
    ):
        Elmo.load("xx")
    with pytest.raises(ElmoError, match=r"comes with elmokit \(a-long-name, is, zh\)"):
        open_model("xx")  # as the adapters do


def test_listing_does_not_wait_for_torch():
    code = """
import sys
from elmokit.cli import main
from elmokit.errors import ElmoError
try:
    main(["models"])
except SystemExit as stop:
    assert not stop.code
print("torch" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"
