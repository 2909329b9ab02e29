"""`elmo eval`: the numbers of `Elmo.perplexity`, over files, in all and sentence by sentence."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from dataclasses import replace

import pytest

from elmokit import Elmo
from elmokit.config import LstmConfig
from elmokit.text.vocab import Vocabulary
from support.model_files import make_bilm, write_bilm, write_tensorflow
from support.tiny_models import tiny_checkpoint, tiny_config, word_config
from support.training_runs import TINY

LINES = ["the river bank .", "zebra", "of \" the ' a .", "a " * 40 + "bank", "the money of the bank"]
UNKNOWN = ["zebra", '"', "'"]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "unseen.txt"
    path.write_text("\n".join(LINES) + "\n\n", encoding="utf-8")
    return path


def values(out: str) -> dict[str, str]:
    """The rows that were printed, by name."""
    return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines() if "  " in line)


@pytest.mark.parametrize("config", [tiny_config(), word_config()], ids=["characters", "words"])
def test_the_numbers_are_those_of_the_python_face(elmo, corpus, tmp_path, config) -> None:
    model = Elmo(tiny_checkpoint(config, head=True, scale=1.0))
    model.save(tmp_path / "model")
    ended = elmo("eval", tmp_path / "model", corpus)
    assert ended.status == 0, ended.err
    expected = model.perplexity(LINES)
    shown = values(ended.out)
    assert float(shown["mean perplexity"]) == pytest.approx(expected, rel=1e-3)
    assert float(shown["forward perplexity"]) == pytest.approx(expected.forward, rel=1e-3)
    assert float(shown["backward perplexity"]) == pytest.approx(expected.backward, rel=1e-3)
    tokens = [token for line in LINES for token in line.split()]
    assert shown["tokens"] == str(len(tokens))
    assert shown["sentences"] == "5"
    rate = sum(token in UNKNOWN for token in tokens) / len(tokens)
    assert shown["outside the vocabulary"].startswith(f"{rate:.2%} ")
    assert "skipped" in ended.err, "what was left out is reported"


def test_a_table_of_sentences(elmo, corpus, tmp_path, model_folder) -> None:
    ended = elmo("eval", model_folder, corpus, "--sentences", tmp_path / "table.tsv")
    assert ended.status == 0
    with (tmp_path / "table.tsv").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, dialect="excel-tab")
    assert header == ["sentence", "tokens", "forward", "backward", "mean", "text"]
    model = Elmo.load(model_folder)
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    for line, row in zip(LINES, rows, strict=True):
        expected = model.perplexity([line])
        assert row[1] == str(len(line.split()))
        assert row[5] == " ".join(line.split())
        assert [float(value) for value in row[2:5]] == pytest.approx(
            [expected.forward, expected.backward, float(expected)], rel=1e-3
        )


def test_a_sentence_is_no_formula(elmo, tmp_path, model_folder) -> None:
    (tmp_path / "text.txt").write_text("=1+1 bank\n", encoding="utf-8")
    assert elmo("eval", model_folder, tmp_path / "text.txt", "--sentences", tmp_path / "table.tsv").status == 0
    assert "\t'=1+1 bank" in (tmp_path / "table.tsv").read_text(encoding="utf-8")


def test_one_direction(elmo, corpus, tmp_path) -> None:
    config = tiny_config(bidirectional=False, context=LstmConfig(cell_size=13, output_size=6))
    Elmo(tiny_checkpoint(config, head=True, scale=1.0)).save(tmp_path / "model")
    ended = elmo("eval", tmp_path / "model", corpus, "--sentences", tmp_path / "table.tsv")
    assert ended.status == 0, ended.err
    assert "backward" not in ended.out
    rows = [line.split("\t") for line in (tmp_path / "table.tsv").read_text("utf-8").splitlines()[1:]]
    assert {row[3] for row in rows} == {""}
    assert all(row[2] == row[4] for row in rows)


def test_carried_state(elmo, corpus, refused, model_folder, tmp_path) -> None:
    corpus.write_text("\n".join(LINES * 30), encoding="utf-8")
    zero = values(elmo("eval", model_folder, corpus).out)
    carried = values(elmo("eval", model_folder, corpus, "--state", "carry").out)
    assert zero["mean perplexity"] != carried["mean perplexity"]
    table = ("--sentences", tmp_path / "table.tsv")
    assert "--state carry" in refused("eval", model_folder, corpus, "--state", "carry", *table)


def test_both_ways_of_reading(elmo, corpus, refused, model_folder, tmp_path) -> None:
    corpus.write_text("\n".join(LINES * 30), encoding="utf-8")
    zero, carried, both = (
        values(elmo("eval", model_folder, corpus, "--state", state).out) for state in ("zero", "carry", "both")
    )
    for name in ("forward perplexity", "backward perplexity", "mean perplexity"):
        assert both[name] == f"{zero[name]} from zero, {carried[name]} carried"
    table = ("--sentences", tmp_path / "table.tsv")
    assert "--state both" in refused("eval", model_folder, corpus, "--state", "both", *table)


def test_by_position(elmo, corpus, tmp_path, model_folder) -> None:
    plain = elmo("eval", model_folder, corpus, "--state", "both")
    table = tmp_path / "positions.tsv"
    ended = elmo("eval", model_folder, corpus, "--state", "both", "--by-position", table)
    assert ended.status == 0, ended.err
    above, _, below = ended.out.partition("\n\n")
    assert above == plain.out.rstrip("\n")
    head, *rows, wrote = below.splitlines()
    assert wrote == f"wrote {table}"
    assert re.split(r"\s{2,}", head) == [
        *("position", "forward, from zero", "forward, carried", "backward, from zero", "backward, carried"),
        "predictions",
    ]
    assert len({len(row) for row in (head, *rows)}) == 1, "the columns line up"
    cells = {row.split()[0]: row.split()[1:] for row in rows}
    counts = [len(line.split()) + 1 for line in LINES]
    for name, first, last in (("1", 1, 1), ("2-5", 2, 5), ("6-10", 6, 10), ("11+", 11, 99), ("all", 1, 99)):
        assert cells[name][-1] == str(sum(max(0, min(count, last) - first + 1) for count in counts))
    said = [-line.forward[0] for line in Elmo.load(model_folder).log_probs(LINES)]
    assert float(cells["1"][0]) == pytest.approx(math.exp(sum(said) / len(said)), rel=1e-3)
    lines = [line.split("\t") for line in table.read_text("utf-8").splitlines()]
    assert lines[1][2] == f"{math.exp(sum(said) / len(said)):.2f}"
    assert [line[0] for line in lines[-3:]] == ["30", "31-40", "41-60"]


def test_by_position_with_one_direction_and_a_picture(elmo, corpus, tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    config = tiny_config(bidirectional=False, context=LstmConfig(cell_size=13, output_size=6))
    Elmo(tiny_checkpoint(config, head=True, scale=1.0)).save(tmp_path / "model")
    files = [tmp_path / name for name in ("p.tsv", "p.png", "p.svg")]
    ended = elmo("eval", tmp_path / "model", corpus, *(part for file in files for part in ("--by-position", file)))
    assert ended.status == 0, ended.err
    assert "backward" not in ended.out
    assert files[0].read_text("utf-8").startswith("position\tpredictions\tforward_zero\n1\t5\t")
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_mistakes_by_position(refused, corpus, tmp_path, model_folder, monkeypatch) -> None:
    def said(*files: object) -> str:
        return refused("eval", model_folder, corpus, *(part for file in files for part in ("--by-position", file)))

    before = corpus.read_bytes()
    assert "must end in .tsv, or in .png, .svg, .pdf for a picture" in said(tmp_path / "t.json")
    assert "a folder that exists" in said(tmp_path / "none" / "t.tsv")
    assert "twice" in said(tmp_path / "t.tsv", tmp_path / "t.tsv")
    assert "must not be empty" in said("")
    read = corpus.rename(corpus.with_suffix(".tsv"))
    assert "would be overwritten" in refused("eval", model_folder, read, "--by-position", read)
    assert read.read_bytes() == before
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'elmokit[plot]'" in refused("eval", model_folder, read, "--by-position", tmp_path / "t.png")
    assert not (tmp_path / "t.tsv").exists()


def test_standard_input(elmo, corpus, model_folder, monkeypatch) -> None:
    from_file = elmo("eval", model_folder, corpus)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(corpus.read_bytes())))
    assert elmo("eval", model_folder, "-").out == from_file.out


def test_the_perplexity_of_training_is_that_of_eval(elmo, text, tmp_path) -> None:
    held = tmp_path / "held.txt"
    held.write_text("the bank sees the river .\nthe zebra\n")
    run = tmp_path / "run"
    elmo("train", text, *TINY, "--steps", "5", "--heldout", held, "--output", run)
    shown = values(elmo("eval", run, held).out)
    card = (run / "README.md").read_text("utf-8")
    assert f"perplexity: {shown['mean perplexity']} (forward {shown['forward perplexity']}" in card
    assert f"{shown['outside the vocabulary'].split()[0]} of their tokens outside the vocabulary" in card


@pytest.mark.parametrize("kind", ["no softmax", "no vocabulary", "no corpus", "empty corpus", "no model"])
def test_mistakes(refused, corpus, tmp_path, kind) -> None:
    model, sentence = tmp_path / "model", ""
    if kind == "no softmax":
        write_bilm(model, make_bilm())
        sentence = "has no softmax"
    elif kind == "no vocabulary":
        write_tensorflow(model, make_bilm(softmax=True))
        (model / "vocab.txt").unlink()
        sentence = "--vocab"
    elif kind == "no model":
        sentence = str(model)
    else:
        write_tensorflow(model, make_bilm(softmax=True))
        if kind == "empty corpus":
            corpus.write_text("\n")
            sentence = "no sentence"
        else:
            corpus.unlink()
            sentence = "was not found"
    table = tmp_path / "table.tsv"
    assert sentence in refused("eval", model, corpus, "--sentences", table)
    assert not table.exists()


def test_a_vocabulary_that_lies_apart(elmo, corpus, tmp_path) -> None:
    model = write_tensorflow(tmp_path / "model", make_bilm(softmax=True))
    whole = elmo("eval", model, corpus)
    (model / "vocab.txt").rename(tmp_path / "words.txt")
    assert elmo("eval", model, corpus, "--vocab", tmp_path / "words.txt").out == whole.out


def test_a_table_that_cannot_be_written(refused, corpus, model_folder, tmp_path) -> None:
    table = tmp_path / "gone" / "table.tsv"
    ended = refused("eval", model_folder, corpus, "--sentences", table, after="stored")
    assert str(table) in ended


def test_text_is_read_as_in_training(elmo, tmp_path) -> None:
    raw = tmp_path / "raw.txt"
    raw.write_text("The bank, it seems, raised rates. A river bank.\n" * 60, encoding="utf-8")
    run = tmp_path / "run"
    assert (
        elmo("train", raw, *TINY, "--segment", "english", "--split", "line", "--steps", "2", "--output", run).status
        == 0
    )
    default, named = elmo("eval", run, raw), elmo("eval", run, raw, "--segment", "english", "--split", "line")
    assert default.out == named.out
    assert "--segment english --split line" in default.out
    assert elmo("eval", run, raw, "--segment", "none").out != default.out


CHINESE = ["银行 提高 利率 。", "GPU", "他 在 2020年 去 了 河岸"]


@pytest.fixture
def character_model(tmp_path):
    """A model of characters that knows some of those in CHINESE."""
    checkpoint = tiny_checkpoint(head=True, scale=1.0)
    vocab = Vocabulary(["<S>", "</S>", "<UNK>", "银", "行", "利", "率", "在", "GPU", "。"])
    folder = tmp_path / "characters"
    Elmo(replace(checkpoint, vocab=vocab, text={"segment": "chars", "split": "none"})).save(folder)
    return folder


@pytest.mark.parametrize("segment", ["whitespace", "jieba"])
def test_words_are_scored_by_their_characters(elmo, character_model, corpus, tmp_path, segment) -> None:
    if segment == "jieba":
        pytest.importorskip("jieba", reason="needs the extra chinese")
    corpus.write_text("\n".join(CHINESE), encoding="utf-8")
    ended = elmo("eval", character_model, corpus, "--segment", segment, "--sentences", tmp_path / "table.tsv")
    assert ended.status == 0, ended.err
    model, shown = Elmo.load(character_model), values(ended.out)
    expected = model.perplexity(CHINESE, segment=segment)
    assert expected != pytest.approx(model.perplexity(CHINESE), rel=0.1), "by words it is another number"
    assert float(shown["mean perplexity"]) == pytest.approx(expected, rel=1e-3)
    assert float(shown["forward perplexity"]) == pytest.approx(expected.forward, rel=1e-3)
    assert float(shown["backward perplexity"]) == pytest.approx(expected.backward, rel=1e-3)
    words = [[token.text for token in model.tokenize(line, segment=segment)] for line in CHINESE]
    assert shown["tokens"] == str(sum(map(len, words)))
    characters = [token.text for line in CHINESE for token in model.tokenize(line)]
    rate = sum(token not in model.vocab for token in characters) / len(characters)
    assert shown["outside the vocabulary"].startswith(f"{rate:.2%} ")
    with (tmp_path / "table.tsv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.reader(file, dialect="excel-tab")][1:]
    for tokens, row in zip(words, rows, strict=True):
        assert (row[1], row[5]) == (str(len(tokens)), " ".join(tokens))
        assert float(row[4]) == pytest.approx(model.perplexity([tokens]), rel=1e-3)


def test_words_of_a_model_of_characters_with_a_carried_state(elmo, character_model, corpus) -> None:
    corpus.write_text("\n".join(CHINESE), encoding="utf-8")
    by_word, by_character = (
        values(elmo("eval", character_model, corpus, "--segment", segment, "--state", "carry").out)
        for segment in ("none", "chars")
    )
    words, characters = (int(shown["tokens"]) + len(CHINESE) for shown in (by_word, by_character))
    for name in ("forward perplexity", "backward perplexity", "mean perplexity"):
        loss = math.log(float(by_character[name])) * characters
        assert math.log(float(by_word[name])) * words == pytest.approx(loss, rel=1e-3)


def test_positions_are_those_of_characters(elmo, refused, character_model, corpus, tmp_path) -> None:
    corpus.write_text("\n".join(CHINESE), encoding="utf-8")
    table = tmp_path / "t.tsv"
    assert "--segment chars" in refused("eval", character_model, corpus, "--segment", "none", "--by-position", table)
    assert not table.exists()
    assert elmo("eval", character_model, corpus, "--by-position", table).status == 0


def test_a_file_that_is_read_is_never_the_table(elmo, refused, text, tmp_path) -> None:
    run = tmp_path / "run"
    elmo("train", text, *TINY, "--steps", "2", "--output", run)
    before = text.read_bytes()
    assert "would be overwritten" in refused("eval", run, text, "--sentences", text)
    assert "would be overwritten" in refused("eval", run, text, "--sentences", run / "vocab.txt")
    assert "a folder that exists" in refused("eval", run, text, "--sentences", tmp_path / "none" / "t.tsv")
    assert text.read_bytes() == before


@pytest.mark.parametrize("more", [(), ("--by-position", "t.tsv"), ("--state", "carry")])
def test_progress_in_a_log(elmo, corpus, model_folder, monkeypatch, tmp_path, more) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("elmokit.progress._FIRST_SECONDS", 0)
    err = elmo("eval", model_folder, corpus, *more).err
    state = "carried" if "carry" in more else "from zero"
    predictions = sum(len(line.split()) + 1 for line in LINES)
    assert f"state {state}: 100 %, {predictions} of {predictions} predictions" in err
