import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from elmokit.model.bilm import BiLM
from elmokit.model.language_model import LmHead
from elmokit.pretrain.network import LanguageModelNetwork, log_expected, sample_negatives, sampled_softmax_loss
from elmokit.pretrain.recipe import make_recipe
from elmokit.pretrain.updates import choose_sampled


def probability(word, n_words):
    return (math.log(word + 2) - math.log(word + 1)) / math.log(n_words + 1)


def case(*, rows=7, size=5, n_words=20, sample=6, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    top = torch.randn(rows, size, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(n_words, size, generator=generator, dtype=torch.float64).float().requires_grad_()
    bias = torch.randn(n_words, generator=generator).requires_grad_()
    negatives, tries = sample_negatives(n_words, sample, generator)
    targets = torch.randint(0, n_words, (rows,), generator=generator)
    targets[0] = negatives[2]  # an accidental hit
    return top, weight, bias, targets, negatives, tries


def slow_loss(top, weight, bias, targets, negatives, tries):
    """One row and one word at a time, in double precision."""
    n_words = len(bias)
    expected = [1 - (1 - probability(word, n_words)) ** tries for word in range(n_words)]
    losses = []
    for row, target in zip(top.double(), targets.tolist(), strict=True):

        def score(word, row=row):
            return row @ weight[word].double() + bias[word].double() - math.log(expected[word])

        others = [score(word) for word in negatives.tolist() if word != target]
        losses.append(torch.logsumexp(torch.stack([score(target), *others]), dim=0) - score(target))
    return torch.stack(losses)


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_the_formula_with_all_gradients(seed):
    given = case(seed=seed, dtype=torch.float32)
    top, weight, bias, targets, negatives, _ = given
    assert (targets.unsqueeze(1) == negatives).any()
    ours, slow = sampled_softmax_loss(*given), slow_loss(*given)
    torch.testing.assert_close(ours.double(), slow, rtol=1e-5, atol=1e-5)
    direction = torch.linspace(-1, 1, len(targets))
    found = torch.autograd.grad((ours * direction).sum(), [top, weight, bias])
    wanted = torch.autograd.grad((slow * direction.double()).sum(), [top, weight, bias])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.to(one), rtol=1e-4, atol=1e-5)


def test_a_sampled_word_does_not_count_against_itself():
    top, weight, bias, _, negatives, tries = case(dtype=torch.float32)
    target = negatives[2:3].repeat(len(top))
    without = torch.cat([negatives[:2], negatives[3:]])
    torch.testing.assert_close(
        sampled_softmax_loss(top, weight, bias, target, negatives, tries),
        sampled_softmax_loss(top, weight, bias, target, without, tries),
    )


@pytest.mark.parametrize("n_words", [1, 2, 20, 3000])
def test_with_all_words_it_is_the_full_softmax(n_words):
    top, weight, bias, targets, _, _ = case(n_words=max(n_words, 20), dtype=torch.float32)
    weight, bias, targets = weight[:n_words], bias[:n_words], targets % n_words
    for count in (n_words, n_words + 5):
        negatives, tries = sample_negatives(n_words, count, torch.Generator())
        assert sorted(negatives.tolist()) == list(range(n_words))
        ours = sampled_softmax_loss(top, weight, bias, targets, negatives, tries)
        full = F.cross_entropy(top @ weight.T + bias, targets, reduction="none")
        torch.testing.assert_close(ours, full, rtol=1e-5, atol=1e-5)


def test_half_precision_products_give_nearly_the_same():
    given = case(dtype=torch.float32)
    half = (given[0].detach().bfloat16().requires_grad_(), *given[1:])
    loss = sampled_softmax_loss(*half)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, sampled_softmax_loss(*given), rtol=0.05, atol=0.05)
    loss.sum().backward()
    assert half[0].grad.dtype == torch.bfloat16
    assert half[1].grad.dtype == torch.float32


