"""Our own folder when a file is missing, cut, or says what cannot be."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from elmokit import Elmo
from elmokit.formats.save import convert_model
from support.model_files import make_bilm, make_manylangs, refusal, write_manylangs, write_tensorflow


@pytest.fixture
def native(tmp_path):
    convert_model(write_tensorflow(tmp_path / "from", make_bilm(softmax=True)), tmp_path / "model", to="elmokit")
    elmo = Elmo.load(tmp_path / "model", mixes=2)
    optimizer = (tmp_path / "model" / "optimizer.safetensors").read_bytes()
    elmo.save(tmp_path / "model")
    (tmp_path / "model" / "optimizer.safetensors").write_bytes(optimizer)
    Elmo.load(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def symbols(tmp_path):
    Elmo.load(write_manylangs(tmp_path / "from", make_manylangs())).save(tmp_path / "model")
    return tmp_path / "model"


def edit(folder, key: str, value: object) -> None:
    values = json.loads((folder / "config.json").read_text())
    *sections, leaf = key.split(".")
    place = values
    for section in sections:
        place = place[int(section) if isinstance(place, list) else section]
    if value is KeyError:
        del place[leaf]
    else:
        place[leaf] = value
    (folder / "config.json").write_text(json.dumps(values))


CONFIG = [
    ("version", 2, "version must be 1, got 2"),
    ("version", KeyError, "version must be 1, got None"),
    ("model", KeyError, "model must be an object"),
    ("model", "ab", "model must be an object"),
    ("model", [["lstm", 1]], "model must be an object"),
    ("model.lstm", KeyError, "needs the key lstm"),
    ("model.lstm", 7, "lstm must be an object"),
    ("model.lstm.cell_size", "7", "cell_size must be a whole number"),
    ("model.lstm.cell_size", 10**12, "cell_size must be from 1 to"),
    ("model.lstm.cell_size", KeyError, "lstm needs the key cell_size"),
    ("model.lstm.colour", "red", "lstm has no key colour"),
    ("model.lstm.forget_bias", 0.5, "forget_bias must be 0 or 1"),
    ("model.lstm.projection", "yes", "projection must be true or false"),
    ("model.characters", [], "characters must be an object"),
    ("model.characters.filters", 5, "filters must be pairs"),
    ("model.characters.filters", [[1, "3"]], "a filter's count"),
    ("model.characters.activation", "gelu", "activation must be one of relu, tanh, got 'gelu'"),
    ("model.characters.n_characters", 261, "n_characters must be 262"),
    ("model.characters", None, "a model needs a character part"),
    ("mixes", 3, "mixes must be a list of objects"),
    ("mixes.0.layer_norm", "always", "layer_norm of a mix must be"),
    ("specials", ["<S>"], "specials must be three words"),
    ("specials", ["<S>", "</S>", 3], "specials must be three words"),
]


@pytest.mark.parametrize(("key", "value", "fact"), CONFIG, ids=[f"{key}={value}" for key, value, _ in CONFIG])
def test_a_wrong_value_in_config_json(native, key, value, fact):
    edit(native, key, value)
    refusal(native, str(native / "config.json"), fact)


MISFITS = [
    ("model.lstm.cell_size", 8, "model.safetensors has "),
    ("model.lstm.n_layers", 1, "must contain 2 weights and a gamma of mix 0"),
    ("model.lstm.n_layers", 2**31 - 1, "n_layers must be from 1 to 1,000"),
    ("model.lstm.n_layers", 1000, "must contain 1001 weights"),
    ("model.characters.n_highway", 2**31 - 1, "n_highway must be from 0 to 1,000"),
    ("model.characters.n_highway", 1000, "lacks the weights token_encoder.char_cnn.highways.1"),
    ("model.characters.filters", [[1, 1]] * 1001, "filters must name 1 to 1000 convolutions, got 1001"),
    ("model.characters.n_highway", 2, "lacks the weights token_encoder.char_cnn.highways.1"),
    ("model.characters.n_highway", 0, "does not name: token_encoder.char_cnn.highways.0"),
    ("model.characters.embedding_size", 2**31 - 1, "model.safetensors"),
    ("model.characters.max_characters", 2**31 - 1, "max_characters must be from"),
    ("model.characters.filters", [[1, 2**31 - 1]] * 9, "model.safetensors"),
    ("model.bidirectional", False, "does not name: backward_lstm"),
    ("mixes", [], "does not name: mixes.0"),
    ("mixes", [{}, {}, {}], "gamma of mix 2, got the shapes [None, None]"),
    ("specials", ["<bos>", "<eos>", "<oov>"], "a vocabulary needs the entry <bos>"),
]


@pytest.mark.parametrize(("key", "value", "fact"), MISFITS, ids=[f"{key}={value}" for key, value, _ in MISFITS])
def test_a_configuration_of_another_model(native, key, value, fact):
    edit(native, key, value)
    refusal(native, str(native), fact)


@pytest.mark.parametrize("share", [0, 0.0005, 0.01, 0.5, 0.999])
@pytest.mark.parametrize("name", ["model", "lm_head", "optimizer"])
def test_a_file_cut_short(native, name, share):
    path = native / f"{name}.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    refusal(native, f"{path} is not a complete safetensors file", "fetch it again")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file(native, name):
    (native / name).unlink()
    refusal(native, str(native), name if name.startswith("model") else "no model that elmokit knows")


def test_config_json_that_is_none(native):
    for text in (b"", b"[1]", b"\xff", b"[" * 100_000, b'{"version": 1' + b"0" * 5000 + b"}"):
        (native / "config.json").write_bytes(text)
        refusal(native, str(native / "config.json"))


def replace(path, **changes) -> None:
    tensors = load_file(path)
    for name, value in changes.items():
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value
    path.unlink()
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("file", "name", "value", "fact"),
    [
        ("model", "forward_lstm.layers.0.bias", None, "lacks the weights forward_lstm.layers.0.bias"),
        ("model", "forward_lstm.layers.0.bias", torch.zeros(3), "in the shape (3,)"),
        ("model", "forward_lstm.layers.0.bias", torch.full((28,), torch.nan), "28 values"),
        ("model", "forward_lstm.layers.0.bias", torch.zeros(28, dtype=torch.int32), "plain tensor of floats"),
        ("model", "forward_lstm.layers.0.bias", torch.zeros(28, dtype=torch.complex64), "plain tensor of floats"),
        ("model", "forward_lstm.layers.0.bias", torch.zeros(28).to(torch.float8_e5m2), "plain tensor of floats"),
        ("model", "another", torch.zeros(3), "does not name: another"),
        ("model", "mixes.0.gamma", torch.ones(2), "weights and a gamma of mix 0"),
        ("model", "mixes.1.weights", torch.ones(2), "weights and a gamma of mix 1"),
        ("model", "mixes.0.weights", torch.tensor([0, torch.inf, 0]), "mix 0 weights that are not finite"),
        ("lm_head", "bias", torch.tensor(0.0), "must contain weight [V, 5] and bias [V]"),
        ("lm_head", "bias", torch.zeros(9, 1), "must contain weight [V, 5] and bias [V]"),
        ("lm_head", "weight", None, "must contain weight [V, 5] and bias [V]"),
        ("lm_head", "more", torch.zeros(1), "must contain weight [V, 5] and bias [V]"),
        ("lm_head", "weight", torch.full((9, 5), torch.inf), "softmax weight that are not finite"),
        ("optimizer", "step", torch.tensor(5), "optimiser state of the shape () for step"),
        ("optimizer", "head.bias", torch.ones(3), "optimiser state of the shape (3,) for head.bias"),
        ("optimizer", "unknown", torch.ones(3), "for unknown"),
        ("optimizer", "head.bias", torch.full((9,), torch.nan), "not finite"),
    ],
)
def test_tensors_that_do_not_fit(native, file, name, value, fact):
    replace(native / f"{file}.safetensors", **{name: value})
    refusal(native, str(native), fact)


def test_a_vocabulary_of_another_length(native):
    text = (native / "vocab.txt").read_text()
    for changed in (text + "more\n", text.replace("bank\n", "")):
        (native / "vocab.txt").write_text(changed)
        refusal(native, str(native), "softmax of 9 words, and its vocabulary has")


MARKERS = dict.fromkeys(("<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"), 0)
CHARACTERS = {
    "missing": (None, "characters.json is missing"),
    "no object": ("[]", "characters.json must be a JSON object"),
    "no numbers": ('{"a": "b"}', "must map symbols to whole numbers"),
    "true": ('{"a": true}', "must map symbols to whole numbers"),
    "no markers": ('{"a": 1}', "needs the entry <bos>"),
    "negative": (json.dumps({**MARKERS, "a": -1}), "ids from -1 to 0"),
    "too large": (json.dumps({**MARKERS, "a": 99}), "ids from 0 to 99"),
}


@pytest.mark.parametrize("case", CHARACTERS)
def test_a_table_of_characters_that_does_not_fit(symbols, case):
    text, fact = CHARACTERS[case]
    (symbols / "characters.json").unlink()
    if text is not None:
        (symbols / "characters.json").write_text(text)
    refusal(symbols, str(symbols), fact)


def test_a_word_table_without_its_words(symbols):
    (symbols / "vocab.txt").unlink()
    refusal(symbols, str(symbols / "model.safetensors"), "reads words and has no vocabulary")


def test_a_table_of_characters_that_nothing_needs_is_not_read(native):
    (native / "characters.json").write_text("broken")
    assert np.isfinite(Elmo.load(native).encode(["the bank"])[0]).all()


@pytest.mark.parametrize("damage", ["overwritten", "cut"])
def test_a_loaded_model_does_not_change_with_its_files(native, damage):
    """Mapped weights would change under the model, or end the process with SIGBUS."""
    elmo, sentences = Elmo.load(native, device="cpu"), [["a", "bank"]]
    expected, perplexity = elmo.encode(sentences)[0], elmo.perplexity(sentences)
    elmo = Elmo.load(native, device="cpu")
    for path in native.glob("*.safetensors"):
        with path.open("r+b") as file:
            file.truncate(100) if damage == "cut" else file.write(bytes(path.stat().st_size))
    np.testing.assert_array_equal(elmo.encode(sentences)[0], expected)
    assert elmo.perplexity(sentences) == perplexity
