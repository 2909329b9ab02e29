"""Static vectors: which row a word takes, what is read from a file, and what training can and cannot change."""

import numpy as np
import pytest
import torch

from elmokit.errors import ElmoError
from elmokit.tasks import TaskOptions, static
from elmokit.tasks.static import PADDING, UNKNOWN, StaticVectors

SENTENCES = [("The", "bank", "of", "the", "river"), ("the", "bank", "Rates")]
FILE_WORDS = ["of", "the", "bank", "rates", "never", "seen"]


def vector_of(number):
    return [float(number), number + 0.5, -float(number)]


@pytest.fixture
def vector_file(tmp_path):
    path = tmp_path / "vectors.txt"
    lines = (" ".join([word, *map(str, vector_of(number))]) for number, word in enumerate(FILE_WORDS))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_words_trained_from_nothing():
    table = StaticVectors.random(SENTENCES, size=7, min_count=2)
    assert sorted(table.words) == ["bank", "the"]
    assert table.row("the") != table.row("bank")
    assert table.row("The") == table.row("the")  # by its lower-cased form
    assert table.row("river") == UNKNOWN
    every = StaticVectors.random(SENTENCES, size=7)
    assert every.row("The") != every.row("the")
    assert every.row("THE") == every.row("the")
    lengths = every.trained.weight[UNKNOWN:].norm(dim=1)
    assert lengths.gt(0.3).all()
    assert lengths.lt(1.8).all()


