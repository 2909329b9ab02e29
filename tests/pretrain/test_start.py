import pytest
import torch

from elmokit import Elmo
from elmokit.config import WordConfig
from elmokit.errors import ElmoError
from elmokit.formats.load import read_checkpoint
from elmokit.model.bilm import file_name
from elmokit.pretrain.recipe import make_recipe
from elmokit.pretrain.setup import new_start, start_from
from elmokit.text.vocab import Vocabulary
from support.model_files import make_bilm, make_manylangs, slot_of, write_manylangs, write_tensorflow
from support.tiny_models import WORDS, tiny_checkpoint, word_config

SMALL = {"cell_size": 13, "output_size": 6, "filters": "1:3,2:5", "dropout": 0.25}
OLD = Vocabulary(WORDS)
NEW = Vocabulary(["<S>", "</S>", "<UNK>", "zebra", "money", "the", "okapi"])
SAME_SIZE = Vocabulary([*WORDS[:3], *reversed(WORDS[3:])])
TABLE = "token_encoder.words.weight"


def recipe(**changes):
    return make_recipe(changes={**SMALL, **changes})


def words_recipe(**changes):
    return recipe(input="words", **changes)


def state(start):
    return start.network.state_dict()


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["chars", "words"])
def test_a_new_network_follows_from_the_seed(kind):
    one = new_start(recipe(input=kind), OLD)
    torch.rand(7)  # whatever was drawn before
    assert equal(state(one), state(new_start(recipe(input=kind), OLD)))
    other = state(new_start(recipe(input=kind, seed=2), OLD))
    assert not equal(state(one), other)
    assert one.network.dropout == 0.25
    assert one.config == recipe(input=kind).config(len(OLD))
    assert all(torch.isfinite(value).all() for value in state(one).values())
    assert one.slots is None
    assert one.messages == []


def test_a_new_word_table_is_as_large_as_what_stands_above_it():
    start = new_start(words_recipe(output_size=64, cell_size=70), Vocabulary([*WORDS, *map(str, range(500))]))
    table = start.network.bilm.token_encoder.words.weight
    assert (table[0] == 0).all()
    assert table[1:].std().item() == pytest.approx(64**-0.5, rel=0.1)


@pytest.mark.parametrize("tied", [False, True])
def test_a_new_network_becomes_a_model_that_loads(tmp_path, tied):
    start = new_start(words_recipe(tie_softmax=tied), OLD)
    elmo = Elmo(start.checkpoint("memory"))
    elmo.save(tmp_path / "model")
    loaded = Elmo.load(tmp_path / "model")
    assert loaded.perplexity([["the", "bank"]]) == elmo.perplexity([["the", "bank"]])
    head = start.checkpoint("memory").head
    assert head.keys() == {"weight", "bias"}
    table = state(start)[f"bilm.{TABLE}"][1:]
    assert torch.equal(head["weight"], table) == tied


def test_other_weights_than_the_present_may_be_exported():
    start = new_start(recipe(), OLD)
    doubled = {name: value * 2 for name, value in state(start).items()}
    found = start.checkpoint("memory", doubled)
    assert torch.equal(found.head["bias"], doubled["head.bias"])
    assert torch.equal(found.weights["forward_lstm.layers.0.bias"], doubled["bilm.forward_lstm.layers.0.bias"])


@pytest.mark.parametrize("vocab", [None, Vocabulary(WORDS)], ids=["its own", "an equal one"])
def test_a_model_with_its_own_vocabulary_goes_on_as_it_is(vocab):
    model = tiny_checkpoint(head=True)
    start = start_from(model, recipe(), vocab)
    assert equal({name.removeprefix("bilm."): v for name, v in state(start).items() if "bilm." in name}, model.weights)
    assert torch.equal(state(start)["head.weight"], model.head["weight"])
    assert torch.equal(state(start)["head.bias"], model.head["bias"])
    assert start.config == model.config  # not the recipe's
    assert start.vocab == OLD
    assert start.network.dropout == 0.25
    assert start.messages == ["softmax: that of memory"]


def test_another_vocabulary_keeps_the_softmax_rows_of_its_words():
    model = tiny_checkpoint(head=True)
    start = start_from(model, recipe(), NEW)
    weight, bias = state(start)["head.weight"], state(start)["head.bias"]
    fresh = start_from(tiny_checkpoint(), recipe(), NEW).network.head
    for row, word in enumerate(NEW):
        if word in OLD:
            assert torch.equal(weight[row], model.head["weight"][OLD.index(word)])
            assert bias[row] == model.head["bias"][OLD.index(word)]
        else:
            assert torch.equal(weight[row], fresh.weight[row])
            assert bias[row] == 0
    assert start.vocab == NEW
    assert start.messages == ["softmax: 5 of 7 words from memory, the others new"]
    assert equal({n.removeprefix("bilm."): v for n, v in state(start).items() if "bilm." in n}, model.weights)
    assert Elmo(start.checkpoint("memory")).perplexity([["the", "okapi"]]) > 1


