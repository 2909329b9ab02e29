"""A task model's folder: what was saved comes back, and an incomplete folder is reported in a sentence."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.storage.atomic import check_new_folder, new_folder
from elmokit.tasks import fit, load, save
from support.task_samples import IOB1, pairs, samples, sentences, texts, tiny_options
from support.tiny_models import tiny_checkpoint, word_config

TEXTS = ["a good film", "", "film Ann Smith was Paris", "😀 unheard of"]
CASES = {
    "classify": ("classify", texts(16), {}),
    "layer 0": ("classify", texts(16), {"elmo": "0", "pooling": "mean", "layers": 2}),
    "no ELMo": ("classify", texts(16), {"elmo": "none"}),
    "tag": ("tag", sentences(16, IOB1), {"elmo_output": True, "mix_layer_norm": True, "static": "none"}),
    "no CRF": ("tag", sentences(16), {"crf": False}),
    "GloVe": ("tag", sentences(16), {"static": "glove"}),
    "pair": ("pair", pairs(16), {}),
    "score": ("pair", pairs(16, scores=True), {"target": "score", "alignment": False}),
    "fine-tuned": ("classify", texts(16), {"fine_tune": True, "elmo_learning_rate": 0.01}),
}


@pytest.fixture
def trained(make_elmo, tmp_path):
    def train(kind="classify", examples=None, *, config=None, given=None, segment="none", **options):
        examples = samples(kind, 16) if examples is None else examples
        elmo = make_elmo(config, head=True, scale=1.0)
        chosen = tiny_options(**{"epochs": 1, **options})
        arguments = {"elmo": elmo, "static": given, "segment": segment, "cache": tmp_path / "cache"}
        return fit(kind, examples, examples[:4], chosen, **arguments).model

    return train


def answers(model):
    return model.predict([(text, "good") for text in TEXTS] if model.kind == "pair" else TEXTS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder that nobody may change."""
    place, elmo = tmp_path_factory.mktemp("saved"), Elmo(tiny_checkpoint(scale=1.0))
    options, cache = tiny_options(epochs=1), place / "cache"
    model = fit("classify", texts(16), texts(4), options, elmo=elmo, segment="english", cache=cache).model
    save(model, place / "model")
    return model, place / "model"


@pytest.fixture
def model(saved):
    return saved[0]


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved[1], tmp_path / "model")


@pytest.mark.parametrize("name", CASES)
def test_what_was_saved_comes_back(trained, tmp_path, name):
    kind, examples, options = CASES[name]
    model = trained(kind, examples, **options)
    save(model, tmp_path / "somewhere" / "model")
    shutil.move(tmp_path / "somewhere" / "model", tmp_path / "elsewhere")
    found = load(tmp_path / "elsewhere")
    assert (found.kind, found.labels, found.options) == (model.kind, model.labels, model.options)
    assert found.task == model.task
    assert answers(found) == answers(model)
    weights, expected = found.network.state_dict(), model.network.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    names = {path.name for path in (tmp_path / "elsewhere").iterdir()}
    assert names == {"task.json", "network.safetensors"} | (
        ({"words.txt"} if model.options.static != "none" else set()) | ({"elmo"} if model.elmo else set())
    )


def test_the_tuned_model_is_saved_and_the_softmax_is_not(trained, tmp_path):
    model = trained(fine_tune=True, elmo_learning_rate=0.01)
    save(model, tmp_path / "model")
    stored = Elmo.load(tmp_path / "model" / "elmo")
    assert stored.head is None
    for name, value in model.elmo.bilm.state_dict().items():
        assert torch.equal(stored.bilm.state_dict()[name], value), name


def test_weights_of_half_precision_stay_so(trained, tmp_path, make_elmo):
    model = trained()
    for parameter in model.elmo.bilm.parameters():
        parameter.data = parameter.data.half().float()
    expected = answers(model)
    save(model, tmp_path / "half")
    assert answers(load(tmp_path / "half")) == expected
    save(trained(), tmp_path / "full")
    sizes = [(tmp_path / name / "elmo" / "model.safetensors").stat().st_size for name in ("half", "full")]
    assert sizes[0] < 0.7 * sizes[1]


