"""runs/: the scripts from raw corpora to a model, in a tiny size, killed once, and what they refuse."""

from __future__ import annotations

import lzma
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from elmokit import Elmo
from elmokit.pretrain.recipe import make_recipe

RUNS = Path(__file__).resolve().parents[1] / "runs"
sys.path.insert(0, str(RUNS))
import heldout  # noqa: E402

sys.path.remove(str(RUNS))

TINY = (
    "--preset tiny --cell-size 16 --output-size 8 --filters 1:4,2:4 --character-size 4 --steps 20 --batch-size 4 "
    "--window 8 --workers 1"
)
TINY_BLOCKS = (
    "--preset tiny --size 16 --blocks 2 --heads 2 --inner-size 16 --softmax-size 8 --batch-tokens 256 --workers 1"
)
NOUNS = ["bank", "river", "house", "tree", "dog", "Ærø", "日本語"]
ENGLISH = ("enwiki", "simplewiki", "books", "europarl", "frus")
VERBS = ["sees", "likes", "finds", "hears"]
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="the scripts are bash's")


def english(draw: random.Random, number: int) -> str:
    return f"The {draw.choice(NOUNS)} {draw.choice(VERBS)} the {draw.choice(NOUNS)}. It is number {number}, they say."


def chinese(draw: random.Random, number: int) -> str:
    return f"{draw.choice('银行河岸鳥樹')}上有{number}只{draw.choice('鸟狗猫鱼')}。我们{draw.choice('看见听到')}它了！"


def write_corpora(folder: Path, *names: str, sentence=english) -> Path:
    """Files of 20 documents of 8 paragraphs, none of which comes twice."""
    draw, number = random.Random(0), 0
    folder.mkdir()
    for name in names:
        documents = []
        for _ in range(20):
            documents.append("".join(f"{sentence(draw, number + each)}\n" for each in range(8)))
            number += 8
        with lzma.open(folder / f"{name}.txt.xz", "wt", encoding="utf-8") as file:
            file.write("\n".join(documents))
    return folder


