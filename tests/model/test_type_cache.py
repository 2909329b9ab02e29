import copy
import os
import pickle
import signal
import threading
import warnings

import pytest
import torch
from torch import nn

from elmokit.errors import ElmoError
from elmokit.model.type_cache import TypeCache


class Encoder(nn.Module):
    """A word's vector is its number in `seen` times a weight; counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4), requires_grad=False)
        self.asked: list[list[str]] = []

    def __call__(self, words):
        self.asked.append(list(words))
        return torch.tensor([[float(word)] for word in words]).reshape(-1, 1) * self.weight


BYTES_A_WORD = 16


def vectors(cache, encoder, words):
    looked = cache.look_up(words, encoder, encoder)
    return looked.table[torch.from_numpy(looked.rows)]


def expected(words):
    return torch.tensor([[float(word)] for word in words]).reshape(-1, 1) * torch.ones(4)


@pytest.fixture
def encoder():
    return Encoder()


def cache_of(words):
    return TypeCache(words * BYTES_A_WORD / 1e6)


def test_a_word_is_encoded_once(encoder):
    cache = cache_of(10)
    assert torch.equal(vectors(cache, encoder, ["3", "1", "3"]), expected(["3", "1", "3"]))
    assert torch.equal(vectors(cache, encoder, ["5", "1", "5", "3", "2"]), expected(["5", "1", "5", "3", "2"]))
    assert torch.equal(vectors(cache, encoder, ["2"]), expected(["2"]))
    assert encoder.asked == [["3", "1"], ["5", "2"]]
    assert (cache.hits, cache.misses, len(cache), cache.capacity, cache.nbytes) == (5, 4, 4, 10, 64)
    assert repr(cache) == "TypeCache(4 words, 0.0 of 0.00016 MB, 5 hits, 4 misses)"


def test_nothing_is_encoded_where_there_are_no_words(encoder):
    cache = cache_of(10)
    for _ in range(2):
        assert vectors(cache, encoder, []).shape == (0, 4)
    assert torch.equal(vectors(cache, encoder, ["7"]), expected(["7"]))


def test_clear_forgets_words_and_counts(encoder):
    cache = cache_of(10)
    vectors(cache, encoder, ["1"])
    cache.clear()
    assert (cache.hits, cache.misses, len(cache), cache.capacity, cache.nbytes) == (0, 0, 0, 0, 0)
    vectors(cache, encoder, ["1"])
    assert encoder.asked == [["1"], ["1"]]


def test_a_full_table_begins_again_with_the_words_of_the_batch(encoder):
    cache = cache_of(3)
    vectors(cache, encoder, ["1", "2", "3"])
    assert torch.equal(vectors(cache, encoder, ["4", "2", "4"]), expected(["4", "2", "4"]))
    assert encoder.asked[1:] == [["4"]]
    assert len(cache) == 2
    assert torch.equal(vectors(cache, encoder, ["2", "4", "1"]), expected(["2", "4", "1"]))
    assert encoder.asked[2:] == [["1"]]


def test_vectors_of_a_batch_outlive_the_table(encoder):
    cache = cache_of(2)
    first = cache.look_up(["1", "2"], encoder, encoder)
    cache.look_up(["3", "4"], encoder, encoder)
    cache.look_up(["5"], encoder, encoder)
    assert torch.equal(first.table[torch.from_numpy(first.rows)], expected(["1", "2"]))


def test_a_batch_with_more_words_than_there_is_room_for(encoder):
    cache = cache_of(3)
    vectors(cache, encoder, ["1", "2"])
    many = ["5", "4", "2", "3", "5"]
    assert torch.equal(vectors(cache, encoder, many), expected(many))
    assert encoder.asked[1:] == [["5", "4", "3"]]
    assert torch.equal(vectors(cache, encoder, ["2", "1"]), expected(["2", "1"]))
    assert len(encoder.asked) == 2
    tiny = TypeCache(1e-9)
    assert torch.equal(vectors(tiny, encoder, many), expected(many))
    assert len(tiny) == 0


def test_an_error_leaves_the_cache_as_it_was(encoder):
    cache = cache_of(10)
    vectors(cache, encoder, ["1"])

    def broken(words):
        raise MemoryError

    with pytest.raises(MemoryError):
        cache.look_up(["2", "1", "3"], broken, encoder)
    assert len(cache) == 1
    assert torch.equal(vectors(cache, encoder, ["3", "1", "2"]), expected(["3", "1", "2"]))


@pytest.mark.parametrize("change", ["in place", "replaced", "number type", "autocast"])
def test_other_weights_are_seen(encoder, change):
    cache = cache_of(10)
    vectors(cache, encoder, ["2"])
    if change == "in place":
        with torch.no_grad():
            encoder.weight.mul_(3)
    elif change == "replaced":
        encoder.weight = nn.Parameter(torch.full((4,), 3.0), requires_grad=False)
    elif change == "number type":
        encoder.to(torch.float64)
    if change == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            vectors(cache, encoder, ["2"])
    found = vectors(cache, encoder, ["2"])
    assert torch.equal(found, 2.0 * encoder.weight.unsqueeze(0))
    assert found.dtype == encoder.weight.dtype
    assert len(encoder.asked) == (3 if change == "autocast" else 2)


def test_vectors_of_weights_that_learn_are_not_cached(encoder):
    cache = cache_of(10)
    encoder.weight.requires_grad_(True)
    for _ in range(2):
        looked = cache.look_up(["2", "1", "2"], encoder, encoder)
        assert looked.table.requires_grad
        assert looked.rows.tolist() == [0, 1, 0]
    assert encoder.asked == [["2", "1"]] * 2
    assert len(cache) == 0


def test_off(encoder):
    cache = TypeCache(0)
    for _ in range(2):
        assert torch.equal(vectors(cache, encoder, ["2", "1", "2"]), expected(["2", "1", "2"]))
    assert encoder.asked == [["2", "1"]] * 2


@pytest.mark.parametrize("first", [True, False])
def test_inference_mode_and_ordinary_mode_share_a_table(encoder, first):
    cache = cache_of(10)
    for number, mode in enumerate((first, not first, first)):
        words = ["1", str(number + 2)]
        with torch.inference_mode(mode):
            assert torch.equal(vectors(cache, encoder, words), expected(words))
    scale = torch.ones(4, requires_grad=True)
    (vectors(cache, encoder, ["1", "2"]) * scale).sum().backward()
    assert torch.equal(scale.grad, torch.full((4,), 3.0))


def test_copies_start_empty(encoder):
    cache = cache_of(10)
    vectors(cache, encoder, ["1"])
    for copied in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (len(copied), copied.hits, copied.misses, copied.megabytes) == (0, 0, 0, cache.megabytes)
        assert torch.equal(vectors(copied, encoder, ["1"]), expected(["1"]))


def test_threads_share_it(encoder):
    cache = cache_of(40)
    wrong = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(100):
            words = [str(n) for n in torch.randint(0, 60, (20,), generator=generator).tolist()]
            if not torch.equal(vectors(cache, encoder, words), expected(words)):
                wrong.append(words)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert cache.hits + cache.misses == 4 * 100 * 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_is_not_left_with_what_another_thread_began(encoder):
    cache = cache_of(40)
    vectors(cache, encoder, ["1"])
    begun, go_on = threading.Event(), threading.Event()

    def slow(words):
        begun.set()
        go_on.wait()
        return encoder(words)

    other = threading.Thread(target=cache.look_up, args=(["2"], slow, encoder))
    other.start()
    begun.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # some versions of Python advise against it
        child = os.fork()
    if child == 0:
        status = 1
        signal.alarm(20)
        try:
            status = int(not torch.equal(vectors(cache, encoder, ["2", "1"]), expected(["2", "1"])))
        finally:
            os._exit(status)
    go_on.set()
    other.join()
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(vectors(cache, encoder, ["2", "1"]), expected(["2", "1"]))


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf"), "64", None, True])
def test_wrong_sizes_are_named(size):
    with pytest.raises(ElmoError, match="type_cache_mb must be a number of megabytes of at least 0"):
        TypeCache(size)
