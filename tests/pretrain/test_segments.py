"""Segments of text: what is read, what is predicted, and that nothing but the seed and the position decides it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise, takewhile

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from elmokit.config import CharacterConfig, ElmoConfig, TransformerConfig
from elmokit.errors import ElmoError
from elmokit.ops.attention import Segments
from elmokit.pretrain.batches import batches_from_process
from elmokit.pretrain.segments import (
    BACKWARD,
    FORWARD,
    MASKED,
    SegmentBatches,
    SegmentPosition,
    SegmentReader,
    UpdateSchedule,
)
from elmokit.pretrain.sentences import BEGIN_TYPE, END_TYPE, Sentences
from support.tiny_models import tiny_checkpoint
from support.training_models import corpus_of, network_of, random_sentences, table_of

CONFIG = ElmoConfig(
    TransformerConfig(size=16, n_blocks=2, n_heads=2, inner_size=24, window=5, softmax_size=8, every=1),
    CharacterConfig(filters=((1, 4), (2, 8)), embedding_size=4, n_highway=1),
)
SCHEDULE = UpdateSchedule(total=4000, update=200, grow=0.5)


@pytest.fixture
def corpus(tmp_path):
    """Sentences of 1 to 60 words, each word in one place only."""
    lengths = [*np.random.default_rng(0).integers(1, 12, 300).tolist(), 60]
    words = iter(range(10_000))
    return corpus_of([[f"w{next(words)}" for _ in range(length)] for length in lengths], tmp_path)


def reader_of(corpus, schedule=SCHEDULE, **changes) -> SegmentReader:
    sentences = changes.pop("sentences", None) or Sentences(corpus, None, True, 3)
    options = {"longest": 50, "join": 0.5, "mask": (0.3, 0.15), "causal": (0.6, 0.1), "seed": 5}
    return SegmentReader(sentences, schedule, **{**options, **changes})


def batches_of(corpus, **changes) -> SegmentBatches:
    model = tiny_checkpoint(CONFIG, head=True)
    dealing = {
        name: changes.pop(name) for name in ("parts", "rank", "processes", "attention_window") if name in changes
    }
    return SegmentBatches(table_of(model, corpus), reader_of(corpus, **changes), **dealing)


@pytest.mark.parametrize("grow", [0.0, 0.3, 0.5, 1.0])
def test_updates_are_counted_beforehand(grow):
    for steps in (*range(1, 40), 997):
        schedule = UpdateSchedule.for_steps(steps, 64, grow)
        tokens = taken = 0
        sizes = []
        while schedule.done(tokens) < 1:
            sizes.append(schedule.size(tokens))
            tokens, taken = tokens + sizes[-1], taken + 1
        assert taken == steps == schedule.n_steps()
        assert sorted(sizes) == sizes
        assert set(sizes) <= {64, 128}
    schedule = UpdateSchedule(10_000, 64, 0.5)
    assert schedule.n_steps(5000) == 5000 / 128 + 0.9375


@pytest.mark.parametrize("held_out", [None, (10, 0)], ids=["all", "some held out"])
def test_each_sentence_of_a_pass_begins_one_segment(corpus, held_out):
    sentences = Sentences(corpus, held_out, True, 3)
    reader = reader_of(corpus, sentences=sentences)
    tokens, ends = np.asarray(corpus.tokens), np.asarray(corpus.ends)
    firsts, joined, found = Counter(), 0, 0
    begin_of = {int(begin): number for number, begin in enumerate([0, *ends[:-1]])}
    for plan in reader.plans():
        if found == len(sentences):
            break
        passage = reader.fill(plan)
        for (start, stop), begin in zip(pairwise(passage.starts.tolist()), plan.begins.tolist(), strict=True):
            if found == len(sentences):
                break
            text = passage.types[start:stop]
            assert (text[0], text[-1]) == (BEGIN_TYPE, END_TYPE)
            np.testing.assert_array_equal(text[1:-1], tokens[begin : begin + len(text) - 2])
            assert 3 <= len(text) <= 50
            sentence, last = begin_of[begin], int(np.searchsorted(ends, begin + len(text) - 2))
            firsts[sentence] += 1
            assert begin + len(text) - 2 == ends[last] or len(text) == 50, "whole sentences, or 48 words"
            if held_out:
                assert not {n % 10 for n in range(sentence, last + 1)} & {9}, "text that is held out is never read"
            joined += last > sentence
            found += 1
    assert set(firsts.values()) == {1}
    assert len(firsts) == len(sentences)
    assert 0.3 < joined / found < 0.5, "half of them, but for those with nothing short enough behind them"


def test_single_sentences(corpus):
    reader = reader_of(corpus, join=0.0)
    words = [plan.words for plan in islice(reader.plans(), 5)]
    lengths = np.diff([0, *corpus.ends])
    order = reader.sentences.at(np.arange(sum(map(len, words))))
    assert np.concatenate(words).tolist() == np.minimum(lengths[order], 48).tolist()


def test_an_update_has_about_its_size(corpus):
    reader = reader_of(corpus)
    sizes = []
    for plan in takewhile(lambda plan: SCHEDULE.done(plan.before.tokens) < 1, reader.plans()):
        size = int((plan.words + 2).sum())
        assert plan.after.tokens - plan.before.tokens == SCHEDULE.size(plan.before.tokens)
        assert abs(size - SCHEDULE.size(plan.before.tokens)) <= 25
        sizes.append(size)
    assert len(sizes) == SCHEDULE.n_steps()
    assert abs(sum(sizes) - SCHEDULE.total) < 0.02 * SCHEDULE.total, "larger ones and smaller ones balance"
    tiny = reader_of(corpus, UpdateSchedule(100, 1, 1.0))
    assert len(next(tiny.plans()).words) == 1


def test_what_is_predicted(corpus):
    schedule = UpdateSchedule(400_000, 40_000, 1.0)
    for position, mask, causal in ((0, 0.3, 0.6), (360_000, 0.165, 0.15)):
        reader = reader_of(corpus, schedule, position=SegmentPosition(0, position))
        found = reader.fill(next(reader.plans()))
        lengths = np.diff(found.starts)
        way = np.repeat(found.modes, lengths)
        boundary = (found.types == BEGIN_TYPE) | (found.types == END_TYPE)
        by_way = np.bincount(found.modes, minlength=3) / len(found.modes)
        assert by_way == pytest.approx([1 - causal, causal / 2, causal / 2], abs=0.05)
        masked, forward, backward = found.rows
        assert len(masked) / ((way == MASKED) & ~boundary).sum() == pytest.approx(mask, abs=0.01)
        np.testing.assert_array_equal(found.targets[0], found.types[masked])
        assert not boundary[masked].any()
        assert (way[masked] == MASKED).all()
        np.testing.assert_array_equal(
            np.flatnonzero(way == FORWARD)[:-1], np.sort([*forward, *found_lasts(found)])[:-1]
        )
        np.testing.assert_array_equal(found.targets[1], found.types[forward + 1])
        np.testing.assert_array_equal(found.targets[2], found.types[backward - 1])
        assert (found.targets[1] != BEGIN_TYPE).all()
        assert (found.targets[2] != END_TYPE).all()
        hidden = found.hidden[masked]
        swapped = ~hidden & (found.inputs[masked] != found.types[masked])
        assert hidden.mean() == pytest.approx(0.8, abs=0.02)
        assert swapped.mean() == pytest.approx(0.1, abs=0.02)
        assert found.hidden.sum() == hidden.sum()
        assert (found.inputs != found.types).sum() == swapped.sum()
        assert not boundary[found.hidden].any()


def found_lasts(passage) -> list[int]:
    """The last token of each segment that is read forward."""
    return [stop - 1 for stop, way in zip(passage.starts[1:].tolist(), passage.modes, strict=True) if way == FORWARD]


def test_another_pass_predicts_other_words(corpus):
    schedule = UpdateSchedule(1e9, 5000, 1.0)
    reader = reader_of(corpus, schedule, join=0.0, causal=(0, 0))
    first, again = (next(reader.plans()) for _ in range(2))
    np.testing.assert_array_equal(first.indices, again.indices)
    seen = [set() for _ in range(2)]
    for plan in reader.plans():
        if len(seen[1]) >= 500:
            break
        passage = reader.fill(plan)
        here = plan.indices[np.searchsorted(passage.starts, passage.rows[0], side="right") - 1] // corpus.n_sentences
        for part in range(2):
            seen[part] |= set(passage.targets[0][here == part].tolist())
    shared = len(seen[0] & seen[1]) / len(seen[0] | seen[1])
    assert shared < 0.3, "a word is in one place only, so the choice differs"


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )


def test_reading_continues_from_any_position(corpus):
    whole = list(islice(batches_of(corpus).arrays(), 30))
    for start in (0, 7, 19):
        rest = islice(batches_of(corpus, position=whole[start][1]).arrays(), 29 - start)
        for (ours, position), (theirs, expected) in zip(rest, whole[start + 1 :], strict=True):
            assert position == expected
            assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))


def test_another_process_makes_the_same_batches(corpus):
    batches = batches_of(corpus, parts=2, attention_window=5)
    made = batches_from_process(batches, pinned=False)
    for (ours, position), (theirs, expected) in zip(islice(made, 15), batches.tensors(), strict=False):
        assert position == expected
        for one, other in zip(ours, theirs, strict=True):
            for name, value in vars(one).items():
                assert value is None or torch.equal(value, getattr(other, name)), name
    made.close()


def test_processes_share_the_segments_of_one(corpus):
    schedule = replace(SCHEDULE, grow=1.0)
    alone = batches_of(corpus, schedule=schedule)
    shared = [batches_of(corpus, schedule=schedule, parts=4, rank=rank, processes=2) for rank in range(2)]
    for ((whole,), _), *ranks in islice(zip(*(each.arrays() for each in (alone, *shared)), strict=True), 14):
        dealt = [part for pair in zip(ranks[0][0], ranks[1][0], strict=True) for part in pair]
        assert len(dealt) == 4
        assert sum(len(part["inputs"]) for part in dealt) == len(whole["inputs"])
        characters = [part["characters"][part["inputs"]] for part in dealt]
        widest = whole["characters"].shape[1]
        padded = np.concatenate(
            [np.pad(c, ((0, 0), (0, widest - c.shape[1])), constant_values=261) for c in characters]
        )
        np.testing.assert_array_equal(padded, whole["characters"][whole["inputs"]])
        np.testing.assert_array_equal(np.concatenate([part["hidden"] for part in dealt]), whole["hidden"])
        np.testing.assert_array_equal(sum(part["predictions"] for part in dealt), whole["predictions"])


def test_an_update_that_has_grown_has_twice_as_many_parts(corpus):
    counts = [len(parts) for parts, _ in islice(batches_of(corpus, parts=2).arrays(), SCHEDULE.n_steps())]
    assert counts == [2] * 10 + [4] * 5


def test_a_part_without_a_segment_predicts_nothing(corpus):
    batches = batches_of(corpus, schedule=UpdateSchedule(1000, 40, 1.0), parts=20)
    parts, _ = next(batches.tensors())
    empty = [part for part in parts if not sum(part.counts())]
    assert len(empty) > 5
    network = network_of(tiny_checkpoint(CONFIG, head=True))
    loss, each, _ = network(empty[0], None)
    assert (loss.item(), each.numel()) == (0.0, 0)
    loss.backward()
    assert all(p.grad is not None and not p.grad.any() for p in network.parameters()), "as many processes need"


def test_an_empty_corpus_is_refused(tmp_path):
    with pytest.raises(ElmoError, match="no sentence"):
        reader_of(corpus_of([[]], tmp_path))


def plain_losses(network, arrays) -> list[torch.Tensor]:
    """−log p of each way's predictions by the equations, one segment at a time, with a mask in attention."""
    context, config = network.bilm.context, network.bilm.config.context
    types = network.bilm.encode_types(torch.from_numpy(arrays["characters"]), None)
    found: list[list[torch.Tensor]] = [[], [], []]
    rows, targets = torch.from_numpy(arrays["rows"]), torch.from_numpy(arrays["targets"])
    of_way = torch.repeat_interleave(torch.arange(3), torch.from_numpy(arrays["predictions"]))

    def norm(x):
        return F.layer_norm(x, x.shape[-1:])

    def turned(x, cos, sin):
        a, b = F.rms_norm(x, x.shape[-1:]).chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    for (start, stop), way in zip(pairwise(arrays["starts"].tolist()), arrays["modes"].tolist(), strict=True):
        x = types[torch.from_numpy(arrays["inputs"][start:stop])]
        hidden = torch.from_numpy(arrays["hidden"][start:stop])
        x = norm(torch.where(hidden.unsqueeze(1), context.masked, x))
        at, size = torch.arange(stop - start), config.size // config.n_heads
        angles = at[:, None] * 10_000.0 ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        ahead = at[None, :] - at[:, None]
        sides = {MASKED: ahead == ahead, FORWARD: ahead <= 0, BACKWARD: ahead >= 0}[way]
        closed = ~(sides & (ahead.abs() <= config.window))
        for block in context.blocks:
            y = norm(x)
            q, k, v = (
                part.unflatten(1, (config.n_heads, size)).transpose(0, 1) for part in (y @ block.qkv.T).chunk(3, 1)
            )
            q, k = (turned(part, angles.cos(), angles.sin()) for part in (q, k))
            scores = (q @ k.transpose(1, 2) / size**0.5).masked_fill(closed, -torch.inf)
            seen = (torch.softmax(scores, dim=-1) @ v).transpose(0, 1)
            gate = torch.sigmoid(y @ block.gate_weight.T + block.gate_bias)
            x = x + norm((seen * gate.unsqueeze(-1)).flatten(1)) @ block.out.T
            u, g = (norm(x) @ block.up.T).chunk(2, dim=1)
            x = x + norm(u * F.gelu(g)) @ block.down.T
        here = (rows >= start) & (rows < stop)
        for number, head in enumerate(context.heads.values()):
            chosen = here & (of_way == number)
            top = norm(F.gelu(F.linear(norm(x[rows[chosen] - start]), head.weight, head.bias)))
            logits = top @ network.softmax_weight().T + network.head.bias
            found[number].append(F.cross_entropy(logits, targets[chosen], reduction="none"))
    return [torch.cat(parts) for parts in found]