@pytest.mark.parametrize("vocab", [NEW, SAME_SIZE], ids=["smaller", "reordered"])
def test_another_vocabulary_keeps_the_word_rows_of_its_words(vocab):
    model = tiny_checkpoint(word_config(), head=True)
    start = start_from(model, words_recipe(), vocab)
    table, old = state(start)[f"bilm.{TABLE}"], model.weights[TABLE]
    assert table.shape == (len(vocab) + 1, 6)
    assert (table[0] == 0).all()
    for row, word in enumerate(vocab):
        assert torch.equal(table[row + 1], old[OLD.index(word) + 1]) == (word in OLD)
    assert start.config.words.n_words == len(vocab)
    stored = sum(word in OLD for word in vocab)
    assert start.messages[0] == f"word table: {stored} of {len(vocab)} words from memory"
    # Whatever was drawn before, new rows follow from the seed, as in every process of a run.
    torch.rand(3)
    assert equal(state(start), state(start_from(model, words_recipe(), vocab)))
    if vocab is NEW:
        assert not equal(state(start), state(start_from(model, words_recipe(seed=5), vocab)))


def test_new_rows_of_a_word_table_are_not_larger_than_in_a_new_network():
    vocab = Vocabulary([*WORDS, *map(str, range(400))])
    start = start_from(tiny_checkpoint(word_config(), head=True), words_recipe(), vocab)
    assert state(start)[f"bilm.{TABLE}"][len(WORDS) + 1 :].std().item() == pytest.approx(6**-0.5, rel=0.1)


def test_a_model_without_a_softmax_gets_a_new_one():
    model = tiny_checkpoint()
    start = start_from(model, recipe(), NEW)
    assert start.network.head.weight.shape == (7, 6)
    assert start.messages == ["softmax: new, 7 words; memory has none that fits"]
    assert equal(state(start), state(start_from(model, recipe(), NEW)))


def test_a_softmax_can_be_tied_to_the_words_of_a_model():
    model = tiny_checkpoint(word_config(), head=True)
    start = start_from(model, words_recipe(tie_softmax=True), None)
    assert "head.weight" not in state(start)
    assert torch.equal(start.network.softmax_weight(), model.weights[TABLE][1:])
    other = tiny_checkpoint(word_config(words=WordConfig(len(WORDS), 4), token_projection=True), head=True)
    with pytest.raises(ElmoError, match="tie_softmax needs word vectors of size 6, and those of memory have size 4"):
        start_from(other, words_recipe(tie_softmax=True), None)


@pytest.mark.parametrize("words", [False, True], ids=["chars", "words"])
def test_a_tensorflow_checkpoint_brings_its_sums(tmp_path, words):
    model = read_checkpoint(write_tensorflow(tmp_path / "tf", make_bilm(words=words, softmax=True)))
    start = start_from(model, recipe(), None)
    names = {file_name(name): value for name, value in start.network.named_parameters()}
    assert start.slots.keys() == names.keys()
    for name in ("head.weight", "head.bias", "bilm.forward_lstm.layers.0.recurrent_weight"):
        # The maker writes 1 + w² for a weight w of the file, in which no forget bias is added.
        torch.testing.assert_close(start.slots[name], torch.from_numpy(slot_of(names[name].detach().numpy())))
    for name, value in start.slots.items():
        assert value.shape == names[name].shape


@pytest.mark.parametrize("words", [False, True], ids=["chars", "words"])
def test_sums_of_words_stay_behind_when_the_words_change(tmp_path, words):
    """Also where both vocabularies have as many words, so that no shape would tell."""
    model = read_checkpoint(write_tensorflow(tmp_path / "tf", make_bilm(words=words, softmax=True)))
    vocab = Vocabulary([*list(model.vocab)[:3], *reversed(list(model.vocab)[3:])])
    start = start_from(model, recipe(), vocab)
    names = {file_name(name) for name, _ in start.network.named_parameters()}
    assert names - start.slots.keys() == {"head.weight", "head.bias"} | ({f"bilm.{TABLE}"} if words else set())


@pytest.mark.parametrize(("has_words", "has_characters"), [(True, True), (True, False), (False, True)])
def test_a_model_with_symbols_keeps_its_own(tmp_path, has_words, has_characters):
    made = make_manylangs(words=has_words, characters=has_characters)
    model = read_checkpoint(write_manylangs(tmp_path / "model", made))
    start = start_from(model, recipe(), None if has_words else NEW)
    assert equal({n.removeprefix("bilm."): v for n, v in state(start).items() if "bilm." in n}, model.weights)
    assert start.symbols == model.symbols
    assert (start.symbols is not None) == has_characters
    assert start.vocab == (model.vocab if has_words else NEW)
    assert start.messages[0].startswith("softmax: new")
    saved = start.checkpoint("memory")
    assert type(saved.indexer()) is type(model.indexer())
    Elmo(saved).save(tmp_path / "out")
    assert Elmo.load(tmp_path / "out").perplexity([["the", "bank"]]) > 1
    if has_words:
        with pytest.raises(ElmoError, match="needs its own vocabulary"):
            start_from(model, recipe(), NEW)


def test_the_model_that_was_given_stays_as_it_was():
    model = tiny_checkpoint(word_config(), head=True)
    before = {name: value.clone() for name, value in (model.weights | model.head).items()}
    start = start_from(model, words_recipe(), None)
    with torch.no_grad():
        for parameter in start.network.parameters():
            parameter.add_(1)
    assert equal(model.weights | model.head, before)
