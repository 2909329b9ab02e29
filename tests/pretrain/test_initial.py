"""The weights before the first update: bilm-tf's distributions, and a softmax that knows how often words occur."""

import numpy as np
import pytest
import torch

from elmokit import BiLM, ElmoConfig
from elmokit.config import CharacterConfig, LstmConfig, WordConfig
from elmokit.model.language_model import LmHead
from elmokit.pretrain.network import initialise, sampled_softmax_loss, start_from_frequencies
from elmokit.text.vocab import Vocabulary
from support.training_models import corpus_of


def test_characters_start_as_bilm_tf_starts_them():
    torch.manual_seed(0)
    characters = CharacterConfig(filters=((1, 64), (3, 128)), embedding_size=16, n_highway=1)
    bilm = BiLM(ElmoConfig(LstmConfig(cell_size=256, output_size=64), characters))
    initialise(bilm)
    weights = bilm.state_dict()
    embedding = weights["token_encoder.char_cnn.embedding.weight"]
    assert not embedding[0].any(), "the padded token's row"
    assert (embedding[1:].abs().max(), embedding[1:].std()) == pytest.approx((1.0, 3**-0.5), rel=0.05)
    assert weights["token_encoder.char_cnn.convolutions.1.weight"].abs().max() == pytest.approx(0.05, rel=0.02)
    assert not weights["token_encoder.char_cnn.convolutions.1.bias"].any()
    assert weights["token_encoder.char_cnn.highways.0.gate.weight"].std() == pytest.approx(192**-0.5, rel=0.05)
    assert (weights["token_encoder.char_cnn.highways.0.gate.bias"] == -2).all()
    assert not weights["token_encoder.char_cnn.highways.0.transform.bias"].any()
    assert weights["token_encoder.projection.weight"].std() == pytest.approx(192**-0.5, rel=0.05)
    for part in ("input_weight", "recurrent_weight"):
        largest = weights[f"backward_lstm.layers.1.{part}"].abs().max()
        assert largest == pytest.approx((6 / (2 * 64 + 4 * 256)) ** 0.5, rel=0.01)


def test_words_start_as_large_as_outputs():
    torch.manual_seed(0)
    config = ElmoConfig(LstmConfig(cell_size=32, output_size=16), words=WordConfig(500, 16), token_projection=False)
    bilm = BiLM(config)
    initialise(bilm)
    table = bilm.state_dict()["token_encoder.words.weight"]
    assert not table[0].any()
    assert table[1:].std() == pytest.approx(0.25, rel=0.05)


def test_a_softmax_that_starts_from_frequencies(tmp_path):
    corpus = corpus_of([["the", "bank"], ["the", "zebra"], ["the"]], tmp_path)
    vocab = Vocabulary(["<S>", "</S>", "<UNK>", "the", "bank"])
    head = LmHead(5, 4)
    start_from_frequencies(head, vocab, corpus)
    chances = torch.softmax(head.bias.detach(), dim=0).numpy()
    # One more than the count for each word (zebra is unknown), half a sentence for each boundary.
    expected = np.array([1.5, 1.5, 2.0, 4.0, 2.0])
    assert chances == pytest.approx(expected / expected.sum(), rel=1e-5)


def test_sampled_gradients_do_not_depend_on_the_threads_race():
    """Sums of gradients of the same row must have one order; several threads once had none."""
    torch.manual_seed(0)
    weight, bias = torch.randn(3000, 64, requires_grad=True), torch.zeros(3000, requires_grad=True)
    top, targets, negatives = torch.randn(1280, 64), torch.randint(0, 50, (1280,)), torch.arange(100, 400)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = [
            torch.autograd.grad(sampled_softmax_loss(top, weight, bias, targets, negatives, 500).sum(), (weight, bias))
            for _ in range(8)
        ]
    finally:
        torch.set_num_threads(threads)
    for gradients in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(gradients, found[0], strict=True))
