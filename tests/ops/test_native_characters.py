"""The character part by the compiled kernels, against torch's operations at awkward sizes."""

import pytest
import torch

from elmokit import BiLM
from elmokit.config import CharacterConfig, LstmConfig, WordConfig
from elmokit.errors import ElmoError
from elmokit.model.int8 import apply_linear, matrix_and_bias, to_int8
from elmokit.model.token_encoder import CharCnn
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.native import characters as native_characters
from elmokit.ops.native.binding import SWITCH
from elmokit.ops.native.characters import CharacterWeights, characters_native
from support.native_cases import draw, library_with, needs_kernels, use_threads
from support.tiny_models import tiny_config

pytestmark = needs_kernels


@pytest.fixture
def every_thread(monkeypatch):
    return use_threads(monkeypatch)


def make(widths, *, size=5, highways=1, outputs=13, activation="relu", int8=False, longest=20, seed=0):
    """A network with a projection after it, its numbers large enough that mistakes show."""
    config = CharacterConfig(
        tuple(widths), max_characters=longest, embedding_size=size, n_highway=highways, activation=activation
    )
    both = torch.nn.ModuleList([CharCnn(config), torch.nn.Linear(config.n_filters, outputs)])
    both.int8_factors = ("1",)  # the projection
    if int8:
        to_int8(both)
    network, projection = both.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for module in (network, projection):
        for name, value in module.state_dict().items():
            if value.dtype == torch.int8:
                value.random_(-127, 128, generator=generator)
            elif name.endswith("columns"):
                value.uniform_(0.1, 2.0, generator=generator)
            elif name.endswith("scales"):
                value.fill_(0.02 / len(value) ** 0.5)
            else:
                inputs = value.shape[1:].numel() if value.dim() > 1 else 1
                value.copy_(2 * torch.randn(value.shape, generator=generator) / inputs**0.5)
    return network, projection


def words(count, config):
    """Ids of words of all lengths, from nothing but padding to the longest."""
    generator = torch.Generator().manual_seed(count)
    ids = torch.randint(1, 261, (count, config.max_characters), generator=generator)
    lengths = torch.randint(0, config.max_characters + 1, (count, 1), generator=generator)
    lengths[0], lengths[-1] = config.max_characters, 0
    ids[torch.arange(config.max_characters) >= lengths] = config.padding_character
    return ids


def plain(network, projection, ids):
    """The same in double precision, by torch."""
    doubles = CharCnn(network.config).double()
    doubles.load_state_dict({name: value.double() for name, value in network.state_dict().items()})
    with torch.no_grad():
        x = doubles(ids)
    return x if projection is None else x @ projection.weight.double().T + projection.bias


def assert_near(found, expected):
    """To float32's last digits: these networks make their numbers larger layer by layer."""
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-6 * max(1.0, float(expected.abs().max())))


WIDTHS = [
    ((1, 3),),
    ((1, 8), (2, 12), (4, 20), (7, 28)),
    ((3, 130), (2, 1), (6, 66)),
    ((20, 5), (19, 64)),
]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [1, 3, 33, 260])
@pytest.mark.parametrize("widths", WIDTHS)
def test_equals_torch(widths, count, threads, every_thread):
    network, projection = make(widths)
    ids = words(count, network.config)
    every_thread(threads)
    for last in (projection, None):
        found = network(ids, last)
        assert found.dtype == torch.float32
        assert_near(found, plain(network, last, ids))


def test_the_original_shape_is_as_exact_as_torch():
    """Sums of 2048 products: one long sum of them is 2.3 times as far from float64 as torch's."""
    widths = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    network, projection = make(widths, size=16, highways=2, outputs=512, longest=12)
    ids = words(48, network.config)
    expected = plain(network, projection, ids)

    def error(found):
        return float((found - expected).square().mean().sqrt())

    with torch.no_grad():
        x = network.embedding(ids).mT
        x = torch.cat([conv(x).amax(2) for conv in network.convolutions], dim=1).relu()
        for highway in network.highways:
            gate = highway.gate(x).sigmoid()
            x = gate * highway.transform(x).relu() + (1 - gate) * x
    assert error(network(ids, projection)) <= 1.2 * error(projection(x))


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("highways", [0, 1, 3])
@pytest.mark.parametrize("size", [1, 16, 50])
def test_every_shape_of_network(size, highways, activation):
    network, projection = make(WIDTHS[1], size=size, highways=highways, activation=activation, outputs=65)
    ids = words(19, network.config)
    found = network(ids, projection)
    assert_near(found, plain(network, projection, ids))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_a_word_does_not_depend_on_its_company_or_the_threads(half, int8, threads, every_thread):
    network, projection = make(WIDTHS[1], highways=2, int8=int8)
    if half:
        for name, value in (*network.named_parameters(), *projection.named_parameters()):
            if not name.endswith("bias"):
                value.copy_(value.half())
    ids = words(131, network.config)
    every_thread(1)
    together = network(ids, projection)
    every_thread(threads)
    for network.uses_pool in (False, True):
        assert torch.equal(network(ids, projection), together)
        for rows in ([0], [130], [7, 3, 90], list(range(50)), torch.randperm(131).tolist()):
            assert torch.equal(network(network.trim(ids[rows]), projection), together[rows])


def test_int8_are_multiplied_as_single_products_are():
    """Against torch's operations around compiled products; last digits may round to another int8 remainder."""
    network, projection = make(WIDTHS[1], highways=2, int8=True)
    ids = words(40, network.config)
    x = network._plain(ids)
    atol = 1e-4 * float(x.max())
    torch.testing.assert_close(network(ids), x, rtol=1e-3, atol=atol)
    torch.testing.assert_close(network(ids, projection), apply_linear(projection, x), rtol=1e-3, atol=atol)


