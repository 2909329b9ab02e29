"""Prepared corpora share a folder: none disturbs another, each is found again, and none is stored silently."""

import io
import json
import logging
import os

import pytest

from elmokit.corpus import prepare as preparing
from elmokit.corpus.prepare import FOLDER_NAMES, prepare
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.errors import ElmoError
from elmokit.storage.atomic import disk_errors
from elmokit.storage.cache import remove_abandoned
from elmokit.storage.locks import folder_lock


@pytest.fixture
def shared(tmp_path):
    """The folder that corpora share."""
    return tmp_path / "shared"


def written(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def piped(monkeypatch, text, **options):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return prepare(["-"], workers=1, **options)


def test_two_corpora_in_one_folder(tmp_path, shared, monkeypatch):
    one, two = written(tmp_path / "one.txt", "a b\n"), written(tmp_path / "two.txt", "c d e\n")
    made = [
        prepare([one], folder=shared),
        prepare([two], folder=shared),
        prepare([one], folder=shared, segment="chars"),
    ]
    assert sorted(shared.iterdir()) == sorted(corpus.folder for corpus in made)
    assert [corpus.n_tokens for corpus in made] == [2, 3, 2]
    monkeypatch.setattr(preparing, "_build", None)  # reading a text again would fail
    again = [
        prepare([one], folder=shared),
        prepare([two], folder=shared),
        prepare([one], folder=shared, segment="chars"),
    ]
    assert [corpus.folder for corpus in again] == [corpus.folder for corpus in made]
    assert [corpus.content for corpus in again] == [corpus.content for corpus in made]


def test_what_else_is_in_the_folder_is_left_alone(tmp_path, shared):
    source = written(tmp_path / "text.txt", "a b\n")
    former = PreparedCorpus.from_sentences([["former"]], shared / "corpus")  # where --cache stored the only one before
    written(shared / "thesis.txt", "do not lose me")
    corpus = prepare([source], folder=shared)
    assert sorted(path.name for path in shared.iterdir()) == sorted([corpus.folder.name, "corpus", "thesis.txt"])
    assert list(corpus.type_texts())[3:] == ["a", "b"]
    assert PreparedCorpus.open(shared / "corpus").content == former.content
    inside = prepare([source], folder=shared / "corpus")  # where `elmo vocab --cache` stored it
    assert (inside.folder.parent, inside.content) == (shared / "corpus", corpus.content)


def test_the_only_one_of_a_folder_is_found_there(tmp_path, shared):
    corpus = prepare([written(tmp_path / "text.txt", "a b\n")], folder=shared)
    (shared / ".mine").touch()
    assert prepare([str(shared)]).folder == corpus.folder
    written(shared / "more.txt", "c\n")
    assert list(prepare([str(shared)], folder=tmp_path / "other").type_texts())[3:] == ["c"], "a folder of texts"
    (shared / "more.txt").unlink()
    prepare([str(tmp_path / "text.txt")], folder=shared, segment="chars")
    with pytest.raises(ElmoError, match="shared contains 2 prepared corpora: give the folder of one, such as "):
        prepare([str(shared)])


def test_sweeping_leaves_the_own_lock_alone(tmp_path, monkeypatch):
    """On some file systems a process may lock its own lock again, and loses it with the second one's end."""
    own, other = tmp_path / ("a" * 32), tmp_path / ("b" * 32)
    locks = [folder.with_name(f".{folder.name}.lock") for folder in (own, other)]
    monkeypatch.setattr("elmokit.storage.locks.lock_descriptor", lambda fd, blocking: True)
    with folder_lock(own, "", disk_errors):
        locks[1].touch()
        remove_abandoned(own, FOLDER_NAMES)
        assert [lock.exists() for lock in locks] == [True, False]


def test_half_a_corpus_is_built_again(tmp_path, shared):
    source = written(tmp_path / "text.txt", "a b\n")
    corpus = prepare([source], folder=shared)
    (corpus.folder / "corpus.json").unlink()
    assert prepare([source], folder=shared).content == corpus.content
    assert list(shared.iterdir()) == [corpus.folder]


def test_a_text_that_changes_is_reported_and_its_earlier_ones_stay(tmp_path, shared, caplog):
    source = written(tmp_path / "texts/one.txt", "a b\n")
    written(tmp_path / "other.txt", "x\n")
    first = [prepare([str(tmp_path / "texts")], folder=shared)]
    prepare([str(tmp_path / "other.txt")], folder=shared)
    prepare([str(tmp_path / "texts")], folder=shared, segment="chars")
    prepare([source], folder=shared)
    written(shared / ("0" * 32) / "corpus.json", "[]")
    written(shared / ("1" * 32) / "corpus.json", "{")
    assert caplog.messages == []
    written(tmp_path / "texts/two.txt", "c\n")  # a folder has changed when a file has come
    first.append(prepare([str(tmp_path / "texts")], folder=shared))
    (tmp_path / "other.txt").unlink()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    (said,) = caplog.messages
    assert said.startswith(f"{tmp_path}/texts has changed since it was prepared before; {shared} still contains")
    assert "1 folder with 0.0 MB in all" in said
    assert said.endswith(f"remove {first[0].folder.name} once no run needs it")
    prepare([str(tmp_path / "texts")], folder=shared)
    assert len(caplog.messages) == 1, "nothing was prepared"
    os.utime(source, ns=(1, 1))
    prepare([f"{tmp_path}/./texts"], folder=shared)
    assert f"2 folders with 0.0 MB in all, for the runs that began with it: remove {names_of(first)}" in caplog.text
    assert all(PreparedCorpus.open(corpus.folder).content == corpus.content for corpus in first)


def names_of(corpora):
    return ", ".join(sorted(corpus.folder.name for corpus in corpora))


def test_corpora_of_before_have_no_origin(tmp_path, shared, caplog):
    source = written(tmp_path / "text.txt", "a b\n")
    path = prepare([source], folder=shared).folder / "corpus.json"
    description = json.loads(path.read_text())
    del description["origin"]
    path.write_text(json.dumps(description))
    assert prepare([source], folder=shared).folder == path.parent
    written(tmp_path / "text.txt", "a b c\n")
    prepare([source], folder=shared)
    assert caplog.messages == []


def test_standard_input_is_named_after_what_was_read(shared, monkeypatch, caplog):
    first = piped(monkeypatch, "a b\n", folder=shared)
    assert first.fingerprint == first.content
    assert piped(monkeypatch, "a b\n", folder=shared).folder == first.folder
    assert list(shared.iterdir()) == [first.folder]
    skipping = piped(monkeypatch, "a b\n\n", folder=shared)
    assert (skipping.content, skipping.folder != first.folder) == (first.content, True)
    assert skipping.report.lines()[2:] == ["skipped 1 empty line: standard input:2"]
    assert "standard input has changed since" in caplog.text
    other = piped(monkeypatch, "c\n", folder=shared)
    assert sorted(shared.iterdir()) == sorted(corpus.folder for corpus in (first, skipping, other))


def test_a_damaged_one_from_standard_input_is_replaced(shared, monkeypatch):
    corpus = piped(monkeypatch, "a b\n", folder=shared)
    (corpus.folder / "tokens.bin").write_bytes(b"")
    again = piped(monkeypatch, "a b\n", folder=shared)
    assert (again.folder, again.tokens.tolist()) == (corpus.folder, [3, 4])
    assert list(shared.iterdir()) == [corpus.folder]
