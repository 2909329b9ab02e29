import numpy as np
import pytest
import torch

from elmokit import BiLM, ElmoError
from elmokit.config import CharacterConfig, ElmoConfig, LstmConfig, WordConfig
from elmokit.model.context import State
from elmokit.ops.reference import lstm_reference
from elmokit.text.chars import byte_ids
from support.tiny_models import tiny_checkpoint, tiny_config, word_config

CONFIGS = {
    "plain": tiny_config(),
    "relu without highway": tiny_config(characters=CharacterConfig(filters=((2, 4),), embedding_size=3)),
    "tanh, three highways": tiny_config(
        characters=CharacterConfig(filters=((1, 4), (5, 6)), embedding_size=3, activation="tanh", n_highway=3)
    ),
    "filters fit without projection": tiny_config(
        characters=CharacterConfig(filters=((1, 2), (2, 4)), embedding_size=3), token_projection=False
    ),
    "one layer": tiny_config(context=LstmConfig(13, 6, n_layers=1)),
    "four layers": tiny_config(context=LstmConfig(13, 6, n_layers=4)),
    "no LSTM projection": tiny_config(context=LstmConfig(6, 6, projection=False)),
    "clips that clip": tiny_config(context=LstmConfig(13, 6, cell_clip=0.1, projection_clip=0.1)),
    "no clips": tiny_config(context=LstmConfig(13, 6, cell_clip=None, projection_clip=None)),
    "no skips": tiny_config(context=LstmConfig(13, 6, skip_connections=False)),
    "one direction": tiny_config(bidirectional=False),
    "words": word_config(),
    "words and characters": word_config(
        characters=CharacterConfig(filters=((1, 3),), embedding_size=2), words=WordConfig(10, 4), token_projection=True
    ),
}


def build(config: ElmoConfig) -> BiLM:
    bilm = BiLM(config)
    bilm.load_state_dict(tiny_checkpoint(config).weights)
    return bilm.double()


def ids_for(config: ElmoConfig, lengths: list[int]):
    """Random ids, padded with 0."""
    generator = torch.Generator().manual_seed(1)
    time = max(lengths)
    mask = torch.arange(time) < torch.tensor(lengths).unsqueeze(1)
    characters = words = None
    if config.characters is not None:
        row = lambda: byte_ids("w" * int(torch.randint(1, 12, (), generator=generator)) + "ß", 50)  # noqa: E731
        characters = torch.tensor([[row() for _ in range(time)] for _ in lengths]) * mask.unsqueeze(-1)
    if config.words is not None:
        words = torch.randint(1, 11, mask.shape, generator=generator) * mask
    return characters, words


def plain_forward(bilm: BiLM, characters, words, lengths: list[int]) -> torch.Tensor:
    """The network as the equations say it, with torch's own convolution and the reference recurrence."""
    config, encoder = bilm.config, bilm.token_encoder
    parts = []
    if words is not None:
        parts.append(encoder.words.weight[words])
    if characters is not None:
        cnn = encoder.char_cnn
        embedded = cnn.embedding.weight[characters].flatten(0, 1).transpose(1, 2)
        act = torch.relu if config.characters.activation == "relu" else torch.tanh
        x = torch.cat([act(conv(embedded).max(dim=2).values) for conv in cnn.convolutions], dim=1)
        for highway in cnn.highways:
            gate = torch.sigmoid(highway.gate(x))
            x = gate * torch.relu(highway.transform(x)) + (1 - gate) * x
        parts.append(x.view(*characters.shape[:2], -1))
    token = torch.cat(parts, dim=-1)
    if encoder.projection is not None:
        token = encoder.projection(token)
    mask = (torch.arange(token.shape[1]) < torch.tensor(lengths).unsqueeze(1)).unsqueeze(-1)
    token = token * mask
    stacks = [bilm.context.forward_lstm] + ([bilm.context.backward_lstm] if config.bidirectional else [])
    directions = []
    for reverse, stack in zip((False, True), stacks, strict=False):
        x, outputs = token, []
        for number, layer in enumerate(stack.layers):
            zeros = (x.new_zeros(len(lengths), n) for n in (config.lstm.output_size, config.lstm.cell_size))
            y, _, _ = lstm_reference(x, torch.tensor(lengths), layer.weights(), *zeros, reverse=reverse)
            x = y + x if number > 0 and config.lstm.skip_connections else y
            outputs.append(x)
        directions.append(outputs)
    layers = [torch.cat([token] * len(stacks), dim=-1)]
    return torch.stack(layers + [torch.cat(parts, dim=-1) for parts in zip(*directions, strict=True)])


