"""Perplexity by position against Elmo's own log-probabilities, and carried against one sentence after the other."""

import csv
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from elmokit import Elmo
from elmokit.pretrain import evaluate as evaluating
from elmokit.pretrain.evaluate import STARTS, by_position, evaluate, write_table
from support.tiny_models import tiny_config, word_config
from support.training_models import evaluation_parts

LENGTHS = {
    "short": [3, 1, 7, 2, 5] * 9,
    "in every bin": [5, 100, 1, 29, 30, 31, 39, 40, 41, 59, 60, 61, 64, 2, 33],
    "one": [4],
    "more than the rows": [1, 2] * 150,
}
CONFIGS = {"characters": tiny_config(), "words": word_config(), "one direction": tiny_config(bidirectional=False)}


def bin_of(position):
    return max(number for number, start in enumerate(STARTS) if start <= position)


def summed(per_sentence, directions):
    """−log p of each sentence, [D][T + 1] in reading order → sums [D, K] and counts [K], one by one."""
    losses, counts = np.zeros((directions, len(STARTS))), np.zeros(len(STARTS), int)
    for ways in per_sentence:
        for direction, values in enumerate(ways):
            for position, value in enumerate(values, 1):
                losses[direction, bin_of(position)] += value
                counts[bin_of(position)] += direction == 0
    return losses, counts


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_from_zero_it_is_what_elmo_says(tmp_path, config, lengths):
    model, sentences, network, table, reading = evaluation_parts(tmp_path, lengths, config)
    found = by_position(network, table, reading)
    each = []
    for said in Elmo(model).log_probs(sentences):
        each.append([-said.forward] if said.backward is None else [-said.forward, -said.backward[::-1]])
    losses, counts = summed(each, config.n_directions)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-5)
    np.testing.assert_array_equal(found.counts, counts)
    whole, expected = found.all(), evaluate(network, table, reading)
    assert (whole.predictions, whole.backward is None) == (expected.predictions, expected.backward is None)
    assert whole.mean == pytest.approx(expected.mean, rel=1e-9)


def read_on(network, model, stretch):
    """−log p of a stretch of sentences read end to end by the bare network, each direction in its own order."""
    bilm, vocab, indexer = network.bilm, model.vocab, model.indexer()
    ways = []
    for direction in (0, 1):
        chains = [["<S>", *sentence, "</S>"][:: -1 if direction else 1] for sentence in stretch]
        inputs = [token for chain in chains for token in chain[:-1]]
        targets = torch.tensor([vocab.index(token) for chain in chains for token in chain[1:]])
        tokens = bilm.encode_types(torch.from_numpy(indexer(inputs).characters), None)
        tokens = tokens.flip(0) if direction else tokens  # the backward stack reads from the end
        with torch.no_grad():
            layers, _ = bilm.contextualise(tokens[None], torch.tensor([len(inputs)]))
            top = layers[-1, 0].chunk(2, dim=-1)[direction]
            scores = network.head(top.flip(0) if direction else top)
        each = -scores.gather(1, targets[:, None])[:, 0].double().numpy()
        ways.append(np.split(each, np.cumsum([len(sentence) + 1 for sentence in stretch])[:-1]))
    return list(zip(*ways, strict=True))


@pytest.mark.parametrize("rows", [1, 3])
def test_carried_it_is_a_text_read_on(tmp_path, monkeypatch, rows):
    model, sentences, network, table, reading = evaluation_parts(tmp_path, LENGTHS["in every bin"])
    monkeypatch.setattr(evaluating, "MIN_ROW_PREDICTIONS", 1)
    monkeypatch.setattr(evaluating, "ROWS", rows)
    found = by_position(network, table, reading, state="carry")
    stretches = [sentences] if rows == 1 else stretches_of(sentences, rows)
    each = [ways for stretch in stretches for ways in read_on(network, model, stretch)]
    losses, counts = summed(each, 2)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-4)
    np.testing.assert_array_equal(found.counts, counts)
    assert abs(found.losses - by_position(network, table, reading).losses).max() > 0.1
    assert found.all().mean == pytest.approx(evaluate(network, table, reading, state="carry").mean, rel=1e-9)


def stretches_of(sentences, rows):
    """A stretch ends with the sentence that reaches its share of all inputs."""
    reached = np.cumsum([len(sentence) + 1 for sentence in sentences])
    cuts = [int(np.searchsorted(reached, reached[-1] * row // rows)) for row in range(1, rows)]
    edges = [0, *cuts, len(sentences)]
    return [sentences[first:last] for first, last in pairwise(edges)]


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (40, 1), (1500, 4)])
def test_a_short_text_is_not_cut_into_many_stretches(tmp_path, monkeypatch, count, rows):
    _, _, network, table, reading = evaluation_parts(tmp_path, [2] * count)
    asked = []
    plain = evaluating.InOrderReader

    def reader(*arguments, **named):
        asked.append(named["rows"])
        return plain(*arguments, **named)

    monkeypatch.setattr(evaluating, "InOrderReader", reader)
    assert by_position(network, table, reading, state="carry").counts.sum() == 3 * count
    assert asked == [rows]


def test_bins_have_names_and_only_those_that_the_text_has(tmp_path):
    _, _, network, table, reading = evaluation_parts(tmp_path, [2, 45])
    found = by_position(network, table, reading)
    names = [name for name, _ in found.bins()]
    assert names == [*map(str, range(1, 31)), "31-40", "41-60"]
    assert [here.predictions for _, here in found.bins()] == [2, 2, 2] + [1] * 27 + [10, 6]
    assert found.between(61) is None
    first, second, both = found.between(1, 1), found.between(2, 2), found.between(1, 2)
    assert math.log(both.forward) == pytest.approx((math.log(first.forward) + math.log(second.forward)) / 2)


@pytest.mark.parametrize("config", [tiny_config(), tiny_config(bidirectional=False)], ids=["two", "one"])
def test_the_table(tmp_path, config):
    _, _, network, table, reading = evaluation_parts(tmp_path, LENGTHS["in every bin"], config)
    measured = {state: by_position(network, table, reading, state=state) for state in ("zero", "carry")}
    write_table(tmp_path / "t.tsv", measured)
    with (tmp_path / "t.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, dialect="excel-tab"))
    ways = ("forward", "backward")[: config.n_directions]
    assert list(rows[0]) == ["position", "predictions", *(f"{way}_{state}" for state in measured for way in ways)]
    assert [row["position"] for row in rows[-4:]] == ["30", "31-40", "41-60", "61+"]
    assert sum(int(row["predictions"]) for row in rows) == reading.n_predictions
    for row, (_, zero), (_, carry) in zip(rows, measured["zero"].bins(), measured["carry"].bins(), strict=True):
        for way in ways:
            assert float(row[f"{way}_zero"]) == pytest.approx(getattr(zero, way), abs=0.006)
            assert float(row[f"{way}_carry"]) == pytest.approx(getattr(carry, way), abs=0.006)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("state", ["zero", "carry"])
def test_on_a_gpu(tmp_path, state):
    _, _, network, table, reading = evaluation_parts(tmp_path, LENGTHS["in every bin"])
    expected = by_position(network, table, reading, state=state)
    found = by_position(network.to("cuda"), table, reading, state=state)
    np.testing.assert_array_equal(found.counts, expected.counts)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=2e-2)
