from dataclasses import replace

import pytest
import torch

from elmokit import Elmo, ElmoConfig
from elmokit.config import CharacterConfig, LstmConfig, WordConfig
from elmokit.pretrain.network import LanguageModelNetwork, Negatives, sample_negatives, sampled_softmax_loss
from elmokit.pretrain.windows import NO_TARGET, WindowBatch, window_batch
from support.tiny_models import WORDS, tiny_checkpoint, tiny_config, word_config
from support.training_models import corpus_of, gradients_of, network_of, random_sentences, table_of, windows_of

CONFIGS = {
    "characters": tiny_config(),
    "words": word_config(),
    "words of another size": word_config(words=WordConfig(len(WORDS), 4), token_projection=True),
    "no skip connections": tiny_config(context=LstmConfig(cell_size=13, output_size=6, skip_connections=False)),
    "no projection, three layers": tiny_config(
        context=LstmConfig(cell_size=6, output_size=6, projection=False, n_layers=3)
    ),
    "one layer, tight clips": tiny_config(
        context=LstmConfig(cell_size=9, output_size=6, n_layers=1, cell_clip=0.3, projection_clip=0.2)
    ),
    "one direction": tiny_config(bidirectional=False),
    "no clips, tanh, no token projection": ElmoConfig(
        LstmConfig(cell_size=9, output_size=6, cell_clip=None, projection_clip=None),
        CharacterConfig(filters=((1, 2), (2, 4)), embedding_size=3, activation="tanh", n_highway=2),
        token_projection=False,
    ),
}
everywhere = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def stateless_losses(network, model, sentences):
    """−log p of each prediction, by the network that encodes sentences: a list of [directions, T + 1]."""
    indexer, bilm, vocab = model.indexer(), network.bilm, model.vocab
    found = []
    for sentence in sentences:
        ids = indexer([indexer.begin, *sentence, indexer.end])
        characters, words = (
            None if part is None else torch.from_numpy(part)[None] for part in (ids.characters, ids.words)
        )
        top = bilm(characters, words)[-1, 0]  # [T + 2, D]
        chain = torch.tensor([vocab.begin, *map(vocab.index, sentence), vocab.end])
        directions = [(top[:-1, :6], chain[1:])]
        if model.config.bidirectional:
            directions.append((top[1:, 6:], chain[:-1]))
        losses = []
        for outputs, targets in directions:
            scores = outputs @ network.softmax_weight().T + network.head.bias
            losses.append(-torch.log_softmax(scores, dim=-1).gather(1, targets[:, None])[:, 0])
        found.append(torch.stack(losses))
    return found


def in_one_window(model, sentences, folder, *, rows, window, reset=1.0) -> WindowBatch:
    corpus = corpus_of(sentences, folder)
    (windows,) = windows_of(corpus, rows=rows, window=window, reset=reset)
    assert (windows.targets != NO_TARGET).all()
    return window_batch(table_of(model, corpus), windows)


@everywhere
@pytest.mark.parametrize(
    ("lengths", "rows"), [([4, 4, 4], 3), ([2, 7, 1, 3], 1), ([1, 2, 3, 1, 6], 2)], ids=["a row each", "one row", "two"]
)
def test_loss_and_gradients_are_those_of_the_network_that_encodes(tmp_path, config, lengths, rows):
    model, sentences = tiny_checkpoint(config, head=True), random_sentences(lengths)
    window = (sum(lengths) + len(lengths)) // rows
    batch = in_one_window(model, sentences, tmp_path, rows=rows, window=window)
    network, plain = (network_of(model).double() for _ in range(2))
    loss, each, _ = network(batch, network.bilm.context.zero_state(rows), precision=torch.float64)
    expected = stateless_losses(plain, model, sentences)
    mean = sum(losses.sum() for losses in expected) / sum(losses.numel() for losses in expected)
    # The weight of a prediction, 1/N, has the digits of float32; all else is in float64.
    torch.testing.assert_close(loss, mean, rtol=1e-7, atol=1e-10)
    assert not each.requires_grad
    for direction, part in enumerate(each):
        total = sum(losses[direction].sum() for losses in expected)
        torch.testing.assert_close(part.double().sum(), total.detach(), rtol=1e-5, atol=1e-5)
    loss.backward()
    mean.backward()
    ours, theirs = gradients_of(network), gradients_of(plain)
    assert ours.keys() == theirs.keys() == dict(network.named_parameters()).keys()
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-6, atol=1e-9, msg=name)
    assert any(float(gradient.abs().max()) > 1e-3 for gradient in theirs.values())


