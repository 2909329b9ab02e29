"""Vectors as columns of a Hugging Face dataset: values, types, processes, and the fingerprint of the stored result."""

import os
import pickle
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, LargeList, List, Value, disable_progress_bars
from datasets.fingerprint import Hasher

from elmokit import Elmo
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.integrations.datasets import EmbedColumns, embed
from support.doc_pages import run_page

TEXTS = ["the bank of the river .", "", "a bank raised money", "x", "bank"] * 3

disable_progress_bars()


@pytest.fixture
def dataset() -> Dataset:
    return Dataset.from_dict({"text": TEXTS, "label": list(range(len(TEXTS)))})


@pytest.mark.parametrize("num_proc", [None, 2])
@pytest.mark.parametrize("options", [{}, {"pool": "max", "layer": 1}])
def test_texts_get_one_vector_each(dataset, model_folder, options, num_proc):
    elmo = Elmo.load(model_folder)
    found = embed(dataset, model=str(model_folder), num_proc=num_proc, batch_size=4, **options)
    assert found.features["elmo"] == List(Value("float32"), length=elmo.config.vector_size)
    np.testing.assert_array_equal(
        found.with_format("numpy")["elmo"][:], elmo.encode(TEXTS, output="sentence", **options)
    )
    assert found["label"][:] == dataset["label"][:]


@pytest.mark.parametrize("num_proc", [None, 2])
def test_words_get_one_vector_each(dataset, model_folder, num_proc):
    elmo = Elmo.load(model_folder)
    found = embed(dataset, model=str(model_folder), output="tokens", into="v", num_proc=num_proc, batch_size=4)
    assert found.features["v"] == LargeList(List(Value("float32"), length=elmo.config.vector_size))
    for row, text, vectors in zip(found, TEXTS, elmo.encode(TEXTS), strict=True):
        assert row["v_tokens"] == text.split()
        np.testing.assert_array_equal(np.array(row["v"], np.float32).reshape(vectors.shape), vectors)


def test_lists_of_tokens_are_taken_as_they_are(model_folder):
    tokens = [["the", "bank ."], [], ["a"]]
    found = embed(Dataset.from_dict({"words": tokens}), "words", model=str(model_folder))
    expected = Elmo.load(model_folder).encode(tokens, output="sentence")
    np.testing.assert_array_equal(found.with_format("numpy")["elmo"][:], expected)


def test_splits_and_streams(dataset, model_folder):
    expected = Elmo.load(model_folder).encode(TEXTS, output="sentence")
    splits = embed(DatasetDict(train=dataset, test=dataset.select(range(2))), model=str(model_folder))
    assert {name: len(part) for name, part in splits.items()} == {"train": len(TEXTS), "test": 2}
    stream = embed(dataset.to_iterable_dataset(), model=str(model_folder), batch_size=4)
    np.testing.assert_array_equal([row["elmo"] for row in stream], expected)


def test_a_stored_result_is_found_again(dataset, model_folder, tmp_path, monkeypatch):
    dataset.save_to_disk(tmp_path / "stored")
    stored = Dataset.load_from_disk(tmp_path / "stored")
    computed = []
    plain = EmbedColumns.__call__
    monkeypatch.setattr(EmbedColumns, "__call__", lambda self, batch: computed.append(1) or plain(self, batch))
    first = embed(stored, model=str(model_folder))
    times = len(computed)
    assert times > 0
    again = embed(stored, model=str(model_folder))
    assert len(computed) == times
    np.testing.assert_array_equal(first["elmo"][:], again["elmo"][:])
    embed(stored, model=str(model_folder), layer=1)
    assert len(computed) > times, "another layer is another result"


def test_the_hash_is_that_of_the_weights_and_options(make_elmo, tmp_path):
    folder = tmp_path / "model"
    make_elmo(seed=1).save(folder)
    function = EmbedColumns(str(folder))
    code = (
        "import sys; from datasets.fingerprint import Hasher; from elmokit.integrations.datasets import EmbedColumns; "
        "print(Hasher.hash(EmbedColumns(sys.argv[1])))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    other = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True, env=environment
    )
    assert other.stdout.strip() == Hasher.hash(function)
    function({"text": ["a"]})
    assert Hasher.hash(function) == other.stdout.strip(), "use does not change it"
    assert Hasher.hash(EmbedColumns(str(folder), pool="max")) != Hasher.hash(function)
    make_elmo(seed=2).save(folder)
    assert Hasher.hash(EmbedColumns(str(folder))) != Hasher.hash(function)
    with pytest.raises(ElmoError, match="has changed"):
        pickle.loads(pickle.dumps(function))({"text": ["a"]})


def test_it_is_sent_to_a_process_without_the_model(model_folder):
    assert len(pickle.dumps(EmbedColumns(str(model_folder)))) < 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "body"}, "column must be one of text, label, got 'body'"),
        ({"output": "layers"}, "output must be one of"),
        ({"pool": "median"}, "pool must be one of"),
        ({"layer": 9}, "layer must be mix, top or 0 to 2, got 9"),
        ({"layer": "all"}, "layer must be mix, top or 0 to 2, got 'all'"),
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_wrong_options_are_named(dataset, model_folder, options, message):
    with pytest.raises(ElmoError, match=message):
        embed(dataset, **{"model": str(model_folder), **options})


@pytest.mark.parametrize("rows", [15, 0])
@pytest.mark.parametrize("removed", ["text", ["text", "label"], ["elmo"], None])
def test_columns_that_are_removed(dataset, model_folder, removed, rows):
    dataset = dataset.add_column("elmo", TEXTS).select(range(rows))
    found = embed(dataset, model=str(model_folder), remove_columns=removed)
    gone = [removed] if isinstance(removed, str) else removed or []
    assert set(found.column_names) == {"text", "label", "elmo"} - ({*gone} - {"elmo"})
    assert found.features["elmo"] == EmbedColumns(str(model_folder)).features["elmo"]
    assert len(found) == rows
    for name in {"text", "label"} - {*gone}:
        assert found[name][:] == dataset[name][:]


def test_an_arrow_table_is_a_batch_too(dataset, model_folder):
    found = embed(dataset.with_format("arrow"), model=str(model_folder)).with_format("numpy")
    np.testing.assert_array_equal(found["elmo"][:], Elmo.load(model_folder).encode(TEXTS, output="sentence"))


def test_a_row_without_text_is_named(model_folder):
    with pytest.raises(ElmoError, match="got None in row 1"):
        embed(Dataset.from_dict({"text": ["a", None]}), model=str(model_folder))


def test_without_datasets_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delitem(sys.modules, "elmokit.integrations.datasets")
    with pytest.raises(MissingExtraError, match=r"needs the package datasets.*elmokit\[datasets\]"):
        import_module("elmokit.integrations.datasets")


def test_the_page_prints_what_it_shows():
    run_page("datasets.md")
