"""ElmoVectorizer in scikit-learn: pipelines, grid searches, clones, pickles, and vectors computed once."""

import pickle
import sys
from importlib import import_module

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from elmokit import Elmo, ElmoError
from elmokit.errors import MissingExtraError
from elmokit.integrations import sklearn as vectorizers
from elmokit.integrations.sklearn import ElmoVectorizer
from support.tiny_models import transformer_config

TEXTS = ["the river bank", "money of the bank", "a river", "the money", "river of a river", "money money"] * 2
LABELS = [0, 1, 0, 1, 0, 1] * 2


@pytest.fixture(autouse=True)
def _fresh():
    vectorizers.forget()
    yield
    vectorizers.forget()


@pytest.fixture
def embedded(monkeypatch):
    """How many sentences went through a model, one number a call."""
    counts = []
    plain = Elmo.layers_of

    def layers_of(self, sentences, *others):
        counts.append(len(sentences))
        return plain(self, sentences, *others)

    monkeypatch.setattr(Elmo, "layers_of", layers_of)
    return counts


def test_a_wrong_name_is_reported_as_it_was_given():
    for wrong in ("EN", "no/such"):
        with pytest.raises(ElmoError, match=f"^{wrong} does not exist") as refused:
            ElmoVectorizer(wrong).fit(TEXTS)
        assert ("en-lstm" in str(refused.value)) == (wrong == "EN"), "the bundled models are named too"


def test_vectors_are_those_of_encode(model_folder, make_elmo):
    elmo = Elmo.load(model_folder)
    texts = ["the river bank", ["money", "of"], "", "a"]
    for layer in ("mix", "top", 1, np.int64(0)):
        for pool in ("mean", "max", "first", "last"):
            found = ElmoVectorizer(model_folder, layer=layer, pool=pool).fit_transform(texts)
            np.testing.assert_array_equal(found, elmo.encode(texts, output="sentence", layer=layer, pool=pool))
            assert found.dtype == np.float32
    for model in (elmo, make_elmo(transformer_config())):
        usual = ElmoVectorizer(model, layer=None).fit_transform(texts)
        np.testing.assert_array_equal(usual, model.encode(texts, output="sentence"))
    all_layers = ElmoVectorizer(elmo, layer="all").transform(texts)
    expected = elmo.encode(texts, output="sentence", layer="all")
    np.testing.assert_array_equal(all_layers, expected.reshape(4, -1))


def test_a_grid_search_embeds_each_text_once(model_folder, embedded):
    pipeline = Pipeline([("elmo", ElmoVectorizer(model_folder)), ("classifier", LogisticRegression())])
    search = GridSearchCV(pipeline, {"classifier__C": [0.1, 1, 10]}, cv=3, error_score="raise").fit(TEXTS, LABELS)
    assert sum(embedded) == len(set(TEXTS))
    assert search.score(TEXTS, LABELS) == 1
    grid = {"elmo__layer": ["mix", "top", "all", *np.arange(3)], "elmo__pool": ["mean", "max"]}
    GridSearchCV(pipeline, grid, cv=2, error_score="raise").fit(TEXTS, LABELS)
    assert sum(embedded) == 4 * len(set(TEXTS)), "the mix and all layers, each pool once; the first is known already"


def test_without_a_model_it_is_the_bundled_one(model_folder, monkeypatch):
    monkeypatch.setattr("elmokit.formats.bundled.FOLDER", model_folder.parent)
    monkeypatch.setattr("elmokit.integrations.sklearn.DEFAULT", model_folder.name)
    for given in (None, model_folder.name):
        found = ElmoVectorizer(given).transform(TEXTS)
        np.testing.assert_array_equal(found, ElmoVectorizer(model_folder).transform(TEXTS))


def test_a_grid_search_in_two_processes(model_folder):
    pipeline = make_pipeline(ElmoVectorizer(model_folder), LogisticRegression())
    search = GridSearchCV(pipeline, {"logisticregression__C": [0.1, 10]}, cv=2, n_jobs=2, error_score="raise")
    assert search.fit(TEXTS, LABELS).score(TEXTS, LABELS) == 1


def test_a_pickle_contains_no_model(model_folder):
    pipeline = make_pipeline(ElmoVectorizer(model_folder), LogisticRegression()).fit(TEXTS, LABELS)
    stored = pickle.dumps(pipeline)
    assert len(stored) < (model_folder / "model.safetensors").stat().st_size
    vectorizers.forget()
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again.predict_proba(TEXTS), pipeline.predict_proba(TEXTS))


