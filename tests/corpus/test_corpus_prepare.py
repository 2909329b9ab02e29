"""A prepared corpus contains what was read, is found again, and is never half there."""

import gc
import gzip
import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.corpus import prepare as preparing
from elmokit.corpus.encoding import encode_sentences
from elmokit.corpus.prepare import prepare
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.corpus.report import Report
from elmokit.errors import ElmoError
from support.refusals import full_disk

TEXT = "a b a\n\nc a <UNK> é\n<S> b\n"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The cache folder of each test."""
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "corpora"


@pytest.fixture
def source(tmp_path):
    """A small text."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def sentences(corpus):
    texts = list(corpus.type_texts())
    starts = [0, *corpus.ends][: corpus.n_sentences]
    return [
        [texts[place] for place in corpus.tokens[start:end]] for start, end in zip(starts, corpus.ends, strict=True)
    ]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_in_it(source, tmp_path):
    corpus = prepare([str(source)], folder=tmp_path / "out")
    assert corpus.folder == tmp_path / "out" / corpus.fingerprint
    assert sorted(path.name for path in corpus.folder.iterdir()) == [
        "corpus.json",
        "counts.bin",
        "ends.bin",
        "tokens.bin",
        "type_ends.bin",
        "types.bin",
    ]
    assert list(corpus.type_texts()) == ["<S>", "</S>", "<UNK>", "a", "b", "c", "é"]
    assert [corpus.type_text(place) for place in range(7)] == list(corpus.type_texts())
    assert corpus.tokens.tolist() == [3, 4, 3, 5, 3, 2, 6, 0, 4]
    assert corpus.ends.tolist() == [3, 7, 9]
    assert corpus.counts.tolist() == [1, 0, 1, 3, 2, 1, 1]
    assert (corpus.n_sentences, corpus.n_tokens, corpus.n_types) == (3, 9, 7)
    assert [array.dtype for array in (corpus.tokens, corpus.ends, corpus.counts, corpus.type_ends)] == [
        np.uint32,
        np.int64,
        np.int64,
        np.int64,
    ]
    assert isinstance(corpus.tokens, np.memmap)
    assert not corpus.tokens.flags.writeable
    assert corpus.settings == {"segment": "none", "split": "none", "max_tokens": 1000, "max_types": 5_000_000}
    assert corpus.report.lines() == [
        f"read 1 file, {len(TEXT.encode())} bytes of text, 4 lines",
        "stored 3 sentences, 9 tokens, 7 types",
        f"skipped 1 empty line: {source}:2",
    ]
    for wrong in (-1, 7):
        with pytest.raises(IndexError):
            corpus.type_text(wrong)


def test_types_beyond_the_limit_are_unknown(source, tmp_path):
    corpus = prepare([str(source)], folder=tmp_path / "out", max_types=5)
    assert list(corpus.type_texts()) == ["<S>", "</S>", "<UNK>", "a", "b"]
    assert corpus.tokens.tolist() == [3, 4, 3, 2, 3, 2, 2, 0, 4]
    assert corpus.counts.tolist() == [1, 0, 3, 3, 2]
    assert corpus.report.unlisted == 2
    assert corpus.report.lines()[-1].startswith("wrote 2 tokens as <UNK>: the list of 5 types was full")
    with pytest.raises(ElmoError, match="max_types must be at least 3, the number of special types, got 2"):
        prepare([str(source)], folder=tmp_path / "other", max_types=2)


def test_a_chunk_leaves_nothing_in_memory():
    def left() -> int:
        gc.collect()
        encode_sentences([["a", "b"]], Report())
        return gc.collect()

    gc.disable()
    try:
        assert min(left() for _ in range(5)) == 0  # other threads may leave something now and then
    finally:
        gc.enable()


def test_it_is_found_again(source, cache, monkeypatch):
    first = prepare([str(source)])
    assert first.folder == cache / first.fingerprint
    assert sorted(path.name for path in cache.iterdir()) == [first.fingerprint]
    monkeypatch.setattr(preparing, "_build", None)  # reading the text again would fail
    monkeypatch.chdir(source.parent)
    again = prepare([source.name], workers=7)
    assert (again.folder, again.report, again.content) == (first.folder, first.report, first.content)
    assert prepare([str(first.folder)], segment="chars").folder == first.folder