@everywhere
def test_windows_give_each_sentence_the_probabilities_of_elmo(tmp_path, config):
    """Sentences longer than windows, several in a row, and rows that end: all as one by one from zero."""
    model, sentences = tiny_checkpoint(config, head=True), random_sentences([5, 1, 17, 2, 8, 30, 3])
    network, corpus = network_of(model), corpus_of(sentences, tmp_path)
    table, state = table_of(model, corpus), network.bilm.context.zero_state(3)
    sums = torch.zeros(config.n_directions, len(sentences), dtype=torch.float64)
    with torch.no_grad():
        for windows in windows_of(corpus, rows=3, window=4):
            _, each, state = network(window_batch(table, windows), state)
            real = torch.from_numpy(windows.sentence != NO_TARGET)
            assert (each[:, ~real] == 0).all()
            for direction in range(config.n_directions):
                sums[direction].index_add_(0, torch.from_numpy(windows.sentence)[real], each[direction][real].double())
    for number, log_probs in enumerate(Elmo(model).log_probs(sentences)):
        assert sums[0, number].item() == pytest.approx(-log_probs.forward.sum(), rel=1e-4)
        if config.bidirectional:
            assert sums[1, number].item() == pytest.approx(-log_probs.backward.sum(), rel=1e-4)


@everywhere
def test_a_window_in_two_parts_goes_on_from_the_state(tmp_path, config):
    model = tiny_checkpoint(config, head=True)
    batch = in_one_window(model, random_sentences([4, 2, 1, 9]), tmp_path, rows=2, window=10, reset=0.0)
    assert (batch.keep == 1).all()
    network = network_of(model).double()
    generator = torch.Generator().manual_seed(0)
    start = network.bilm.context.zero_state(2)
    start = type(start)(
        *(torch.randn(part.shape, generator=generator, dtype=torch.float64) for part in (start.h, start.c))
    )
    _, whole, last = network(batch, start, precision=torch.float64)
    found, state = [], start
    for part in (slice(0, 3), slice(3, 10)):
        piece = replace(batch, inputs=batch.inputs[:, part], targets=batch.targets[:, part], keep=batch.keep[part])
        _, each, state = network(piece, state, precision=torch.float64)
        assert not state.h.requires_grad
        assert not state.c.requires_grad
        found.append(each)
    torch.testing.assert_close(torch.cat(found, dim=1), whole, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(state.h, last.h, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state.c, last.c, rtol=1e-10, atol=1e-10)
    # The state counts: from zero the first part is another one.
    _, other, _ = network(batch, network.bilm.context.zero_state(2), precision=torch.float64)
    assert not torch.allclose(other, whole, rtol=1e-3)


def test_where_a_sentence_starts_from_zero_the_state_before_it_does_not_count(tmp_path):
    model = tiny_checkpoint(head=True)
    batch = in_one_window(model, random_sentences([4, 2, 1, 9]), tmp_path, rows=2, window=10, reset=1.0)
    network = network_of(model)
    zero = network.bilm.context.zero_state(2)
    _, one, _ = network(batch, zero)
    _, other, _ = network(batch, type(zero)(zero.h + 1, zero.c - 1))
    torch.testing.assert_close(one, other)


def test_a_tied_softmax_is_the_word_table_and_shares_its_gradient(tmp_path):
    model, sentences = tiny_checkpoint(word_config(), head=True), random_sentences([2, 7, 1, 3])
    batch = in_one_window(model, sentences, tmp_path, rows=1, window=17)
    apart, tied = network_of(model).double(), network_of(model, tied=True).double()
    assert "head.weight" not in dict(tied.named_parameters())
    table = tied.bilm.token_encoder.words.weight
    with torch.no_grad():
        apart.head.weight.copy_(table[1:])
    for network in (apart, tied):
        network(batch, network.bilm.context.zero_state(1), precision=torch.float64)[0].backward()
    both = apart.bilm.token_encoder.words.weight.grad.clone()
    both[1:] += apart.head.weight.grad
    torch.testing.assert_close(table.grad, both, rtol=1e-9, atol=1e-12)
    assert (table.grad[0] == 0).all()
    torch.testing.assert_close(tied.head.bias.grad, apart.head.bias.grad, rtol=1e-9, atol=1e-12)


def test_with_negatives_the_softmax_is_the_sampled_one(tmp_path):
    model = tiny_checkpoint(head=True)
    batch = in_one_window(model, random_sentences([4, 2, 1, 9]), tmp_path, rows=2, window=10)
    network = network_of(model)
    words, tries = sample_negatives(len(WORDS), 4, torch.Generator().manual_seed(1))
    loss, each, _ = network(batch, network.bilm.context.zero_state(2), Negatives(words, tries))
    top, _ = network.contextualise(batch, network.bilm.context.zero_state(2), torch.float32)
    expected = sampled_softmax_loss(
        top.reshape(-1, 6), network.head.weight, network.head.bias, batch.targets.reshape(-1), words, tries
    )
    torch.testing.assert_close(each.reshape(-1), expected.detach())
    torch.testing.assert_close(loss, expected.mean())
    found = torch.autograd.grad(loss, [network.head.weight, network.bilm.context.forward_lstm.layers[0].bias])
    wanted = torch.autograd.grad(
        expected.mean(), [network.head.weight, network.bilm.context.forward_lstm.layers[0].bias]
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    # With every word among the negatives it is the full softmax.
    everything = Negatives(*sample_negatives(len(WORDS), len(WORDS), torch.Generator()))
    torch.testing.assert_close(
        network(batch, network.bilm.context.zero_state(2), everything)[0],
        network(batch, network.bilm.context.zero_state(2))[0],
    )


def test_dropout_is_on_every_layers_input_and_the_top_and_only_in_training(tmp_path, monkeypatch):
    model = tiny_checkpoint(head=True)
    batch = in_one_window(model, random_sentences([4, 2, 1, 9]), tmp_path, rows=2, window=10)
    plain, network = network_of(model), network_of(model, dropout=0.5)

    def losses(of: LanguageModelNetwork):
        torch.manual_seed(3)
        return of(batch, of.bilm.context.zero_state(2))[1]

    expected = losses(plain)
    assert torch.equal(losses(network), expected)
    assert torch.equal(losses(plain.train()), expected)
    network.train()
    first = losses(network)
    assert not torch.equal(first, expected)
    assert torch.equal(losses(network), first)  # the seed decides
    calls = []

    def dropout(x, p):
        calls.append((tuple(x.shape), p))
        return x

    monkeypatch.setattr("elmokit.ops.bilstm.F.dropout", dropout)
    losses(network)
    assert calls == [((2, 10, 2, 6), 0.5)] * 3  # two layers and the top


@pytest.mark.parametrize("negatives", [None, Negatives(torch.tensor([0, 3, 4]), 7)], ids=["full", "sampled"])
def test_half_precision_gives_nearly_the_same_loss_and_float32_gradients(tmp_path, negatives):
    model = tiny_checkpoint(head=True, scale=0.5)
    batch = in_one_window(model, random_sentences([4, 2, 1, 9]), tmp_path, rows=2, window=10)
    network = network_of(model)
    exact, _, _ = network(batch, network.bilm.context.zero_state(2), negatives)
    loss, each, state = network(batch, network.bilm.context.zero_state(2), negatives, torch.bfloat16)
    assert each.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=0.02)
    loss.backward()
    assert {gradient.dtype for gradient in gradients_of(network).values()} == {torch.float32}
    network(batch, state, negatives, torch.bfloat16)  # and continues from its own state
