import numpy as np
import pytest
import torch

from elmokit import Elmo, ElmoError
from elmokit.compat import tfhub as hub


def test_the_default_signature(model_folder):
    elmo = hub.Module(model_folder, trainable=True)
    sentences = ["the cat is on the mat", "dogs are in the fog"]
    outputs = elmo(sentences, signature="default", as_dict=True)
    assert set(outputs) == {"word_emb", "lstm_outputs1", "lstm_outputs2", "elmo", "default"}
    assert outputs["word_emb"].shape == (2, 6, 6)
    assert outputs["elmo"].shape == (2, 6, 12)
    torch.testing.assert_close(elmo(sentences), outputs["default"])
    vectors = Elmo.load(model_folder).encode(sentences)
    np.testing.assert_allclose(outputs["default"][1].detach(), vectors[1].mean(0), rtol=1e-5, atol=1e-6)


def test_the_tokens_signature(model_folder):
    elmo = hub.Module(model_folder)
    tokens = [["the", "cat", "is", "on", "the", "mat"], ["dogs", "are", "in", "the", "fog", ""]]
    by_tokens = elmo(inputs={"tokens": tokens, "sequence_len": [6, 5]}, signature="tokens", as_dict=True)
    by_text = elmo(["the cat is on the mat", "dogs are in the fog"], as_dict=True)
    torch.testing.assert_close(by_tokens["elmo"], by_text["elmo"])


def test_bytes_arrays_and_spaces_are_taken_as_tensorflow_took_them(model_folder):
    elmo = hub.Module(model_folder)
    sentences = np.array([b"the  cat", "a\u3000b".encode()], dtype=object)
    out = elmo(sentences, as_dict=True)
    assert out["elmo"].shape == (2, 2, 12)
    assert out["elmo"][1, 1].abs().max() == 0, "an ideographic space is no separator"


def test_trainable_means_the_mix(model_folder):
    trained, frozen = hub.Module(model_folder, trainable=True), hub.Module(model_folder)
    assert sum(p.requires_grad for p in trained.parameters()) == 2
    assert not any(p.requires_grad for p in frozen.parameters())
    trained(["a b"]).sum().backward()


def test_load_has_signatures(model_folder):
    loaded = hub.load(str(model_folder))
    out = loaded.signatures["default"](["the cat"])["elmo"]
    again = loaded.signatures["tokens"](tokens=[["the", "cat"]], sequence_len=[2])["elmo"]
    torch.testing.assert_close(out, again)


def test_mistakes_are_named(model_folder):
    elmo = hub.Module(model_folder)
    with pytest.raises(ElmoError, match="signature must be default or tokens"):
        elmo(["a"], signature="words")
    with pytest.raises(ElmoError, match="a list of sentences"):
        elmo("a single string")
    with pytest.raises(ElmoError, match="takes"):
        elmo(["a"], signature="tokens")
    with pytest.raises(ElmoError, match="must be strings, got 3"):
        elmo([3])
    with pytest.raises(ElmoError, match="cannot be loaded"):
        hub.Module("https://tfhub.dev/google/elmo/2")
