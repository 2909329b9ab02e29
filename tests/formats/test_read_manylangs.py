"""ELMoForManyLangs folders against plain numpy."""

import json

import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.formats import manylangs
from elmokit.formats.load import detect
from support.model_files import ManyLangs, make_manylangs, refusal, write_manylangs, write_zip
from support.numpy_forward import manylangs_layers

TOLERANCE = 1e-5  # float32 against float64, numbers of about 1
# Known and unknown words and characters, the cut at 7 code points (which makes a known word), the ideographic space.
SENTENCES = [["the", "bank", "river"], ["x" * 20, "語🙂", "\u3000"], ["<oov>", "<bos>", "<eos>", "<pad>"], [], ["a"]]


def check_layers(elmo: Elmo, model: ManyLangs) -> None:
    for got, tokens in zip(elmo.encode(SENTENCES, output="layers"), SENTENCES, strict=True):
        expected = manylangs_layers(model, tokens)
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("zipped", [False, True], ids=["old pickle", "new pickle"])
@pytest.mark.parametrize("parts", [(True, True), (True, False), (False, True)], ids=["both", "words", "characters"])
def test_words_and_characters(tmp_path, parts, zipped):
    model = make_manylangs(words=parts[0], characters=parts[1])
    write_manylangs(tmp_path, model, zipped=zipped)
    assert detect(tmp_path).format.name == "manylangs"
    assert detect(tmp_path / "encoder.pkl").format.name == "manylangs"
    check_layers(Elmo.load(tmp_path), model)


def test_a_word_table_is_not_read_where_the_structure_has_no_words(tmp_path):
    model = make_manylangs(words=False)
    write_manylangs(tmp_path, model)
    (tmp_path / "word.dic").write_text("<oov>\t0\n<bos>\t1\n<eos>\t2\n<pad>\t3\n")
    check_layers(Elmo.load(tmp_path), model)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("highways", [0, 1])
def test_activation_and_highways_come_from_the_structure(tmp_path, activation, highways):
    model = make_manylangs()
    for number in range(highways, 2):
        del model.embedder[f"highways._layers.{number}.weight"], model.embedder[f"highways._layers.{number}.bias"]
    model.structure["token_embedder"] |= {"n_highway": highways, "activation": activation}
    check_layers(Elmo.load(write_manylangs(tmp_path, model)), model)


@pytest.mark.parametrize(
    "given",
    ["small.json", "/gone/configs/small.json", "C:\\gone\\configs\\small.json", "x" * 5000 + "/small.json"],
    ids=["name", "absolute", "windows", "too long"],
)
def test_the_structure_is_found_by_its_name(tmp_path, given):
    model = make_manylangs()
    check_layers(Elmo.load(write_manylangs(tmp_path, model, config_path=given)), model)


@pytest.mark.parametrize("given", ["{folder}/secret.json", "../secret.json", "small.json/../../secret.json"])
def test_nothing_outside_the_folder_is_read(tmp_path, given):
    write_manylangs(tmp_path / "model", make_manylangs(), config_path=given.format(folder=tmp_path))
    (tmp_path / "secret.json").write_text("a secret that no message may show")
    assert "secret" not in refusal(tmp_path / "model", "must have the shape (8, 100)")


@pytest.mark.parametrize("config", ['{"config_path": "gone.json"}', '{"config_path": null}', "{}", None])
def test_the_released_structure_where_there_is_none(tmp_path, config, monkeypatch):
    model = make_manylangs()
    write_manylangs(tmp_path, model)
    (tmp_path / "config.json").unlink()
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    monkeypatch.setattr(manylangs, "RELEASED", model.structure)
    check_layers(Elmo.load(tmp_path), model)


def test_the_released_structure_is_the_published_one():
    encoder, embedder = manylangs.RELEASED["encoder"], manylangs.RELEASED["token_embedder"]
    assert (encoder["dim"], encoder["projection_dim"], encoder["n_layers"]) == (4096, 512, 2)
    assert (encoder["cell_clip"], encoder["proj_clip"]) == (3, 3)
    assert (embedder["word_dim"], embedder["char_dim"], embedder["n_highway"]) == (100, 50, 2)
    assert (embedder["activation"], embedder["max_characters_per_token"]) == ("relu", 50)
    assert embedder["filters"] == [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]


def test_the_ideographic_space_has_its_row(tmp_path):
    model = make_manylangs()
    write_manylangs(tmp_path, model)
    assert "\u3000\t6\n" in (tmp_path / "word.dic").read_text(encoding="utf-8")
    elmo = Elmo.load(tmp_path)
    space, unknown = elmo.encode([["\u3000"], ["🙂"]], layer=0)
    assert not np.allclose(space, unknown)
    assert elmo.vocab.index("\u3000") == 6


def test_dictionaries_with_windows_line_ends(tmp_path):
    model = make_manylangs()
    write_manylangs(tmp_path, model)
    for name in ("word.dic", "char.dic"):
        text = (tmp_path / name).read_bytes() + b"\n"
        (tmp_path / name).write_bytes(text.replace(b"\n", b"\r\n"))
    check_layers(Elmo.load(tmp_path), model)


@pytest.mark.parametrize("top", ["", "145/"])
def test_zip(tmp_path, top):
    model = make_manylangs()
    write_manylangs(tmp_path / "folder", model, config_path="/gone/small.json")
    path = write_zip(tmp_path / "145.zip", tmp_path / "folder", top=top)
    assert detect(path).format.name == "manylangs"
    check_layers(Elmo.load(path), model)


def test_half_precision(tmp_path):
    model = make_manylangs()
    model.encoder = {name: value.astype(np.float16).astype(np.float32) for name, value in model.encoder.items()}
    write_manylangs(tmp_path, model)
    torch.save(
        {name: torch.from_numpy(value).half() for name, value in model.encoder.items()}, tmp_path / "encoder.pkl"
    )
    check_layers(Elmo.load(tmp_path), model)


def test_two_names_of_one_tensor(tmp_path):
    model = make_manylangs()
    forward, backward = (f"{direction}_layer_1.input_linearity.weight" for direction in ("forward", "backward"))
    model.encoder[backward] = model.encoder[forward]
    write_manylangs(tmp_path, model)
    tensors = {name: torch.from_numpy(value) for name, value in model.encoder.items()}
    assert tensors[forward].data_ptr() == tensors[backward].data_ptr()
    torch.save({**tensors, backward: tensors[forward]}, tmp_path / "encoder.pkl")
    elmo = Elmo.load(tmp_path)
    check_layers(elmo, model)
    elmo.save(tmp_path / "saved")  # safetensors refuses tensors that share memory
    check_layers(Elmo.load(tmp_path / "saved"), model)


def test_a_word_list_with_a_gap_keeps_its_rows(tmp_path):
    model = make_manylangs()
    del model.words["bank"]
    check_layers(Elmo.load(write_manylangs(tmp_path, model)), model)


def test_config_json_may_have_more_keys(tmp_path):
    model = make_manylangs()
    write_manylangs(tmp_path, model)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "format": "other", "model": "elmo"}))
    check_layers(Elmo.load(tmp_path), model)
