"""`dtype="int8"`: what it computes, how near that is to float32, and what it refuses."""

import copy
import lzma
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.cli import main
from elmokit.errors import ElmoError
from elmokit.tasks.model import _as_float16
from support.exactness import assert_same
from support.tiny_models import tiny_checkpoint, word_config

SENTENCES = [["the", "bank", "of", "money"], ["river"], [], ["a", "bank", "the", "the", ".", "unseen"]]
CORPORA = Path(__file__).resolve().parents[2] / "shared" / "corpora"
TEXT = """
The committee postponed its decision until next Thursday , because two of its nine members were travelling .
Rain fell all night on the roofs of the old harbour , and by morning the boats sat low in the water .
She asked whether anyone had seen the report ; nobody had , although it had been sent to all of them .
In 1987 the company moved 340 employees to Leeds and closed the plant at Bath for good .
"I don't know , " he said , "but the dog that barked at you is not mine . "
Prices rose 4.2 % in March , the largest monthly increase since records began .
A photosynthetic bacterium needs light , water and a source of carbon .
What did the ambassador 's wife tell the correspondent of the Frankfurter Allgemeine ?
Beat the eggs , fold in the flour , and bake for twenty-five minutes at 180 degrees .
After they had been bankrupted by the war , the banks on the river's banks banked on credit .
Unfortunately the internationalisation of the organisation's telecommunications was mischaracterised .
Yes .
Stop !
The Ming dynasty , founded by Zhu Yuanzhang in 1368 , lasted for 276 years .
Few people believed that the bridge , which had stood for a century , would fall within minutes .
http://example.org/a/b?c=d is an address ; xkqzv is not a word .
""".strip().splitlines()


def cosines(one, other):
    """Of each token, in each layer and in the mix: [L + 2, tokens]."""
    found = []
    for layer in ("mix", *range(one.config.n_outputs)):
        pairs = zip(one.sentences[layer], other.sentences[layer], strict=True)
        found.append(np.concatenate([(x * y).sum(-1) / _norms(x) / _norms(y) for x, y in pairs]))
    return np.stack(found)


def _norms(vectors):
    return np.linalg.norm(vectors, axis=-1)


def embedded(dtype, sentences):
    elmo = Elmo.load(device="cpu", dtype=dtype)
    layers = elmo.encode(sentences, output="layers")
    elmo.sentences = {number: [each[number] for each in layers] for number in range(elmo.config.n_outputs)}
    elmo.sentences["mix"] = elmo.encode(sentences, layer="mix")
    return elmo


@pytest.fixture
def small(model_folder):
    return Elmo.load(model_folder, dtype="int8")


def test_it_is_near_float32_on_the_bundled_model():
    found = cosines(embedded("float32", TEXT), embedded("int8", TEXT))
    assert found.mean(axis=1).min() > 0.999
    assert found.min() > 0.99
    assert found.min() < 1 - 1e-6  # it is another computation


@pytest.mark.skipif(not CORPORA.exists(), reason="the shared corpora are not next to the checkout")
@pytest.mark.parametrize("name", ["enwiki-b-1", "books-2"])
def test_it_is_near_float32_on_real_text(name):
    with lzma.open(CORPORA / f"{name}.txt.xz", "rt", encoding="utf-8") as file:
        lines = [line for line, _ in zip(file, range(400), strict=False)][200:]
    sentences = [line.split()[:60] for line in lines if line.strip()]
    found = cosines(embedded("float32", sentences), embedded("int8", sentences))
    # Sentences of 40 to 60 words follow any rounding more than others do; measured: 0.973 and 0.9945, in the prediction
    # 0.959 and 0.983, because its vectors have no common part.
    for layers, mean, worst, quantile in ((found[:-1], 0.9995, 0.96, 0.99), (found[-1:], 0.998, 0.94, 0.975)):
        assert layers.mean(axis=1).min() > mean
        assert layers.min() > worst
        assert np.quantile(layers, 0.001) > quantile


def test_vectors_do_not_depend_on_the_batch(small):
    together = small.encode(SENTENCES)
    small.type_cache.clear()
    for sentence, expected in zip(reversed(SENTENCES), reversed(together), strict=True):
        assert_same(small.encode([sentence])[0], expected)


