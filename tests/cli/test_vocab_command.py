"""`elmo vocab`: the file it writes and what it says."""

import io
from pathlib import Path

import pytest

from elmokit import ElmoError
from elmokit.cli.vocab import VocabCommand


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_bytes(b"b a c a\n\nc \xff\nd a.\n")
    VocabCommand(corpus=[str(text)], output=tmp_path / "vocab.txt", segment="english", max_size=5).run()
    assert (tmp_path / "vocab.txt").read_text() == "<S>\n</S>\n<UNK>\na\nb\n"
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"read 1 file, {len(text.read_bytes())} bytes of text, 4 lines",
        "stored 2 sentences, 7 tokens, 8 types",
        f"skipped 1 empty line: {text}:2",
        f"skipped 1 line that is not UTF-8: {text}:3",
        f"wrote {tmp_path}/vocab.txt: 5 words, which cover 57.14% of the tokens",
    ]
    VocabCommand(corpus=[str(text)], output=tmp_path / "all.txt", cache=tmp_path / "prepared").run()
    (prepared,) = (tmp_path / "prepared").iterdir()
    VocabCommand(corpus=[str(prepared)], output=tmp_path / "again.txt").run()
    assert (tmp_path / "all.txt").read_text() == (tmp_path / "again.txt").read_text()


def test_progress_of_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("elmokit.progress._FIRST_SECONDS", 0)
    (tmp_path / "t").write_text("a b\n")
    VocabCommand(corpus=[str(tmp_path / "t")], output=tmp_path / "v").run()
    err = capsys.readouterr().err
    assert "preparing the corpus: 0 %, 0.0B of 4.0B, 0 tokens\n" in err
    assert "preparing the corpus: 100 %, 4.0B of 4.0B, " in err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    VocabCommand(corpus=[str(tmp_path / "t")], output=tmp_path / "v", max_tokens=9).run()
    assert "\rpreparing the corpus: 0 %" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"output": "."}, "output must be a file in a folder that exists, got ."),
        ({"output": "missing/vocab.txt"}, "output must be a file in a folder that exists"),
        ({"output": "text.txt"}, "output must not be a file that is read"),
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
        VocabCommand(**{"corpus": ["text.txt"], "output": Path("vocab.txt"), **changes}).run()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt"]


def test_standard_input_needs_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"b a\nb\n")))
    VocabCommand(corpus=["-"], output=tmp_path / "v").run()
    assert (tmp_path / "v").read_text().split() == ["<S>", "</S>", "<UNK>", "b", "a"]
