"""The probes on frozen vectors: a signal that was planted in one layer is found there and nowhere else."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

QUALITY = Path(__file__).resolve().parents[1] / "benchmarks" / "quality"
sys.path.insert(0, str(QUALITY))
import logistic  # noqa: E402
import probes  # noqa: E402
import rows  # noqa: E402
import sources  # noqa: E402

sys.path.remove(str(QUALITY))

from elmokit.text.tokens import segmenter  # noqa: E402

SIZE = 16
WORDS = [f"word{number}" for number in range(20)]
CUES = ("north", "south")


class PlantedSource:
    """Layer 0 sees a word alone; layer 1 also sees which of the cues came last before it."""

    names = ("0", "1")
    size = SIZE
    device = torch.device("cpu")

    def stream(self, sentences):
        for tokens in sentences:
            layers = np.zeros((2, len(tokens), SIZE), np.float32)
            cue = 0
            for place, token in enumerate(tokens):
                seed = sum(map(ord, token)) * 31 + len(token)
                layers[:, place] = np.random.default_rng(seed).normal(size=SIZE)
                layers[1, place, 3] += 20 * cue
                cue = {"north": 1, "south": -1}.get(token, cue)
            yield layers


@pytest.fixture
def setting(tmp_path):
    encoder = sources.Encoder(PlantedSource(), "en", "whitespace", segmenter("whitespace"))
    return probes.Setting(encoder, tmp_path, "dev", None)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def sentences(count, seed):
    random = np.random.default_rng(seed)
    for _ in range(count):
        words = [str(word) for word in random.choice(WORDS, 5)]
        yield str(random.choice(CUES)), words


def only(results):
    [result] = results
    return result


def test_tags_that_depend_on_the_context_are_found_in_the_layer_that_has_it(setting):
    for split, count, seed in (("train", 60, 1), ("dev", 30, 2)):
        blocks = []
        for cue, words in sentences(count, seed):
            tags = ["O", "B-X", *["O"] * 4] if cue == "north" else ["O"] * 6
            blocks.append("".join(f"{w} {t}\n" for w, t in zip((cue, *words), tags, strict=True)))
        write(setting.data / f"ner-conll2003/{split}.conll", "\n".join(blocks))
    row = rows.read_rows()["ner"]
    layer_0_entities = only(probes.probe_tags(setting, row))
    assert layer_0_entities.metric == "entity F1"
    for split, count, seed in (("train", 60, 1), ("dev", 30, 2)):
        blocks = []
        for cue, words in sentences(count, seed):
            tags = ["C", *(cue[0].upper() for _ in words)]
            numbered = enumerate(zip((cue, *words), tags, strict=True), start=1)
            blocks.append("".join(f"{n}\t{w}\t_\t{t}" + "\t_" * 6 + "\n" for n, (w, t) in numbered))
        write(setting.data / f"pos-ewt/{split}.conllu", "\n".join(blocks) + "\n")
    found = only(probes.probe_tags(setting, rows.read_rows()["pos"]))
    assert found.metric == "accuracy"
    assert found.layers[1] > 97
    assert found.joined > 97
    assert found.layers[0] < 75
    assert found.best == 1


def test_texts_and_pairs_by_the_mean_of_their_words(setting):
    examples = [(cue, ["go", cue, *words]) for cue, words in sentences(100, 1)]
    # The cue as a word is hidden by its opposite at the end, which only the words after it would see.
    lines = [f"{cue}\t{' '.join([*tokens, 'south' if cue == 'north' else 'north'])}" for cue, tokens in examples]
    write(setting.data / "trec/train.tsv", "label\ttext\n" + "\n".join(lines) + "\n")
    learned, nearest = probes.probe_texts(setting, rows.read_rows()["trec"])
    assert learned.facts == nearest.facts == {"texts": 80, "dev": 20}
    assert learned.layers[1] == learned.joined == 100
    assert learned.layers[0] < 80
    assert nearest.layers[1] == 100
    assert nearest.layers[0] < 80


def test_the_nearest_texts_vote_by_their_cosines():
    known = torch.tensor([[[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [-1.0, 0.0]]])
    votes = torch.nn.functional.one_hot(torch.tensor([0, 0, 1, 2]), 3).float()
    asked = torch.tensor([[[5.0, 1.0], [0.1, 9.0], [-1.0, 0.1]]])
    assert probes._nearest_class(known, votes, asked).tolist() == [0, 1, 2]


def write_wic(data):
    header = "label\tword\tpos\tindices\tsentence1\tsentence2\n"
    for split, seed in (("train", 1), ("dev", 2)):
        drawn = list(sentences(80, seed))
        lines = []
        for (cue, words), (other, _) in zip(drawn[::2], drawn[1::2], strict=True):
            label = "T" if cue == other else "F"
            lines.append(f"{label}\t{words[0]}\tN\t1-1\t{cue} {words[0]}\t{other} {words[0]}")
        write(data / f"wic/{split}.tsv", header + "\n".join(lines) + "\n")


def test_word_in_context_and_the_same_in_folds(setting):
    write_wic(setting.data)
    once, folds = probes.probe_wic(setting, rows.read_rows()["wic"])
    assert (once.facts["pairs"], folds.facts["pairs"]) == (40, 80)
    for found in (once, folds):
        assert found.layers[1] == found.joined == 100
        assert found.layers[0] < 75


def test_vectors_without_context_have_one_layer(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(len(WORDS), 4)).astype(np.float32)
    encoder = sources.Encoder(sources.StaticSource(WORDS, vectors), "en", "whitespace", segmenter("whitespace"))
    write_wic(tmp_path)
    for found in probes.probe_wic(probes.Setting(encoder, tmp_path, "dev", None), rows.read_rows()["wic"]):
        assert len(found.layers) == 1
        assert found.layers[0] == found.mean < 75


def test_senses_by_their_mean_and_by_the_nearest_context(setting):
    known, asked = [], []
    for number, (cue, words) in enumerate(sentences(60, 1)):
        known.append({"tokens": [cue, *words, "bank"], "senses": [[6, 1, "bank", "NN", f"bank%1:{cue}", 1]]})
        if number % 4 == 0:
            asked.append({"tokens": [cue, "bank"], "instances": [[1, "d0", "bank", "NOUN", [f"bank%1:{cue}"]]]})
    asked.append({"tokens": ["loan"], "instances": [[0, "d1", "loan", "NOUN", ["loan%1"]]]})
    write(setting.data / "wsd/semcor.jsonl", "".join(json.dumps(line) + "\n" for line in known))
    write(setting.data / "wsd/dev-semeval2007.jsonl", "".join(json.dumps(line) + "\n" for line in asked))
    mean, nearest, fifth_mean, fifth_nearest = probes.probe_wsd(setting, rows.read_rows()["wsd"])
    for found in (mean, nearest):
        assert found.facts["words"] == 16
        assert found.layers[1] == found.joined == pytest.approx(100 * 15 / 16), "an unknown lemma is wrong"
        assert found.layers[0] == pytest.approx(found.facts["most frequent sense"], abs=0.01), "equally near: the first"
    for found in (fifth_mean, fifth_nearest):
        assert found.facts["words"] == 12
        assert found.layers[1] == 100


def test_the_regression_is_that_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    random = np.random.default_rng(0)
    vectors = random.normal(size=(2, 300, 4)).astype(np.float32) * [[[1, 5, 0.1, 2]]] + 3
    labels = (vectors[0, :, 0] + 0.2 * vectors[1, :, 1] + random.normal(size=300) > 6).astype(np.int64)
    vectors = torch.from_numpy(vectors).float()
    found = logistic.fit_logistic(vectors, torch.from_numpy(labels), 2)
    joined = torch.cat(list(vectors), dim=1)
    standard = ((joined - joined.mean(0)) / joined.std(0, correction=0)).numpy()
    peer = linear_model.LogisticRegression(C=2 / (found.penalty * 8)).fit(standard, labels)
    ours = found.logits(vectors).diff(dim=1).squeeze(1).numpy()
    np.testing.assert_allclose(ours, peer.decision_function(standard), atol=0.02)


def test_a_spearman_rank_is_the_mean_of_equals():
    np.testing.assert_array_equal(probes._ranks(np.array([5.0, 1.0, 5.0, 7.0])), [2.5, 1, 2.5, 4])


def test_the_command_prints_a_table(tmp_path, capsys):
    probes.main(["zh", "--tasks", "two-senses", "--device", "cpu", "--json", str(tmp_path / "probes.json")])
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 25 ambiguous words")]
    assert line.split(" | ")[2] == "40.0"
    stored = json.loads((tmp_path / "probes.json").read_text(encoding="utf-8"))
    assert stored["probes"][0]["layers"][0] == pytest.approx(40)
