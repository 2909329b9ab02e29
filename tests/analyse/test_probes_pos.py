"""Linear probes of parts of speech, on vectors whose answers are known."""

import numpy as np
import pytest
import torch

from elmokit import Elmo, ElmoError
from elmokit.analyse.probes.pos import LinearOptions, MeanLayer, fit_linear, probe_pos
from elmokit.analyse.probes.sources import ElmoSource, append_mean
from elmokit.tasks import TaggedExample, inputs

pytestmark = pytest.mark.usefixtures("_own_cache")
QUICK = LinearOptions(epochs=10, batch_size=16, learning_rate=0.05, least_updates=0)
CPU = torch.device("cpu")


@pytest.fixture
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "cache_folder", lambda: tmp_path / "cache")


class Layered:
    """Layer "0" knows the word, layer "1" whether it stands at an even place; both with noise."""

    names = ("0", "1")
    size = 6
    device = CPU

    def __init__(self):
        self.read = 0

    def stream(self, sentences):
        noise = np.random.default_rng(1)
        for tokens in sentences:
            self.read += 1
            layers = noise.normal(0, 0.1, (2, len(tokens), 6)).astype(np.float32)
            for place, token in enumerate(tokens):
                layers[0, place, "abc".index(token)] += 3
                layers[1, place, 3 + place % 2] += 3
            yield layers


def sentences(tag, count=40, seed=0):
    """Sentences of the words a, b and c; `tag(word, place)` names a token's tag."""
    random = np.random.default_rng(seed)
    examples = []
    for line in range(count):
        tokens = tuple(random.choice(list("abc"), random.integers(1, 8)))
        tokens = tuple(str(token) for token in tokens)
        examples.append(TaggedExample(tokens, tuple(tag(word, i) for i, word in enumerate(tokens)), line + 1))
    return examples


def by_word(word, place):
    return {"a": "NOUN", "b": "VERB", "c": "DET"}[word]


def by_place(word, place):
    return "EVEN" if place % 2 == 0 else "ODD"


def test_each_layer_tells_what_it_knows():
    words = probe_pos(Layered(), sentences(by_word), sentences(by_word, seed=1), options=QUICK)
    assert words.accuracy["0"] == 1
    assert words.accuracy["1"] < 0.7
    assert words.baseline == 1
    places = probe_pos(Layered(), sentences(by_place), sentences(by_place, seed=1), options=QUICK)
    assert places.accuracy["1"] == 1
    assert places.accuracy["0"] < 0.8
    assert places.baseline < 0.8
    assert list(places.accuracy) == ["0", "1", "mean", "mix"]
    assert min(places.accuracy["mean"], places.accuracy["mix"]) > 0.98
    assert places.tags == ("EVEN", "ODD")


def test_the_vectors_are_computed_once_for_all_layers_and_seeds():
    source = Layered()
    result = probe_pos(source, sentences(by_word, 10), sentences(by_word, 5), options=QUICK, seeds=(1, 2, 3))
    assert source.read == 15
    assert {len(runs) for runs in result.runs.values()} == {3}
    assert result.accuracy["0"] == pytest.approx(np.mean(result.runs["0"]))


def test_the_same_seed_gives_the_same_figures():
    noisy = LinearOptions(epochs=1, batch_size=4, learning_rate=0.01, least_updates=0)
    first, again = (
        probe_pos(Layered(), sentences(by_place), sentences(by_place, seed=1), options=noisy) for _ in range(2)
    )
    assert first == again


def test_a_folder_that_cannot_be_used_is_named(tmp_path, make_elmo):
    (tmp_path / "file").touch()
    with pytest.raises(ElmoError, match=r"file.* cannot be written"):
        probe_pos(make_elmo(), sentences(by_word), sentences(by_word), folder=tmp_path / "file")


def test_a_tag_that_training_lacks_counts_as_wrong(caplog):
    dev = [TaggedExample(("a", "b"), ("NOUN", "NEW"), 1)]
    assert probe_pos(Layered(), sentences(by_word), dev, options=QUICK).accuracy["0"] == 0.5
    assert "'NEW'" in caplog.text


def test_tags_of_another_tag_set_are_refused():
    with pytest.raises(ElmoError, match=r"line 1.*'NN', 'VB'"):
        probe_pos(Layered(), sentences(by_word), [TaggedExample(("a", "b"), ("NN", "VB"), 1)], options=QUICK)


