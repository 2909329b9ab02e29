"""The CRF against the sum over all sequences; pooling, LSTM and alignment against padding and awkward lengths."""

import itertools

import pytest
import torch

from elmokit.tasks.network import Pooling, SentenceLstm, masked_max, masked_mean, masked_softmax
from elmokit.tasks.pair import WordAlignment, align
from elmokit.tasks.tag import Crf

LENGTHS = torch.tensor([4, 1, 3, 2])


def some_rules(n_tags):
    """No tag may repeat, the last may not begin, the first may not end."""
    follow, start, end = torch.ones(n_tags, n_tags), torch.ones(n_tags), torch.ones(n_tags)
    follow.fill_diagonal_(0)
    start[-1] = end[0] = 0
    return [rule.bool() for rule in (follow, start, end)]


def random_crf(n_tags=3, *, restricted=True, seed=0):
    torch.manual_seed(seed)
    crf = Crf(n_tags, some_rules(n_tags) if restricted else None).double()
    for parameter in crf.parameters():
        torch.nn.init.normal_(parameter)
    return crf, torch.randn(len(LENGTHS), 4, n_tags, dtype=torch.float64)


def sequences(crf, emissions, length):
    """Every allowed sequence of a sentence with its score, straight from the definition."""
    for tags in itertools.product(range(crf.n_tags), repeat=length):
        inside = all(crf.may_follow[i, j] for i, j in itertools.pairwise(tags))
        if not (inside and crf.may_start[tags[0]] and crf.may_end[tags[-1]]):
            continue
        score = crf.starts[tags[0]] + crf.ends[tags[-1]]
        score = score + sum(emissions[t, tag] for t, tag in enumerate(tags))
        yield tags, score + sum(crf.transitions[i, j] for i, j in itertools.pairwise(tags))


