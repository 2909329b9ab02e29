"""The component `elmo` in spaCy: vectors, similarity, batches, processes, saved pipelines, and components on top."""

import pickle
import re
import runpy
import subprocess
import sys
import tomllib
from importlib import import_module, metadata
from pathlib import Path

import numpy as np
import pytest
import spacy
from spacy.cli.train import train
from spacy.tokens import Doc, DocBin
from spacy.training import Example

from elmokit import Elmo
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.integrations.spacy import add_similarity
from support.doc_pages import PAGES, run_page
from support.tiny_models import transformer_config

ROOT = Path(__file__).parent.parent.parent
TEXTS = ["The bank of the river. A bank raised money.", "", "bank", " \n\n two  spaces ", "a. b. c"]


@pytest.fixture
def make_nlp(model_folder):
    def make(*before: str, **config):
        nlp = spacy.blank("en")
        for name in before:
            nlp.add_pipe(name)
        nlp.add_pipe("elmo", config={"model": str(model_folder), **config})
        return nlp

    return make


def texts_of(doc) -> list[str]:
    return [token.text for token in doc]


@pytest.mark.parametrize("layer", [None, "mix", "top", 1])
def test_vectors_are_those_of_encode(make_nlp, model_folder, layer):
    nlp = make_nlp(layer=layer)
    for doc in nlp.pipe(TEXTS):
        (expected,) = Elmo.load(model_folder).encode([texts_of(doc)], layer=layer)
        np.testing.assert_array_equal(doc.tensor, expected)
        assert doc.tensor.shape == (len(doc), nlp.get_pipe("elmo").width)
        for token in doc:
            np.testing.assert_array_equal(token.vector, doc.tensor[token.i])


def test_a_doc_alone_and_in_any_batch_has_the_same_vectors(make_nlp):
    nlp = make_nlp("sentencizer", batch_tokens=7)
    alone = [nlp(text).tensor for text in TEXTS]
    for size in (1, 3, 1000):
        for doc, expected in zip(nlp.pipe(TEXTS, batch_size=size), alone, strict=True):
            np.testing.assert_array_equal(doc.tensor, expected)


def test_sentences_are_encoded_alone_where_boundaries_are_known(make_nlp, model_folder):
    elmo = Elmo.load(model_folder)
    with_boundaries = make_nlp("sentencizer")(TEXTS[0])
    sentences = [texts_of(sentence) for sentence in with_boundaries.sents]
    assert len(sentences) == 2
    np.testing.assert_array_equal(with_boundaries.tensor, np.concatenate(elmo.encode(sentences)))
    as_one = elmo.encode([texts_of(with_boundaries)])[0]
    np.testing.assert_array_equal(make_nlp("sentencizer", per="doc")(TEXTS[0]).tensor, as_one)
    np.testing.assert_array_equal(make_nlp()(TEXTS[0]).tensor, as_one)
    assert not np.array_equal(with_boundaries.tensor, as_one)
    with pytest.raises(ElmoError, match="sentencizer"):
        make_nlp(per="sentence")(TEXTS[0])
    assert make_nlp(per="sentence")("").tensor.shape[0] == 0


def test_similarity_reads_the_context(make_nlp):
    nlp = make_nlp("sentencizer", layer="top")
    doc, other = nlp.pipe([TEXTS[0], "my money"])
    first, second = (token for token in doc if token.text == "bank")
    one, two = doc.tensor[first.i], doc.tensor[second.i]
    expected = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    assert first.similarity(second) == pytest.approx(expected, abs=1e-6)
    assert first.similarity(second) < 0.9999
    assert first.similarity(first) == pytest.approx(1)
    mean, span = other.tensor.mean(axis=0), doc.tensor[1:3].mean(axis=0)
    expected = mean @ span / np.linalg.norm(mean) / np.linalg.norm(span)
    assert doc[1:3].similarity(other) == pytest.approx(expected, abs=1e-6)
    assert other.similarity(doc[1:3]) == pytest.approx(expected, abs=1e-6)
    assert other.similarity(nlp("")) == 0
    with pytest.raises(ElmoError, match="got Doc my money"):
        first.similarity(spacy.blank("en")("my money"))
    with pytest.raises(ElmoError, match="Lexeme"):
        first.similarity(nlp.vocab["bank"])


