"""Senses by nearest neighbour, on a little SemCor whose contexts lie where the tests put them."""

import json

import numpy as np
import pytest
import torch

from elmokit import ElmoError
from elmokit.analyse.probes.sources import evenly
from elmokit.analyse.probes.wsd import (
    Mention,
    SenseSentence,
    WordNet,
    WsdScore,
    probe_wsd,
    read_evaluation,
    read_semcor,
)

MONEY, RIVER = "bank%1:14:00::", "bank%1:17:01::"


class Placed:
    """A word's vector is the sum of what its neighbours stand for, on one layer or on two."""

    size = 2
    device = torch.device("cpu")

    def __init__(self, names=("0",)):
        self.names = names

    def stream(self, sentences):
        known = {"money": (1, 0), "cash": (0.9, 0.1), "water": (0, 1), "mud": (0.2, 1), "both": (0.6, 0.5)}
        for tokens in sentences:
            total = np.sum([known.get(token, (0, 0)) for token in tokens], axis=0)
            yield np.tile(total.astype(np.float32), (len(self.names), len(tokens), 1))


def said(text, *mentions):
    return SenseSentence(tuple(text.split()), mentions)


def bank(sense, start=0, rank=0, lemma="bank"):
    return Mention(start, 1, lemma, "NOUN", (sense,), rank)


TRAIN = [
    said("bank money", bank(MONEY, rank=1)),
    said("bank cash", bank(MONEY, rank=1)),
    said("bank mud", bank(RIVER, rank=2)),
    said("bank water", bank(RIVER, rank=2)),
    said("bank water", bank(RIVER, rank=2)),
    said("shore water", bank("shore%1:17:00::", lemma="shore")),
    said("bank money", Mention(0, 1, "bank", "VERB", ("bank%2:40:00::",))),
]


def test_the_context_decides():
    asked = [said("money bank", bank(MONEY, 1)), said("bank water", bank(RIVER)), said("mud bank", bank(RIVER, 1))]
    result = probe_wsd(Placed(), TRAIN, asked)
    assert result.centroid == {"0": WsdScore(1, 1)}
    assert result.nearest == {"0": WsdScore(1, 1)}
    assert result.most_frequent == WsdScore(2 / 3, 2 / 3)
    assert (result.words, result.seen, result.answered) == (3, 3, 3)
    assert result.first_sense is None


def test_the_mean_and_the_nearest_context_may_differ():
    """A lone money context right beside the word, in the midst of river contexts that are nearer in the mean."""
    train = [
        *(said(f"bank {word}", bank(RIVER)) for word in ("both", "both", "both both")),
        said("bank money", bank(MONEY)),
        said("bank water", bank(MONEY)),
        said("bank water", bank(MONEY)),
    ]
    result = probe_wsd(Placed(), train, [said("bank cash", bank(MONEY))])
    assert result.nearest["0"].f1 == 1
    assert result.centroid["0"].f1 == 0


def test_a_limit_takes_from_the_whole_file():
    assert list(evenly("aabbccdd", 4)) == ["a", "b", "c", "d"]
    assert evenly("abc", None) == evenly("abc", 3) == "abc"
    with pytest.raises(ElmoError, match="limit must be at least 1, got 0"):
        evenly("abc", 0)


def test_of_contexts_equally_near_the_sense_of_most_counts():
    """To a vector that knows no context all occurrences of a word are the same."""

    class Static(Placed):
        def stream(self, sentences):
            known = {"bank": [3.0, 4.0], "shore": [1.0, 0.0]}
            for tokens in sentences:
                yield np.array([[known.get(token, [0.0, 0.0]) for token in tokens]], np.float32)

    train = [said("bank a", bank(MONEY)), *(said(f"{word} b", bank(RIVER)) for word in ("bank", "bank", "shore"))]
    asked = [said("c bank", bank(RIVER, 1)), said("nowhere", bank(RIVER))]
    result = probe_wsd(Static(("static",)), train, asked)
    assert result.nearest["static"].f1 == 1, "not the first one of the file"


def test_only_senses_of_the_same_lemma_and_part_of_speech_are_candidates():
    asked = [said("bank money", Mention(0, 1, "bank", "VERB", ("bank%2:40:00::",)))]
    result = probe_wsd(Placed(), TRAIN, asked)
    assert result.centroid["0"].f1 == 1
    assert result.most_frequent.f1 == 1


def test_lemmas_that_never_came_fall_back_to_the_first_sense():
    asked = [said("bank money", bank(MONEY)), said("loan money", bank("loan%1:21:00::", lemma="loan"))]
    without = probe_wsd(Placed(), TRAIN, asked)
    # One answer, which is right, for two words: precision 1, recall 1/2.
    assert without.centroid["0"] == WsdScore(pytest.approx(2 / 3), 0.5)
    assert (without.seen, without.answered) == (1, 1)
    firsts = {"loan": "loan%1:21:00::", "bank": RIVER}
    result = probe_wsd(Placed(), TRAIN, asked, first_sense=lambda lemma, pos: firsts[lemma])
    assert result.centroid["0"] == WsdScore(1, 0.5)
    assert result.answered == 2
    assert result.first_sense == 0.5


def test_of_equally_frequent_senses_the_first_in_wordnet_counts():
    train = [
        said("bank money", bank("b", rank=2)),
        said("bank water", bank("a", rank=0)),
        said("bank", bank("c", rank=1)),
    ]
    assert probe_wsd(Placed(), train, [said("bank", bank("c"))]).most_frequent.f1 == 1