@torch.no_grad()
@pytest.mark.parametrize("restricted", [False, True])
def test_crf_is_the_sum_over_all_sequences(restricted):
    crf, emissions = random_crf(restricted=restricted)
    marginals, decoded = crf.marginals(emissions, LENGTHS), crf.decode(emissions, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        known = list(sequences(crf, emissions[row], length))
        log_partition = torch.logsumexp(torch.stack([score for _, score in known]), dim=0)
        expected = torch.zeros(4, 3, dtype=torch.float64)
        for tags, score in known:
            padded = torch.tensor([[*tags, *[-1] * (4 - length)]])
            got = crf.log_likelihood(emissions[[row]], padded, LENGTHS[[row]])
            torch.testing.assert_close(got, (score - log_partition).reshape(1))
            for position, tag in enumerate(tags):
                expected[position, tag] += (score - log_partition).exp()
        torch.testing.assert_close(marginals[row], expected)
        best = max(known, key=lambda pair: float(pair[1]))[0]
        assert decoded[row].tolist() == [*best, *[-1] * (4 - length)]


def test_crf_in_a_batch_is_as_alone():
    crf, emissions = random_crf()
    tags = torch.randint(0, 3, (4, 4))
    together = crf.log_likelihood(emissions, tags, LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = crf.log_likelihood(emissions[[row], :length], tags[[row], :length], LENGTHS[[row]])
        torch.testing.assert_close(together[[row]], alone)


def test_crf_gradients():
    crf, emissions = random_crf()
    tags = torch.tensor([[0, 1, 2, 1], [1, 0, 0, 0], [1, 2, 1, 0], [0, 1, 0, 0]])
    assert torch.autograd.gradcheck(lambda e: crf.log_likelihood(e, tags, LENGTHS), emissions.requires_grad_())
    crf.log_likelihood(emissions, tags, LENGTHS).sum().backward()
    assert crf.transitions.grad.diagonal().tolist() == [0, 0, 0]
    assert crf.starts.grad[-1] == 0
    assert crf.ends.grad[0] == 0
    names = ("transitions", "starts", "ends")

    def of_parameters(*values):
        arguments = (emissions.detach(), tags, LENGTHS)
        given = {f"crf.{name}": value for name, value in zip(names, values, strict=True)}
        return torch.func.functional_call(_Likelihood(crf), given, arguments)

    values = tuple(getattr(crf, name).detach().clone().requires_grad_() for name in names)
    assert torch.autograd.gradcheck(of_parameters, values)


class _Likelihood(torch.nn.Module):
    def __init__(self, crf):
        super().__init__()
        self.crf = crf

    def forward(self, *arguments):
        return self.crf.log_likelihood(*arguments)


def test_crf_never_decodes_what_is_forbidden_however_it_is_tempted():
    crf = Crf(4, some_rules(4))
    emissions = torch.zeros(1, 6, 4)
    emissions[:, :, 3] = 1e6  # to begin with tag 3, and to stay there
    tags = crf.decode(emissions, torch.tensor([6]))[0].tolist()
    assert tags[0] != 3
    assert all(i != j for i, j in itertools.pairwise(tags))
    assert tags.count(3) == 3


def test_crf_with_forbidden_gold_tags_stays_finite():
    crf, emissions = random_crf()
    likelihood = crf.log_likelihood(emissions, torch.full((4, 4), 2), LENGTHS)
    assert torch.isfinite(likelihood).all()
    assert (likelihood < -1000).all()
    likelihood.sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in crf.parameters())


def test_crf_without_words():
    crf, emissions = random_crf()
    lengths = torch.tensor([4, 0, 3, 0])
    assert crf.log_likelihood(emissions, torch.zeros(4, 4, dtype=torch.long), lengths)[[1, 3]].tolist() == [0, 0]
    assert crf.decode(emissions, lengths)[1].tolist() == [-1] * 4
    assert not crf.marginals(emissions, lengths)[3].any()
    assert crf.decode(emissions[:, :0], torch.zeros(4, dtype=torch.long)).shape == (4, 0)
    assert crf.log_likelihood(emissions[:, :0], torch.zeros(4, 0, dtype=torch.long), lengths * 0).tolist() == [0] * 4


def test_crf_keeps_its_rules_when_saved():
    crf, emissions = random_crf()
    other = Crf(3).double()
    other.load_state_dict(crf.state_dict())
    assert torch.equal(other.decode(emissions, LENGTHS), crf.decode(emissions, LENGTHS))


def padded_pair(width=5, size=6):
    """The same sentences with two paddings, of other widths and other rubbish in them."""
    torch.manual_seed(1)
    narrow = torch.randn(4, 4, size)
    mask = torch.arange(4) < LENGTHS.unsqueeze(1)
    wide = torch.full((4, 4 + width, size), 7.0)
    wide[:, :4][mask] = narrow[mask]
    return narrow, mask, wide, torch.arange(4 + width) < LENGTHS.unsqueeze(1)


@pytest.mark.parametrize("name", ["attention", "max", "mean"])
def test_pooling_never_counts_padding(name):
    torch.manual_seed(0)
    pooling = Pooling(name, 6)
    if name == "attention":
        torch.nn.init.normal_(pooling.query)
    narrow, mask, wide, wide_mask = padded_pair()
    pooled = pooling(narrow, mask)
    assert pooled.shape == (4, pooling.output_size)
    torch.testing.assert_close(pooled, pooling(wide, wide_mask))
    for row, length in enumerate(LENGTHS.tolist()):
        alone = pooling(narrow[[row], :length], mask[[row], :length])
        torch.testing.assert_close(pooled[[row]], alone)


def test_pooling_by_hand():
    values = torch.tensor([[[1.0, -5.0], [3.0, -7.0], [100.0, 100.0]]])
    mask = torch.tensor([[True, True, False]])
    assert masked_mean(values, mask).tolist() == [[2.0, -6.0]]
    assert masked_max(values, mask).tolist() == [[3.0, -5.0]]
    attention = Pooling("attention", 2)
    torch.testing.assert_close(attention(values, mask)[:, :2], masked_mean(values, mask))
    with torch.no_grad():
        attention.project.weight.copy_(torch.eye(2))
        attention.project.bias.zero_()
        attention.query.copy_(torch.tensor([1000.0, 0.0]))  # all weight on the larger first number
    torch.testing.assert_close(attention(values, mask), torch.tensor([[3.0, -7.0, 3.0, -5.0]]))


@pytest.mark.parametrize("pool", [masked_mean, masked_max, Pooling("attention", 3)])
def test_pooling_of_nothing_is_zero_with_finite_gradients(pool):
    values = torch.randn(2, 3, 3, requires_grad=True)
    pooled = pool(values, torch.tensor([[True, False, False], [False, False, False]]))
    assert not pooled[1].any()
    pooled.sum().backward()
    assert torch.isfinite(values.grad).all()
    assert not values.grad[1].any()
    assert not pool(values[:, :0], torch.zeros(2, 0, dtype=torch.bool)).any()


def test_softmax_weights_add_up_to_one_or_nothing():
    weights = masked_softmax(torch.tensor([[1e4, -1e4, 0.0]] * 2), torch.tensor([[False, True, True], [False] * 3]))
    assert weights.tolist() == [[0, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize("layers", [1, 2])
def test_lstm_reads_no_padding_and_no_neighbours(layers):
    torch.manual_seed(0)
    lstm = SentenceLstm(6, 5, layers=layers, dropout=0.5).eval()
    narrow, mask, wide, _ = padded_pair()
    outputs = lstm(narrow, LENGTHS)
    assert outputs.shape == (4, 4, 10)
    assert not outputs[~mask].any()
    torch.testing.assert_close(outputs, lstm(wide, LENGTHS)[:, :4])
    assert not lstm(wide, LENGTHS)[:, 4:].any()
    for row, length in enumerate(LENGTHS.tolist()):
        alone, _ = lstm.lstm(narrow[[row], :length])  # one sentence, dense
        torch.testing.assert_close(outputs[[row], :length], alone)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("lengths", [[1], [3], [0], [1, 1], [0, 2, 5, 5, 1], [9, 2, 7]])
def test_both_ways_of_the_lstm_agree(lengths, layers, training):
    torch.manual_seed(1)
    lstm = SentenceLstm(6, 5, layers=layers).train(training)  # no dropout, which would draw other numbers
    values = torch.randn(len(lengths), max(max(lengths), 1) + 1, 6)
    found = []
    for run in (lstm.run_packed, lstm.run_by_direction):
        given = values.clone().requires_grad_()
        outputs = run(given, torch.tensor(lengths))
        gradients = torch.autograd.grad(outputs.square().sum(), [given, *lstm.parameters()])
        found.append([outputs, *gradients])
    for packed, by_direction in zip(*found, strict=True):
        torch.testing.assert_close(packed, by_direction)


@pytest.mark.parametrize("lengths", [[1], [3], [0], [1, 1], [0, 2], [2, 2]])
def test_lstm_takes_awkward_lengths(lengths):
    lstm = SentenceLstm(6, 5)
    values = torch.randn(len(lengths), max(lengths), 6, requires_grad=True)
    outputs = lstm(values, torch.tensor(lengths))
    assert outputs.shape == (len(lengths), max(lengths), 10)
    if max(lengths):
        outputs.sum().backward()
        assert torch.isfinite(values.grad).all()
    for row, length in enumerate(lengths):
        assert not outputs[row, length:].any()
        assert outputs[row, :length].abs().sum(dim=1).gt(0).all()


def test_alignment_finds_the_same_word_in_the_other_sentence():
    words = 20 * torch.eye(5)
    first, second = words[[0, 1, 2]].unsqueeze(0), words[[2, 0, 4]].unsqueeze(0)
    mask = torch.ones(1, 3, dtype=torch.bool)
    for_first, for_second = align(first, second, mask, mask)
    torch.testing.assert_close(for_first[0, [0, 2]], words[[0, 2]])
    torch.testing.assert_close(for_second[0, [0, 1]], words[[2, 0]])
    torch.testing.assert_close(for_first[0, 1], words[[2, 0, 4]].mean(dim=0))  # word 1 has no counterpart


def test_alignment_never_counts_padding():
    torch.manual_seed(0)
    alignment = WordAlignment(6, 5).eval()
    narrow, mask, wide, wide_mask = padded_pair()
    other, other_mask = narrow.flip(0), mask.flip(0)
    expected = alignment(narrow, other, mask, other_mask)
    for got, known in zip(alignment(wide, other, wide_mask, other_mask), expected, strict=True):
        assert got.shape == (4, alignment.output_size)
        torch.testing.assert_close(got, known)


def test_alignment_with_an_empty_sentence_is_finite():
    alignment = WordAlignment(6, 5)
    values = torch.randn(1, 2, 6, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    u, v = alignment(values, torch.randn(1, 2, 6), mask, ~mask)
    (u.sum() + v.sum()).backward()
    assert torch.isfinite(u).all()
    assert not v.any()
    assert torch.isfinite(values.grad).all()
