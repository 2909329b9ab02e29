"""Task networks: every option builds and learns, and no number depends on padding or on the rest of the batch."""

import pytest
import torch

from elmokit.errors import ElmoError
from elmokit.tasks import TaskOptions
from elmokit.tasks.classify import ClassifyNetwork
from elmokit.tasks.inputs import SentenceBatch
from elmokit.tasks.network import InputSpec
from elmokit.tasks.pair import PairNetwork
from elmokit.tasks.static import StaticVectors
from elmokit.tasks.tag import TagNetwork

N_LAYERS, SIZE, N_LABELS = 3, 6, 4
WORDS = [f"w{number}" for number in range(20)]
LENGTHS = torch.tensor([5, 1, 3, 2, 5, 0])
CASES = [
    ("classify", {}),
    ("classify", {"pooling": "max", "elmo_output": True}),
    ("classify", {"pooling": "mean", "elmo": "0", "elmo_output": True}),
    ("classify", {"elmo": "none"}),
    ("classify", {"mix_layer_norm": True, "static": "none", "layers": 2}),
    ("tag", {}),
    ("tag", {"crf": False, "elmo_output": True, "mix_layer_norm": True}),
    ("pair", {}),
    ("pair", {"alignment": False, "elmo_output": True}),
    ("pair", {"target": "score"}),
]


def network(kind, seed=0, allowed=None, **options):
    torch.manual_seed(seed)
    chosen = TaskOptions(hidden=7, **options)
    static = None if chosen.static == "none" else StaticVectors.random([WORDS], size=5)
    outputs = 1 if chosen.target == "score" else N_LABELS
    made = {"classify": ClassifyNetwork, "tag": TagNetwork, "pair": PairNetwork}[kind]
    built = made(chosen, InputSpec(N_LAYERS, SIZE, static), outputs, **({"allowed": allowed} if allowed else {}))
    for parameter in built.parameters():  # nothing is left at 0, where mistakes would not show
        if not parameter.any():
            torch.nn.init.normal_(parameter)
    return built


def sentences(seed=1, lengths=LENGTHS, width=5):
    generator = torch.Generator().manual_seed(seed)
    layers = torch.randn(N_LAYERS, len(lengths), width, SIZE, generator=generator)
    words = torch.randint(1, 20, (len(lengths), width), generator=generator)
    mask = torch.arange(width) < lengths.unsqueeze(1)
    return SentenceBatch(layers * mask.unsqueeze(2), words * mask, lengths)


def inputs_of(kind, **arguments):
    return tuple(sentences(seed, **arguments) for seed in ((1, 2) if kind == "pair" else (1,)))


def rows(inputs, chosen, width=None):
    """Some sentences of a batch, cut or padded to a width."""
    return tuple(_rows(batch, chosen, width) for batch in inputs)


def _rows(batch, chosen, width):
    lengths = batch.lengths[chosen]
    width = int(lengths.max()) if width is None else width
    missing = max(0, width - batch.mask.shape[1])
    layers = torch.nn.functional.pad(batch.layers[:, chosen, :width], (0, 0, 0, missing))
    words = torch.nn.functional.pad(batch.words[chosen, :width], (0, missing))
    return SentenceBatch(layers, words, lengths)


def targets_of(kind, **options):
    if options.get("target") == "score":
        return torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 2.5])
    return torch.randint(0, N_LABELS, (6, 5) if kind == "tag" else (6,), generator=torch.Generator().manual_seed(3))


def numbers(predictions):
    return predictions[-1]  # the probabilities or the scores


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_numbers_depend_on_the_sentence_alone(kind, options):
    model = network(kind, **options).eval()
    inputs = inputs_of(kind)
    together = numbers(model.predict(inputs))
    wide = numbers(model.predict(rows(inputs, range(6), width=9)))
    torch.testing.assert_close(wide[:, :5] if kind == "tag" else wide, together, atol=1e-5, rtol=0)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = numbers(model.predict(rows(inputs, [row])))
        expected = together[[row], :length] if kind == "tag" else together[[row]]
        torch.testing.assert_close(alone, expected, atol=1e-5, rtol=0)
    backwards = numbers(model.predict(rows(inputs, [5, 4, 3, 2, 1, 0])))
    torch.testing.assert_close(backwards.flip(0), together, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_every_weight_is_trained_and_the_loss_falls(kind, options):
    model = network(kind, dropout=0.0, elmo_dropout=0.0, **options)
    inputs, targets = inputs_of(kind), targets_of(kind, **options)
    if options.get("target") == "score":
        model.standardise(targets)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    model.loss(inputs, targets).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name
    model.eval()  # no word dropout
    before = model.loss(inputs, targets).item()
    for _ in range(80):
        optimiser.zero_grad()
        model.loss(inputs, targets).backward()
        optimiser.step()
    assert model.loss(inputs, targets).item() < before / 2


def test_predictions_of_labels():
    (probabilities,) = network("classify").predict(inputs_of("classify"))
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(6))