def test_an_elmo_is_shared_by_clones_and_travels_in_a_pickle(make_elmo):
    elmo = make_elmo()
    vectorizer = ElmoVectorizer(elmo, pool="max")
    copy = clone(vectorizer)
    assert copy is not vectorizer
    assert copy.model is elmo
    assert copy.pool == "max"
    again = pickle.loads(pickle.dumps(vectorizer))
    vectorizers.forget()
    np.testing.assert_array_equal(again.transform(TEXTS), vectorizer.transform(TEXTS))


def test_an_elmo_that_was_trained_gives_new_vectors(make_elmo):
    elmo = make_elmo()
    vectorizer = ElmoVectorizer(elmo)
    before = vectorizer.transform(TEXTS)
    for parameter in elmo.parameters():
        parameter.data.mul_(1.1)
    after = vectorizer.transform(TEXTS)
    assert not np.allclose(before, after)
    np.testing.assert_array_equal(after, elmo.encode(TEXTS, output="sentence"))


def test_a_mix_that_was_trained_gives_new_vectors(make_elmo):
    elmo = make_elmo()
    before = ElmoVectorizer(elmo).transform(TEXTS)
    with torch.no_grad():
        elmo.mixes[0].weights[0] += 1
    assert not np.allclose(ElmoVectorizer(elmo).transform(TEXTS), before)


def test_models_that_do_not_fit_are_separate_or_refused(make_elmo):
    plain, bounded = make_elmo(), make_elmo(boundaries=True)
    assert not np.allclose(ElmoVectorizer(plain).transform(TEXTS), ElmoVectorizer(bounded).transform(TEXTS))
    with pytest.raises(ElmoError, match="state='zero'"):
        ElmoVectorizer(make_elmo(state="carry")).fit(TEXTS)


def test_a_model_that_was_written_again_is_read_again(tmp_path, make_elmo):
    make_elmo(seed=1).save(tmp_path / "model")
    before = ElmoVectorizer(tmp_path / "model").transform(TEXTS)
    make_elmo(seed=2).save(tmp_path / "model")
    assert not np.allclose(ElmoVectorizer(tmp_path / "model").transform(TEXTS), before)


def test_parameters_and_names(model_folder):
    vectorizer = ElmoVectorizer(model_folder).set_params(layer="all", pool="max")
    assert vectorizer.get_params() == {
        "model": model_folder, "layer": "all", "pool": "max", "segment": None, "batch_tokens": None, "device": None,
        "cache": None,
    }  # fmt: skip
    names = vectorizer.get_feature_names_out()
    assert names[0] == "elmo_layer0_0"
    assert len(set(names)) == vectorizer.transform(TEXTS).shape[1] == len(names)
    assert list(vectorizer.set_params(layer="top").get_feature_names_out()[:2]) == ["elmo_0", "elmo_1"]
    check_is_fitted(vectorizer)
    with pytest.raises(NotFittedError):
        check_is_fitted(LogisticRegression())


def test_columns_of_any_kind(model_folder):
    vectorizer = ElmoVectorizer(model_folder)
    expected = vectorizer.transform(TEXTS)
    for given in (tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, object), np.array(TEXTS)[:, None], iter(TEXTS)):
        np.testing.assert_array_equal(vectorizer.transform(given), expected)
    np.testing.assert_array_equal(vectorizer.transform([text.split() for text in TEXTS]), expected)
    assert vectorizer.transform([]).shape == (0, expected.shape[1])
    assert ElmoVectorizer(model_folder, layer="all").transform([]).shape == (0, 3 * expected.shape[1])


def test_texts_that_would_be_lost_are_refused(model_folder):
    vectorizer = ElmoVectorizer(model_folder)
    with pytest.raises(ElmoError, match="got list_iterator"):
        vectorizer.fit_transform(iter(TEXTS))
    with pytest.raises(ElmoError, match="got dict"):
        vectorizer.transform({"text": TEXTS})


def test_a_pandas_series(model_folder):
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(TEXTS, index=range(10, 10 + len(TEXTS)))
    np.testing.assert_array_equal(
        ElmoVectorizer(model_folder).transform(series), ElmoVectorizer(model_folder).transform(TEXTS)
    )


def test_segmentation(make_elmo):
    elmo = make_elmo()
    english = ElmoVectorizer(elmo, segment="english").transform(["The bank, of money."])
    np.testing.assert_array_equal(english, elmo.encode([["The", "bank", ",", "of", "money", "."]], output="sentence"))
    elmo = make_elmo(segment="chars")
    np.testing.assert_array_equal(
        ElmoVectorizer(elmo).transform(["河岸"]), elmo.encode([["河", "岸"]], output="sentence")
    )


