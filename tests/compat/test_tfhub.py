import numpy as np
import pytest
import torch

from elmokit import Elmo, ElmoError
from elmokit.compat import tfhub as hub


def test_the_default_signature(model_folder):
    elmo = hub.Module(model_folder, trainable=True)
    sentences = ["the cat is on the mat", "dogs are in the fog"]
    outputs = elmo(sentences, signature="default", as_dict=True)
    assert set(outputs) == {"word_emb", "lstm_outputs1", "lstm_outputs2", "elmo", "default", "sequence_len"}
    assert outputs["sequence_len"].tolist() == [6, 5]
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


class EagerTensor:
    """What of TensorFlow's tensors matters here."""

    def __init__(self, values):
        self.values = np.array(values)

    def numpy(self):
        return self.values.astype(object) if self.values.dtype.kind in "US" else self.values


class SymbolicTensor:
    def __iter__(self):
        raise TypeError("Iterating over a symbolic tf.Tensor is not allowed")


def test_tensors_of_tensorflow(model_folder):
    elmo = hub.load(model_folder)
    expected = elmo(["the cat", "a"], as_dict=True)["elmo"]
    torch.testing.assert_close(elmo.signatures["default"](EagerTensor([b"the cat", b"a"]))["elmo"], expected)
    torch.testing.assert_close(elmo.signatures["default"](text=EagerTensor([b"the cat", b"a"]))["elmo"], expected)
    tokens = {"tokens": EagerTensor([["the", "cat"], ["a", ""]]), "sequence_len": EagerTensor([2, 1])}
    torch.testing.assert_close(elmo(tokens, signature="tokens", as_dict=True)["elmo"], expected)
    with pytest.raises(ElmoError, match="compute the vectors first"):
        elmo(SymbolicTensor())


def test_keras_layer_called_on_sentences(model_folder):
    sentences = np.array(["the cat", "a"])
    plain = hub.Module(model_folder)(sentences, as_dict=True)
    torch.testing.assert_close(
        hub.KerasLayer(model_folder, trainable=False, input_shape=[])(sentences), plain["default"]
    )
    by_key = hub.KerasLayer(model_folder, signature="default", output_key="elmo")
    torch.testing.assert_close(by_key(sentences), plain["elmo"])
    as_dict = hub.KerasLayer(model_folder, signature="tokens", signature_outputs_as_dict=True)
    found = as_dict({"tokens": [["the", "cat"], ["a", ""]], "sequence_len": [2, 1]})
    torch.testing.assert_close(found["elmo"], plain["elmo"])
    with pytest.raises(ElmoError, match="output_key must be one of"):
        hub.KerasLayer(model_folder, output_key="words")(sentences)


def test_load_has_signatures_and_can_be_called(model_folder):
    loaded = hub.load(str(model_folder))
    assert loaded(["the cat"]).shape == (1, 12)
    out = loaded.signatures["default"](["the cat"])["elmo"]
    again = loaded.signatures["tokens"](tokens=[["the", "cat"]], sequence_len=[2])["elmo"]
    torch.testing.assert_close(out, again)


def test_mistakes_are_named(model_folder):
    elmo = hub.Module(model_folder)
    with pytest.raises(ElmoError, match="signature must be default or tokens"):
        elmo(["a"], signature="words")
    with pytest.raises(ElmoError, match="got the text 'a single string': put it into a list"):
        elmo("a single string")
    with pytest.raises(ElmoError, match="takes"):
        elmo(["a"], signature="tokens")
    with pytest.raises(ElmoError, match="must be strings, got 3"):
        elmo([3])
    for address in ("https://tfhub.dev/google/elmo/2", "https://www.kaggle.com/models/google/elmo/TensorFlow1/elmo/3"):
        with pytest.raises(ElmoError, match="cannot be loaded"):
            hub.load(address)


def test_a_bundled_model_by_its_name():
    expected = Elmo.load("en-lstm", device="cpu").encode(["a river bank"], segment="whitespace", output="sentence")
    with torch.no_grad():
        got = hub.Module("en-lstm", device="cpu")(["a river bank"])
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-5)