@pytest.mark.parametrize("used_before", [False, True])
def test_several_processes(make_nlp, used_before):
    nlp = make_nlp("sentencizer")
    expected = [make_nlp("sentencizer")(text).tensor for text in TEXTS * 3]
    if used_before:
        nlp(TEXTS[0])
    docs = list(nlp.pipe(TEXTS * 3, n_process=2, batch_size=2))
    for doc, vectors in zip(docs, expected, strict=True):
        np.testing.assert_array_equal(doc.tensor, vectors)
    first, second = (token for token in add_similarity(docs[0]) if token.text == "bank")
    assert first.similarity(second) < 0.9999


def test_errors_go_to_the_handler_of_the_pipeline(make_nlp):
    nlp = make_nlp(per="sentence")
    seen = []
    nlp.set_error_handler(lambda name, pipe, docs, error: seen.append((name, len(docs), type(error))))
    assert [doc.text for doc in nlp.pipe(["", "a b", "c d"], batch_size=1)] == [""]
    assert seen == [("elmo", 1, ElmoError)] * 2


@pytest.mark.parametrize("save_model", [False, True])
def test_a_pipeline_is_saved_and_loaded(make_nlp, tmp_path, model_folder, save_model):
    nlp = make_nlp("sentencizer", save_model=save_model, layer=1)
    expected = nlp(TEXTS[0]).tensor
    nlp.to_disk(tmp_path / "pipeline")
    data, pickled, config = nlp.to_bytes(), pickle.dumps(nlp), nlp.config.copy()
    if save_model:  # the pipeline has its own files
        model_folder.rename(model_folder.with_name("gone"))
    again = [
        spacy.load(tmp_path / "pipeline"),
        spacy.blank("en").from_config(config).from_bytes(data),
        pickle.loads(pickled),
    ]
    for loaded in again:
        np.testing.assert_array_equal(loaded(TEXTS[0]).tensor, expected)
        assert loaded.get_pipe("elmo").layer == 1
    assert (tmp_path / "pipeline" / "elmo" / "model").exists() == save_model


