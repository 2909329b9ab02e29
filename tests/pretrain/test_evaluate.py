import math

import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.pretrain import evaluate as evaluating
from elmokit.pretrain.distributed import Processes
from elmokit.pretrain.evaluate import evaluate, perplexities, sentence_losses
from elmokit.pretrain.sentences import Sentences
from support.tiny_models import tiny_config, word_config
from support.training_models import evaluation_parts

LENGTHS = {
    "short": [3, 1, 7, 2, 5] * 9,
    "longer than a window": [5, 100, 1, 33, 32, 31, 64, 2],
    "one": [4],
    "more than the rows": [1, 2] * 150,
}
CONFIGS = {"characters": tiny_config(), "words": word_config(), "one direction": tiny_config(bidirectional=False)}


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_perplexities_are_those_of_elmo(tmp_path, config, lengths):
    model, sentences, network, table, reading = evaluation_parts(tmp_path, lengths, config)
    expected = Elmo(model).perplexity(sentences)
    found = evaluate(network, table, reading)
    assert found.mean == pytest.approx(float(expected), rel=1e-5)
    assert found.forward == pytest.approx(expected.forward, rel=1e-5)
    if config.bidirectional:
        assert found.backward == pytest.approx(expected.backward, rel=1e-5)
        assert found.backward != pytest.approx(found.forward, rel=1e-3)
    else:
        assert found.backward is None
    assert found.predictions == expected.tokens == reading.n_predictions


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_the_number_of_rows_does_not_matter(tmp_path, monkeypatch, rows):
    _, _, network, table, reading = evaluation_parts(tmp_path, LENGTHS["longer than a window"])
    usual = evaluate(network, table, reading)
    monkeypatch.setattr(evaluating, "ROWS", rows)
    found = evaluate(network, table, reading)
    assert found.mean == pytest.approx(usual.mean, rel=1e-6)
    assert found.predictions == usual.predictions


def test_only_the_chosen_sentences_count(tmp_path):
    model, sentences, network, table, reading = evaluation_parts(tmp_path, LENGTHS["short"])
    held_out = Sentences(reading.corpus, (4, 1))
    expected = Elmo(model).perplexity(sentences[3::4])
    assert evaluate(network, table, held_out).mean == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_off_and_the_mode_comes_back(tmp_path, training):
    _, _, network, table, reading = evaluation_parts(tmp_path, LENGTHS["short"])
    expected = evaluate(network, table, reading)
    network.dropout = 0.5
    network.train(training)
    assert evaluate(network, table, reading) == expected
    assert network.training == training
    assert all(p.grad is None for p in network.parameters())


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("config", [tiny_config(), tiny_config(bidirectional=False)], ids=["two", "one"])
def test_sentences_have_their_own_losses_in_their_order(tmp_path, config, lengths):
    model, sentences, network, table, reading = evaluation_parts(tmp_path, lengths, config)
    found = list(sentence_losses(network, table, reading))
    for row, expected in zip(found, Elmo(model).log_probs(sentences), strict=True):
        ways = [expected.forward, expected.backward] if config.bidirectional else [expected.forward]
        assert row == pytest.approx([-way.sum(dtype=np.float64) for way in ways], rel=1e-5)


def test_a_table_of_sentences_may_be_left_before_its_end(tmp_path):
    _, _, network, table, reading = evaluation_parts(tmp_path, LENGTHS["longer than a window"])
    network.train()
    rows = sentence_losses(network, table, reading)
    assert len(next(rows)) == 2
    rows.close()
    assert network.training


def test_a_carried_state_goes_from_sentence_to_sentence(tmp_path):
    """By hand: a row of sentences end to end, each direction in its own reading order."""
    model, sentences, network, table, reading = evaluation_parts(tmp_path, [5, 2, 9, 1, 40, 3])
    found = evaluate(network, table, reading, state="carry")
    bilm, vocab, indexer = network.bilm, model.vocab, model.indexer()
    means = []
    for direction in (0, 1):
        inputs, targets = [], []
        for sentence in sentences:
            chain = ["<S>", *sentence, "</S>"][:: -1 if direction else 1]
            inputs += chain[:-1]
            targets += [vocab.index(token) for token in chain[1:]]
        tokens = bilm.encode_types(torch.from_numpy(indexer(inputs).characters), None)
        if direction:
            tokens = tokens.flip(0)  # the backward stack reads from the end
        layers, _ = bilm.contextualise(tokens[None], torch.tensor([len(inputs)]))
        top = layers[-1, 0][:, 6 * direction : 6 * direction + 6]
        top = top.flip(0) if direction else top
        picked = network.head(top).gather(1, torch.tensor(targets)[:, None])
        means.append(-picked.double().mean().item())
    assert found.forward == pytest.approx(math.exp(means[0]), rel=1e-4)
    assert found.backward == pytest.approx(math.exp(means[1]), rel=1e-4)
    assert found.mean == pytest.approx(math.exp(sum(means) / 2), rel=1e-4)
    zero = evaluate(network, table, reading, state="zero")
    assert zero.mean != pytest.approx(found.mean, rel=1e-3)


@pytest.mark.parametrize("state", ["zero", "carry"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_number_of_processes_changes_nothing(tmp_path, monkeypatch, state, count):
    """Each process scores its part of the text; together they give what one process gives."""
    _, _, network, table, reading = evaluation_parts(tmp_path, [3, 1, 30, 4, 9, 2] * 60)
    monkeypatch.setattr(evaluating, "MIN_ROW_PREDICTIONS", 700)
    expected = evaluate(network, table, reading, state=state)
    tables = []

    class Part(Processes):
        def largest(self, value):
            return 200

        def total(self, values):
            tables.append(values)
            return values if values.any() else torch.ones_like(values)  # a process may have nothing to score

    for rank in range(count):
        evaluate(network, table, reading, state=state, processes=Part(rank, count))
    *losses, predictions = sum(tables).sum(dim=0).tolist()
    found = perplexities(losses, int(predictions))
    assert found.predictions == expected.predictions == reading.n_predictions
    if state == "zero":
        assert found == expected
    assert found.mean == pytest.approx(expected.mean, rel=1e-6)
    assert sum(bool(part.any()) for part in tables) > 1


def test_a_loss_beyond_all_numbers_is_infinite(tmp_path):
    _, _, network, table, reading = evaluation_parts(tmp_path, [3])
    with torch.no_grad():
        network.head.bias.copy_(torch.linspace(-1e4, 1e4, len(network.head.bias)))
    assert evaluate(network, table, reading).mean == math.inf
