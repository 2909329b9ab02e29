"""Models as ONNX files: the vectors of `OnnxElmo` are those of `Elmo`, without torch."""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from elmokit import Elmo, ElmoError
from elmokit.cli import main
from elmokit.config import CharacterConfig, LstmConfig, TransformerConfig, WordConfig
from elmokit.errors import MissingExtraError
from elmokit.integrations import onnx_export
from elmokit.integrations.onnx import OnnxElmo
from elmokit.integrations.onnx_export import export_onnx
from support.model_files import make_manylangs, write_manylangs
from support.tiny_models import WORDS, tiny_checkpoint, tiny_config, transformer_config, word_config

TEXTS = ["the bank of a river .", "money", "", "a " * 90, "Ünïcødé 河岸 didn't, 'tis " + "x" * 80]
SHAPES = {
    "lstm": tiny_config(),
    "one-direction": tiny_config(bidirectional=False),
    "no-projection": tiny_config(context=LstmConfig(6, 6, projection=False, cell_clip=None, projection_clip=None)),
    "three-layers": tiny_config(context=LstmConfig(13, 6, n_layers=3, skip_connections=False, forget_bias=0.0)),
    "tanh": tiny_config(characters=CharacterConfig(filters=((1, 3), (4, 5)), activation="tanh", n_highway=2)),
    "words": word_config(),
    "transformer": transformer_config(),
    "transformer-words": transformer_config(characters=None, words=WordConfig(len(WORDS), 12), token_projection=False),
    "every-block": transformer_config(
        context=TransformerConfig(32, n_blocks=3, n_heads=2, inner_size=64, window=3, softmax_size=6, every=1)
    ),
    "prediction": transformer_config(
        context=TransformerConfig(
            32, n_blocks=2, n_heads=2, inner_size=64, window=3, softmax_size=20, prediction_layer=True
        )
    ),
}


def make(shape, scale=1.0, segment="english"):
    checkpoint = tiny_checkpoint(SHAPES[shape], scale=scale)
    checkpoint.text = {"segment": segment} if segment else {}
    return Elmo(checkpoint)


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory):
    elmo, path = make(request.param), tmp_path_factory.mktemp("onnx") / "elmo.onnx"
    report = export_onnx(elmo, path)
    assert report.difference <= 1e-4
    onnx.checker.check_model(str(path), full_check=True)
    return elmo, OnnxElmo(path, threads=1)


def test_the_vectors_are_those_of_elmokit(pair):
    elmo, found = pair
    for options in ({}, {"output": "layers"}, {"layer": "mix"}, {"layer": "top"}, {"layer": 1}, {"layer": "all"}):
        for one, other in zip(found.encode(TEXTS, **options), elmo.encode(TEXTS, **options), strict=True):
            assert one.dtype == np.float32
            np.testing.assert_allclose(one, other, atol=1e-4)
    for pool in ("mean", "max", "first", "last"):
        one, other = (each.encode(TEXTS, output="sentence", pool=pool) for each in (found, elmo))
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert found.default_layer == elmo.default_layer


