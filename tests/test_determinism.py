"""A sentence has one set of vectors: whatever its company, its order, its padding, and whatever came before."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.config import CharacterConfig, LstmConfig, TransformerConfig
from support.exactness import EXACT, assert_same
from support.tiny_models import tiny_config, transformer_config, word_config

tokens = st.text(max_size=12).filter(lambda text: text not in ("<S>", "</S>"))
sentences = st.lists(st.lists(tokens, max_size=9), min_size=1, max_size=9)


# An LSTM whose weights are this large is chaotic: a difference in the last digit would grow a thousandfold.
WILD = 6.0 if EXACT else 1.0


CONFIGS = {
    "awkward": tiny_config(),
    "words": word_config(),
    "round": tiny_config(
        context=LstmConfig(64, 16, n_layers=3),
        characters=CharacterConfig(filters=((1, 32), (2, 32), (3, 64)), embedding_size=16, n_highway=2),
    ),
    "transformer": transformer_config(),
    "round transformer": transformer_config(
        context=TransformerConfig(64, 2, 4, 96, window=6, softmax_size=48, every=1, prediction_layer=True)
    ),
}
same = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", CONFIGS)
@same
@given(batch=sentences, seed=st.integers(0, 2**16))
def test_alone_in_any_batch_in_any_order(make_elmo, name, batch, seed):
    elmo = make_elmo(CONFIGS[name], scale=WILD, type_cache_mb=0)
    together = elmo.encode(batch, output="layers")
    order = np.random.default_rng(seed).permutation(len(batch))
    shuffled = elmo.encode([batch[i] for i in order], output="layers", batch_tokens=1 + seed % 40)
    for place, index in enumerate(order):
        assert_same(shuffled[place], together[index])
        assert_same(elmo.encode([batch[index]], output="layers")[0], together[index])


@pytest.mark.parametrize("name", ["awkward", "transformer"])
@same
@given(batch=sentences)
def test_call_equals_encode_whatever_the_padding(make_elmo, name, batch):
    elmo = make_elmo(CONFIGS[name], scale=WILD, type_cache_mb=0)
    longest = max(len(row) for row in batch) + 3
    out = elmo(tokens=[row + [""] * (longest - len(row)) for row in batch], sequence_len=[len(row) for row in batch])
    for row, vectors in enumerate(elmo.encode(batch, layer="mix")):
        assert_same(out["elmo"][row, : len(vectors)].detach().numpy(), vectors)
    with_more = elmo([*batch, ["x"] * longest])
    assert_same(with_more["elmo"][0, : len(batch[0])].detach(), out["elmo"][0, : len(batch[0])].detach())


def test_earlier_calls_leave_no_trace(make_elmo):
    elmo = make_elmo(scale=WILD)
    first = elmo.encode(["the bank of money"])[0]
    elmo(["something else entirely", "and more"])
    elmo.encode(["x y z"] * 20)
    assert_same(elmo.encode(["the bank of money"])[0], first)


def test_any_number_of_threads(make_elmo):
    before = torch.get_num_threads()
    config = tiny_config(
        context=LstmConfig(512, 64), characters=CharacterConfig(filters=((1, 64), (3, 256)), n_highway=1)
    )
    elmo = make_elmo(config, scale=1.0, type_cache_mb=0)
    text = [f"a sentence with number {n} in it" for n in range(30)]
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(elmo.encode(text))
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert_same(one, other)


def test_carried_state_goes_on_slot_by_slot(make_elmo):
    """Three calls with batches of 2, 3 and 1 equal each slot's own long run from state to state."""
    elmo, plain = make_elmo(state="carry"), make_elmo()
    calls = [["the bank", "a river of"], ["money .", "x", "of the bank"], ["the end ."]]
    got = [elmo.encode(batch, output="layers") for batch in calls]
    for slot in range(3):
        state = None
        for call, batch in enumerate(calls):
            if slot >= len(batch):
                continue
            words = batch[slot].split()
            types = ["<S>", *words, "</S>"]
            ids = torch.from_numpy(plain.indexer(types).characters).unsqueeze(0)
            layers, state = plain.bilm(ids, state=state, return_state=True)
            np.testing.assert_allclose(got[call][slot], layers[:, 0, 1:-1].numpy(), rtol=1e-5, atol=1e-6)
    elmo.reset_state()
    assert np.array_equal(elmo.encode(["the bank"], output="layers")[0], plain.encode(["the bank"], output="layers")[0])


def test_carried_state_differs_from_none(make_elmo):
    elmo = make_elmo(state="carry")
    first, second = (elmo.encode(["the bank"])[0] for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


def test_carried_state_survives_encode_before_training(make_elmo):
    elmo = make_elmo(state="carry", trainable=True)
    elmo.encode(["the bank"])
    elmo(["a river"])["elmo"].sum().backward()