def test_int8_stay_close_to_exact_products(monkeypatch):
    network, projection = make(WIDTHS[1], highways=2, int8=True)
    ids = words(40, network.config)
    found = network(ids, projection)
    monkeypatch.setenv(SWITCH, "0")
    expected = network(ids, projection)
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_without_kernels_torch_does_the_same(monkeypatch):
    network, projection = make(WIDTHS[1])
    ids = words(40, network.config)
    found = network(ids, projection)
    monkeypatch.setenv(SWITCH, "0")
    torch.testing.assert_close(network(ids, projection), found, rtol=1e-5, atol=1e-5)


def test_whatever_else_is_wanted_torch_does(monkeypatch):
    """Gradients, other number types, autocast, and no words at all never reach the kernels."""
    network, projection = make(WIDTHS[1])
    ids = words(9, network.config)
    expected = network(ids, projection)
    monkeypatch.setattr("elmokit.model.token_encoder.characters_native", None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(network(ids, projection).float(), expected, rtol=0.1, atol=0.1)
    assert network(ids[:0], projection).shape == (0, 13)
    projection.requires_grad_(True)
    torch.testing.assert_close(network(ids, projection), expected, rtol=1e-5, atol=1e-5)
    assert network(ids, projection).requires_grad
    torch.testing.assert_close(network.double()(ids).float(), plain(network, None, ids).float(), rtol=1e-6, atol=1e-6)


def test_what_is_not_a_number_stays_in_its_words():
    network, projection = make(((2, 40), (3, 30)), highways=0)
    ids = words(30, network.config)
    ids[:, :] = ids.clamp(min=2)
    ids[[4, 17], 3] = 1
    network.embedding.weight[1] = float("nan")
    found = network(ids, projection)
    assert found[[4, 17]].isnan().all()
    rest = [row for row in range(30) if row not in (4, 17)]
    assert found[rest].isfinite().all()


def test_changed_weights_are_seen():
    network, projection = make(WIDTHS[1])
    ids = words(9, network.config)
    for change in (
        lambda: network.embedding.weight.mul_(0.5),
        lambda: network.convolutions[1].weight.data.add_(0.1),  # torch does not count this one
        lambda: network.highways[0].gate.bias.sub_(1),
        lambda: projection.weight.neg_(),
    ):
        before = network(ids, projection)
        change()
        found = network(ids, projection)
        assert not torch.equal(found, before)
        assert_near(found, plain(network, projection, ids))


def test_ids_that_no_row_has_are_refused():
    network, projection = make(WIDTHS[1])
    for wrong in (262, -1, 2**40):
        ids = words(9, network.config)
        ids[5, 3] = wrong
        with pytest.raises(IndexError, match="ids must be from 0 to 261"):
            network(ids, projection)


def test_what_does_not_fit_is_refused_before_memory_is_touched():
    ids = words(3, make(WIDTHS[1])[0].config)
    table, square, bias = draw(262, 5, seed=1), draw(8, 8, seed=2), draw(8, seed=3)
    filters = [(draw(8, 5, 3, seed=4), bias)]
    pair = (square, bias)

    def refuse(words_: str, *, ids=ids, table=table, filters=filters, highways=((pair, pair),), last=None):
        with pytest.raises(ElmoError, match=words_):
            characters_native(ids, CharacterWeights(table, 261, filters, "relu", highways, last))

    refuse("take float32 on the CPU, got torch.float64", table=table.double())
    refuse("at least 3 characters .*, got 2 on cpu", ids=ids[:, :2])
    refuse("must be on the CPU and have at least .* got 20 on meta", ids=ids.to("meta"))
    refuse("do not fit 8 filters", table=table[:, :4].contiguous())
    refuse("do not fit 8 filters", highways=(((square[:, :7], bias), pair),))
    refuse("do not fit 8 filters", highways=(((square, bias[:7]), pair),))
    refuse("do not fit 8 filters", last=(square[:, :7], bias))
    refuse("do not fit 8 filters", last=(Int8Matrix.of(square), bias))
    refuse("do not fit 7 filters", filters=[(filters[0][0], bias[:7])])
    refuse("weights on the CPU, got some on meta", last=(square.to("meta"), bias))
    refuse("weights on the CPU, got some on meta", last=(square, bias.to("meta")))


def test_words_beside_characters_are_projected_together():
    """There the kernels do all but the projection."""
    config = tiny_config(context=LstmConfig(16, 8), words=WordConfig(10, 6))
    encoder = BiLM(config).token_encoder.requires_grad_(False)
    assert encoder.char_cnn is not None
    assert encoder.words is not None
    assert encoder.projection is not None
    ids, numbers = words(7, encoder.char_cnn.config), torch.arange(7)
    both = torch.cat([encoder.words(numbers), plain(encoder.char_cnn, None, ids).float()], dim=1)
    weight, bias = matrix_and_bias(encoder.projection)
    assert isinstance(weight, torch.Tensor)
    torch.testing.assert_close(encoder(ids, numbers), both @ weight.T + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("flags", ["-march=x86-64", "-march=x86-64-v3", "-march=native -mno-avx512f"])
def test_every_set_of_instructions(flags, monkeypatch):
    other = library_with(flags)
    monkeypatch.setattr(native_characters, "library", lambda: other)
    for number, widths in enumerate(WIDTHS):
        test_equals_torch(widths, 33, 1, lambda count: None)
        test_every_shape_of_network(16, number, "tanh")
    for half, int8 in ((False, False), (True, False), (False, True)):
        test_a_word_does_not_depend_on_its_company_or_the_threads(half, int8, 1, lambda count: None)
    test_int8_stay_close_to_exact_products(monkeypatch)
