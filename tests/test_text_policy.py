"""One text policy: the same string has the same tokens wherever a model meets it."""

import json
import logging

import numpy as np
import pytest
import torch

from elmokit import Elmo, ElmoError
from elmokit.cli import main
from elmokit.compat import tfhub
from elmokit.integrations import sklearn as elmokit_sklearn
from elmokit.output import read_vectors
from elmokit.tasks import TaskOptions, TextExample, fit, load, read_texts
from elmokit.text.tokens import segmenter, words
from support.tiny_models import WORDS, tiny_checkpoint, word_config

MODELS = {"en": "english", "zh": "chars", "old": "whitespace"}
TEXTS = ["The bank's rates, mostly.", "他在2020年去了 Google 的银行。", "words that are apart .", " a\tbank\u3000(b) "]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The three models, the texts as a corpus, and a tagger that `elmo task train` made of each model.

    The old one is options.json and weights.hdf5; old-softmax is a model with a softmax that does not say either.
    """
    folder = tmp_path_factory.mktemp("policy")
    (folder / "text.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    (folder / "train.conll").write_text("a X\nbank Y\n\nrates Y\n\n" * 4)
    for name in ("en", "zh"):
        Elmo(tiny_checkpoint(head=True, scale=1.0), segment=MODELS[name]).save(folder / name)
    Elmo(tiny_checkpoint(scale=1.0)).save(folder / "old", format="bilm")
    Elmo(tiny_checkpoint(head=True, scale=1.0)).save(folder / "old-softmax")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELMOKIT_CACHE", str(folder / "cache"))
        patch.setattr("elmokit.tasks.report._pictures", lambda *_: ())
        for name in MODELS:
            files = [folder / "train.conll", "--model", folder / name, "--output", folder / f"{name}-tag"]
            assert run("task", "train", "tag", *files, "--epochs", 1, "--hidden", 4) == 0
        yield folder


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code


def in_python(method, old="old"):
    """An entry point that gives numbers: the tokens that give the same ones."""

    def tokens(place, name, text, candidates, tmp_path, capsys):
        elmo = Elmo.load(place / (old if name == "old" else name), device="cpu")
        found = method(elmo, text)
        return [tokens for tokens in candidates if np.array_equal(method(elmo, tokens), found)]

    return tokens


def embed(place, name, text, candidates, tmp_path, capsys):
    assert run("embed", text, "--model", place / name, "--device", "cpu", "--output", tmp_path / "out.npz") == 0
    ((tokens, _),) = read_vectors(tmp_path / "out.npz")
    return [list(tokens)]


def embed_a_file(place, name, text, candidates, tmp_path, capsys):
    (tmp_path / "in.txt").write_text(text + "\n", encoding="utf-8")
    output = tmp_path / "out.jsonl"
    assert run("embed", "--input", tmp_path / "in.txt", "--model", place / name, "--output", output) == 0
    return [json.loads(output.read_text())["tokens"]]


def neighbours(place, name, text, candidates, tmp_path, capsys):
    word = next(token for token in candidates[MODEL_NAMES.index(name)] if candidates[0].count(token) < 2)
    context = ["--context", text, "--corpus", place / "text.txt", "--segment", MODELS[name]]
    assert run("neighbours", word, *context, "--model", place / name, "--device", "cpu", "--json", "--layer", "0") == 0
    found = [json.loads(line)["tokens"] for line in capsys.readouterr().out.splitlines()]
    return [tokens for tokens in found if tokens in candidates]


def senses(place, name, text, candidates, tmp_path, capsys):
    word = next(token for token in candidates[MODEL_NAMES.index(name)] if candidates[0].count(token) < 2)
    assert run("senses", word, "--corpus", place / "text.txt", "--model", place / name, "--json") == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [example["tokens"] for sense in shown for example in sense["examples"]]
    return [tokens for tokens in found if tokens in candidates]


def plot(place, name, text, candidates, tmp_path, capsys):
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elmokit.plots.style.font_families", lambda texts: None)
        patch.setattr(
            "elmokit.analyse.pictures.draw_similarity",
            lambda values, first, second, path: drawn.append(first),
        )
        assert run("plot", "similarity", text, "a b", "--model", place / name, "--output", tmp_path / "a.png") == 0
    return [list(tokens) for tokens in drawn]


def task_in_python(place, name, text, candidates, tmp_path, capsys):
    return [list(load(place / f"{name}-tag", device="cpu").tokens(text))]


def task_predicts_a_file(place, name, text, candidates, tmp_path, capsys):
    (tmp_path / "in.txt").write_text(text + "\n", encoding="utf-8")
    output = tmp_path / "out.jsonl"
    assert run("task", "predict", place / f"{name}-tag", "--input", tmp_path / "in.txt", "--output", output) == 0
    return [json.loads(output.read_text())["tokens"]]


def task_predicts_an_argument(place, name, text, candidates, tmp_path, capsys):
    output = tmp_path / "out.jsonl"
    assert run("task", "predict", place / f"{name}-tag", text, "--output", output) == 0
    return [json.loads(output.read_text())["tokens"]]


def task_reads_examples(place, name, text, candidates, tmp_path, capsys):
    elmo = Elmo.load(place / name, device="cpu")
    (tmp_path / "train.tsv").write_text(f"label\ttext\n1\t{text.replace(chr(9), ' ')}\n", encoding="utf-8")
    return [list(read_texts(tmp_path / "train.tsv", segment=elmo.segment)[0].tokens)]


def sklearn(place, name, text, candidates, tmp_path, capsys):
    vectorizer = pytest.importorskip("elmokit.sklearn").ElmoVectorizer(place / name, device="cpu")
    found = vectorizer.transform([text])
    return [tokens for tokens in candidates if np.array_equal(vectorizer.transform([tokens]), found)]


def number_of_tokens(elmo, sentence):
    with pytest.raises(ElmoError) as error:
        elmo.substitutes(sentence, 1_000_000)
    return str(error.value)


MODEL_NAMES = list(MODELS)
ENTRY_POINTS = {
    "tokenize": lambda place, name, text, *_: [words(Elmo.load(place / name).tokenize(text))],
    "encode": in_python(lambda elmo, sentence: elmo.encode([sentence])[0]),
    "call": in_python(lambda elmo, sentence: elmo([sentence])["elmo"].detach().numpy()),
    "stream": in_python(lambda elmo, sentence: next(elmo.stream([sentence]))),
    "log_probs": in_python(lambda elmo, sentence: elmo.log_probs([sentence])[0].forward, "old-softmax"),
    "perplexity": in_python(lambda elmo, sentence: float(elmo.perplexity([sentence])), "old-softmax"),
    "substitutes": in_python(lambda elmo, sentence: number_of_tokens(elmo, sentence), "old-softmax"),
    **{f.__name__: f for f in (embed, embed_a_file, neighbours, senses, plot)},
    **{f.__name__: f for f in (task_in_python, task_predicts_a_file, task_predicts_an_argument, task_reads_examples)},
    "sklearn": sklearn,
}


# The three models split the first text in three ways; the others are a second and a third look.
@pytest.mark.parametrize("text", [TEXTS[0], *(pytest.param(text, marks=pytest.mark.slow) for text in TEXTS[1:3])])
@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_the_same_string_has_the_same_tokens_everywhere(place, entry, name, text, tmp_path, capsys):
    elmokit_sklearn.forget()
    candidates = [words(segmenter(segment)(text)) for segment in MODELS.values()]
    expected = candidates[MODEL_NAMES.index(name)]
    found = ENTRY_POINTS[entry](place, name, text, candidates, tmp_path, capsys)
    assert found, "some tokens must give what the string gives"
    assert all(tokens == expected for tokens in found)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_tokens_know_their_place(place, name, text):
    tokens = Elmo.load(place / name, device="cpu").tokenize(text)
    assert [text[token.start : token.end] for token in tokens] == words(tokens)
    assert len(Elmo.load(place / name, device="cpu").encode(text)[0]) == len(tokens)


@pytest.mark.parametrize("name", ["en", "zh", "old-softmax"])
def test_segment_goes_before_the_policy(place, name, tmp_path):
    text = TEXTS[0]
    for segment, count in (("english", 7), ("chars", 8), ("whitespace", 4), ("none", 4)):
        elmo, other = Elmo.load(place / name, device="cpu"), Elmo.load(place / name, segment=segment, device="cpu")
        assert len(elmo.tokenize(text, segment=segment)) == len(other.tokenize(text)) == count
        assert other.segment == ("whitespace" if segment == "none" else segment)
        tokens = words(other.tokenize(text))
        for found in (
            elmo.encode(text, segment=segment)[0],
            other.encode(text)[0],
            next(elmo.stream([text], segment=segment)),
        ):
            np.testing.assert_array_equal(found, elmo.encode([tokens])[0])
        assert elmo.perplexity(text, segment=segment) == elmo.perplexity([tokens]) == other.perplexity(text)
        assert len(elmo.log_probs(text, segment=segment)[0].forward) == count + 1
        assert elmo.substitutes(text, 0, segment=segment) == elmo.substitutes(tokens, 0)
        assert elmo(text, segment=segment)["sequence_len"].tolist() == [count]
        assert run("embed", text, "--model", place / name, "--segment", segment, "--output", tmp_path / "o.npz") == 0
        assert list(next(iter(read_vectors(tmp_path / "o.npz")))[0]) == tokens
    for call in (elmo.tokenize, elmo.encode, elmo.perplexity, lambda *a, **b: Elmo.load(place / name, **b)):
        with pytest.raises(ElmoError, match="klingon"):
            call(text, segment="klingon")


def test_tokenize_takes_one_string(place):
    with pytest.raises(ElmoError, match="list"):
        Elmo.load(place / "en").tokenize(["a", "b"])


def test_what_a_model_says_is_saved_and_an_override_is_not(place, tmp_path):
    Elmo.load(place / "en", segment="whitespace").save(tmp_path / "en")
    assert Elmo.load(tmp_path / "en").segment == "english"
    Elmo.load(place / "old", segment="english").save(tmp_path / "said")
    assert Elmo.load(tmp_path / "said").segment == "english"
    Elmo.load(place / "old", segment="whitespace").save(tmp_path / "white")
    assert Elmo.load(tmp_path / "white").text["segment"] == "none", "the name that files have always had"
    Elmo.load(place / "old").save(tmp_path / "old")
    assert "segment" not in Elmo.load(tmp_path / "old").text


def test_a_model_with_a_tokenizer_of_the_future_can_still_be_given_one(place, tmp_path):
    elmo = Elmo.load(place / "old")
    elmo.text["segment"] = "telepathy"
    elmo.save(tmp_path / "new")
    with pytest.raises(ElmoError, match=r"new.*telepathy"):
        Elmo.load(tmp_path / "new")
    assert Elmo.load(tmp_path / "new", segment="english").segment == "english"


def test_an_old_model_warns_once_for_each_object(place, caplog, capsys):
    elmo = Elmo.load(place / "old", device="cpu")
    for _ in range(2):
        elmo.encode([["A", "bank."], "a bank ."])
        elmo(tokens=[["bank."]])
        elmo.encode("A bank.", segment="whitespace")
    tfhub.Module(place / "old", device="cpu")(["A bank."])
    assert not caplog.records
    elmo.encode("A bank.")
    elmo("A bank.")
    elmo.tokenize("A bank.")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "old" in caplog.text
    assert 'segment="english"' in caplog.text
    Elmo.load(place / "old", device="cpu").encode("A bank.")
    assert len(caplog.records) == 2
    for name in ("en", "zh"):
        Elmo.load(place / name, device="cpu").encode("A bank.")
    assert len(caplog.records) == 2


def test_tfhub_always_splits_at_spaces(place):
    for name in MODELS:
        module = tfhub.Module(place / name, device="cpu")
        assert module(["A bank.", "a b c"], as_dict=True)["sequence_len"].tolist() == [2, 3]


def test_fit_says_where_texts_were_read_in_another_way(make_elmo):
    elmo = make_elmo(segment="english", scale=1.0)
    options = TaskOptions(epochs=1, hidden=4, batch_size=4)
    for segment, notes in (("whitespace", 1), ("english", 0)):
        split = segmenter(segment)
        examples = [TextExample(tuple(words(split(text))), str(n % 2)) for n, text in enumerate([*TEXTS[:1]] * 8)]
        fitted = fit("classify", examples, examples, options, elmo=elmo)
        assert fitted.model.segment == "english"
        assert sum("segment" in note for note in fitted.notes) == notes


# Words for a model of characters.
GIVEN = [["银行", "提高", "了", "利率", "2020年"], ["河岸"], ["a", "GPU卡", "."], ["了"], []]
APART = [["银", "行", "提", "高", "了", "利", "率", "2020", "年"], ["河", "岸"], ["a", "GPU", "卡", "."], ["了"], []]
COUNTS = [[2, 2, 1, 2, 2], [2], [1, 2, 1], [1], []]


def means(array, counts):
    """The mean of each group along the second axis from the end."""
    ends = np.cumsum(counts)
    parts = [array[..., end - count : end, :].mean(axis=-2) for end, count in zip(ends, counts, strict=True)]
    return np.stack(parts, axis=-2) if parts else array


@pytest.fixture
def characters(make_elmo):
    def make(**arguments):
        return make_elmo(head=True, segment="chars", scale=1.0, **arguments)

    return make


@pytest.mark.parametrize("layer", ["mix", "top", "all", 0])
def test_words_have_the_mean_of_their_characters(characters, layer):
    elmo = characters()
    found = list(elmo.stream(GIVEN, layer=layer))
    for array, whole, counts in zip(found, elmo.stream(APART, layer=layer), COUNTS, strict=True):
        assert array.shape[-2] == len(counts)
        np.testing.assert_allclose(array, means(whole, counts), rtol=1e-5, atol=1e-6)
    assert not np.array_equal(*elmo.encode([["银行"], ["河岸"]]))


def test_words_do_not_depend_on_their_batch(characters):
    elmo = characters()
    for batch_tokens in (1, 7, 4096):
        for given, array in zip(GIVEN, elmo.encode(GIVEN, output="layers", batch_tokens=batch_tokens), strict=True):
            np.testing.assert_array_equal(array, elmo.encode([given], output="layers")[0])


def test_single_characters_are_as_before(characters, make_elmo):
    elmo, plain = characters(), make_elmo(head=True, scale=1.0)
    for one, other in zip(elmo.encode(APART, output="layers"), plain.encode(APART, output="layers"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert elmo.perplexity(APART) == plain.perplexity(APART)


def test_batches_are_made_by_what_the_network_reads(characters, monkeypatch):
    elmo = characters()
    sizes = []
    plain = Elmo._network_layers

    def noted(self, sentences, **others):
        sizes.append(sum(len(sentence) + 2 for sentence in sentences))
        return plain(self, sentences, **others)

    monkeypatch.setattr(Elmo, "_network_layers", noted)
    elmo.encode([["银行提高利率"]] * 10, batch_tokens=16)
    assert sizes == [16] * 5


def test_boundaries_stay(characters):
    found, whole = (characters(boundaries=True).encode(some, output="layers") for some in (GIVEN, APART))
    for array, of, counts in zip(found, whole, COUNTS, strict=True):
        np.testing.assert_allclose(array, means(of, [1, *counts, 1]), rtol=1e-5, atol=1e-6)


def test_the_call_is_differentiable(characters):
    elmo = characters(trainable=True, mixes=2)
    out = elmo(tokens=[[*row, *[""] * (6 - len(row))] for row in GIVEN], sequence_len=[len(row) for row in GIVEN])
    whole = elmo(APART)
    assert out["sequence_len"].tolist() == [5, 1, 3, 1, 0]
    for name in ("word_emb", "lstm_outputs1", "lstm_outputs2", "elmo"):
        assert out[name].shape[1] == 6
        assert out[name][1, 1:].abs().max() == 0
        torch.testing.assert_close(out[name][0, 0], whole[name][0, :2].mean(dim=0))
        torch.testing.assert_close(out[name][2, 1], whole[name][2, 1:3].mean(dim=0))
    torch.testing.assert_close(out["default"][1], whole["default"][1])
    parameters = list(elmo.bilm.parameters())
    through_words = torch.autograd.grad(out["mixes"][1][1, 0].square().sum(), parameters, allow_unused=True)
    by_hand = torch.autograd.grad(whole["mixes"][1][1, :2].mean(dim=0).square().sum(), parameters, allow_unused=True)
    for one, other in zip(through_words, by_hand, strict=True):
        torch.testing.assert_close(one, other)


def test_state_is_carried_over_characters(characters):
    given, apart = characters(state="carry"), characters(state="carry")
    for one, other, counts in zip(GIVEN[:3], APART[:3], COUNTS[:3], strict=True):
        array, whole = given.encode([one], output="layers")[0], apart.encode([other], output="layers")[0]
        np.testing.assert_allclose(array, means(whole, counts), rtol=1e-5, atol=1e-6)


def test_the_probability_of_a_word_is_that_of_its_characters(characters):
    elmo = characters()
    for word, character, counts in zip(elmo.log_probs(GIVEN), elmo.log_probs(APART), COUNTS, strict=True):
        assert len(word.forward) == len(word.backward) == len(counts) + 1
        np.testing.assert_allclose(word.forward.sum(), character.forward.sum(), rtol=1e-5)
        np.testing.assert_allclose(word.backward.sum(), character.backward.sum(), rtol=1e-5)
        ends = np.cumsum(counts)
        for number, (end, count) in enumerate(zip(ends, counts, strict=True)):
            np.testing.assert_allclose(word.forward[number], character.forward[end - count : end].sum(), rtol=1e-5)
            before = character.backward[1 + end - count : 1 + end].sum()
            np.testing.assert_allclose(word.backward[1 + number], before, rtol=1e-5)
        assert word.forward[-1] == character.forward[-1]
        assert word.backward[0] == character.backward[0]
    by_word, by_character = elmo.perplexity(GIVEN), elmo.perplexity(APART)
    assert (by_word.tokens, by_character.tokens) == (15, 21)
    assert np.log(by_word) * 15 == pytest.approx(np.log(by_character) * 21, rel=1e-5)


def test_substitutes_among_words(characters):
    elmo = characters()
    assert elmo.substitutes(["银行", "提", "高"], 1) == elmo.substitutes("银行提高", 2)
    assert elmo.substitutes(["提", "银行"], -2) == elmo.substitutes("提银行", 0)
    with pytest.raises(ElmoError, match="银行"):
        elmo.substitutes(["提", "银行"], 1)


def test_words_without_context(characters):
    elmo = characters()
    words_alone, layers = elmo.encode_types(["银行", "了"]), elmo.layers_of([["银行", "了"]]).values
    torch.testing.assert_close(words_alone, layers[0, 0, 1:3, : words_alone.shape[1]], rtol=0, atol=0)


def test_unknown_characters_are_counted_not_words(make_elmo):
    unknown = make_elmo(word_config(), segment="chars").unknown_tokens()
    unknown.add(["the银", ".", WORDS[2]])
    assert (unknown.tokens, unknown.unknown) == (4, 1)
