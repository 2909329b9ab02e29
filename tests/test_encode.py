import numpy as np
import pytest
import torch

from elmokit import ElmoError
from elmokit.encode import WINDOW_BATCHES, encode_stream, run_halving
from elmokit.layers import batches
from support.exactness import assert_same
from support.tiny_models import tiny_config

ODD = [
    "😀 👩‍👩‍👧 🇩🇪",
    "e\u0301 n\u0303",
    "\ud800 \udfff a\ud800b",
    "nul\x00inside \x00",
    "x" * 10_000 + " short",
    "中文 字 字字字字字字字字字字字字字字字字字字",
    "\u200b\u200d",
]


def test_batches_hold_every_sentence_once_within_the_budget():
    lengths = [5, 40, 3, 100, 7, 7, 1, 60]
    found = list(batches(lengths, 64))
    assert sorted(index for batch in found for index in batch) == list(range(8))
    for batch in found:
        assert len(batch) == 1 or sum(lengths[i] for i in batch) <= 64


def test_order_is_restored_and_reading_ahead_is_bounded():
    taken = []

    def source():
        for number in range(2000):
            taken.append(number)
            yield ["w"] * (number * 7 % 23)

    results = encode_stream(source(), lambda batch: [len(tokens) for tokens in batch], batch_tokens=50)
    for number, result in enumerate(results):
        assert result == number * 7 % 23
        assert len(taken) - number <= 50 * WINDOW_BATCHES


def test_what_is_there_is_given_before_more_is_read():
    """Results that nobody waits for: a source that breaks, or is slow, delays no window before it."""

    def source():
        yield from [["w"] * 3] * 64
        raise ValueError("no more")

    results = encode_stream(source(), lambda batch: [len(tokens) for tokens in batch], batch_tokens=20)
    assert [next(results) for _ in range(64)] == [3] * 64
    with pytest.raises(ValueError, match="no more"):
        next(results)


@pytest.mark.parametrize("pool", [None, "mean", "max", "first", "last"])
def test_no_result_keeps_the_arrays_of_its_batch(make_elmo, pool):
    for array in make_elmo().stream(["the bank", "of the river"], pool=pool):
        assert array.base is None


def test_empty_sentences_do_not_make_endless_windows():
    assert list(encode_stream(([] for _ in range(5000)), lambda batch: [0] * len(batch), batch_tokens=8)) == [0] * 5000


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
    ],
)
def test_memory_running_out_halves_the_batch(error, caplog):
    sizes = []

    def run(batch):
        sizes.append(len(batch))
        if len(batch) > 2:
            raise error
        return [len(tokens) for tokens in batch]

    assert list(run_halving([["a"] * n for n in range(9)], run)) == list(range(9))
    assert max(sizes) == 9
    assert caplog.records[0].args == (9, 4)


def test_other_errors_and_single_sentences_are_not_retried():
    def broken(batch):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        run_halving([["a"], ["b"]], broken)

    def hungry(batch):
        raise MemoryError

    with pytest.raises(MemoryError):
        run_halving([["a"]], hungry)


@pytest.mark.parametrize("text", ODD)
def test_any_text_gives_finite_vectors(make_elmo, text):
    vectors = make_elmo().encode([text])[0]
    assert len(vectors) == len(text.split())
    assert np.isfinite(vectors).all()


def test_a_very_long_sentence_is_exact_in_both_directions(make_elmo):
    """The first and last tokens of 50,000 are those of the same text cut where the state is passed on."""
    elmo = make_elmo(tiny_config(), scale=1.0)
    words = [f"w{n % 97}" for n in range(50_000)]
    layers = elmo.encode([words], output="layers")[0]
    assert layers.shape == (3, 50_000, 12)
    # What comes later cannot matter to the forward direction, nor what came before to the backward one.
    start = elmo.encode([words[:300]], output="layers")[0]
    assert_same(layers[:, :300, :6], start[:, :, :6])
    end = elmo.encode([words[-300:]], output="layers")[0]
    assert_same(layers[:, -300:, 6:], end[:, :, 6:])


def test_the_memory_of_many_different_words_is_bounded(make_elmo, monkeypatch):
    elmo = make_elmo()
    words = [f"w{n}" for n in range(3000)]
    at_once = []
    plain = elmo.bilm.token_encoder.forward
    monkeypatch.setattr(elmo.bilm.token_encoder, "forward", lambda c, w: at_once.append(len(c)) or plain(c, w))
    vectors = elmo.encode([words], layer=0)[0]
    assert max(at_once) <= 1024
    assert_same(vectors[2999], elmo.encode([["w2999"]], layer=0)[0][0])


def test_streaming_takes_any_iterable(make_elmo):
    elmo = make_elmo()
    stream = elmo.stream(iter(["the bank", "a"]), layer="all", pool="mean")
    assert [array.shape for array in stream] == [(3, 12), (3, 12)]


@pytest.mark.parametrize("given", [b"the bank", [b"the bank"], [["the", b"bank"]], [bytearray(b"the")]], ids=str)
def test_bytes_are_no_text(make_elmo, given):
    with pytest.raises(ElmoError, match=r"bytes b'.*decode\('utf-8'\)"):
        make_elmo().encode(given)
