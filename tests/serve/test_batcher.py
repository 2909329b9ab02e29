"""The queue, with a model whose batches wait until the test lets them go."""

import asyncio
import threading

import numpy as np
import pytest

from elmokit.serve.batcher import Batcher
from elmokit.serve.errors import RequestError
from elmokit.serve.metrics import Metrics


class FakeElmo:
    """Gives each text its number of tokens; notes its batches; waits while the gate is closed."""

    def __init__(self):
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()

    def stream(self, rows, *, layer, pool, batch_tokens):
        self.batches.append((layer, [row[0] if row else "" for row in rows]))
        self.gate.wait(30)
        if any("bad" in row for row in rows):
            raise RuntimeError("a word that cannot be computed")
        return [np.full(2, len(row), np.float32) for row in rows]


@pytest.fixture
def elmo():
    return FakeElmo()


def run(elmo, test, *, budget=20, rate=1e6, **limits):
    """Run a coroutine function with a batcher whose model is busy with a first text."""

    async def main():
        batcher = Batcher(Metrics(), **{"max_queue_tokens": 1000, "max_wait": 60, **limits})
        batcher.start(elmo, asyncio.get_running_loop(), budget, rate)
        elmo.gate.clear()
        first = asyncio.ensure_future(encode(batcher, [["first"]]))
        while not elmo.batches:
            await asyncio.sleep(0.001)
        try:
            await test(batcher)
        finally:
            elmo.gate.set()
            await asyncio.gather(first, return_exceptions=True)
            batcher.stop()
            await asyncio.sleep(0)  # the results of the last batch are delivered
            assert batcher.tokens == 0

    asyncio.run(main())


async def encode(batcher, rows, layer="top"):
    work = await batcher.encode(rows, [len(row) + 2 for row in rows], layer=layer, pool="mean")
    return work.results


async def queued(batcher, *requests):
    """Start requests in their order."""
    tasks = []
    for rows, layer in requests:
        tasks.append(asyncio.ensure_future(encode(batcher, rows, layer)))
        await asyncio.sleep(0)
    return tasks


def texts(name, count, tokens=1):
    return [[f"{name}{number}"] * tokens for number in range(count)]


def test_an_idle_server_starts_at_once(elmo):
    async def test(batcher):
        elmo.gate.set()
        assert (await encode(batcher, [["a", "b"]]))[0].tolist() == [2, 2]

    run(elmo, test)
    assert elmo.batches == [("top", ["first"]), ("top", ["a"])]


def test_requests_take_turns_within_the_token_budget(elmo):
    async def test(batcher):
        tasks = await queued(batcher, (texts("a", 8, 2), "top"), (texts("b", 1, 2), "top"), (texts("c", 2, 2), "top"))
        elmo.gate.set()
        await asyncio.gather(*tasks)

    run(elmo, test)
    batches = [" ".join(names) for _, names in elmo.batches[1:]]
    assert batches == ["a0 a1 a2 b0 c0", "a3 a4 a5 c1 a6", "a7"]  # half of a batch is for the oldest request


def test_a_large_request_ends_although_many_others_wait(elmo):
    async def test(batcher):
        others = [(texts(f"other{number}-", 1, 2), "top") for number in range(60)]
        tasks = await queued(batcher, (texts("large", 12, 2), "top"), *others)
        elmo.gate.set()
        await asyncio.gather(*tasks)

    run(elmo, test)
    names = [name for _, names in elmo.batches[1:] for name in names]
    assert names.index("large11") < 40
    assert names.index("other0-0") < 5


@pytest.mark.parametrize("tokens", [12, 18, 40])
def test_a_request_of_long_texts_does_not_block_short_ones(elmo, tokens):
    """A long text leaves no room for others in its batch; 20 tokens are the budget."""

    async def test(batcher):
        others = [(texts(f"other{number}-", 1, 6), "top") for number in range(6)]
        tasks = await queued(batcher, (texts("long", 6, tokens), "top"), *others)
        elmo.gate.set()
        await asyncio.gather(*tasks)

    run(elmo, test)
    names = [name for _, names in elmo.batches[1:] for name in names]
    assert names.index("other0-0") < 3
    assert names.index("other5-0") < names.index("long5")
    assert names.index("long2") < names.index("other5-0") or tokens == 40  # nor do they block it


def test_results_come_in_the_order_of_the_texts(elmo):
    async def test(batcher):
        rows = [["x"] * (1 + number % 7) for number in range(50)]
        task = asyncio.ensure_future(encode(batcher, rows))
        await asyncio.sleep(0)
        elmo.gate.set()
        assert [int(vector[0]) for vector in await task] == [len(row) for row in rows]

    run(elmo, test)
    assert len(elmo.batches) > 5


def test_a_text_over_the_budget_is_computed_alone(elmo):
    async def test(batcher):
        tasks = await queued(batcher, ([["s"], ["long"] * 50, ["t"]], "top"), (texts("b", 3), "top"))
        elmo.gate.set()
        await asyncio.gather(*tasks)

    run(elmo, test)
    names = [names for _, names in elmo.batches[1:]]
    assert ["long"] in names
    assert sorted(name for batch in names for name in batch) == ["b0", "b1", "b2", "long", "s", "t"]