def test_a_batch_changes_nothing(pair):
    _, found = pair
    together = found.encode(TEXTS, output="layers")
    for text, vectors in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(found.encode(text, output="layers")[0], vectors, atol=1e-5)
    for one, other in zip(found.encode(TEXTS, output="layers", batch_tokens=1), together, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert found.encode([]) == []
    assert found.encode([], output="sentence", layer="all").shape == elmo_shape(found)


def elmo_shape(found):
    return (0, found.config.n_outputs, found.config.vector_size)


@pytest.mark.parametrize("shape", ["every-block", "lstm"])
def test_long_texts_are_exact(shape, tmp_path):
    """A Transformer's are cut into overlapping pieces: here of 36 tokens, of which 18 are used."""
    elmo = make(shape)
    export_onnx(elmo, tmp_path / "elmo.onnx")
    text = [WORDS[3 + n * n % 7] for n in range(500)]
    [one], [other] = (each.encode([text], output="layers") for each in (OnnxElmo(tmp_path / "elmo.onnx"), elmo))
    np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("shape", ["lstm", "words", "transformer", "every-block"])
def test_smaller_dtypes(shape, dtype, tmp_path):
    elmo = make(shape)
    report = export_onnx(elmo, tmp_path / "elmo.onnx", dtype=dtype)
    assert report.cosine >= 0.998
    one, other = (each.encode(TEXTS[:2], output="sentence") for each in (OnnxElmo(tmp_path / "elmo.onnx"), elmo))
    assert np.min((one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)) > 0.99


def test_large_numbers_may_differ_by_more(tmp_path, monkeypatch):
    """Rounding is a share of a number; the largest of a prediction are above 10."""
    elmo, path = make("prediction"), tmp_path / "elmo.onnx"
    difference = export_onnx(elmo, path).difference
    assert difference > 0
    monkeypatch.setattr(onnx_export, "LARGEST_DIFFERENCE", difference / 2)
    monkeypatch.setattr(onnx_export, "LARGEST_SHARE", difference)  # the largest number of a layer is above 1
    assert export_onnx(elmo, path).difference == difference
    monkeypatch.setattr(onnx_export, "LARGEST_SHARE", 0)
    with pytest.raises(ElmoError, match="must differ from elmokit by at most"):
        export_onnx(elmo, path)


def test_the_bundled_model_in_int8(tmp_path):
    sizes = {}
    for dtype in ("float16", "int8"):
        report = export_onnx(Elmo.load("en"), tmp_path / f"{dtype}.onnx", dtype=dtype)
        sizes[dtype] = report.megabytes
        assert report.cosine >= 0.998
    assert sizes["int8"] < 0.75 * sizes["float16"] < 25
    sentences = Path(__file__).parents[2].joinpath("examples", "corpus.txt").read_text(encoding="utf-8").splitlines()
    one, other = (each.encode(sentences[:40]) for each in (OnnxElmo(tmp_path / "int8.onnx"), Elmo.load("en")))
    one, other = np.concatenate(one), np.concatenate(other)
    assert np.min((one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)) >= 0.998


def test_chinese_words_and_text_policies(tmp_path):
    elmo = Elmo.load("zh", dtype="float32")
    export_onnx(elmo, tmp_path / "zh.onnx", dtype="float32")
    found = OnnxElmo(tmp_path / "zh.onnx")
    texts = ["我吃了一个苹果。", ["银行", "GPU", "2020年"], "Zürich 在瑞士"]
    for one, other in zip(found.encode(texts, output="layers"), elmo.encode(texts, output="layers"), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert found.tokenize("苹果 pie") == elmo.tokenize("苹果 pie")
    assert OnnxElmo(tmp_path / "zh.onnx", segment="whitespace").tokenize("苹果 pie")[0].text == "苹果"


def test_symbols_and_words_together(tmp_path):
    """An ELMoForManyLangs model: code points of its own, and a word table."""
    write_manylangs(tmp_path / "manylangs", make_manylangs())
    elmo = Elmo.load(tmp_path / "manylangs")
    export_onnx(elmo, tmp_path / "elmo.onnx")
    for one, other in zip(OnnxElmo(tmp_path / "elmo.onnx").encode(TEXTS), elmo.encode(TEXTS), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_saved_mix_with_a_layer_norm(tmp_path):
    elmo = make("lstm")
    elmo.save(tmp_path / "model")
    mixed = Elmo.load(tmp_path / "model", layer_norm=True)
    with torch.no_grad():
        mixed.mixes[0].weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mixed.mixes[0].gamma.fill_(1.7)
    export_onnx(mixed, tmp_path / "elmo.onnx")
    for one, other in zip(OnnxElmo(tmp_path / "elmo.onnx").encode(TEXTS), mixed.encode(TEXTS), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_without_torch(tmp_path):
    elmo = make("lstm")
    export_onnx(elmo, tmp_path / "elmo.onnx")
    code = f"""
import sys
for name in ("torch", "onnx", "safetensors", "h5py"):
    sys.modules[name] = None  # an import is an error
import numpy as np
from elmokit.integrations.onnx import OnnxElmo
vectors = OnnxElmo({str(tmp_path / "elmo.onnx")!r}).encode({TEXTS!r}, output="sentence")
np.save({str(tmp_path / "vectors.npy")!r}, vectors)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), elmo.encode(TEXTS, output="sentence"), atol=1e-4)


def status(*arguments):
    """The exit status of `elmo export onnx`."""
    with pytest.raises(SystemExit) as stop:
        main(["export", "onnx", *arguments])
    return stop.value.code


def refusal(arguments, capsys):
    """What `elmo export onnx` says when it ends with status 2."""
    assert status(*arguments) == 2
    return capsys.readouterr().err


def test_a_file_that_differs_is_refused(tmp_path, monkeypatch, capsys):
    elmo = make("transformer")
    elmo.save(tmp_path / "model")
    plain = onnx_export.network_model

    def wrong(bilm, *more):
        made = plain(bilm, *more)
        made.graph.node[-1].op_type = "Neg"
        return made

    monkeypatch.setattr(onnx_export, "network_model", wrong)
    target = tmp_path / "out" / "elmo.onnx"
    target.parent.mkdir()
    for dtype in ("float32", "float16", "int8"):
        arguments = ["--output", str(target), "--dtype", dtype]
        assert "was not written" in refusal([str(tmp_path / "model"), *arguments], capsys)
    assert list(target.parent.iterdir()) == []


def test_the_command(tmp_path, capsys):
    make("lstm").save(tmp_path / "model")
    assert status(str(tmp_path / "model"), "--output", str(tmp_path / "elmo.onnx")) == 0
    assert re.search(r"wrote .*elmo\.onnx .*largest difference from elmokit \d", capsys.readouterr().out)
    about = {entry.key: entry.value for entry in onnx.load(tmp_path / "elmo.onnx").metadata_props}
    assert json.loads(about["elmokit"])["text"] == {"segment": "english"}
    for arguments, words in [
        (["--output", str(tmp_path / "elmo.txt")], "--output must be a file that ends in .onnx"),
        (["--output", str(tmp_path / "elmo.onnx"), "--dtype", "int4"], "--dtype must be one of"),
        (["--output", str(tmp_path / "no" / "folder" / "elmo.onnx")], "cannot be written"),
        ([], "--output FILE"),
    ]:
        assert words in refusal([str(tmp_path / "model"), *arguments], capsys)


def test_mistakes_are_sentences(tmp_path):
    export_onnx(make("lstm"), tmp_path / "elmo.onnx")
    found = OnnxElmo(tmp_path / "elmo.onnx")
    for options, words in [
        ({"layer": 7}, "layer must be mix, top, all or 0 to 2, got 7"),
        ({"pool": "max"}, "pool needs output='sentence'"),
        ({"output": "layers", "layer": 1}, "got layer=1"),
        ({"output": "words"}, "output must be one of"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1"),
        ({"segment": "klingon"}, "the segmenter must be one of"),
    ]:
        with pytest.raises(ElmoError, match=words):
            found.encode(["a"], **options)
    with pytest.raises(ElmoError, match="elmo export onnx"):
        OnnxElmo(tmp_path / "missing.onnx")
    (tmp_path / "damaged.onnx").write_bytes((tmp_path / "elmo.onnx").read_bytes()[:1000])
    with pytest.raises(ElmoError, match=r"damaged\.onnx"):
        OnnxElmo(tmp_path / "damaged.onnx")
    other = onnx.load(tmp_path / "elmo.onnx")
    other.metadata_props[0].value = json.dumps({"version": 99})
    onnx.save(other, tmp_path / "newer.onnx")
    with pytest.raises(ElmoError, match="has version 99"):
        OnnxElmo(tmp_path / "newer.onnx")
    del other.metadata_props[:]
    onnx.save(other, tmp_path / "other.onnx")
    with pytest.raises(ElmoError, match="was not written by elmo export onnx"):
        OnnxElmo(tmp_path / "other.onnx")


@pytest.mark.parametrize(("library", "module"), [("onnxruntime", "onnx"), ("onnx", "onnx_graph")])
def test_without_the_extra_the_message_names_it(monkeypatch, library, module):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"elmokit.integrations.{module}", raising=False)
    with pytest.raises(MissingExtraError, match=rf"needs the package {library}.*elmokit\[onnx\]"):
        import_module(f"elmokit.integrations.{module}")


def test_the_page_prints_what_it_says(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2].joinpath("docs", "integrations", "onnx.md").read_text(encoding="utf-8")
    [(code, printed)] = re.findall(r"```python\n(.*?)```\n\nThis prints:\n\n```text\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    export_onnx(Elmo.load("en"), "elmo.onnx", dtype="float16")
    exec(compile(code, "onnx.md", "exec"), {})
    assert capsys.readouterr().out == printed


def test_a_page_needs_its_runtime(tmp_path, capsys):
    make("lstm").save(tmp_path / "model")
    with pytest.raises(SystemExit) as stop:
        main(
            ["export", "page", str(tmp_path / "model"), "--output", str(tmp_path / "site"), "--runtime", str(tmp_path)]
        )
    assert stop.value.code == 2
    assert "--runtime must be a URL or the folder dist of onnxruntime-web" in capsys.readouterr().err
    assert not (tmp_path / "site").exists()