def test_it_says_so(model_folder, small):
    assert small.dtype == "int8"
    assert "int8" in repr(small)
    assert Elmo.load(model_folder).dtype == "float32"
    assert Elmo.load(model_folder, dtype="bfloat16").dtype == "bfloat16"
    assert Elmo.load(model_folder, dtype=torch.int8).dtype == "int8"


def test_a_model_saved_in_int8_opens_in_int8(small, tmp_path):
    small.save(tmp_path / "small")
    again = Elmo.load(tmp_path / "small", device="cpu")
    assert again.dtype == "int8"
    assert {value.dtype for value in again.state_dict().values()} == {torch.float32, torch.int8}
    for one, other in zip(again.encode(SENTENCES), small.encode(SENTENCES), strict=True):
        assert np.array_equal(one, other)
    plain = Elmo.load(tmp_path / "small", dtype="float32")
    assert plain.dtype == "float32"
    assert not np.array_equal(plain.encode(SENTENCES)[0], small.encode(SENTENCES)[0])


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_model_of_another_dtype_is_saved_in_int8(dtype, tmp_path):
    Elmo.load(device="cpu", dtype=dtype).save(tmp_path / "small", dtype="int8")
    (found,), (expected,) = (elmo.encode("A river bank.") for elmo in (Elmo.load(tmp_path / "small"), Elmo.load()))
    np.testing.assert_allclose(found, expected, atol=0.3)


def test_state_dict_copies_and_pickles(small):
    expected = small.encode(SENTENCES)
    other = Elmo(tiny_checkpoint(head=True, seed=5).in_int8())
    assert not np.array_equal(other.encode(SENTENCES)[0], expected[0])
    other.load_state_dict(small.state_dict())
    for elmo in (other, copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        for one, two in zip(elmo.encode(SENTENCES), expected, strict=True):
            assert np.array_equal(one, two)


def test_a_word_table_stays_in_floats():
    elmo = Elmo(tiny_checkpoint(word_config()).in_int8())
    assert elmo.bilm.token_encoder.words.weight.dtype == torch.float32
    assert len(elmo.encode(SENTENCES)) == 4


def test_the_mixes_learn_and_the_network_does_not(small, model_folder):
    small(SENTENCES)["elmo"].sum().backward()
    assert small.mixes[0].gamma.grad is not None
    assert not any(parameter.requires_grad for parameter in small.bilm.parameters())
    with pytest.raises(ElmoError, match="int8 weights cannot be trained: load the model with dtype='float32'"):
        Elmo.load(model_folder, dtype="int8", trainable=True)
    with pytest.raises(ElmoError, match="int8 weights cannot be trained"):
        small.requires_grad_()
    assert not any(parameter.requires_grad for parameter in small.bilm.parameters())
    assert not any(parameter.requires_grad for parameter in small.requires_grad_(False).parameters())


def test_it_is_for_the_cpu(small, model_folder):
    with pytest.raises(ElmoError, match="dtype int8 is only for the CPU, got the device meta"):
        Elmo.load(model_folder, dtype="int8", device="meta")
    with pytest.raises(ElmoError, match="int8 weights are for float32 computation on the CPU"):
        small.half()
    assert small.to("cpu") is small


def test_a_softmax_has_its_probabilities(small, model_folder):
    expected = Elmo.load(model_folder).perplexity(SENTENCES)
    assert abs(small.perplexity(SENTENCES) / expected - 1) < 0.1
    assert len(small.substitutes(["the", "bank"], 1, 3)) == 3


def test_embed_takes_it_and_finds_it(model_folder, small, tmp_path, capsys):
    small.save(tmp_path / "small")
    shown = []
    for model, options in ((model_folder, ["--dtype", "int8"]), (tmp_path / "small", []), (model_folder, [])):
        with pytest.raises(SystemExit, match="0"):
            main(["embed", "the bank", "--model", str(model), "--device", "cpu", *options])
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]


def test_what_others_do_with_an_elmo_works(small):
    assert small.fingerprint() == small.fingerprint()
    whole = torch.arange(-127, 128, dtype=torch.int8)
    assert _as_float16(whole) is whole