def test_what_makes_it_another(source, tmp_path):
    def fingerprint(**settings):
        return prepare([str(source)], **settings).fingerprint

    plain = fingerprint()
    others = [
        fingerprint(segment="english"),
        fingerprint(split="line"),
        fingerprint(split="paragraph"),
        fingerprint(max_tokens=9),
        fingerprint(max_types=9),
    ]
    before = source.stat()
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    others.append(fingerprint())
    source.write_text(TEXT + "more\n")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    others.append(fingerprint())
    (tmp_path / "moved.txt").write_text(TEXT)
    os.utime(tmp_path / "moved.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
    moved = prepare([str(tmp_path / "moved.txt")])
    assert len({plain, moved.fingerprint, *others}) == 9
    source.write_text(TEXT)
    assert moved.content == prepare([str(source)]).content


def test_a_folder_by_another_name(source, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real", target_is_directory=True)
    assert prepare([str(source)], folder=tmp_path / "link").folder.parent == tmp_path / "real"
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert prepare([str(source)], folder=".").folder.parent == tmp_path / "here"


def test_a_folder_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    kept = PreparedCorpus.from_sentences([["a"]], tmp_path / "out")
    plain, refused = Path.rename, []

    def failing(self, target):
        if self.name.endswith(".tmp") and not refused:  # the new one; the old one is brought back after it
            refused.append(self)
            raise PermissionError(13, "Permission denied")
        return plain(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ElmoError, match=r"out cannot be written \(Permission denied\)"):
        PreparedCorpus.from_sentences([["b"]], tmp_path / "out")
    assert PreparedCorpus.open(tmp_path / "out").content == kept.content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


@pytest.mark.parametrize("damage", ["description", "short", "missing", "version"])
def test_a_damaged_corpus_is_built_again(source, damage):
    corpus = prepare([str(source)])
    content = files(corpus.folder)
    description = corpus.folder / "corpus.json"
    if damage == "description":
        description.write_text("{")
    elif damage == "version":
        description.write_text(json.dumps({**json.loads(description.read_text()), "version": 0}))
    elif damage == "short":
        (corpus.folder / "tokens.bin").write_bytes(b"1234")
    else:
        (corpus.folder / "ends.bin").unlink()
    with pytest.raises(ElmoError) as caught:
        PreparedCorpus.open(corpus.folder)
    assert "\n" not in str(caught.value)
    assert str(corpus.folder) in str(caught.value)
    assert files(prepare([str(source)]).folder) == content


def test_what_is_no_prepared_corpus(tmp_path, source):
    with pytest.raises(ElmoError, match=r"is not a prepared corpus: it has no corpus\.json"):
        PreparedCorpus.open(tmp_path)
    (tmp_path / "corpus.json").write_text("[]")
    with pytest.raises(ElmoError, match="does not describe a prepared corpus"):
        PreparedCorpus.open(tmp_path)
    for folder in (source, source / "below"):
        with pytest.raises(ElmoError, match=r"the prepared corpus .* cannot be written .*: name another folder"):
            prepare([str(source)], folder=folder)


@pytest.mark.parametrize(
    "change", [{"tokens": "many"}, {"types": -1}, {"report": []}, {"settings": ...}, {"content": ...}]
)
def test_a_description_that_is_damaged(tmp_path, source, change):
    folder = prepare([str(source)], folder=tmp_path / "corpora").folder
    described = {**json.loads((folder / "corpus.json").read_text()), **change}
    (folder / "corpus.json").write_text(
        json.dumps({name: value for name, value in described.items() if value is not ...})
    )
    with pytest.raises(ElmoError, match="prepare the corpus again"):
        PreparedCorpus.open(folder)


@pytest.mark.parametrize("text", ["", "\n \n", "\ufeff"])
def test_an_empty_corpus_is_refused_and_leaves_nothing(tmp_path, cache, text):
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    with pytest.raises(ElmoError, match=r"text\.txt has no sentence to read"):
        prepare([str(tmp_path / "text.txt")])
    assert list(cache.iterdir()) == []


def test_a_shard_that_breaks_off_leaves_nothing_and_takes_nothing(tmp_path, source, cache):
    kept = prepare([str(source)], folder=tmp_path / "out")
    (tmp_path / "shard.gz").write_bytes(gzip.compress(os.urandom(9999))[:-99])
    with pytest.raises(ElmoError, match=r"shard\.gz of the corpus is damaged"):
        prepare([str(source), str(tmp_path / "shard.gz")], folder=tmp_path / "out")
    assert PreparedCorpus.open(kept.folder).content == kept.content
    assert list((tmp_path / "out").iterdir()) == [kept.folder]


def test_a_file_that_changes_while_it_is_read(source, cache):
    def change(progress):
        source.write_text("other")

    with pytest.raises(ElmoError, match=r"text\.txt changed while it was read"):
        prepare([str(source)], on_progress=change)
    assert list(cache.iterdir()) == []


def test_standard_input_needs_a_folder():
    with pytest.raises(ElmoError, match="standard input needs a folder"):
        prepare(["-"])


def test_progress(tmp_path, monkeypatch):
    (tmp_path / "t").write_text("a b c\n" * 1000)
    monkeypatch.setattr("elmokit.corpus.encoding._CHUNK_BYTES", 600)
    seen = []
    prepare([str(tmp_path / "t")], on_progress=seen.append)
    assert len(seen) == 11
    assert seen[-1] == (6000, 6000, 1000, 3000)
    assert [each.tokens for each in seen] == [300 * number for number in range(11)]


def test_memory_does_not_grow_with_the_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr("elmokit.corpus.encoding._CHUNK_BYTES", 1 << 14)
    peaks = []
    for size in (10_000, 10_000, 60_000):  # the first time also counts what is made once
        (tmp_path / "t").write_text("the same words again\n" * size)
        tracemalloc.start()
        try:
            prepare([str(tmp_path / "t")], folder=tmp_path / "out", workers=1)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[2] < 1.2 * peaks[1]


@pytest.mark.parametrize("size", [0, 5, 30, 60, 300])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(source, tmp_path, cache, monkeypatch, size):
    kept = prepare([str(source)], folder=tmp_path / "out", segment="chars")
    for folder in (tmp_path / "out", None):
        with (
            full_disk(size, monkeypatch),
            pytest.raises(ElmoError, match="no space is left on the disk for the prepared corpus"),
        ):
            prepare([str(source)], folder=folder)
    assert list(cache.iterdir()) == []
    assert PreparedCorpus.open(kept.folder).content == kept.content
    assert list((tmp_path / "out").iterdir()) == [kept.folder]


def test_from_sentences(tmp_path):
    corpus = PreparedCorpus.from_sentences([["a", "b"], [], ["</S>", "a"]], tmp_path / "out")
    assert sentences(corpus) == [["a", "b"], ["</S>", "a"]]
    assert corpus.counts.tolist() == [0, 1, 0, 2, 1]
    assert corpus.fingerprint == corpus.content
    assert corpus.report.lines()[1:] == [
        "stored 2 sentences, 4 tokens, 5 types",
        "skipped 1 empty line: sentence 2",
    ]
    empty = PreparedCorpus.from_sentences([], tmp_path / "empty")
    assert (empty.n_sentences, empty.n_tokens, empty.n_types) == (0, 0, 3)
    assert sentences(empty) == []
    with pytest.raises(ElmoError, match="UTF-8 can encode"):
        PreparedCorpus.from_sentences([["\ud800"]], tmp_path / "surrogate")
    assert not (tmp_path / "surrogate").exists()


@settings(max_examples=20)
@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1)))
def test_any_sentences_come_back(tmp_path_factory, given_sentences):
    corpus = PreparedCorpus.from_sentences(given_sentences, tmp_path_factory.getbasetemp() / "any")
    assert sentences(corpus) == given_sentences
    assert corpus.counts.tolist() == np.bincount(corpus.tokens, minlength=corpus.n_types).tolist()