def test_any_of_several_gold_senses_is_right():
    asked = [said("bank money", Mention(0, 1, "bank", "NOUN", ("other", MONEY)))]
    assert probe_wsd(Placed(), TRAIN, asked).centroid["0"].f1 == 1


def test_layers_and_their_mean_are_scored(make_elmo):
    asked = [said("bank money", bank(MONEY)), said("bank water", bank(RIVER))]
    assert list(probe_wsd(Placed(("0", "1")), TRAIN, asked).nearest) == ["0", "1", "mean"]
    found = probe_wsd(make_elmo(), TRAIN, asked)
    assert list(found.centroid) == ["0", "1", "2", "mean"]
    assert found.nearest["2"].f1 == 1  # the very contexts are in the training text
    assert found.nearest["0"] == found.most_frequent or found.nearest["0"].f1 == 0.5  # layer 0 sees no context


def test_several_words_that_are_one_entry_are_averaged():
    class Numbered(Placed):
        size = 1

        def stream(self, sentences):
            for tokens in sentences:
                yield np.array([[[float(token)] for token in tokens]], np.float32)

    train = [
        SenseSentence(("-3", "1"), (Mention(0, 2, "x", "NOUN", ("below",)),)),
        SenseSentence(("3", "-1"), (Mention(0, 2, "x", "NOUN", ("above",)),)),
    ]
    asked = [SenseSentence(("-1", "3"), (Mention(0, 2, "x", "NOUN", ("above",)),))]
    assert probe_wsd(Numbered(), train, asked).centroid["0"].f1 == 1


def test_no_words_are_refused():
    with pytest.raises(ElmoError, match="got none"):
        probe_wsd(Placed(), TRAIN, [said("bank")])


def test_files_are_read(tmp_path):
    semcor = tmp_path / "semcor.jsonl"
    rows = [
        {"tokens": ["The", "bank", "took", "place"], "senses": [[1, 1, "bank", "NN", MONEY, "1"]]},
        {"tokens": ["It", "took", "place"], "senses": [[1, 2, "take_place", "VBD", "take_place%2:30:00::", "1"]]},
        {"tokens": ["each"], "senses": [[0, 1, "each", "JJ", "each%5:00:00:all(a):00", "0"]]},
    ]
    semcor.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    first, second, third = read_semcor(semcor)
    assert first.mentions == (Mention(1, 1, "bank", "NOUN", (MONEY,), 1),)
    assert second.mentions == (Mention(1, 2, "take_place", "VERB", ("take_place%2:30:00::",), 1),)
    assert third.mentions == (Mention(0, 1, "each", "ADJ", ("each%5:00:00:all:00",), 0),)
    assert read_semcor(semcor, limit=2) == [first, second]
    with pytest.raises(ElmoError, match="at least 1"):
        read_semcor(semcor, limit=0)
    evaluation = tmp_path / "dev.jsonl"
    row = {"tokens": ["He", "pointed out", "banks"], "instances": [
        [1, "d0.t0", "point_out", "VERB", ["point_out%2:32:01::"]], [2, "d0.t1", "bank", "NOUN", [MONEY, RIVER]],
    ]}  # fmt: skip
    evaluation.write_text(json.dumps(row))
    [sentence] = read_evaluation(evaluation)
    assert sentence.tokens == ("He", "pointed", "out", "banks")
    assert sentence.mentions[0] == Mention(1, 2, "point_out", "VERB", ("point_out%2:32:01::",))
    assert sentence.mentions[1] == Mention(3, 1, "bank", "NOUN", (MONEY, RIVER))


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        '["a"]',
        '{"tokens": ["a"]}',
        '{"tokens": ["a"], "senses": [[3, 1, "a", "NN", "a%1", "1"]]}',
        '{"tokens": ["a"], "senses": [[0, 1, "a", "XX", "a%1", "1"]]}',
        '{"tokens": ["a"], "senses": [[0, 1, "a"]]}',
        "[" * 100_000,
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path, line):
    path = tmp_path / "semcor.jsonl"
    path.write_text('{"tokens": ["a"], "senses": []}\n' + line + "\n")
    with pytest.raises(ElmoError, match=r"line 2 of .*semcor\.jsonl"):
        read_semcor(path)


def wordnet_files(folder):
    """Adjectives, one of them similar to another, and a noun with two senses."""
    (folder / "index.sense").write_text(
        "all%3:00:00:: 02269286 1 182\nbank%1:14:00:: 08420278 1 20\nbank%1:17:01:: 09213565 2 25\n"
        "every%5:00:02:all:00 02269635 1 21\n"
    )
    return folder


def test_first_senses_come_from_wordnets_files(tmp_path):
    wordnet = WordNet(wordnet_files(tmp_path))
    assert wordnet.first_sense("bank", "NOUN") == "bank%1:14:00::"
    assert wordnet.first_sense("Bank", "NOUN") == "bank%1:14:00::"
    assert wordnet.first_sense("all", "ADJ") == "all%3:00:00::"
    assert wordnet.first_sense("every", "ADJ") == "every%5:00:02:all:00"
    assert wordnet.first_sense("bank", "VERB") is None


def test_a_folder_without_wordnet_is_named(tmp_path):
    with pytest.raises(ElmoError, match=r"index\.sense.*wordnet-sense-index"):
        WordNet(tmp_path)
    (tmp_path / "index.sense").write_text("not a line of WordNet\n")
    with pytest.raises(ElmoError, match=r"index\.sense is damaged"):
        WordNet(tmp_path)
