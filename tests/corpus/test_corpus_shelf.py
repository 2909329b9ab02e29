"""Prepared corpora share a folder: none disturbs another, each is found again, and none is kept in silence."""

import io
import json
import logging
import os

import pytest

from elmokit.corpus import prepare as preparing
from elmokit.corpus.prepare import prepare
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.corpus.shelf import NAMES
from elmokit.errors import ElmoError
from elmokit.storage.atomic import disk_errors
from elmokit.storage.cache import remove_abandoned
from elmokit.storage.locks import folder_lock


@pytest.fixture
def shelf(tmp_path):
    """The folder that corpora share."""
    return tmp_path / "shelf"


def written(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def piped(monkeypatch, text, **options):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return prepare(["-"], workers=1, **options)


def test_two_corpora_in_one_folder(tmp_path, shelf, monkeypatch):
    one, two = written(tmp_path / "one.txt", "a b\n"), written(tmp_path / "two.txt", "c d e\n")
    made = [prepare([one], folder=shelf), prepare([two], folder=shelf), prepare([one], folder=shelf, segment="chars")]
    assert sorted(shelf.iterdir()) == sorted(corpus.folder for corpus in made)
    assert [corpus.n_tokens for corpus in made] == [2, 3, 2]
    monkeypatch.setattr(preparing, "_build", None)  # reading a text again would fail
    again = [prepare([one], folder=shelf), prepare([two], folder=shelf), prepare([one], folder=shelf, segment="chars")]
    assert [corpus.folder for corpus in again] == [corpus.folder for corpus in made]
    assert [corpus.content for corpus in again] == [corpus.content for corpus in made]


def test_what_else_is_in_the_folder_is_left_alone(tmp_path, shelf):
    source = written(tmp_path / "text.txt", "a b\n")
    former = PreparedCorpus.from_sentences([["former"]], shelf / "corpus")  # where --cache kept the only one before
    written(shelf / "thesis.txt", "do not lose me")
    corpus = prepare([source], folder=shelf)
    assert sorted(path.name for path in shelf.iterdir()) == sorted([corpus.folder.name, "corpus", "thesis.txt"])
    assert list(corpus.type_texts())[3:] == ["a", "b"]
    assert PreparedCorpus.open(shelf / "corpus").content == former.content
    inside = prepare([source], folder=shelf / "corpus")  # where `elmo vocab --cache` kept it
    assert (inside.folder.parent, inside.content) == (shelf / "corpus", corpus.content)


def test_the_only_one_of_a_folder_is_found_there(tmp_path, shelf):
    corpus = prepare([written(tmp_path / "text.txt", "a b\n")], folder=shelf)
    (shelf / ".mine").touch()
    assert prepare([str(shelf)]).folder == corpus.folder
    written(shelf / "more.txt", "c\n")
    assert list(prepare([str(shelf)], folder=tmp_path / "other").type_texts())[3:] == ["c"], "a folder of texts"
    (shelf / "more.txt").unlink()
    prepare([str(tmp_path / "text.txt")], folder=shelf, segment="chars")
    with pytest.raises(ElmoError, match="shelf keeps 2 prepared corpora: give the folder of one, such as "):
        prepare([str(shelf)])


def test_sweeping_leaves_the_own_lock_alone(tmp_path, monkeypatch):
    """On some file systems a process may lock its own lock again, and loses it with the second one's end."""
    own, other = tmp_path / ("a" * 32), tmp_path / ("b" * 32)
    locks = [folder.with_name(f".{folder.name}.lock") for folder in (own, other)]
    monkeypatch.setattr("elmokit.storage.locks.lock_descriptor", lambda fd, blocking: True)
    with folder_lock(own, "", disk_errors):
        locks[1].touch()
        remove_abandoned(own, NAMES)
        assert [lock.exists() for lock in locks] == [True, False]


def test_half_a_corpus_is_built_anew(tmp_path, shelf):
    source = written(tmp_path / "text.txt", "a b\n")
    corpus = prepare([source], folder=shelf)
    (corpus.folder / "corpus.json").unlink()
    assert prepare([source], folder=shelf).content == corpus.content
    assert list(shelf.iterdir()) == [corpus.folder]


def test_a_text_that_changes_is_told_of_and_its_earlier_ones_stay(tmp_path, shelf, caplog):
    source = written(tmp_path / "texts/one.txt", "a b\n")
    written(tmp_path / "other.txt", "x\n")
    first = [prepare([str(tmp_path / "texts")], folder=shelf)]
    prepare([str(tmp_path / "other.txt")], folder=shelf)
    prepare([str(tmp_path / "texts")], folder=shelf, segment="chars")
    prepare([source], folder=shelf)
    written(shelf / ("0" * 32) / "corpus.json", "[]")
    written(shelf / ("1" * 32) / "corpus.json", "{")
    assert caplog.messages == []
    written(tmp_path / "texts/two.txt", "c\n")  # a folder has changed when a file has come
    first.append(prepare([str(tmp_path / "texts")], folder=shelf))
    (tmp_path / "other.txt").unlink()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path}/texts has changed since it was prepared before; {shelf} keeps")
    assert "1 folder with 0.0 MB in all" in said
    assert said.endswith(f"remove {first[0].folder.name} once no run needs it")
    prepare([str(tmp_path / "texts")], folder=shelf)
    assert len(caplog.messages) == 1, "nothing was prepared"
    os.utime(source, ns=(1, 1))
    prepare([f"{tmp_path}/./texts"], folder=shelf)
    assert f"2 folders with 0.0 MB in all, for the runs that began with it: remove {names_of(first)}" in caplog.text
    assert all(PreparedCorpus.open(corpus.folder).content == corpus.content for corpus in first)


def names_of(corpora):
    return ", ".join(sorted(corpus.folder.name for corpus in corpora))


def test_corpora_of_before_have_no_origin(tmp_path, shelf, caplog):
    source = written(tmp_path / "text.txt", "a b\n")
    path = prepare([source], folder=shelf).folder / "corpus.json"
    description = json.loads(path.read_text())
    del description["origin"]
    path.write_text(json.dumps(description))
    assert prepare([source], folder=shelf).folder == path.parent
    written(tmp_path / "text.txt", "a b c\n")
    prepare([source], folder=shelf)
    assert caplog.messages == []


def test_standard_input_is_named_after_what_was_read(shelf, monkeypatch, caplog):
    first = piped(monkeypatch, "a b\n", folder=shelf)
    assert first.fingerprint == first.content
    assert piped(monkeypatch, "a b\n", folder=shelf).folder == first.folder
    assert list(shelf.iterdir()) == [first.folder]
    skipping = piped(monkeypatch, "a b\n\n", folder=shelf)
    assert (skipping.content, skipping.folder != first.folder) == (first.content, True)
    assert skipping.report.lines()[2:] == ["skipped 1 empty line: standard input:2"]
    assert "standard input has changed since" in caplog.text
    other = piped(monkeypatch, "c\n", folder=shelf)
    assert sorted(shelf.iterdir()) == sorted(corpus.folder for corpus in (first, skipping, other))


def test_a_damaged_one_from_standard_input_is_replaced(shelf, monkeypatch):
    corpus = piped(monkeypatch, "a b\n", folder=shelf)
    (corpus.folder / "tokens.bin").write_bytes(b"")
    again = piped(monkeypatch, "a b\n", folder=shelf)
    assert (again.folder, again.tokens.tolist()) == (corpus.folder, [3, 4])
    assert list(shelf.iterdir()) == [corpus.folder]