def test_the_same_seed_gives_the_same_table():
    first, second, other = (StaticVectors.random(SENTENCES, size=4, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(first.trained.weight, second.trained.weight)
    assert not torch.equal(first.trained.weight, other.trained.weight)


def test_rows_of_sentences_are_padded():
    table = StaticVectors.random(SENTENCES, size=4).eval()
    ids = table.ids([("the", "bank"), (), ("zzz",)])
    assert ids.tolist() == [[table.row("the"), table.row("bank")], [PADDING] * 2, [UNKNOWN, PADDING]]
    vectors = table(ids)
    assert not vectors[1].any()
    assert torch.equal(vectors[2, 0], table.trained.weight[UNKNOWN])
    assert table.ids([(), ()]).shape == (2, 0)
    assert table.ids([]).shape == (0, 0)


def test_vectors_of_a_file_by_word(vector_file):
    table = StaticVectors.read(vector_file, SENTENCES).eval()
    assert table.size == 3
    words = ("of", "the", "The", "bank", "Rates", "never", "SEEN")
    numbers = [0, 1, 1, 2, 3, 4, 5]
    torch.testing.assert_close(table(table.ids([words]))[0], torch.tensor([vector_of(number) for number in numbers]))
    mean = torch.tensor([vector_of(number) for number in range(6)]).mean(dim=0)
    torch.testing.assert_close(table(table.ids([("river",)]))[0, 0], mean)  # the file names no unknown word
    assert "5 of the 6 words" in table.note
    assert "7 of" not in table.note
    assert "87.5 % of the text" in table.note
    assert "2 of them in lower case" in table.note
    assert "without one: river" in table.note


def test_the_files_own_unknown_word(vector_file):
    vector_file.write_text(vector_file.read_text() + "<unk> 9 9 9\n")
    table = StaticVectors.read(vector_file, SENTENCES).eval()
    assert table(table.ids([("river",)])).flatten().tolist() == [9, 9, 9]


def test_a_large_file_is_cut_to_a_bound_and_to_the_words_of_the_text(vector_file, monkeypatch):
    monkeypatch.setattr(static, "MAX_VALUES", 3)
    table = StaticVectors.read(vector_file, SENTENCES)
    assert set(table.words) == {"of", "the", "bank", "rates"}
    monkeypatch.setattr(static, "MAX_VALUES", 15)
    assert set(StaticVectors.read(vector_file, SENTENCES).words) == set(FILE_WORDS) - {"seen"}


def test_training_moves_only_the_words_of_the_text(vector_file):
    torch.manual_seed(0)
    table = StaticVectors.read(vector_file, SENTENCES)
    before = table.eval()(table.ids([FILE_WORDS])).detach().clone()
    table.train()
    optimiser = torch.optim.SGD(table.parameters(), lr=0.1)
    table(table.ids([FILE_WORDS] * 100)).sum().backward()
    optimiser.step()
    after = table.eval()(table.ids([FILE_WORDS]))
    moved = (after != before).any(dim=2)[0].tolist()
    assert moved == [True, True, True, True, False, False]
    assert table.trained.weight.grad[UNKNOWN].any()  # some words were taken for unknown


def test_frozen_vectors_stay(vector_file):
    table = StaticVectors.read(vector_file, SENTENCES, frozen=True)
    ids = table.ids(SENTENCES)
    assert not table(ids).requires_grad
    assert torch.equal(table.train()(ids), table.eval()(ids))  # no word is taken for unknown


def test_vectors_in_memory_are_as_those_of_a_file(vector_file):
    vectors = np.array([vector_of(number) for number in range(6)] + [[8.0, 8.0, 8.0]])
    table = StaticVectors.from_table(([*FILE_WORDS, "bank"], vectors), SENTENCES).eval()
    other = StaticVectors.read(vector_file, SENTENCES).eval()
    assert table.words == other.words
    assert torch.equal(table(table.ids(SENTENCES)), other(other.ids(SENTENCES)))


@pytest.mark.parametrize(
    ("words", "vectors", "message"),
    [
        (["bank"], np.zeros((2, 3)), r"got \(2, 3\) for 1 words"),
        (["bank"], np.zeros(3), r"must have the shape"),
        ([], np.zeros((0, 3)), r"must have the shape"),
        (["bank"], np.full((1, 3), np.nan), "must be finite"),
        (["Bank!"], np.zeros((1, 3)), "none of the 6 words of the training text is among the 1 of the vectors given"),
    ],
)
def test_wrong_vectors_are_named(words, vectors, message):
    with pytest.raises(ElmoError, match=message):
        StaticVectors.from_table((words, vectors), SENTENCES)


def test_a_table_is_built_again_from_what_was_saved(vector_file):
    table = StaticVectors.read(vector_file, SENTENCES).eval()
    again = StaticVectors(table.words, size=table.size, n_trained=table.n_trained, frozen=table.frozen).eval()
    again.load_state_dict(table.state_dict())
    text = [("Rates", "of", "never", "zzz")]
    assert torch.equal(again(again.ids(text)), table(table.ids(text)))


def test_glove_comes_with_the_package():
    words, vectors = static.glove()
    rows = {word: row for row, word in enumerate(words)}
    assert vectors.shape == (len(words), 50) == (len(rows), 50)
    assert np.array_equal(vectors, vectors.astype(np.float16).astype(np.float32))
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for word, expected in {"paris": "france", "monday": "tuesday", "doctor": "physician"}.items():
        nearest = np.argsort(-(units @ units[rows[word]]))[:10]
        assert expected in {words[row] for row in nearest}


def test_glove_is_taken_where_it_knows_most_of_the_tokens():
    def table(sentences, **options):
        return StaticVectors.for_task(TaskOptions(**options), None, sentences)

    english, chinese = [("The", "Bank", "bank", "The", "zzzz")], [("我", "们")]
    mixed = [("bank", "zzz1"), ("bank", "BANK", "zzz2", "BANK")]
    words, vectors = static.glove()
    found = table(english).eval()
    assert found.size == 50
    assert found.n_trained == 2
    assert "in GloVe" in found.note
    ids = found.ids([("bank", "river", "zzzz")])  # trained, not trained, unknown
    np.testing.assert_array_equal(found(ids)[0, :2].detach(), vectors[[words.index("bank"), words.index("river")]])
    assert found.row("zzzz") == UNKNOWN
    assert len(table(mixed, static_size=3, static_min_count=1).words) == 4  # four tokens of six
    assert table(chinese, static_min_count=1).words == ["我", "们"]
    assert len(table(mixed, static="glove").words) == len(words)
    assert table(english, static="train", static_min_count=1).words == ["The", "Bank", "bank", "zzzz"]
    assert table(english, static="none") is None
    with pytest.raises(ElmoError, match="none of the 2 words"):
        table(chinese, static="glove")
