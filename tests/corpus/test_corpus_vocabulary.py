"""The vocabulary of a corpus: order, limits, and the file both ways; and the command that writes it."""

import io
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.commands.vocab import VocabRequest, run_vocab
from elmokit.corpus.prepared import PreparedCorpus, build_vocabulary, coverage, write_vocabulary
from elmokit.errors import ElmoError
from elmokit.text.vocab import Vocabulary

SPECIALS = ["<S>", "</S>", "<UNK>"]
SENTENCES = [["b", "a", "c", "a"], ["c", "d", "<UNK>", "<S>"], ["e", "d", "a"]]


@pytest.fixture
def corpus(tmp_path):
    """a three times, c and d twice, b and e once, and an <UNK> and an <S> of its own."""
    return PreparedCorpus.from_sentences(SENTENCES, tmp_path / "corpus")


@pytest.mark.parametrize(
    ("max_size", "min_count", "words"),
    [
        (None, 1, ["a", "c", "d", "b", "e"]),
        (8, 1, ["a", "c", "d", "b", "e"]),
        (7, 1, ["a", "c", "d", "b"]),
        (5, 1, ["a", "c"]),
        (None, 2, ["a", "c", "d"]),
        (4, 2, ["a"]),
        (None, 4, []),
    ],
)
def test_order_and_limits(corpus, max_size, min_count, words):
    assert list(build_vocabulary(corpus, max_size=max_size, min_count=min_count)) == SPECIALS + words


def test_limits_that_are_refused(corpus):
    with pytest.raises(ElmoError, match="max_size must be more than 3, the special words that it counts, got 3"):
        build_vocabulary(corpus, max_size=3, min_count=1)
    with pytest.raises(ElmoError, match="min_count must be at least 1, got 0"):
        build_vocabulary(corpus, max_size=None, min_count=0)


def test_coverage(corpus):
    assert coverage(corpus, build_vocabulary(corpus)) == 10 / 11
    assert coverage(corpus, build_vocabulary(corpus, max_size=4)) == 4 / 11
    assert coverage(PreparedCorpus.from_sentences([], corpus.folder), Vocabulary(SPECIALS)) == 0


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3) | st.sampled_from(
    ["!!!MAXTERMID", "\u3000", "\ufeff", "\r", "<S>"]
)


@settings(max_examples=20)
@given(st.lists(st.lists(words, max_size=5)))
def test_the_file_gives_it_back(tmp_path_factory, sentences):
    folder = tmp_path_factory.getbasetemp()
    vocabulary = build_vocabulary(PreparedCorpus.from_sentences(sentences, folder / "vocabulary-corpus"))
    write_vocabulary(vocabulary, folder / "vocab.txt")
    assert Vocabulary.from_text((folder / "vocab.txt").read_bytes().decode()) == vocabulary
    counts = Counter(word for tokens in sentences for word in tokens)
    falling = [counts[word] for word in vocabulary][3:]
    assert falling == sorted(falling, reverse=True)


def test_a_vocabulary_without_unknown_is_not_written(tmp_path):
    with pytest.raises(ElmoError, match="needs the entry <UNK>"):
        write_vocabulary(Vocabulary(["<S>", "</S>", "a"]), tmp_path / "vocab.txt")
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_bytes(b"b a c a\n\nc \xff\nd a.\n")
    run_vocab(VocabRequest(corpus=[str(text)], output=tmp_path / "vocab.txt", segment="english", max_size=5))
    assert (tmp_path / "vocab.txt").read_text() == "<S>\n</S>\n<UNK>\na\nb\n"
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"read 1 file, {len(text.read_bytes())} bytes of text, 4 lines",
        "kept 2 sentences, 7 tokens, 8 types",
        f"skipped 1 empty line: {text}:2",
        f"skipped 1 line that is not UTF-8: {text}:3",
        f"wrote {tmp_path}/vocab.txt: 5 words, which cover 57.14% of the tokens",
    ]
    run_vocab(VocabRequest(corpus=[str(text)], output=tmp_path / "all.txt", cache=tmp_path / "prepared"))
    (prepared,) = (tmp_path / "prepared").iterdir()
    run_vocab(VocabRequest(corpus=[str(prepared)], output=tmp_path / "again.txt"))
    assert (tmp_path / "all.txt").read_text() == (tmp_path / "again.txt").read_text()


def test_progress_of_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("elmokit.corpus.report._LOG_SECONDS", 0.0)
    monkeypatch.setattr("elmokit.corpus.report._BAR_AFTER_SECONDS", 0.0)
    (tmp_path / "t").write_text("a b\n")
    run_vocab(VocabRequest(corpus=[str(tmp_path / "t")], output=tmp_path / "v"))
    assert capsys.readouterr().err.startswith("preparing the corpus: 1 sentence, 2 tokens (100%)\n")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    run_vocab(VocabRequest(corpus=[str(tmp_path / "t")], output=tmp_path / "v", max_tokens=9))
    assert "preparing the corpus: 100%" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"output": "."}, "is a folder: name a file in it"),
        ({"output": "missing/vocab.txt"}, "make the folder first"),
        ({"output": "text.txt"}, "--output must not be a file of the corpus"),
        ({"max_size": 3}, "--max-size must be more than 3"),
        ({"corpus": ["nothing.txt"]}, r"nothing\.txt was not found"),
    ],
)
def test_mistakes_show_before_anything_is_read(tmp_path, monkeypatch, changes, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ELMOKIT_CACHE", "cache")
    (tmp_path / "text.txt").write_text("a\n")
    changes = {name: Path(value) if name == "output" else value for name, value in changes.items()}
    with pytest.raises(ElmoError, match=said):
        run_vocab(VocabRequest(**{"corpus": ["text.txt"], "output": Path("vocab.txt"), **changes}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt"]


def test_standard_input_needs_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"b a\nb\n")))
    run_vocab(VocabRequest(corpus=["-"], output=tmp_path / "v"))
    assert (tmp_path / "v").read_text().split() == ["<S>", "</S>", "<UNK>", "b", "a"]