@pytest.mark.parametrize("crf", [True, False])
def test_predictions_of_tags(crf):
    tags, probabilities = network("tag", crf=crf).predict(inputs_of("tag"))
    for row, length in enumerate(LENGTHS.tolist()):
        torch.testing.assert_close(probabilities[row, :length].sum(dim=1), torch.ones(length))
        assert not probabilities[row, length:].any()
        assert tags[row, :length].ge(0).all()
        assert tags[row, length:].eq(-1).all()


def test_forbidden_tags_have_no_probability():
    follow, start, end = torch.ones(4, 4, dtype=torch.bool), torch.tensor([True, False, True, True]), torch.ones(4)
    follow[:, 1] = False
    tags, probabilities = network("tag", allowed=(follow, start, end)).predict(inputs_of("tag"))
    assert not probabilities[:, :, 1].any()
    assert not tags.eq(1).any()


def test_scores_come_back_in_their_own_range():
    model = network("pair", target="score")
    scores = torch.tensor([1.0, 3.0, 5.0])
    model.standardise(scores)
    with torch.no_grad():
        model.output[-1].weight.zero_()
        model.output[-1].bias.zero_()
    torch.testing.assert_close(model.predict(inputs_of("pair"))[0], torch.full((6,), 3.0))
    model.output[-1].bias.data.fill_(1.0)
    torch.testing.assert_close(model.predict(inputs_of("pair"))[0], torch.full((6,), 3 + scores.std(correction=0)))
    model.output[-1].bias.data.fill_(100.0)
    assert model.predict(inputs_of("pair"))[0].tolist() == [5.0] * 6
    other = network("pair", target="score")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.score_facts, model.score_facts)


def test_equal_scores_have_a_spread():
    model = network("pair", target="score")
    model.standardise(torch.full((3,), 2.0))
    assert torch.isfinite(model.loss(inputs_of("pair"), torch.full((6,), 2.0)))


def test_the_penalty_is_on_both_mixes():
    inputs, targets = inputs_of("classify"), targets_of("classify")
    losses = {}
    for penalty in (0.0, 0.5):
        model = network("classify", elmo_output=True, mix_penalty=penalty).eval()
        assert list(model.mixes) == ["input", "output"]
        with torch.no_grad():
            model.mixes["input"].weights.copy_(torch.tensor([1.0, 0.0, -2.0]))
            model.mixes["output"].weights.copy_(torch.tensor([0.0, 3.0, 0.0]))
        losses[penalty] = model.loss(inputs, targets)
    torch.testing.assert_close(losses[0.5] - losses[0.0], torch.tensor(0.5 * (5 + 9)))


def test_layer_0_alone_is_enough_where_only_that_is_used():
    model = network("tag", elmo="0", elmo_output=True)
    inputs = inputs_of("tag")
    (batch,) = inputs
    first = (SentenceBatch(batch.layers[:1], batch.words, batch.lengths),)
    assert torch.equal(model.predict(first)[-1], model.predict(inputs)[-1])
    larger = batch.layers * torch.tensor([1.0, 5.0, 5.0])[:, None, None, None]
    changed = (SentenceBatch(larger, batch.words, batch.lengths),)
    assert torch.equal(model.predict(changed)[-1], model.predict(inputs)[-1])
    assert model.mixes == {}


@pytest.mark.parametrize("options", [{}, {"elmo": "0"}, {"words_beside": False, "elmo_output": True}])
def test_sentences_are_compared_on_the_same_scale_whatever_the_model(options):
    model = network("pair", static="none", **options).eval()
    batch = sentences()
    larger = SentenceBatch(1000 * batch.layers, batch.words, batch.lengths)
    outputs = torch.zeros(6, 5, 2)  # instead of the LSTM's
    found = model.encoder.with_elmo(outputs, larger)
    assert found.shape[2] == 2 + model.encoder.extra_size
    torch.testing.assert_close(found, model.encoder.with_elmo(outputs, batch), atol=1e-4, rtol=0)


def test_predicting_leaves_the_mode_and_takes_no_dropout():
    model = network("classify").train()
    inputs = inputs_of("classify")
    assert torch.equal(model.predict(inputs)[-1], model.predict(inputs)[-1])
    assert model.training


def test_gradients_reach_the_layers_for_fine_tuning():
    inputs = sentences()
    layers = inputs.layers.clone().requires_grad_()
    network("tag").loss((SentenceBatch(layers, inputs.words, inputs.lengths),), targets_of("tag")).backward()
    mask = inputs.mask
    assert layers.grad[:, mask].any(dim=2).all()
    assert not layers.grad[:, ~mask].any()


def test_a_batch_knows_its_mask_and_moves():
    batch = sentences(width=7).to("cpu")
    assert batch.mask.shape == (6, 7)
    assert batch.mask.sum(dim=1).tolist() == LENGTHS.tolist()
    words = SentenceBatch(None, batch.words, batch.lengths)
    assert torch.equal(words.mask, batch.mask)
    assert words.to("cpu").layers is None


def test_scores_that_cannot_be_learned():
    with pytest.raises(ElmoError, match="finite"):
        network("pair", target="score").standardise(torch.tensor([1.0, float("nan")]))
