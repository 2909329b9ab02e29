from collections import Counter

import numpy as np
import pytest

from elmokit.pretrain.sentences import hashed, permuted, uniform


def order(count, epoch=0, seed=1):
    return permuted(np.arange(count), count, np.full(count, epoch), seed)


@pytest.mark.parametrize("epoch", [0, 1, 10**6])
@pytest.mark.parametrize("counts", [range(1, 71), [1000], [65_536], [65_537]], ids=str)
def test_every_thing_has_one_place(counts, epoch):
    for count in counts:
        assert sorted(order(count, epoch)) == list(range(count))


def test_any_part_can_be_asked_for_alone_and_epochs_may_mix():
    epochs, index = np.divmod(np.arange(95, 310), 101)
    together = permuted(index, 101, epochs, 3)
    for place, number, epoch in zip(together, index, epochs, strict=True):
        assert place == order(101, int(epoch), seed=3)[number]


def test_each_epoch_and_seed_has_an_order_of_its_own():
    orders = {tuple(order(50, epoch, seed)) for epoch in range(20) for seed in (0, 1, 2**40)}
    assert len(orders) == 60


def test_no_order_is_left():
    count = 20_000
    found = order(count)
    # Of a random order a share of 1/n neighbours stay neighbours, and the mean step is n/3 long.
    assert np.count_nonzero(np.abs(np.diff(found)) == 1) < 20
    assert np.abs(np.diff(found)).mean() == pytest.approx(count / 3, rel=0.03)
    assert abs(np.corrcoef(np.arange(count), found)[0, 1]) < 0.03
    assert abs(np.corrcoef(order(count, 1), found)[0, 1]) < 0.03
    assert np.count_nonzero(order(count, 1) == found) < 20


@pytest.mark.parametrize(("count", "orders"), [(2, 2), (3, 6)])
def test_small_orders_are_all_about_equally_likely(count, orders):
    epochs = 3000
    found = permuted(np.tile(np.arange(count), epochs), count, np.repeat(np.arange(epochs), count), 1)
    seen = Counter(map(tuple, found.reshape(epochs, count).tolist()))
    assert len(seen) == orders
    assert min(seen.values()) > 0.85 * epochs / orders
    assert max(seen.values()) < 1.15 * epochs / orders


@pytest.mark.parametrize("seed", [0, 1, 2**62])
def test_uniform_numbers_are_uniform(seed):
    found = uniform(np.arange(100_000), seed)
    assert found.min() >= 0
    assert found.max() < 1
    counts, _ = np.histogram(found, bins=20, range=(0, 1))
    assert np.abs(counts - 5000).max() < 350  # five standard deviations
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.02
    assert abs(np.corrcoef(found, uniform(np.arange(100_000), seed + 1))[0, 1]) < 0.02


def test_numbers_stay_as_they_are():
    """Another value here would let a saved run go on with other coins and another order."""
    assert uniform(np.arange(3), 1).tolist() == [0.7457817572627011, 0.9710027535867962, 0.4443592170557721]
    assert uniform(np.array([10**12]), 12345).tolist() == [0.63919428290365]
    assert order(10).tolist() == [6, 1, 3, 9, 4, 8, 2, 7, 0, 5]
    assert order(10, epoch=3, seed=7).tolist() == [9, 5, 4, 1, 6, 7, 0, 3, 2, 8]
    values = np.array([0, 1, 2**63], np.uint64)
    assert hashed(values, 5).tolist() == [7020995479949754436, 18180438093026040609, 6206614558328833784]