def gradients(network, loss) -> list[torch.Tensor]:
    return torch.autograd.grad(loss, list(network.parameters()))


@pytest.mark.parametrize("parts", [1, 3])
def test_the_loss_and_its_gradient_are_those_of_the_equations(tmp_path, parts):
    corpus = corpus_of(random_sentences([3, 9, 1, 14, 6, 2] * 4), tmp_path)
    network = network_of(tiny_checkpoint(CONFIG, head=True)).double()
    given = {"schedule": UpdateSchedule(4000, 600, 1.0), "causal": (0.6, 0.6)}
    ((whole,), _) = next(batches_of(corpus, **given).arrays())
    losses = plain_losses(network, whole)
    assert all(len(part) > 5 for part in losses)
    tokens = np.bincount(whole["modes"], np.diff(whole["starts"]), 3) / whole["starts"][-1]
    expected = sum(share * part.mean() for share, part in zip(tokens, losses, strict=True))
    dealt, _ = next(batches_of(corpus, parts=parts, **given).tensors())
    found = [network(batch, None, None, torch.float64) for batch in dealt]
    loss = sum(each[0] for each in found) / parts
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for ours, plain in zip(gradients(network, loss), gradients(network, expected), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-8)
    sums = sum(batch.sums(each) for batch, (_, each, _) in zip(dealt, found, strict=True))
    torch.testing.assert_close(sums, torch.stack([part.sum() for part in losses]).detach(), rtol=1e-6, atol=0)


def test_batches_for_a_gpu_have_one_size_and_say_what_each_token_sees(corpus):
    plain, padded = batches_of(corpus, parts=2), batches_of(corpus, parts=2, attention_window=5)
    sizes = set()
    for (ours, _), (theirs, _) in islice(zip(padded.tensors(), plain.tensors(), strict=True), 12):
        for one, other in zip(ours, theirs, strict=True):
            sizes.add(len(one.inputs))
            segments = Segments(one.starts.tolist(), one.modes.tolist())
            assert torch.equal(one.reach, segments.reach(5))
            assert torch.equal(one.rows, other.rows)
            assert one.counts() == other.counts()
    assert len(sizes) == 1
