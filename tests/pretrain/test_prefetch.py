import threading
from contextlib import closing

import pytest

from elmokit.pretrain.prefetch import prefetched


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "elmokit-prefetch"]


def test_items_keep_their_order_and_their_thread_ends():
    before = threads()
    made_in = set()

    def items():
        for number in range(1000):
            made_in.add(threading.current_thread())
            yield number

    assert list(prefetched(items())) == list(range(1000))
    assert made_in != {threading.current_thread()}
    assert threads() == before


@pytest.mark.parametrize("values", [[], [None], [0, None, False]])
def test_items_may_be_none_or_nothing(values):
    assert list(prefetched(iter(values))) == values


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), OSError(28, "No space left")])
def test_an_error_comes_through_in_its_place(error):
    before = threads()

    def items():
        yield from (1, 2, 3)
        raise error

    found = prefetched(items())
    got = [next(found) for _ in range(3)]
    with pytest.raises(type(error)) as caught:
        next(found)
    assert got == [1, 2, 3]
    assert caught.value is error
    assert threads() == before


def test_only_a_few_items_are_made_ahead():
    made = []
    several = threading.Event()

    def items():
        for number in range(100):
            made.append(number)
            if number == 3:
                several.set()
            yield number

    with closing(prefetched(items())) as found:
        assert next(found) == 0
        assert several.wait(30)  # it does run ahead
        for number in range(1, 20):
            assert next(found) == number
            assert len(made) <= number + 8
    assert len(made) < 40


def test_closing_early_ends_the_thread_and_the_items():
    before, ended = threads(), []

    def endless():
        try:
            while True:
                yield 1
        finally:
            ended.append(True)

    found = prefetched(endless())
    next(found)
    assert len(threads()) == len(before) + 1
    found.close()
    assert threads() == before
    del found
    assert ended == [True]


def test_an_error_of_the_consumer_ends_the_thread():
    before = threads()

    def use():
        with closing(prefetched(iter(int, 1))) as found:
            next(found)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        use()
    assert threads() == before