def start(script: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """A script in a session of its own, so that it can be killed with all that it started."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("MINUTES", "STEPS", "DEVICE")}
    return subprocess.Popen(
        [RUNS / script, *map(str, arguments)],
        env={**inherited, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        start_new_session=True,
    )


def run(script: str, *arguments: object, **environment: str) -> tuple[int, str, str]:
    process = start(script, *arguments, **environment)
    out, err = process.communicate()
    return process.returncode, out, err


def lines_of(path: Path) -> set[str]:
    data = path.read_bytes()
    return set((lzma.decompress(data) if path.suffix == ".xz" else data).decode().split("\n")) - {""}


def check_split(corpora: Path, output: Path, last: str) -> None:
    """The two parts are the last file; no line of the held-out part is in any text that was trained on."""
    train, held = (lines_of(output / "text" / f"{last}.{part}.txt") for part in ("train", "heldout"))
    assert train | held == lines_of(corpora / f"{last}.txt.xz")
    others = [lines_of(path) for path in corpora.iterdir() if path.name != f"{last}.txt.xz"]
    assert held
    assert not held & train.union(*others)


@needs_bash
def test_the_classic_model_killed_and_resumed(tmp_path) -> None:
    corpora = write_corpora(tmp_path / "corpora", "enwiki-a-0", "enwiki-b-1", "books-0")
    output = tmp_path / "my output"
    environment = {"DEVICE": "cpu", "ELMOKIT_CACHE": str(tmp_path / "cache"), "STEPS": "20000"}
    environment["ELMO_TRAIN_OPTIONS"] = f"{TINY.replace('--steps 20 ', '')} --checkpoint-every 5"
    process = start("en-lstm.sh", corpora, output, **environment)
    try:
        deadline = time.monotonic() + 600
        while not any((output / "run" / "checkpoints").glob("step-*.safetensors")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert not (output / "en-lstm").exists()
    reached = max(int(path.stem.removeprefix("step-")) for path in (output / "run/checkpoints").glob("step-*"))
    cut_at = (output / "text" / "books-0.train.txt").stat().st_mtime_ns

    environment["STEPS"] = str(reached + 40)
    status, out, err = run("en-lstm.sh", corpora, output, **environment)
    assert status == 0, err
    assert "continuing from step" in err
    assert (output / "text" / "books-0.train.txt").stat().st_mtime_ns == cut_at
    for last in ("enwiki-b-1", "books-0"):
        check_split(corpora, output, last)
    used = (output / "run" / "run.json").read_text("utf-8")
    assert "enwiki-a-0.txt.xz" in used
    assert "enwiki-b-1.txt.xz" not in used
    elmo = Elmo.load(output / "en-lstm")
    assert elmo.encode(["The river bank"])[0].shape == (3, 16)
    assert elmo.text == {"segment": "english", "split": "line"}
    assert elmo.perplexity([["The", "river"]]) > 1
    weights, softmax = (load_file(output / "en-lstm" / f"{part}.safetensors") for part in ("model", "lm_head"))
    assert {value.dtype for value in weights.values()} == {torch.float16}
    assert torch.int8 in {value.dtype for value in softmax.values()}
    assert f"the model is {output}/en-lstm" in out
    said = (output / "eval.txt").read_text("utf-8")
    assert said in out
    assert " from zero, " in said
    assert (output / "positions.tsv").read_text("utf-8").startswith("position\tpredictions\tforward_zero\t")


@needs_bash
def test_the_transformer_from_all_kinds_of_text(tmp_path) -> None:
    corpora = write_corpora(tmp_path / "corpora", *(f"{kind}-0" for kind in ENGLISH))
    output = tmp_path / "output"
    environment = {"DEVICE": "cpu", "ELMOKIT_CACHE": str(tmp_path / "cache"), "STEPS": "10"}
    environment["ELMO_TRAIN_OPTIONS"] = f"{TINY_BLOCKS} --filters 1:4,2:4 --character-size 4"
    environment["ELMO_LEG_OPTIONS"] = "--batch-tokens 256 --workers 1"
    status, out, err = run("en.sh", corpora, output, **environment)
    assert status == 0, err
    trained, shipped = (load_file(output / name / "model.safetensors") for name in ("leg3", "en"))
    assert all(torch.equal(value.half(), shipped[name]) for name, value in trained.items())
    assert f"--init {output / 'run'} " in (output / "leg3" / "run.json").read_text("utf-8")
    elmo = Elmo.load(output / "en")
    assert elmo.encode(["The river bank"], output="layers")[0].shape == (4, 3, 16)  # two layers and the prediction
    assert "masked" in (output / "eval.txt").read_text("utf-8")
    assert f"the model is {output}/en" in out


@needs_bash
@pytest.mark.slow
def test_chinese_and_a_second_call(tmp_path) -> None:
    corpora = write_corpora(tmp_path / "corpora", "zhwiki-0", "zhwiki-1", sentence=chinese)
    output = tmp_path / "output"
    options = (
        "--preset tiny --size 16 --blocks 2 --heads 2 --inner-size 16 --softmax-size 8 --batch-tokens 256 --workers 1"
    )
    environment = {
        "DEVICE": "cpu",
        "ELMOKIT_CACHE": str(tmp_path / "cache"),
        "STEPS": "10",
        "ELMO_TRAIN_OPTIONS": options,
        "ELMO_LEG_OPTIONS": "--batch-tokens 256 --workers 1",
    }
    status, _, err = run("zh.sh", f"{corpora}/", output, **environment)
    assert status == 0, err
    check_split(corpora, output, "zhwiki-1")
    assert "鸟" in (output / "text" / "clean" / "zhwiki-0.simplified.txt").read_text("utf-8")
    elmo = Elmo.load(output / "zh")
    assert elmo.dtype == "int8"
    assert elmo.text == {"segment": "chars", "split": "line"}
    assert elmo.perplexity([list("河岸上有鸟")]) > 1
    written = (output / "zh" / "model.safetensors").read_bytes()
    status, _, err = run("zh.sh", corpora, output, **environment)
    assert status == 0, err
    assert (output / "zh" / "model.safetensors").read_bytes() == written, "a run that has ended is not trained on"


@needs_bash
@pytest.mark.parametrize("script", ["en.sh", "en-lstm.sh", "zh.sh"])
def test_mistakes_are_a_sentence_and_status_2(tmp_path, script) -> None:
    corpora, output = tmp_path / "corpora", tmp_path / "output"
    corpora.mkdir()
    for arguments, environment, sentence in (
        ((), {}, "usage: "),
        ((corpora,), {}, "usage: "),
        ((corpora, ""), {}, "usage: "),
        ((corpora, output, "more"), {}, "usage: "),
        ((tmp_path / "none", output), {}, "CORPORA must be a folder that exists"),
        ((corpora, output), {}, "CORPORA must contain "),
        ((corpora, output), {"MINUTES": "1", "STEPS": "2"}, "MINUTES or STEPS, not both"),
        ((corpora, output), {"PYTHON": "/bin/false"}, "PYTHON must have elmokit"),
    ):
        status, out, err = run(script, *arguments, **environment)
        assert (status, out) == (2, ""), (arguments, err)
        assert err.startswith(f"{script}: ")
        assert sentence in err
        assert err.count("\n") == 1
    assert not output.exists()
    status, out, err = run(script, "--help")
    assert (status, err) == (0, "")
    assert "CORPORA OUTPUT" in out


@pytest.mark.parametrize("name", ["en", "en-leg3", "en-lstm", "zh", "zh-leg2"])
def test_the_recipes_are_options_of_elmo_train(name) -> None:
    given = tomllib.loads((RUNS / f"{name}.toml").read_text("utf-8"))
    recipe = make_recipe(config=RUNS / f"{name}.toml")
    assert {key: getattr(recipe, key) for key in given.keys() - {"preset", "recipe"}} == {
        key: value for key, value in given.items() if key not in ("preset", "recipe")
    }


@pytest.mark.parametrize("suffix", [".txt", ".txt.xz", ""])
def test_the_cut_is_between_documents(tmp_path, suffix) -> None:
    documents = [f"{'x' * 50} {number}\nmore\n" for number in range(50)]
    source = tmp_path / f"text.1{suffix}"
    packed = lzma.compress if suffix == ".txt.xz" else bytes
    source.write_bytes(packed("\n".join(documents).encode()))
    assert heldout.main([str(source), str(tmp_path / "new" / "parts")]) == 0
    train, held = heldout.parts(source, tmp_path / "new" / "parts")
    assert (train.name, held.name) == ("text.1.train.txt", "text.1.heldout.txt")
    assert train.read_text() + "\n" + held.read_text() == "\n".join(documents)
    # 96 % are 48 documents; the line at which the cut is counts among the bytes before it.
    assert held.read_text() == "\n".join(documents[48:])


def test_a_text_that_cannot_be_cut(tmp_path, capsys) -> None:
    for content in ("one document\nof two lines\n", "one\n" * 99 + "\nanother\n", ""):
        (tmp_path / "text.txt").write_text(content)
        assert heldout.main([str(tmp_path / "text.txt"), str(tmp_path / "parts")]) == 2
        assert "must have a blank line in its first 96%" in capsys.readouterr().err
        assert not list((tmp_path / "parts").iterdir())
    assert heldout.main([str(tmp_path / "none.txt"), str(tmp_path / "parts")]) == 2
    (tmp_path / "torn.txt.xz").write_bytes(lzma.compress(b"a\n\nb\n" * 999)[:60])
    assert heldout.main([str(tmp_path / "torn.txt.xz"), str(tmp_path / "parts")]) == 2
    assert not list((tmp_path / "parts").iterdir())