@pytest.mark.parametrize("name", CONFIGS)
def test_every_shape_equals_the_equations_with_all_gradients(name):
    config, lengths = CONFIGS[name], [4, 1, 7]
    bilm = build(config)
    characters, words = ids_for(config, lengths)
    layers = bilm(characters, words)
    assert layers.shape == (config.n_outputs, 3, 7, config.vector_size)
    plain = plain_forward(bilm, characters, words, lengths)
    torch.testing.assert_close(layers, plain, rtol=1e-9, atol=1e-9)
    assert layers[:, 1, 1:].abs().max() == 0
    weighting = torch.linspace(-1, 1, layers.numel(), dtype=layers.dtype).view_as(layers)
    parameters = dict(bilm.named_parameters())
    ours = torch.autograd.grad((layers * weighting).sum(), list(parameters.values()))
    theirs = torch.autograd.grad((plain * weighting).sum(), list(parameters.values()))
    for parameter, mine, expected in zip(parameters, ours, theirs, strict=True):
        if not parameter.endswith(("words.weight", "embedding.weight")):
            torch.testing.assert_close(mine, expected, rtol=1e-8, atol=1e-8, msg=parameter)
        else:  # torch's own embedding gives the padding row no gradient
            torch.testing.assert_close(mine[1:], expected[1:], rtol=1e-8, atol=1e-8, msg=parameter)
            assert mine[0].abs().max() == 0


def test_state_goes_on_where_the_last_call_stopped():
    bilm = build(tiny_config(bidirectional=False))
    ids, _ = ids_for(bilm.config, [9])
    whole = bilm(ids)
    first, state = bilm(ids[:, :4], return_state=True)
    second, _ = bilm(ids[:, 4:], state=state, return_state=True)
    torch.testing.assert_close(torch.cat([first, second], dim=2), whole, rtol=1e-12, atol=1e-12)


def test_a_two_dimensional_input_is_words():
    bilm = build(word_config())
    words = torch.tensor([[4, 5, 0], [1, 2, 3]])
    assert torch.equal(bilm(words), bilm(None, words))


def test_gaps_and_missing_inputs_are_named():
    bilm = build(word_config())
    with pytest.raises(ElmoError, match="padded tokens must come after"):
        bilm(torch.tensor([[4, 0, 5]]))
    with pytest.raises(ElmoError, match="needs ids"):
        bilm()
    with pytest.raises(ElmoError, match="needs word ids"):
        bilm(torch.ones(1, 2, 50, dtype=torch.long))
    with pytest.raises(ElmoError, match="needs character ids"):
        build(tiny_config())(torch.ones(1, 2, dtype=torch.long))


@pytest.mark.parametrize("lengths", [[3], [3, 9], [-1, 3], [[3, 3]]])
def test_lengths_that_do_not_fit_are_refused(lengths):
    with pytest.raises(ElmoError, match="from 0 to 3"):
        build(word_config())(torch.tensor([[4, 5, 6], [1, 2, 3]]), lengths=torch.tensor(lengths))


@pytest.mark.parametrize(("batch", "time"), [(0, 3), (2, 0), (0, 0)])
def test_no_tokens_give_no_vectors(batch, time):
    for config, shape in ((word_config(), ()), (tiny_config(), (50,))):
        layers = build(config)(torch.zeros(batch, time, *shape, dtype=torch.long))
        assert layers.shape[1:3] == (batch, time)


def test_pretraining_dropout_acts_in_training_only():
    config = tiny_config()
    bilm = BiLM(config, dropout=0.5)
    bilm.load_state_dict(tiny_checkpoint(config).weights)
    ids, _ = ids_for(config, [6, 6])
    quiet = bilm.eval()(ids)
    assert torch.equal(quiet, bilm(ids))
    torch.manual_seed(0)
    noisy = bilm.train()(ids)
    assert torch.equal(noisy[0], quiet[0]), "layer 0 is handed out before dropout"
    assert not torch.allclose(noisy[1], quiet[1])


def test_states_resize_by_slot():
    state = State(torch.arange(12.0).view(1, 1, 3, 4), torch.arange(6.0).view(1, 1, 3, 2))
    assert torch.equal(state.resized(2).h, state.h[:, :, :2])
    assert state.resized(5).c[:, :, 3:].abs().sum() == 0
    newer = State(-torch.ones(1, 1, 2, 4), -torch.ones(1, 1, 2, 2))
    merged = newer.with_rows_of(state)
    assert torch.equal(merged.h[:, :, :2], newer.h)
    assert torch.equal(merged.h[:, :, 2:], state.h[:, :, 2:])


def test_padding_columns_left_out_change_nothing():
    config = tiny_config()
    bilm = build(config)
    words = ["a", "ab", "x" * 46, "y" * 47, "z" * 48, "w" * 60]
    ids = torch.tensor([byte_ids(word, 50) for word in words])
    together = bilm.encode_types(ids, None)
    for number in range(len(words)):
        alone = bilm.encode_types(ids[number : number + 1], None)
        np.testing.assert_allclose(alone[0].detach(), together[number].detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fused", [False, True])
def test_an_update_of_any_optimiser_is_counted_as_a_change(fused):
    """The kernels of a GPU make their copies of the weights again when the count changes."""
    bilm = BiLM(tiny_config())
    optimizer = torch.optim.AdamW(bilm.parameters(), lr=0.1, fused=fused)
    for parameter in bilm.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [parameter._version for parameter in bilm.parameters()]
    optimizer.step()
    assert all(parameter._version > count for parameter, count in zip(bilm.parameters(), before, strict=True))