def test_an_elmo_is_a_source(make_elmo):
    elmo = make_elmo()
    source = ElmoSource(elmo)
    assert source.names == ("0", "1", "2")
    assert source.size == elmo.config.vector_size
    [layers] = source.stream([("the", "bank")])
    np.testing.assert_array_equal(layers, elmo.encode([["the", "bank"]], output="layers")[0])
    result = probe_pos(elmo, sentences(by_word, 20), sentences(by_word, 5), options=QUICK)
    assert list(result.accuracy) == ["0", "1", "2", "mean", "mix"]
    assert result.accuracy["0"] == 1  # three words apart is not much to ask


def test_the_vectors_of_an_elmo_are_stored_for_the_next_probe(make_elmo, tmp_path, monkeypatch):
    train, dev = sentences(by_word, 20), sentences(by_word, 5, seed=1)
    first = probe_pos(make_elmo(), train, dev, options=QUICK, folder=tmp_path)
    monkeypatch.setattr(Elmo, "layers_of", None)  # whoever calls it fails
    assert probe_pos(make_elmo(), train, dev, options=QUICK, folder=tmp_path) == first


def test_mean_layers_are_the_layers_and_their_mean(make_elmo, tmp_path):
    elmo = make_elmo()
    rows = [example.tokens for example in sentences(by_word, 9)]
    stored = inputs.frozen_features(elmo, rows, cache=tmp_path, dtype=torch.float32)
    expected = np.concatenate(elmo.encode(rows, output="layers"), axis=1)  # [L+1, N, D]
    for layers in ([0], [1], [2], [0, 1, 2]):
        read = MeanLayer(stored.rows, layers, expected.shape[1:])
        for part in (slice(0, 5), slice(3, 11), slice(7, 1000)):
            np.testing.assert_allclose(read[part], expected[layers].mean(0)[part], rtol=1e-6, atol=1e-6)


def test_an_elmo_whose_vectors_depend_on_others_is_refused(make_elmo):
    for arguments in ({"state": "carry"}, {"boundaries": True}):
        with pytest.raises(ElmoError, match="boundaries"):
            ElmoSource(make_elmo(**arguments))


def test_one_layer_is_its_own_mean():
    assert append_mean(np.ones((1, 3, 2), np.float32)).shape == (1, 3, 2)
    layers = np.arange(4, dtype=np.float32).reshape(2, 1, 2)
    np.testing.assert_array_equal(append_mean(layers)[2], [[1, 2]])


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        ([], [TaggedExample(("a",), ("X",))], "train must have tokens"),
        ([TaggedExample(("a",), ("X",))], [], "dev must have tokens"),
        ([TaggedExample(("a", "b"), ("X",), 7)], [TaggedExample(("a",), ("X",))], "line 7"),
        ([TaggedExample(("a",), None, 3)], [TaggedExample(("a",), ("X",))], "line 3"),
    ],
)
def test_data_that_cannot_be_used_are_named(train, dev, message):
    with pytest.raises(ElmoError, match=message):
        probe_pos(Layered(), train, dev)


def test_more_tokens_than_a_block_are_all_seen(monkeypatch):
    monkeypatch.setattr("elmokit.analyse.probes.pos._BLOCK_TOKENS", 8)
    random = np.random.default_rng(0)
    labels = np.arange(30) % 2
    features = (random.normal(0, 0.1, (30, 4)) + labels[:, None] * 2).astype(np.float16)
    probe = fit_linear([features], labels, 2, QUICK, CPU)
    np.testing.assert_array_equal(probe.predict([features]), labels)
    assert probe.centre.shape == (1, 4)
    np.testing.assert_allclose(probe.centre[0], features.astype(np.float64).mean(0), rtol=1e-4)


def test_few_tokens_get_as_many_updates():
    random = np.random.default_rng(0)
    labels = np.arange(10) % 2
    features = [(random.normal(0, 1, (10, 2)) + labels[:, None]).astype(np.float16)]

    def fitted(epochs, least):
        return fit_linear(features, labels, 2, LinearOptions(epochs, least, batch_size=4), CPU).weight

    torch.testing.assert_close(fitted(1, 31), fitted(11, 0), rtol=0, atol=0)  # 3 updates an epoch
    assert not torch.equal(fitted(1, 31), fitted(10, 0))


def test_a_number_that_never_changes_does_no_harm():
    labels = np.arange(20) % 2
    features = np.stack([labels, np.full(20, 7)], axis=1).astype(np.float16)
    probe = fit_linear([features], labels, 2, QUICK, CPU)
    assert torch.isfinite(probe.weight).all()
    np.testing.assert_array_equal(probe.predict([features]), labels)