def test_the_words_of_glove_that_were_not_trained_take_little_space(trained, tmp_path):
    save(trained(static="glove"), tmp_path / "model")
    assert (tmp_path / "model" / "network.safetensors").stat().st_size < 80_000 * 50 * 2 + 100_000


def test_models_and_words_of_other_kinds(trained, tmp_path):
    """A biLM with a word table; words with line ends, quotes and a lone surrogate in them."""
    words = ["good", "bad", "\u2028", '"', "\x85\x1c", "\ud800", "é"]
    vectors = np.random.default_rng(0).normal(size=(len(words), 3)).astype(np.float32)
    model = trained(config=word_config(), given=(words, vectors))
    save(model, tmp_path / "model")
    found = load(tmp_path / "model")
    assert found.network.encoder.static.words == model.network.encoder.static.words
    assert answers(found) == answers(model)
    assert found.predict((words[2], words[5])) == model.predict((words[2], words[5]))


def test_how_texts_are_split_is_saved(folder):
    assert load(folder).tokens("It wasn't good.") == ("It", "was", "n't", "good", ".")


def test_files_are_for_everyone_to_read(folder):
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.rglob("*"):
        if path.is_file() and path.parent == folder:
            assert path.stat().st_mode & 0o777 == 0o666 & ~umask, path


def test_a_folder_that_is_not_empty_is_left_alone(model, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("full", "file", "dangling"):
        with pytest.raises(ElmoError, match=f"{name} is not empty: choose a new folder"):
            save(model, tmp_path / name)
        with pytest.raises(ElmoError, match=f"{name} is not empty: choose a new folder"):
            check_new_folder(tmp_path / name)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]
    with pytest.raises(ElmoError, match="cannot be written: "):
        save(model, tmp_path / "file" / "model")
    with pytest.raises(ElmoError, match="cannot be written: Not a directory"):
        check_new_folder(tmp_path / "file" / "model")


def test_an_empty_folder_is_filled(model, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.chdir(tmp_path / "empty")
    save(model, Path())  # where the user stands, whose place no other folder may take
    assert answers(load(tmp_path / "link")) == answers(model)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("write", ["write_tensors", "write_text", "write_checkpoint", "sync"])
def test_an_error_in_the_middle_leaves_nothing(model, tmp_path, monkeypatch, write, error, existing):
    calls = 0
    place = tmp_path / "new" / "model"
    if existing:
        place.mkdir(parents=True)

    def fail(*_, **__):
        nonlocal calls
        calls += 1
        raise error

    monkeypatch.setattr("elmokit.storage.atomic.sync" if write == "sync" else f"elmokit.tasks.model.{write}", fail)
    with pytest.raises((ElmoError, KeyboardInterrupt)) as caught:
        save(model, place)
    assert calls == 1
    assert isinstance(caught.value, KeyboardInterrupt) or "No space left on device" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.glob("**/model/*")) == []
    assert not list(tmp_path.rglob("*.tmp"))
    assert place.exists() == existing
    assert place.parent.exists() == existing, "what was made for it is gone again"


def test_checking_leaves_no_trace(tmp_path):
    check_new_folder(tmp_path / "a" / "b")
    assert not list(tmp_path.iterdir())
    with new_folder(tmp_path / "a" / "b", last="x") as staging:
        (staging / "x").write_text("x")
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "b", "x"]