def test_spacy_finds_the_factory_without_an_import(tmp_path, model_folder):
    """With the entry points of pyproject.toml, whatever was installed before them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ((name, value),) = project["entry-points"]["spacy_factories"].items()
    version = metadata.version("elmokit")
    folder = tmp_path / f"elmokit-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: elmokit\nVersion: {version}\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(f"[spacy_factories]\n{name} = {value}\n", encoding="utf-8")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import spacy
assert "elmokit" not in sys.modules
nlp = spacy.blank("en")
nlp.add_pipe("elmo", config={{"model": {str(model_folder)!r}}})
print(nlp("a bank").tensor.shape)
"""
    source = str(Path(import_module("elmokit").__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": source, "PATH": ""},
        check=False,
    )
    assert done.stdout.startswith("(2, "), done.stderr


def listener(width: int) -> dict:
    return {"@architectures": "spacy.Tok2VecListener.v1", "width": width, "upstream": "elmo"}


def test_a_tagger_learns_from_the_vectors(make_nlp, tmp_path):
    nlp = make_nlp(save_model=True)
    nlp.add_pipe("tagger", config={"model": {"tok2vec": listener(nlp.get_pipe("elmo").width)}})
    lines = [("the bank of money", "D N P N"), ("a river bank", "D N N")]
    examples = [Example.from_dict(nlp.make_doc(text), {"tags": tags.split()}) for text, tags in lines]
    optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = 0.05  # the vectors are random and short
    for _ in range(60):
        losses = nlp.update(examples, sgd=optimizer, annotates=["elmo"])
    assert losses["tagger"] < 0.5
    nlp.to_disk(tmp_path / "tagger")
    for pipeline in (nlp, spacy.load(tmp_path / "tagger")):
        assert [" ".join(token.tag_ for token in pipeline(text)) for text, _ in lines] == [tags for _, tags in lines]


def test_a_listener_of_another_width_is_refused(make_nlp):
    nlp = make_nlp()
    nlp.add_pipe("tagger", config={"model": {"tok2vec": listener(13)}})
    examples = [Example.from_dict(nlp.make_doc("a bank"), {"tags": ["D", "N"]})]
    with pytest.raises(ElmoError, match=rf"tagger must have width {nlp.get_pipe('elmo').width}.* got 13"):
        nlp.initialize(lambda: examples)


def test_the_configuration_of_the_page_trains(tmp_path, model_folder):
    """As `spacy train` does."""
    page = (PAGES / "spacy.md").read_text(encoding="utf-8")
    (config,) = re.findall(r"^```ini\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    size = Elmo.load(model_folder).config.vector_size
    config = config.replace('model = "en"', f'model = "{model_folder}"').replace("width = 384", f"width = {size}")
    (tmp_path / "config.cfg").write_text(config, encoding="utf-8")
    filled = spacy.util.load_config(tmp_path / "config.cfg", interpolate=False)
    nlp = spacy.util.load_model_from_config(filled, auto_fill=True)
    doc = Doc(nlp.vocab, words=["a", "river", "bank"], ents=["O", "B-LOC", "I-LOC"])
    DocBin(docs=[doc] * 4).to_disk(tmp_path / "train.spacy")
    nlp.config.to_disk(tmp_path / "config.cfg")
    corpus = str(tmp_path / "train.spacy")
    steps = {"paths.train": corpus, "paths.dev": corpus, "training.max_steps": 60}
    steps |= {"training.eval_frequency": 60, "training.optimizer.learn_rate": 0.05}
    train(tmp_path / "config.cfg", tmp_path / "output", overrides=steps)
    found = spacy.load(tmp_path / "output" / "model-last")("a river bank")
    assert [(entity.text, entity.label_) for entity in found.ents] == [("river bank", "LOC")]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"per": "word"}, "per must be one of auto, sentence, doc"),
        ({"layer": "all"}, "layer must be mix, top or 0 to 2, got 'all'"),
        ({"layer": 9}, "layer must be mix, top or 0 to 2, got 9"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1"),
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_wrong_options_are_named(make_nlp, config, message):
    with pytest.raises(ElmoError, match=message):
        make_nlp(**config)("a bank")


def test_a_transformer_works_too(tmp_path, make_elmo, make_nlp):
    make_elmo(transformer_config()).save(tmp_path / "transformer")
    doc = make_nlp(model=str(tmp_path / "transformer"))("a river bank")
    np.testing.assert_array_equal(doc.tensor, Elmo.load(tmp_path / "transformer").encode([texts_of(doc)])[0])


@pytest.mark.parametrize(
    ("ending", "lines", "printed"),
    [
        (".conll", "the DET\nbank NOUN\n\nbank NOUN\n\n", "tagger on ELMo features: accuracy"),
        (".iob", "the O\nriver B-LOC\nbank I-LOC\n\nbank B-LOC\n\n", "ner on ELMo features: F1"),
    ],
    ids=["tagger", "ner"],
)
def test_the_example_trains_and_saves(tmp_path, model_folder, monkeypatch, capsys, ending, lines, printed):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    path = tmp_path / f"train{ending}"
    path.write_text(lines * 4, encoding="utf-8")
    files = [str(path)] * 2
    arguments = [str(model_folder), *files, "--epochs", "2", "--output", str(tmp_path / "saved")]
    monkeypatch.setattr(sys, "argv", ["spacy_tagger.py", *arguments])
    runpy.run_path(str(ROOT / "examples" / "spacy_tagger.py"), run_name="__main__")
    assert printed in capsys.readouterr().out
    nlp = spacy.load(tmp_path / "saved")
    assert nlp.pipe_names == ["elmo", printed.split()[0]]
    assert nlp("the bank").tensor.shape[0] == 2


def test_without_spacy_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy.language", None)
    monkeypatch.delitem(sys.modules, "elmokit.integrations.spacy")
    with pytest.raises(MissingExtraError, match=r"needs the package spacy.*elmokit\[spacy\]"):
        import_module("elmokit.integrations.spacy")


def test_the_page_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("spacy.md")