def test_other_layers_are_other_batches_and_do_not_starve(elmo):
    async def test(batcher):
        tasks = await queued(batcher, (texts("a", 12, 2), "top"), (texts("m", 1), "mix"))
        elmo.gate.set()
        await asyncio.gather(*tasks)

    run(elmo, test)
    assert [layer for layer, _ in elmo.batches] == ["top", "top", "mix", "top", "top"]


def test_a_cancelled_request_is_not_computed(elmo):
    async def test(batcher):
        gone, stays = await queued(batcher, (texts("gone", 3), "top"), (texts("stays", 1), "top"))
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        elmo.gate.set()
        await stays

    run(elmo, test)
    assert elmo.batches[1:] == [("top", ["stays0"])]


def test_a_full_queue_refuses_with_a_time(elmo):
    async def test(batcher):
        await queued(batcher, (texts("a", 20, 2), "top"))
        with pytest.raises(RequestError) as refused:
            await encode(batcher, texts("b", 10, 2))
        assert refused.value.status == 429
        assert 1 <= int(refused.value.headers["Retry-After"]) <= 30
        with pytest.raises(RequestError) as refused:
            await encode(batcher, texts("b", 30, 2))
        assert refused.value.status == 422  # it could never be accepted

    run(elmo, test, max_queue_tokens=100)


@pytest.mark.parametrize(("rate", "admitted"), [(0.1, False), (0.2, True)])
def test_the_speed_decides_how_much_may_wait(elmo, rate, admitted):
    """3 tokens are being computed, 3 more are asked for: at 0.1 per second the first take 30 to 60 seconds."""

    async def test(batcher):
        [task] = await queued(batcher, ([["a"]], "top"))
        assert batcher.tokens == (6 if admitted else 3)
        elmo.gate.set()
        if admitted:
            assert len(await task) == 1
        else:
            with pytest.raises(RequestError) as refused:
                await task
            assert refused.value.status == 429
            assert refused.value.headers["Retry-After"] == "30"

    run(elmo, test, rate=rate, max_wait=50)


def test_a_large_request_does_not_refuse_single_texts(elmo):
    """900 tokens take 18 to 36 seconds; a single text has its turn after those that are computed now."""

    async def test(batcher):
        large, small, several = await queued(
            batcher, (texts("large", 300), "top"), (texts("small", 1), "top"), (texts("several", 2), "top")
        )
        elmo.gate.set()
        assert len(await small) == 1
        with pytest.raises(RequestError) as refused:
            await several
        assert refused.value.status == 429
        await large

    run(elmo, test, rate=50, max_wait=30)


async def refusal(task):
    with pytest.raises(RequestError, match="waited") as refused:
        await task
    return refused.value


def test_a_request_that_waited_too_long_is_refused_while_a_batch_is_stuck(elmo):
    """The gate stays closed: neither the request in the batch nor the one behind it gets a late answer."""

    async def test(batcher):
        tasks = await queued(batcher, (texts("late", 1), "top"), (texts("later", 1), "top"))
        for task in tasks:
            error = await refusal(task)
            assert error.status == 429
            assert int(error.headers["Retry-After"]) >= 1
        assert batcher.tokens == 3  # of the batch that is stuck

    run(elmo, test, max_wait=0.05)
    assert elmo.batches == [("top", ["first"])]


def test_a_request_that_is_computed_in_part_is_refused_too(elmo):
    async def test(batcher):
        elmo.gate.set()
        while batcher.tokens:
            await asyncio.sleep(0.001)
        elmo.gate.clear()
        [task] = await queued(batcher, (texts("part", 40), "top"))
        await refusal(task)
        elmo.gate.set()

    run(elmo, test, max_wait=0.05)
    assert len(elmo.batches) == 2


def test_a_large_request_has_more_time(elmo):
    """At 50 tokens per second, 3 tokens need 0.12 seconds with turns for others, and 300 need 12."""

    async def test(batcher):
        small, large = await queued(batcher, (texts("small", 1), "top"), (texts("large", 100), "top"))
        await refusal(small)
        elmo.gate.set()
        assert len(await large) == 100

    run(elmo, test, rate=50, max_wait=0.5)


def test_a_text_that_fails_does_not_fail_its_batch(elmo):
    async def test(batcher):
        good, bad = await queued(batcher, (texts("good", 2), "top"), ([["bad"]], "top"))
        elmo.gate.set()
        assert len(await good) == 2
        with pytest.raises(RequestError) as failed:
            await bad
        assert failed.value.status == 424
        assert "cannot be computed" not in str(failed.value)
        await encode(batcher, [["fine"]])
        assert batcher.healthy

    run(elmo, test)


def test_a_function_has_its_turn(elmo):
    async def test(batcher):
        [before] = await queued(batcher, (texts("a", 12, 2), "top"))
        call = asyncio.ensure_future(batcher.call(lambda: len(elmo.batches), 5))
        await asyncio.sleep(0)
        elmo.gate.set()
        assert (await call).results == [2]  # after the first batch of the request before it
        await before

    run(elmo, test)
    assert len(elmo.batches) == 4


def test_stop_refuses_what_is_queued(elmo):
    async def test(batcher):
        [waiting] = await queued(batcher, (texts("a", 1), "top"))
        threading.Timer(0.05, elmo.gate.set).start()
        batcher.stop()
        with pytest.raises(RequestError) as refused:
            await waiting
        assert refused.value.status == 503
        with pytest.raises(RequestError):
            await encode(batcher, [["later"]])

    run(elmo, test)