def test_a_full_disk_is_reported(model, tmp_path, monkeypatch):
    from safetensors import SafetensorError

    def fail(*_):
        raise SafetensorError("Error while serializing: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(ElmoError, match=r"network\.safetensors cannot be written: .*No space left on device"):
        save(model, tmp_path / "model")


def changed(folder, **changes):
    facts = json.loads((folder / "task.json").read_text())
    (folder / "task.json").write_text(json.dumps({**facts, **changes}))


def options(folder, **changes):
    return {**json.loads((folder / "task.json").read_text())["options"], **changes}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "task.json").unlink(), "is not a task model: it has no task.json; `elmo task train` makes"),
        (lambda f: (f / "task.json").write_text("{"), r"task\.json is damaged"),
        (lambda f: (f / "task.json").write_bytes(b"\xff"), r"task\.json is damaged"),
        (lambda f: (f / "task.json").write_text("[]"), "does not describe a task model"),
        (lambda f: (f / "task.json").write_text("{}"), "does not describe a task model"),
        (lambda f: changed(f, version=2), "has version 2, and this elmokit reads 1"),
        (lambda f: changed(f, answers=None), r"task\.json is damaged"),
        (lambda f: changed(f, answers={}), r"task\.json is damaged \(KeyError\('kind'\)\)"),
        (lambda f: changed(f, answers={"kind": "x", "labels": None, "scheme": {}}), "a task is one of classify"),
        (lambda f: changed(f, answers={"kind": "tag", "tags": None, "scheme": {}}), r"task\.json is damaged"),
        (lambda f: changed(f, options=3), r"task\.json is damaged"),
        (lambda f: changed(f, options=options(f, gates=4)), "newer elmokit, which knows gates"),
        (lambda f: changed(f, options=options(f, hidden=-1)), r"task\.json: hidden must be at least 0, got -1"),
        (lambda f: changed(f, options=options(f, hidden="8")), "hidden must be a whole number, got '8'"),
        (lambda f: changed(f, segment="chinese"), r"task\.json: the segmenter must be one of"),
        (lambda f: changed(f, static={"size": 6}), r"task\.json is damaged"),
        (lambda f: changed(f, static={"size": 6, "n_trained": 999, "frozen": False}), r"task\.json is damaged"),
        (lambda f: (f / "words.txt").unlink(), r"words\.txt cannot be read: .*No such file"),
        (lambda f: (f / "words.txt").write_text("good\n"), r"words\.txt cannot be read"),
        (lambda f: (f / "words.txt").write_text("3\n4\n"), r"words\.txt is damaged"),
        (lambda f: (f / "words.txt").write_text('"a"\n' * 30), r"network\.safetensors cannot be read"),
        (lambda f: (f / "network.safetensors").unlink(), r"network\.safetensors cannot be read \(No such file"),
        (lambda f: (f / "network.safetensors").write_bytes(b"x" * 99), r"network\.safetensors cannot be read"),
        (lambda f: changed(f, options=options(f, hidden=9)), r"network\.safetensors cannot be read \(size mismatch"),
        (
            lambda f: changed(f, options=options(f, layers=2)),
            r"network\.safetensors cannot be read \(Missing key.* train the model again",
        ),
        (lambda f: shutil.rmtree(f / "elmo"), "elmo"),
        (lambda f: (f / "elmo" / "model.safetensors").write_bytes(b""), r"model\.safetensors"),
        (lambda f: (f / "elmo" / "config.json").unlink(), "elmo"),
    ],
)
def test_damaged_folders_are_reported_in_a_sentence(folder, damage, message):
    damage(folder)
    with pytest.raises(ElmoError, match=message) as caught:
        load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "ElmoError(" not in str(caught.value)


def test_a_file_that_is_cut_while_it_is_loaded_does_not_end_the_process(folder, model, monkeypatch):
    copy = torch.nn.Module.load_state_dict

    def cut_and_copy(network, weights, *arguments, **options):
        os.truncate(folder / "network.safetensors", 0)  # a page of a mapped file would be gone, which is a signal
        return copy(network, weights, *arguments, **options)

    monkeypatch.setattr("elmokit.tasks.network.TaskNetwork.load_state_dict", cut_and_copy)
    found = load(folder)
    weights, expected = found.network.state_dict(), model.network.state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_what_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ElmoError, match="is not a task model"):
        load(tmp_path / "missing")
    with pytest.raises(ElmoError, match="is not a task model"):
        load(tmp_path / "file")
