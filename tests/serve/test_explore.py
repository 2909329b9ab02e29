"""Neighbours, senses and words of an index."""

from base64 import b64decode

import numpy as np
import pytest

from elmokit.analyse import build_index, find_senses, neighbours
from elmokit.corpus.prepare import prepare
from elmokit.serve.explore import _unknown_word
from support.serving import serving, tiny_elmo

SENTENCES = [
    "the bank of the river .",
    "a bank of money .",
    "river bank",
    "money of the bank",
    "a river .",
    "The money",
]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explore")
    (folder / "text.txt").write_text("\n".join(SENTENCES * 3), encoding="utf-8")
    elmo = tiny_elmo()
    corpus = prepare([str(folder / "text.txt")], segment="none", folder=folder / "corpus", workers=1)
    index = build_index(elmo, corpus, folder / "small")
    with serving(elmo, index=(folder / "small",)) as server:
        yield server, index


def test_info_lists_the_indexes(served):
    server, index = served
    [facts] = server.get("/info").json["indexes"]
    assert (facts["name"], facts["occurrences"]) == ("small", len(index))
    assert facts["layer"] == index.description["layer"]


def test_neighbours(served):
    server, index = served
    answer = server.post("/neighbours", {"inputs": "the river bank", "position": 2, "k": 3}).json
    want = neighbours(server.elmo, index, ["the", "river", "bank"], 2, 3)
    assert [tuple(each["tokens"]) for each in answer["neighbours"]] == [each.tokens for each in want]
    by_word = server.post("/neighbours", {"inputs": "the river bank", "word": "bank", "k": 3}).json
    assert by_word == answer
    other = server.post("/neighbours", {"inputs": "the river bank", "position": 2, "any_word": True, "index": "small"})
    assert len(other.json["neighbours"]) == 6


@pytest.mark.parametrize("layers", ["index", "all"])
def test_senses(served, layers):
    server, index = served
    answer = server.post("/senses", {"word": "bank", "clusters": 2, "layers": layers}).json
    want = find_senses(index, "bank", 2)
    assert answer["labels"] == want.labels.tolist()
    assert [sense["size"] for sense in answer["senses"]] == [sense.size for sense in want.senses]
    assert all(each["tokens"][each["position"]] == "bank" for each in answer["sentences"])
    for sense, found in zip(want.senses, answer["senses"], strict=True):
        shown = [tuple(answer["sentences"][number]["tokens"]) for number in found["examples"]]
        assert shown == [each.tokens for each in sense.examples]
    again = server.post("/senses", {"word": "bank", "clusters": 2, "layers": layers})
    assert again.json == answer


def test_a_map_of_each_layer_takes_other_vectors(served):
    server, _ = served
    answer = server.post("/senses", {"word": "bank", "layers": "all"}).json
    assert list(answer["points"]) == list(answer["matrices"]) == ["0", "1", "2"]
    for layer, points in answer["points"].items():
        matrix = np.frombuffer(b64decode(answer["matrices"][layer]), "<f4").reshape(-1, 2)
        for sentence, point in zip(answer["sentences"], points, strict=True):
            vector = server.elmo.encode([sentence["tokens"]], layer=int(layer))[0][sentence["position"]]
            unit = vector / np.linalg.norm(vector)
            assert np.allclose([*unit, 1] @ matrix, point, atol=1e-3)


def test_words_of_the_index(served):
    server, _ = served
    found = server.post("/words", {"prefix": "t"}).json["words"]
    assert [each["word"] for each in found] == ["the", "The"]
    assert len(server.post("/words", {"k": 2}).json["words"]) == 2


def test_unknown_words_come_with_others_to_try(served):
    server, _ = served
    for path, fields in (("/senses", {"word": "bnak"}), ("/neighbours", {"inputs": "a bnak", "word": "bnak"})):
        answer = server.post(path, fields)
        assert answer.status == 404
        assert "bank" in answer.json["words"]
        assert "/" not in answer.json["error"]


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        ("/senses", {"word": "bank", "index": "other"}, 404),
        ("/senses", {"word": "bank", "clusters": 900}, 422),
        ("/senses", {}, 400),
        ("/neighbours", {"inputs": "a bank", "position": 2}, 422),
        ("/neighbours", {"inputs": "a bank", "word": "river"}, 422),
        ("/neighbours", {"inputs": "a bank"}, 400),
    ],
)
def test_refusals(served, path, fields, status):
    server, _ = served
    assert server.post(path, fields).status == status


def test_a_long_unknown_word_is_folded_once(served):
    """In the event loop, and a word may have megabytes."""

    class Word(str):
        calls = 0

        def casefold(self):
            Word.calls += 1
            return super().casefold()

    _, index = served
    assert _unknown_word(index, Word("BANK")).more["words"] == ["bank"]
    assert Word.calls == 1
