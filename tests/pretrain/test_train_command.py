"""`elmo train` from end to end: what it starts from, what it leaves behind, and what it says of a mistake."""

from __future__ import annotations

import json
import os

import h5py
import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.formats.load import read_checkpoint
from elmokit.pretrain import run as train
from elmokit.pretrain.checkpoints import RunFolder
from elmokit.pretrain.curve import draw_curve
from support.model_files import make_bilm, make_manylangs, slot_of, write_bilm, write_manylangs, write_tensorflow
from support.training_runs import PACE, SHAPE, TINY, best_at, last_snapshot, metrics, sentences, write_text

HELD_OUT = ("--heldout-fraction", "0.02")
STILL = ("--learning-rate", "0", "--steps", "2")
"""An update that changes no weight: what comes out is what went in."""
FROZEN = ("--word-vectors", "v.txt", "--no-train-word-vectors")
TRANSFORMER = ("--context", "transformer")


def test_the_folder_of_a_run(elmo, text, tmp_path, monkeypatch) -> None:
    run = tmp_path / "run"
    monkeypatch.setattr(train, "draw_curve", draw_curve)
    pytest.importorskip("tensorboard")
    pytest.importorskip("matplotlib")
    ended = elmo(
        "train", text, *TINY, *HELD_OUT, "--steps", "12", "--eval-every", "4", "--tensorboard", "--output", run
    )
    assert ended.status == 0
    assert not ended.out
    elmo_, older = Elmo.load(run), Elmo.load(run / "bilm")
    lines = ["the bank sees it .", "unseen wörds", "日本語"]
    for ours, theirs in zip(elmo_.encode(lines, output="layers"), older.encode(lines, output="layers"), strict=True):
        assert ours.shape[0::2] == (3, 24)
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert (run / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").glob("events.*"))
    card = (run / "README.md").read_text("utf-8")
    best = RunFolder(run).best().facts["heldout"]
    for part in (
        *("data: text.txt", "300 sentences", "recipe: preset small, recipe modern, cell_size 24"),
        *(f"perplexity: {best['mean']:.2f}", "12 updates", "```bash\nelmo "),
    ):
        assert part in card, part
    training = [line for line in metrics(run) if "loss" in line]
    held = [line for line in metrics(run) if "heldout_perplexity" in line]
    assert len(training) == 12
    assert [line["step"] for line in held] == [4, 8, 12]
    promised = "step tokens seconds epoch loss perplexity forward_perplexity backward_perplexity learning_rate"
    assert {*promised.split(), "gradient_norm", "tokens_per_second"} == training[0].keys()
    assert {"step", "tokens", "seconds", "heldout_perplexity", "heldout_forward", "heldout_backward"} <= held[0].keys()
    vocab = (run / "vocab.txt").read_text("utf-8").split("\n")
    assert vocab[:3] == ["<S>", "</S>", "<UNK>"]


def test_the_exported_model_is_the_best_one(elmo, text, tmp_path, monkeypatch) -> None:
    best_at(monkeypatch, 6)
    run = tmp_path / "run"
    elmo("train", text, *TINY, *HELD_OUT, "--eval-every", "3", "--steps", "13", "--output", run)
    best = RunFolder(run).best()
    assert best.facts["progressed"]["step"] == 6
    for name, value in read_checkpoint(run).weights.items():
        assert torch.equal(value, best.tensors[f"network.bilm.{name}"])
    held = [line for number, line in enumerate(text.read_text("utf-8").splitlines(), 1) if number % 50 == 0]
    assert Elmo.load(run).perplexity(held) == pytest.approx(best.facts["heldout"]["mean"], rel=1e-5)


def test_the_card_of_a_resumed_run_names_what_began_it(elmo, text, tmp_path) -> None:
    run = tmp_path / "run"
    elmo("train", text, *TINY, "--preset", "tiny", "--recipe", "paper", "--steps", "2", "--output", run)
    assert elmo("train", "--output", run, "--resume", "--steps", "3").status == 0
    card = (run / "README.md").read_text("utf-8")
    assert "recipe: preset tiny, recipe paper, cell_size 24" in card
    assert f"elmo train {text} " in card
    assert "--resume" not in card


@pytest.mark.parametrize("kind", ["folder", "hdf5", "hdf5 and options", "tensorflow", "words", "manylangs"])
def test_training_goes_on_from_any_format(elmo, text, tmp_path, kind) -> None:
    folder, options = tmp_path / "model", ()
    if kind == "folder":
        elmo("train", text, *TINY, "--steps", "2", "--output", folder)
    elif kind.startswith("hdf5"):
        write_bilm(folder, make_bilm())
        if kind != "hdf5":
            (folder / "options.json").rename(tmp_path / "other.json")
            options = ("--init-options", tmp_path / "other.json")
            folder = folder / "weights.hdf5"
    elif kind == "tensorflow":
        write_tensorflow(folder, make_bilm(softmax=True))
    elif kind == "words":
        write_bilm(folder, make_bilm(words=True))
    else:
        write_manylangs(folder, make_manylangs())
    run = tmp_path / "run"
    ended = elmo("train", text, *PACE, *HELD_OUT, *STILL, "--init", folder, *options, "--output", run)
    assert ended.status == 0, ended.err
    before, after = read_checkpoint(folder, options=options[-1] if options else None), read_checkpoint(run)
    assert before.config.lstm == after.config.lstm
    for name, value in before.weights.items():
        assert torch.equal(value, after.weights[name]), name
    if kind in ("folder", "tensorflow"):
        assert torch.equal(before.head["weight"], after.head["weight"])
        assert "softmax: that of" in ended.err
    else:
        assert "softmax: new" in ended.err
    lines = ["the bank of the river ."]
    first, second = (Elmo(model).encode(lines, output="layers")[0] for model in (before, after))
    np.testing.assert_array_equal(first, second)
    again = elmo("train", "--output", run, "--resume", "--steps", "4")
    assert again.status == 0, again.err
    assert last_snapshot(run).facts["progressed"]["step"] == 4


def test_a_tensorflow_checkpoint_brings_its_sums(elmo, text, tmp_path) -> None:
    model = make_bilm(softmax=True)
    folder = write_tensorflow(tmp_path / "model", model)
    adagrad = ("--recipe", "paper", "--learning-rate", "0", "--batch-size", "4", "--loss", "full")
    elmo("train", text, *adagrad, "--steps", "1", "--init", folder, "--output", tmp_path / "run")
    snapshot = last_snapshot(tmp_path / "run")
    before = torch.from_numpy(slot_of(model.weights["softmax/W"]))
    added = snapshot.tensors["optimizer.head.weight.sum"] - before
    assert (added >= 0).all()
    assert added.max() > 0
    assert not torch.allclose(before, torch.ones_like(before), atol=0.1), "or this shows nothing"


def test_words_that_a_model_knows_stay_when_the_vocabulary_changes(elmo, text, tmp_path) -> None:
    folder = write_tensorflow(tmp_path / "model", make_bilm(softmax=True))
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("<S>\n</S>\n<UNK>\nbank\nnew\nthe\n")
    init = ("--init", folder, "--vocab", vocab)
    ended = elmo("train", text, *PACE, *STILL, *init, "--output", tmp_path / "run")
    assert "5 of 6 words" in ended.err
    before, after = read_checkpoint(folder), read_checkpoint(tmp_path / "run")
    assert list(after.vocab) == ["<S>", "</S>", "<UNK>", "bank", "new", "the"]
    for word in ("<UNK>", "bank", "the"):
        rows = [model.head["weight"][model.vocab.index(word)] for model in (before, after)]
        assert torch.equal(*rows), word
    assert elmo("train", "--output", tmp_path / "run", "--resume", "--steps", "4").status == 0


def test_words_of_a_word_model_stay_when_the_vocabulary_changes(elmo, text, tmp_path) -> None:
    folder = write_bilm(tmp_path / "model", make_bilm(words=True))
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("<S>\n</S>\n<UNK>\nbank\nnew\nthe\n")
    elmo("train", text, *PACE, *STILL, "--init", folder, "--vocab", vocab, "--output", tmp_path / "run")
    first, second = Elmo.load(folder), Elmo.load(tmp_path / "run")
    line = ["the bank"]
    np.testing.assert_array_equal(first.encode(line)[0], second.encode(line)[0])


@pytest.mark.parametrize("option", ["--cell-size", "--output-size", "--layers", "--max-characters"])
def test_a_model_has_its_shape(refused, text, tmp_path, option) -> None:
    folder = write_bilm(tmp_path / "model", make_bilm())
    sentence = refused("train", text, "--init", folder, option, "7", "--output", tmp_path / "run")
    assert option.removeprefix("--").replace("-", "_") in sentence.replace("-", "_")


def vectors_file(path, size: int = 12, binary: bool = False):
    words = {"the": 1.5, "bank": -2.0, "elsewhere": 3.0}
    if binary:
        rows = b"".join(w.encode() + b" " + np.full(size, v, "<f4").tobytes() + b"\n" for w, v in words.items())
        path.write_bytes(f"{len(words)} {size}\n".encode() + rows)
    else:
        path.write_text("".join(f"{w} {' '.join([str(v)] * size)}\n" for w, v in words.items()))
    return path


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("learning", [False, True])
def test_word_vectors(elmo, text, tmp_path, binary, learning) -> None:
    vectors = vectors_file(tmp_path / ("v.bin" if binary else "v.txt"), binary=binary)
    words = ("--input", "words", "--word-vectors", vectors, *(() if learning else ("--no-train-word-vectors",)))
    ended = elmo("train", text, *TINY, *words, "--steps", "6", "--output", tmp_path / "run")
    assert ended.status == 0, ended.err
    model = read_checkpoint(tmp_path / "run")
    table = model.weights["token_encoder.words.weight"][1:]
    known = {word: table[model.vocab.index(word)] for word in ("the", "bank")}
    still = all((row == value).all() for row, value in zip(known.values(), (1.5, -2.0), strict=True))
    assert still == (not learning)
    for row, value in zip(known.values(), (1.5, -2.0), strict=True):
        assert (row - value).abs().max() < 0.2
    start = last_snapshot(tmp_path / "run").tensors["optimizer.bilm.token_encoder.words.weight.exp_avg_sq"][1:]
    assert start[model.vocab.index("sees")].sum() > 0, "words without a vector learn"
    assert "2 of" in ended.err, "coverage is reported"


def test_word_vectors_of_another_width(refused, text, tmp_path) -> None:
    vectors = vectors_file(tmp_path / "v.txt", size=9)
    words = ("--input", "words", "--word-vectors", vectors)
    sentence = refused("train", text, *TINY, *words, "--output", tmp_path / "run", after="corpus")
    assert "size" in sentence
    assert "9" in sentence
    assert "12" in sentence


def test_the_same_command_resumes_a_run_with_a_word_size(elmo, text, tmp_path) -> None:
    for size in (9, 12):
        words = ("--input", "words", "--word-size", size)
        command = ("train", text, *TINY, *words, "--output", tmp_path / str(size))
        assert elmo(*command, "--steps", "2").status == 0
        assert elmo(*command, "--steps", "3", "--resume").status == 0
        assert Elmo.load(tmp_path / str(size)).encode(["the bank"])[0].shape == (2, 24)


def test_a_tied_softmax_is_the_word_table(elmo, text, tmp_path) -> None:
    elmo("train", text, *TINY, "--input", "words", "--tie-softmax", "--steps", "4", "--output", tmp_path / "run")
    model = read_checkpoint(tmp_path / "run")
    assert torch.equal(model.head["weight"], model.weights["token_encoder.words.weight"][1:])
    assert Elmo.load(tmp_path / "run").perplexity(["the bank sees it ."]) > 1


def test_chinese_from_raw_text(elmo, tmp_path) -> None:
    pytest.importorskip("jieba")
    text = tmp_path / "zh.txt"
    text.write_text("银行提高了利率。河岸上有很多树！他在银行工作，她住在河边。\n" * 12, encoding="utf-8")
    ended = elmo("vocab", text, "--segment", "jieba", "--split", "line", "--output", tmp_path / "vocab.txt")
    assert ended.status == 0, ended.err
    chinese = ("--segment", "jieba", "--split", "line", "--input", "words", "--vocab", tmp_path / "vocab.txt")
    ended = elmo("train", text, *TINY, *chinese, "--steps", "3", "--output", tmp_path / "run")
    assert ended.status == 0, ended.err
    assert "stored 36 sentences" in ended.err
    model = Elmo.load(tmp_path / "run")
    one, other = model.encode([["银行", "提高", "了", "利率"], ["河岸", "上"]])
    assert one.shape == (4, 24)
    assert np.isfinite(other).all()
    assert "银行" in (tmp_path / "run" / "vocab.txt").read_text("utf-8").split()


def test_text_is_read_as_that_of_the_model_was(elmo, tmp_path) -> None:
    text = tmp_path / "zh.txt"
    text.write_text("银行提高了利率。河岸上有很多树！\n" * 12, encoding="utf-8")
    chinese = ("--segment", "chars", "--split", "line", "--input", "words")
    assert elmo("train", text, *TINY, *chinese, "--steps", "1", "--output", tmp_path / "old").status == 0
    more = ("train", text, *PACE, "--steps", "1", "--init", tmp_path / "old")
    ended = elmo(*more, "--output", tmp_path / "new")
    assert ended.status == 0, ended.err
    assert "text: read as the text of old was: segment chars, split line" in ended.err
    assert "stored 24 sentences, 192 tokens" in ended.err
    assert read_checkpoint(tmp_path / "new").text == {"segment": "chars", "split": "line"}
    ended = elmo(*more, "--output", tmp_path / "other", "--split", "none")
    assert "text: read as the text of old was: segment chars\n" in ended.err
    assert "stored 12 sentences, 192 tokens" in ended.err


def test_the_card_says_what_it_started_from(elmo, text, tmp_path) -> None:
    assert elmo("train", text, *TINY, "--steps", "1", "--output", tmp_path / "old").status == 0
    card = tmp_path / "old" / "README.md"
    card.write_text(card.read_text().replace("## Training", "## Licence\n\nAsk the authors.\n\n## Training"))
    ended = elmo("train", text, *PACE, "--steps", "1", "--init", tmp_path / "old", "--output", tmp_path / "new")
    assert ended.status == 0, ended.err
    new = (tmp_path / "new" / "README.md").read_text()
    assert "- start: from old; softmax: that of old; " in new
    assert new.index("## Training") < new.index("## The model it started from") < new.index("### Licence\n\nAsk")
    assert "### Training\n\n- data: " in new


def test_a_prepared_corpus_says_how_it_was_read(elmo, refused, tmp_path) -> None:
    text, cache = tmp_path / "text.txt", tmp_path / "cache"
    text.write_text("The bank raised rates. It's late!\n" * 30)
    read = ("--segment", "english", "--split", "line", "--cache", cache, "--output", tmp_path / "vocab.txt")
    assert elmo("vocab", text, *read).status == 0
    for name, source in (("shared", cache), ("folder", next(cache.iterdir()))):
        ended = elmo("train", source, *TINY, "--steps", "1", "--output", tmp_path / name)
        assert ended.status == 0, ended.err
        assert "was: segment english, split line" in ended.err
        assert read_checkpoint(tmp_path / name).text == {"segment": "english", "split": "line"}
    assert elmo("vocab", text, "--cache", cache, "--output", tmp_path / "vocab.txt").status == 0
    sentence = refused("train", cache, *TINY, "--steps", "1", "--output", tmp_path / "none")
    assert "cache contains 2 prepared corpora: give the folder of one, such as " in sentence


def test_options_from_a_file(elmo, refused, text, tmp_path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('preset = "tiny"\ncell-size = 24\noutput_size = 12\nfilters = "1:4"\nbatch_size = 4\nsteps = 3\n')
    command = ("train", text, "--config", config, "--output", tmp_path / "run", "--window", "5")
    assert elmo(*command).status == 0
    recipe = json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]
    assert (recipe["cell_size"], recipe["window"], recipe["steps"]) == (24, 5, 3)
    assert elmo(*command, "--resume").status == 0
    config.write_text(config.read_text().replace("cell-size = 24", "cell-size = 25"))
    assert "size was 24" in refused(*command, "--resume")
    config.write_text("cell_sise = 3\n")
    assert "cell_sise" in refused("train", text, "--config", config, "--output", tmp_path / "other")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--output DIR is missing"),
        (("--output", "new"), "a corpus is needed"),
        (("gone.txt", "--output", "new"), "gone.txt"),
        (("empty.txt", "--output", "new"), "no sentence"),
        (("text.txt", "--output", "new", "--vocab", "no-unk.txt"), "<UNK>"),
        (("text.txt", "--output", "new", "--vocab", "gone.txt"), "elmo vocab writes"),
        (("text.txt", "--output", "model"), "contains a model"),
        (("text.txt", "--output", "ours"), "contains a model"),
        (("text.txt", "--output", "words"), "vocab.txt would be overwritten"),
        (("text.txt", "--output", "words", "--vocab", "other.txt"), "vocab.txt would be overwritten"),
        (("text.txt", "--output", "run"), "resume"),
        (("text.txt", "--output", "new", "--preset", "huge"), "huge"),
        (("text.txt", "--output", "new", "--recipe", "huge"), "huge"),
        (("text.txt", "--output", "new", "--dropout", "1"), "dropout"),
        (("text.txt", "--output", "new", "--window", "0"), "window"),
        (("text.txt", "--output", "new", "--window", "many"), "--window"),
        (("text.txt", "--output", "new", "--filters", "3"), "filters"),
        (("text.txt", "--output", "new", "--decay", "never"), "decay"),
        (("text.txt", "--output", "new", "--tie-softmax"), "input words"),
        (("text.txt", "--output", "new", "--word-size", "4"), "--word-size needs --input words"),
        (("text.txt", "--output", "new", "--init-options", "o.json"), "--init-options needs --init"),
        (("text.txt", "--output", "new", *TRANSFORMER, "--heads", "5"), "or another --heads"),
        (("text.txt", "--output", "new", *TRANSFORMER, "--blocks", "7"), "of --every (2), got 7"),
        (("text.txt", "--output", "new", *TRANSFORMER, "--done", "0.5"), "after this share"),
        (("text.txt", "--output", "new", "--word-vectors", "v.txt"), "vectors need"),
        (
            ("text.txt", "--output", "new", "--input", "words", *FROZEN, "--weight-decay", "0.1"),
            "decay 0.1",
        ),
        (("text.txt", "--output", "new", "--init", "gone"), "gone"),
        (("text.txt", "--output", "new", "--config", "gone.toml"), "gone.toml"),
        (("text.txt", "--output", "new", "--config", "other.txt"), "not valid TOML"),
        (("text.txt", "--output", "new", "--heldout", "gone.txt"), "gone.txt"),
        (("text.txt", "--output", "new", "--device", "abacus"), "abacus"),
        (("text.txt", "--output", "text.txt"), "text.txt"),
        (("--output", "run", "--resume", "--dropout", "0.4"), "dropout was 0.1"),
        (("--output", "run", "--resume", "--preset", "medium"), "preset was small"),
        (("--output", "run", "--resume", "--recipe", "paper"), "recipe was modern"),
        (("--output", "run", "--resume", "--vocab", "other.txt"), "other.txt"),
        (("other.txt", "--output", "run", "--resume"), "no longer the text"),
        (("--output", "run", "--resume", "--batch-size", "5"), "rows of text"),
        (("--output", "", "text.txt"), "--output"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_lost(
    elmo, refused, text, tmp_path, monkeypatch, arguments, said
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "no-unk.txt").write_text("<S>\n</S>\nthe\n")
    (tmp_path / "other.txt").write_text("<S>\n</S>\n<UNK>\nthe\n")
    vectors_file(tmp_path / "v.txt")
    write_bilm(tmp_path / "model", make_bilm(words=True))
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text("{}")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nthe\n")
    if "run" in arguments:
        elmo("train", "text.txt", *TINY, "--steps", "2", "--output", "run")
    cache = tmp_path / "cache"

    def files() -> dict[str, int]:
        found = (path for path in tmp_path.rglob("*") if path.is_file() and cache not in path.parents)
        return {str(path): path.stat().st_mtime_ns for path in found}

    before = files()
    sentence = refused("train", *arguments, after="corpus")
    assert said in sentence
    assert files() == before
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "model" / "checkpoints").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser reads everything")
def test_an_unreadable_file(refused, text, tmp_path) -> None:
    text.chmod(0)
    assert "text.txt" in refused("train", text, *TINY, "--output", tmp_path / "run")


def test_a_corpus_that_has_changed(elmo, refused, text, tmp_path) -> None:
    command = ("train", text, *TINY, "--output", tmp_path / "run", "--cache", tmp_path / "prepared")
    elmo(*command, "--steps", "2")
    assert elmo(*command, "--steps", "3", "--resume").status == 0
    write_text(text, 200, seed=3)
    assert elmo(*command, "--steps", "4", "--resume").status == 0, "it has the prepared corpus still"
    for file in (tmp_path / "prepared").rglob("*.*"):
        file.unlink()
    sentence = refused(*command, "--steps", "5", "--resume")
    assert "no longer the text the run began with" in sentence
    text.write_text("".join(f"{line}\n" for line in sentences(300)), encoding="utf-8")
    ended = elmo(*command, "--steps", "5", "--resume")
    assert ended.status == 0, "the same sentences are the same corpus, whatever the file's time"


def test_two_trainings_in_a_folder(refused, text, tmp_path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.locked():
        sentence = refused("train", text, *TINY, "--output", tmp_path / "run")
    assert "another process is training" in sentence


def test_rows_are_chosen_once(elmo, text, tmp_path) -> None:
    command = ("train", text, *SHAPE, "--filters", "1:4, 2:8", "--window", "6", "--output", tmp_path / "run")
    assert elmo(*command, "--steps", "2").status == 0
    rows = json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]["batch_size"]
    assert rows > 0
    ended = elmo(*command, "--steps", "3", "--resume")
    assert ended.status == 0, ended.err
    assert f"{rows} rows x 6 tokens" in ended.err


def test_lengths_of_nothing_leave_the_length_as_it_was(elmo, text, tmp_path) -> None:
    command = ("train", text, *TINY, "--output", tmp_path / "run", "--decay", "none")
    elmo(*command, "--steps", "3")
    ended = elmo(*command, "--steps", "0", "--resume")
    assert ended.status == 0
    assert "training: 3 updates" in ended.err


def test_the_softmax_of_older_files(elmo, text, tmp_path) -> None:
    elmo("train", text, *TINY, "--steps", "2", "--output", tmp_path / "run")
    with h5py.File(tmp_path / "run" / "bilm" / "weights.hdf5") as file:
        assert file["char_embed"].shape == (261, 4)
    options = json.loads((tmp_path / "run" / "bilm" / "options.json").read_text())
    assert options["lstm"]["dim"] == 24