def test_a_cache_serves_other_processes(tmp_path, model_folder, embedded):
    cache = tmp_path / "vectors"
    first = ElmoVectorizer(model_folder, cache=cache).transform(TEXTS)
    known = sum(embedded)
    vectorizers.forget()  # as a new process would begin
    again = ElmoVectorizer(model_folder, cache=str(cache)).transform([*TEXTS, "new words"])
    np.testing.assert_array_equal(again[:-1], first)
    assert sum(embedded) == known + 1
    vectorizers.forget()
    ElmoVectorizer(model_folder, cache=cache, pool="max").transform(TEXTS)
    assert sum(embedded) == 2 * known + 1, "another pool is another vector"
    for layer in ("all", "top", 1):
        vectorizers.forget()
        ElmoVectorizer(model_folder, cache=cache, layer=layer).transform(TEXTS)
    assert sum(embedded) == 3 * known + 1, "all layers are stored at once"


def test_a_killed_run_loses_one_file_at_most(tmp_path, model_folder, monkeypatch, embedded):
    monkeypatch.setattr(vectorizers, "_IN_A_FILE", 2)
    with monkeypatch.context() as patch:
        plain = vectorizers.VectorStore._add
        patch.setattr(vectorizers.VectorStore, "_add", lambda *given: plain(*given) if len(embedded) < 3 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ElmoVectorizer(model_folder, cache=tmp_path / "vectors").transform(TEXTS)
    assert sum(embedded) == 6
    embedded.clear()
    vectorizers.forget()
    found = ElmoVectorizer(model_folder, cache=tmp_path / "vectors").transform(TEXTS)
    assert sum(embedded) == 2
    np.testing.assert_array_equal(found, Elmo.load(model_folder).encode(TEXTS, output="sentence"))


def test_a_cache_that_cannot_be_used_is_named(tmp_path, model_folder):
    other = tmp_path / "thesis.txt"
    other.write_bytes(b"not a cache")
    with pytest.raises(ElmoError, match=r"thesis\.txt.* cannot be written"):
        ElmoVectorizer(model_folder, cache=other / "vectors").transform(TEXTS)
    assert other.read_bytes() == b"not a cache"


def test_memory_is_bounded(model_folder, monkeypatch, embedded):
    size = ElmoVectorizer(model_folder).transform(TEXTS[:1]).nbytes
    vectorizers.forget()
    monkeypatch.setattr(vectorizers._recent, "most_bytes", 3 * size)
    vectorizer = ElmoVectorizer(model_folder)
    expected = Elmo.load(model_folder).encode(TEXTS, output="sentence")
    np.testing.assert_array_equal(vectorizer.transform(TEXTS), expected)
    embedded.clear()
    vectorizer.transform(TEXTS[3:6])
    assert sum(embedded) == 0
    vectorizer.transform(TEXTS[:1])
    assert sum(embedded) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 7}, "layer must be mix, top, all or 0 to 2, got 7"),
        ({"layer": "second"}, "layer must be mix"),
        ({"pool": "median"}, "pool must be one of"),
        ({"pool": None}, "pool must be one of mean, max, first, last, got None"),
        ({"segment": "words"}, "the segmenter must be one of"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1"),
        ({"model": "/nowhere/at/all"}, "/nowhere/at/all"),
    ],
)
def test_wrong_arguments_show_in_fit(model_folder, arguments, message):
    with pytest.raises(ElmoError, match=message):
        ElmoVectorizer(**{"model": model_folder, **arguments}).fit(TEXTS)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "a list of texts, got str"),
        (7, "a list of texts, got int"),
        (["a", None], "got None at position 1"),
        (["a", float("nan")], "got nan at position 1"),
        ([["a", 3]], "at position 0"),
        (np.array([["a", "b"]]), "one column of texts, got 2"),
    ],
)
def test_what_is_no_column_of_texts_is_named(model_folder, texts, message):
    for method in (ElmoVectorizer(model_folder).fit, ElmoVectorizer(model_folder).transform):
        with pytest.raises(ElmoError, match=message):
            method(texts)


@pytest.mark.parametrize(
    "check",
    [
        "check_estimator_cloneable",
        "check_estimator_repr",
        "check_estimator_tags_renamed",
        "check_valid_tag_types",
        "check_no_attributes_set_in_init",
        "check_parameters_default_constructible",
        "check_get_params_invariance",
        "check_set_params",
        "check_mixin_order",
    ],
)
def test_scikit_learns_own_checks(check):
    """Those for estimators of any input; the others feed numbers."""
    getattr(estimator_checks, check)("ElmoVectorizer", ElmoVectorizer())


def test_without_scikit_learn_the_message_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)  # as good as not installed
    monkeypatch.delitem(sys.modules, "elmokit.integrations.sklearn")
    with pytest.raises(MissingExtraError, match=r"ElmoVectorizer needs the package scikit-learn.*elmokit\[tasks\]"):
        import_module("elmokit.integrations.sklearn")
