"""An index: its rows are the tokens they say, searched as a plain product would, built again and again the same."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elmokit import ElmoError
from elmokit.analyse import index as index_module
from elmokit.analyse import index_builder
from elmokit.analyse.choice import Choice
from elmokit.analyse.index import OccurrenceIndex, normalised
from elmokit.analyse.index_builder import build_index
from elmokit.storage.array_file import OffsetFile
from support.topic_model import TopicModel, prepared, sentences, vectors_of


def files_of(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_every_row_is_the_token_it_says(index) -> None:
    rows = sentences()
    assert len(index) == sum(map(len, rows))
    assert len(index.rows_of("bank")) == 60
    for row in range(len(index)):
        occurrence = index.occurrence(row)
        assert list(occurrence.tokens) == rows[occurrence.sentence]
        expected = normalised(vectors_of(list(occurrence.tokens)))[occurrence.position]
        assert index.vectors_of(np.array([row]))[0] == pytest.approx(expected, abs=0.01)
    for word in ("bank", "river", "x", "."):
        assert {index.occurrence(row).word for row in index.rows_of(word).tolist()} == {word}
    assert len(index.rows_of("zebra")) == 0
    assert len(index.rows_of("BANK", ignore_case=True)) == 60


def test_a_real_model(tmp_path, make_elmo) -> None:
    elmo = make_elmo()
    corpus = prepared(tmp_path / "corpus")
    for layer, name in (("mix", "mix"), ("top", 2), (1, 1)):
        index = build_index(elmo, corpus, tmp_path / f"index-{layer}", layer=layer, choice=Choice(("bank",)))
        assert index.description["layer"] == name
        for row in (0, 31, 59):
            occurrence = index.occurrence(row)
            vector = elmo.encode([list(occurrence.tokens)], layer=layer)[0][occurrence.position]
            assert index.vectors_of(np.array([row]))[0] == pytest.approx(normalised(vector), abs=0.01)


def test_only_sentences_with_the_word_are_encoded(tmp_path) -> None:
    elmo = TopicModel()
    rows = [*sentences(), ["nothing", "here"]]
    index = build_index(elmo, prepared(tmp_path / "corpus", rows), tmp_path / "index", choice=Choice(("word3", "here")))
    assert elmo.encoded == index.text.n_sentences == 9 + 1
    assert [index.occurrence(row).word for row in range(len(index))] == ["word3"] * 9 + ["here"]


def test_search_is_that_of_a_plain_product(index) -> None:
    query = vectors_of(["the", "river", "bank"])[2]
    cosines = normalised(np.stack([index.vectors_of(np.arange(len(index)))]))[0] @ normalised(query)
    rows, found = index.search(query, 7)
    assert found == pytest.approx(np.sort(cosines)[::-1][:7], abs=1e-5)
    assert cosines[rows] == pytest.approx(found, abs=1e-5)
    among, _ = index.search(query, 5, rows=index.rows_of("word3"))
    assert set(among.tolist()) <= set(index.rows_of("word3").tolist())
    with pytest.raises(ElmoError, match="vectors of 16 numbers"):
        index.search(query[:5])


def test_the_first_look_finds_what_an_exact_search_finds(tmp_path, monkeypatch, index) -> None:
    monkeypatch.setattr(index_module, "COARSE_FROM_ROWS", 10)
    monkeypatch.setattr(index_module, "COARSE_SIZE", 8)
    monkeypatch.setattr(index_builder, "_ROWS_AT_ONCE", 50)
    monkeypatch.setattr(index_module, "CANDIDATES", 60)
    quick = build_index(TopicModel(), prepared(tmp_path / "corpus"), tmp_path / "quick")
    assert index.coarse is None
    assert quick.coarse is not None
    assert quick.coarse[1].shape == (len(index), 8)
    hits = 0
    for row in range(0, len(quick), 20):
        query = quick.vectors_of(np.array([row]))[0]
        found, exact = quick.search(query, 5)[0], quick.search(query, 5, exact=True)[0]
        assert exact.tolist() == index.search(query, 5)[0].tolist()
        hits += len(set(found.tolist()) & set(exact.tolist())) / 5
    assert hits / len(range(0, len(quick), 20)) > 0.9


def test_names_in_place_of_a_model_or_a_corpus(tmp_path) -> None:
    with pytest.raises(ElmoError, match="got 'en'"):
        build_index("en", prepared(tmp_path / "corpus"), tmp_path / "index")
    with pytest.raises(ElmoError, match="got 'text"):
        build_index(TopicModel(), "text.txt", tmp_path / "index")


def test_the_second_time_nothing_is_encoded(tmp_path, index) -> None:
    again = TopicModel()
    corpus = prepared(tmp_path / "corpus")
    assert len(build_index(again, corpus, tmp_path / "index")) == len(index)
    assert again.encoded == 0


@pytest.mark.parametrize("broken_after", [0, 1, 23, 60])
def test_an_interrupted_build_goes_on(tmp_path, monkeypatch, index, broken_after) -> None:
    monkeypatch.setattr(index_builder, "_BUFFER_BYTES", 2000)
    monkeypatch.setattr(index_builder, "_SYNC_SECONDS", -1.0)
    corpus = prepared(tmp_path / "corpus")
    if broken_after < 60:
        with pytest.raises(KeyboardInterrupt):
            build_index(TopicModel(broken_after), corpus, tmp_path / "second")
    else:  # as if the power failed just before the folder got its name
        with monkeypatch.context() as patch:
            patch.setattr(index_builder, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                build_index(TopicModel(), corpus, tmp_path / "second")
    assert not (tmp_path / "second").exists()
    rest = TopicModel()
    build_index(rest, corpus, tmp_path / "second")
    assert rest.encoded == 60 - broken_after
    assert files_of(tmp_path / "second") == files_of(tmp_path / "index")
    assert not list(tmp_path.glob(".second*"))


def test_what_another_plan_left_is_not_gone_on_with(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(index_builder, "_BUFFER_BYTES", 2000)
    monkeypatch.setattr(index_builder, "_SYNC_SECONDS", -1.0)
    corpus = prepared(tmp_path / "corpus")
    with pytest.raises(KeyboardInterrupt):
        build_index(TopicModel(30), corpus, tmp_path / "second", layer=1)
    rest = TopicModel()
    build_index(rest, corpus, tmp_path / "second")
    assert rest.encoded == 60


def test_a_full_disk_is_reported_and_the_build_continues(tmp_path, monkeypatch) -> None:
    corpus = prepared(tmp_path / "corpus")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
        with pytest.raises(ElmoError, match=r"needs 0.1 GB and the disk has 0.0 GB: lower max_occurrences"):
            build_index(TopicModel(), corpus, tmp_path / "second")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(OffsetFile, "write", full)
        with pytest.raises(ElmoError, match=r"no space is left on the disk for the index .*second: free some"):
            build_index(TopicModel(), corpus, tmp_path / "second")
    assert len(build_index(TopicModel(), corpus, tmp_path / "second")) > 60


def test_folders_that_are_refused(tmp_path, index) -> None:
    corpus = prepared(tmp_path / "corpus")
    with pytest.raises(ElmoError, match="is an index of another model, corpus or choice"):
        build_index(TopicModel(), corpus, tmp_path / "index", layer=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ElmoError, match="has files in it"):
        build_index(TopicModel(), corpus, tmp_path / "mine")
    with pytest.raises(ElmoError, match=r"the index .* cannot be written"):
        build_index(TopicModel(), corpus, tmp_path / "mine" / "thesis.tex" / "index")
    with pytest.raises(ElmoError, match=r"thesis.tex is a file"):
        build_index(TopicModel(), corpus, tmp_path / "mine" / "thesis.tex")
    for folder in ("mine", "nothing"):
        with pytest.raises(ElmoError, match=r"it has no index.json") as raised:
            OccurrenceIndex.open(tmp_path / folder)
        assert "remove" not in str(raised.value)  # it is not ours


def test_damage_is_reported(index) -> None:
    path = index.folder / "vectors.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ElmoError, match=r"vectors.bin must have [\d,]+ bytes, got"):
        OccurrenceIndex.open(index.folder)
    with pytest.raises(ElmoError, match=r"vectors.bin must have [\d,]+ bytes, got"):
        build_index(TopicModel(), prepared(index.folder.parent / "corpus"), index.folder)
    described = json.loads((index.folder / "index.json").read_text())
    for wrong, said in (
        ({"version": 99}, "version 99"),
        ({"format": "zip"}, "does not describe"),
        ({"rows": None}, "is damaged"),
    ):
        (index.folder / "index.json").write_text(json.dumps({**described, **wrong}))
        with pytest.raises(ElmoError, match=said):
            OccurrenceIndex.open(index.folder)
    (index.folder / "index.json").write_text("{")
    with pytest.raises(ElmoError, match=r"index.json is damaged"):
        OccurrenceIndex.open(index.folder)


@pytest.mark.parametrize("name", ["words.bin", "text/tokens.bin", "text/types.bin", "text/corpus.json"])
def test_numbers_that_lead_nowhere(index, name) -> None:
    (index.folder / name).write_bytes(b"\xff" * (index.folder / name).stat().st_size)

    def look() -> None:
        damaged = OccurrenceIndex.open(index.folder)
        for row in damaged.rows_of("bank").tolist():
            damaged.occurrence(row)

    with pytest.raises(ElmoError, match=r"is damaged|cannot be read"):
        look()


def test_words_that_are_not_there(tmp_path) -> None:
    corpus = prepared(tmp_path / "corpus")
    for choice, said in (
        (Choice(("zebra",)), "zebra does not occur in the .* tokens of the text"),
        (Choice(("Bank",)), "Bank does not occur .*, but bank does: set ignore_case"),
        (Choice(("bank",), min_count=61), "bank does not occur 61 times or more"),
        (Choice(min_count=1000), "no word occurs 1,000 times or more"),
    ):
        with pytest.raises(ElmoError, match=said):
            build_index(TopicModel(), corpus, tmp_path / "second", choice=choice)
    assert not (tmp_path / "second").exists()


def test_models_that_are_refused(tmp_path, make_elmo) -> None:
    corpus = prepared(tmp_path / "corpus")
    for arguments in ({"boundaries": True}, {"state": "carry"}):
        with pytest.raises(ElmoError, match="boundaries="):
            build_index(make_elmo(**arguments), corpus, tmp_path / "second")
    with pytest.raises(ElmoError, match="mix, top or a number from 0 to 2, got 3"):
        build_index(TopicModel(), corpus, tmp_path / "second", layer=3)


def test_what_is_done_is_noted_where_the_stream_asks_for_more(tmp_path, monkeypatch, index) -> None:
    """A model computes some sentences at once: only after all of them does a new run make the same batches."""
    monkeypatch.setattr(index_builder, "_SYNC_SECONDS", -1.0)

    class InTens(TopicModel):
        def stream(self, sentences: Iterable[list[str]], **others: Any) -> Iterator[np.ndarray]:
            given = iter(sentences)
            while some := list(islice(given, 10)):
                yield from list(super().stream(some, **others))[: 7 if self.encoded == 20 else 10]
                if self.encoded == 20:
                    raise KeyboardInterrupt

    corpus = prepared(tmp_path / "corpus")
    with pytest.raises(KeyboardInterrupt):
        build_index(InTens(), corpus, tmp_path / "second")
    rest = TopicModel()
    build_index(rest, corpus, tmp_path / "second")
    assert rest.encoded == 50
    assert files_of(tmp_path / "second") == files_of(tmp_path / "index")


@pytest.mark.parametrize("name", ["state.json", "vectors.bin", "scales.bin", "tokens.bin", "text", "coarse.bin"])
def test_links_in_a_half_built_index_are_refused(tmp_path, name) -> None:
    """Another user may have planted them where several can write."""
    (tmp_path / "target").write_text("precious")
    (tmp_path / ".index.partial").mkdir()
    (tmp_path / ".index.partial" / name).symlink_to(tmp_path / "target")
    with pytest.raises(ElmoError, match=str(tmp_path / ".index.partial" / name)):
        build_index(TopicModel(), prepared(tmp_path / "corpus"), tmp_path / "index", choice=Choice(("bank",)))
    assert (tmp_path / "target").read_text() == "precious"


def test_a_half_built_index_of_another_user_is_refused(tmp_path, give_away) -> None:
    (tmp_path / ".index.partial").mkdir(mode=0o755)
    give_away(tmp_path / ".index.partial")
    with pytest.raises(ElmoError, match="belongs to another user"):
        build_index(TopicModel(), prepared(tmp_path / "corpus"), tmp_path / "index", choice=Choice(("bank",)))
