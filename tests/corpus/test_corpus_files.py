"""What the CORPUS arguments name: in a fixed order, each file once, and what was left out is said."""

import bz2
import gzip
import lzma
import os
from pathlib import Path

import pytest

from elmokit.corpus.prepare import prepare
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.corpus.reading import find_inputs
from elmokit.corpus.report import Report
from elmokit.errors import ElmoError


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A folder of texts, and things that are none, as the current folder."""
    for name in ("b.txt", "a/x.txt", "a/deep/y.txt", "c.log", ".hidden.txt", ".git/config", "a/.secret/z.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}\n")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(*sources):
    report = Report()
    names = [Path(each.name).as_posix() for each in find_inputs(sources, report)]
    return names, report.skipped


def test_a_folder_in_the_order_of_names(tree):
    names, left_out = found(".")
    assert names == ["a/deep/y.txt", "a/x.txt", "b.txt", "c.log"]
    assert left_out == {"hidden": (3, ".git"), "not_text": (1, "picture.png")}
    assert found(str(tree))[0] == [str(tree / name) for name in names]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.txt", ["b.txt"]),
        ("*/*.txt", ["a/x.txt"]),
        ("**/*.txt", ["a/deep/y.txt", "a/x.txt", "b.txt"]),
        ("a/**/*.txt", ["a/deep/y.txt", "a/x.txt"]),
        ("a/**", ["a/deep/y.txt", "a/x.txt"]),
        ("**", ["a/deep/y.txt", "a/x.txt", "b.txt", "c.log"]),
        ("?", ["a/deep/y.txt", "a/x.txt"]),
        ("[bc].*", ["b.txt", "c.log"]),
        (".h*", [".hidden.txt"]),
        ("a/.secret/*", ["a/.secret/z.txt"]),
    ],
)
def test_patterns(tree, pattern, names):
    assert found(pattern)[0] == names
    assert found(str(tree / pattern))[0] == [str(tree / name) for name in names]


def test_arguments_keep_their_order(tree):
    assert found("c.log", "a", "b.txt")[0] == ["c.log", "a/deep/y.txt", "a/x.txt", "b.txt"]


def test_a_name_that_looks_like_a_pattern(tree):
    (tree / "[1].txt").write_text("one\n")
    (tree / "1.txt").write_text("other\n")
    assert found("[1].txt")[0] == ["[1].txt"]


def test_a_file_counts_once_however_it_is_reached(tree):
    (tree / "link.txt").symlink_to("b.txt")
    os.link("b.txt", "twin.txt")
    names, left_out = found("b.txt", "./b.txt", "*.txt")
    assert names == ["b.txt"]
    assert left_out["again"] == (4, "b.txt")


def test_a_folder_that_contains_itself(tree):
    (tree / "a/loop").symlink_to("..", target_is_directory=True)
    (tree / "a/self").symlink_to(".", target_is_directory=True)
    for source in (".", str(tree)):
        names, left_out = found(source)
        assert len(names) == 4
        assert left_out["loop"][0] == 2
    assert found("**/*.txt")[0] == ["a/deep/y.txt", "a/x.txt", "b.txt"]


def test_packed_files_are_looked_into(tree):
    for name, pack in {"t.gz": gzip.compress, "t.xz": lzma.compress, "t.bz2": bz2.compress}.items():
        (tree / "packed").mkdir(exist_ok=True)
        (tree / "packed" / name).write_bytes(pack(b"some text\n"))
        (tree / "packed" / f"binary-{name}").write_bytes(pack(b"\0\1\2"))
    names, left_out = found("packed")
    assert names == ["packed/t.bz2", "packed/t.gz", "packed/t.xz"]
    assert left_out == {"not_text": (3, "packed/binary-t.bz2")}


def test_files_that_are_not_text_are_left_out_unless_they_are_named(tree):
    (tree / "d").mkdir()
    (tree / "d/utf16.txt").write_text("wide\n", encoding="utf-16")
    (tree / "d/archive.zip").write_bytes(b"PK\x03\x04rest")
    (tree / "d/paper.pdf").write_bytes(b"%PDF-1.4\n")
    (tree / "d/latin1.txt").write_bytes(b"caf\xe9\n")
    (tree / "d/stray.txt").write_bytes("wörd ".encode() * 2000 + b"\0")
    (tree / "d/program").write_bytes(b"\x7fELF\xff" * 100 + b"\0")
    (tree / "d/wide").write_text("wide", encoding="utf-16-le")
    (tree / "d/empty").touch()
    assert found("d")[0] == ["d/empty", "d/latin1.txt", "d/stray.txt"]
    with pytest.raises(ElmoError, match=r"got a zip archive in d/archive\.zip: unpack it first"):
        prepare(["d/archive.zip"], folder=tree / "out")
    with pytest.raises(ElmoError, match="got UTF-16 text"):
        prepare(["d/utf16.txt"], folder=tree / "out")


def test_what_is_no_file_is_left_out(tree):
    os.mkfifo("a/pipe")
    assert found("a")[1]["special"] == (1, "a/pipe")
    with pytest.raises(ElmoError, match="a/pipe is neither a file nor a folder"):
        found("a/pipe")


def test_prepared_corpora_are_not_read_as_text(tree):
    PreparedCorpus.from_sentences([["x"]], tree / "a/prepared")
    names, left_out = found("a")
    assert names == ["a/deep/y.txt", "a/x.txt"]
    assert left_out["prepared"] == (1, "a/prepared")
    with pytest.raises(ElmoError, match="a/prepared is a prepared corpus"):
        found("a/prepared", "b.txt")


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([], "a list of sources is needed"),
        ("b.txt", "a list of sources is needed"),
        ([" "], "must not be empty"),
        (["missing.txt"], r"the corpus missing\.txt was not found"),
        (["*.nothing"], r"no file matches the pattern \*\.nothing"),
        (["a**/x"], r"(is not a pattern|no file matches)"),
        (["bare"], "no text was found in bare: a corpus is"),
        (["hidden"], r"no text was found in hidden \(left out 1 hidden file or folder: hidden/\.x\)"),
        (["a text " * 1000], r"the corpus 'a text a text .*…' cannot be found \("),
        (["~no-such-user/x"], "cannot be found"),
        (["-", "-"], "standard input can be read only once"),
        (["broken.txt"], r"cannot read broken\.txt of the corpus \(No such file"),
    ],
)
def test_mistakes_are_one_sentence(tree, sources, said):
    (tree / "bare").mkdir()
    (tree / "hidden").mkdir()
    (tree / "hidden/.x").touch()
    (tree / "broken.txt").symlink_to("nowhere")
    with pytest.raises(ElmoError, match=said) as caught:
        find_inputs(sources, Report())
    assert "\n" not in str(caught.value)


def test_an_unreadable_file_is_named(tree, monkeypatch):
    plain = Path.open

    def denied(self, *args, **kwargs):
        if self.name == "x.txt":
            raise PermissionError(13, "Permission denied")
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", denied)  # root, whom nothing is denied, runs tests too
    for source in ("a", "a/x.txt", "**/x.txt"):
        with pytest.raises(ElmoError, match=r"cannot read a/x\.txt of the corpus \(Permission denied\)"):
            found(source)
