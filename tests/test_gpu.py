"""The same network on a CUDA device; run with `pytest -m gpu` where there is one."""

import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.config import CharacterConfig, LstmConfig, TransformerConfig
from support.tiny_models import tiny_config, transformer_config, word_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("full_float32"),
]

SENTENCES = ["the bank of the river .", "", "money", "a bank raised the money of a river bank ."]
ROUND = tiny_config(
    context=LstmConfig(256, 64),
    characters=CharacterConfig(filters=((1, 32), (2, 32), (3, 64)), embedding_size=16, n_highway=2),
)


@pytest.mark.parametrize("config", [tiny_config(), ROUND, word_config()], ids=["awkward", "round", "words"])
def test_the_gpu_gives_the_vectors_of_the_cpu(make_elmo, config):
    # Other sums in another order: a few units of the last digit, grown a little by the recurrence.
    cpu, gpu = make_elmo(config, scale=1.0), make_elmo(config, scale=1.0).to("cuda")
    for one, other in zip(cpu.encode(SENTENCES, output="layers"), gpu.encode(SENTENCES, output="layers"), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def test_half_precision_on_the_gpu(make_elmo):
    exact = make_elmo(ROUND, scale=1.0).encode(SENTENCES, layer=0)
    half = make_elmo(ROUND, scale=1.0).to("cuda", torch.bfloat16).encode(SENTENCES, layer=0)
    for one, other in zip(exact, half, strict=True):
        np.testing.assert_allclose(other, one, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "shape",
    [transformer_config().context, TransformerConfig(64, 4, 2, 96, 4, 32, prediction_layer=True)],
    ids=str,
)
def test_a_transformer_on_the_gpu(make_elmo, shape):
    config = transformer_config(context=shape)
    cpu = make_elmo(config, head=True, scale=1.0)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.3)):
        gpu = make_elmo(config, head=True, scale=1.0).to("cuda", dtype)
        assert gpu.explain().startswith("cuda")
        for _ in range(3):  # launched, recorded, replayed
            found = gpu.encode(SENTENCES, output="layers")
        for one, other in zip(cpu.encode(SENTENCES, output="layers"), found, strict=True):
            np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)
    gpu = make_elmo(config, head=True, scale=1.0).to("cuda")
    assert gpu.perplexity(["the bank of money"]) == pytest.approx(cpu.perplexity(["the bank of money"]), rel=1e-3)


def test_gradients_on_the_gpu(make_elmo):
    found = []
    for device in ("cpu", "cuda"):
        elmo = make_elmo(ROUND, scale=1.0, trainable=True).to(device)
        elmo(SENTENCES)["elmo"].square().sum().backward()
        found.append({name: p.grad.cpu() for name, p in elmo.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-3, atol=1e-3, msg=name)


def test_carried_state_and_language_model_on_the_gpu(make_elmo):
    cpu, gpu = (make_elmo(head=True, state="carry", scale=1.0).to(device) for device in ("cpu", "cuda"))
    for batch in (["the bank", "a river"], ["money"], ["the", "bank of", "a river"]):
        for one, other in zip(cpu.encode(batch), gpu.encode(batch), strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
    cpu.reset_state()
    gpu.reset_state()
    assert gpu.perplexity(["the bank of money"]) == pytest.approx(cpu.perplexity(["the bank of money"]), rel=1e-4)


def test_a_gpu_is_chosen_where_there_is_one(model_folder):
    assert Elmo.load(model_folder).device.type == "cuda"
    assert Elmo.load(model_folder, device="cpu").device.type == "cpu"