@pytest.mark.parametrize(("n_words", "count"), [(2, 1), (5, 4), (100, 1), (100, 99), (10_000, 512), (50_000, 3000)])
def test_negatives_are_distinct_words(n_words, count):
    for seed in range(3):
        words, tries = sample_negatives(n_words, count, torch.Generator().manual_seed(seed))
        assert words.dtype == torch.int64
        assert len(set(words.tolist())) == len(words) == count
        assert words.min() >= 0
        assert words.max() < n_words
        assert tries >= count


def test_negatives_follow_from_their_generator():
    one, other, third = (sample_negatives(1000, 50, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(one[0], other[0])
    assert one[1] == other[1]
    assert not torch.equal(one[0], third[0])


def test_single_draws_are_log_uniform():
    n_words, draws = 30, 6000
    generator = torch.Generator().manual_seed(0)
    words = torch.cat([sample_negatives(n_words, 1, generator)[0] for _ in range(draws)])
    share = np.bincount(words.numpy(), minlength=n_words) / draws
    expected = np.array([probability(word, n_words) for word in range(n_words)])
    assert expected.sum() == pytest.approx(1)
    deviation = np.sqrt(expected * (1 - expected) / draws)
    assert (np.abs(share - expected) < 4.5 * deviation).all()


def test_the_number_of_draws_is_that_of_a_simulation():
    """Draws until so many different words were seen, one after the other."""
    n_words, count, runs = 30, 12, 1500
    generator, rng = torch.Generator().manual_seed(1), np.random.default_rng(0)
    ours = np.mean([sample_negatives(n_words, count, generator)[1] for _ in range(runs)])
    p = [probability(word, n_words) for word in range(n_words)]
    simulated = []
    for draws in rng.choice(n_words, size=(runs, 400), p=p).tolist():
        seen: set[int] = set()
        for number, word in enumerate(draws, 1):
            seen.add(word)
            if len(seen) == count:
                simulated.append(number)
                break
    assert len(simulated) == runs
    assert ours == pytest.approx(np.mean(simulated), rel=0.03)


def test_expected_counts_are_the_shares_of_a_simulation():
    n_words, tries, runs = 20, 15, 4000
    p = [probability(word, n_words) for word in range(n_words)]
    draws = np.random.default_rng(1).choice(n_words, size=(runs, tries), p=p)
    share = np.array([(draws == word).any(axis=1).mean() for word in range(n_words)])
    ours = log_expected(torch.arange(n_words), n_words, tries).exp().numpy()
    np.testing.assert_allclose(ours, [1 - (1 - q) ** tries for q in p], rtol=1e-5)
    assert np.abs(share - ours).max() < 0.04


def test_expected_counts_of_rare_words_keep_their_digits():
    n_words = 800_000
    ours = log_expected(torch.tensor([n_words - 1]), n_words, 10_000)
    p = math.log1p(1 / n_words) / math.log(n_words + 1)
    assert ours.item() == pytest.approx(math.log(-math.expm1(10_000 * math.log1p(-p))), rel=1e-6)


def network_of(n_words, recipe):
    config = recipe.config(n_words)
    return LanguageModelNetwork(BiLM(config), LmHead(n_words, config.context.prediction_size))


@pytest.mark.parametrize(
    ("preset", "context", "n_words", "sampled"),
    [
        ("tiny", "lstm", 5_000, False),  # fewer words than the sample has
        ("tiny", "lstm", 10_000, False),
        ("tiny", "lstm", 30_000, True),
        ("small", "lstm", 30_000, False),
        ("small", "lstm", 50_000, True),
        ("small", "transformer", 30_000, False),
    ],
)
def test_on_a_cpu_it_is_used_where_updates_are_a_third_faster(preset, context, n_words, sampled):
    recipe = make_recipe(preset=preset, changes={"context": context})
    with torch.device("meta"):
        network = network_of(n_words, recipe)
    assert choose_sampled(recipe, network, torch.device("cpu")) is sampled
    assert not choose_sampled(recipe, network, torch.device("cuda"))
    if n_words > recipe.negatives:
        assert choose_sampled(replace(recipe, loss="sampled"), network, torch.device("cpu"))
    assert not choose_sampled(replace(recipe, loss="full"), network, torch.device("cpu"))
