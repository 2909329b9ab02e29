"""A line is what ends in a line feed, whatever the file is packed in and whatever bytes it contains."""

import bz2
import gzip
import io
import lzma
import os
import threading
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.corpus.lines import InputLines
from elmokit.errors import ElmoError

PACKERS = {
    "plain": bytes,
    "gz": gzip.compress,
    "xz": lambda data: lzma.compress(data, preset=0),  # its window is 256 KiB, the usual one 8 MiB
    "bz2": bz2.compress,
}


def lines_of(path):
    with InputLines(path) as lines:
        return list(lines)


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\n\r\nb\r", ["a", "", "b"]),
        (b"a\rb\r\r\n", ["a\rb\r"]),
        ("a\u2028b\x85c\x0bd\x0c\x1ce\n".encode(), ["a\u2028b\x85c\x0bd\x0c\x1ce"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", ["a", "\ufeffb"]),
        (b"\xef\xbb\xbf", [""]),
        (b"a\0b\n", ["a\0b"]),
        (b"BZh9 is a text\n", ["BZh9 is a text"]),
        ("日本語\n😀".encode(), ["日本語", "😀"]),
    ],
)
@pytest.mark.parametrize("packing", PACKERS)
def test_lines(tmp_path, data, lines, packing):
    (tmp_path / "any.name").write_bytes(PACKERS[packing](data))
    assert lines_of(tmp_path / "any.name") == lines
    assert lines_of(str(tmp_path / "any.name")) == lines


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\ufeff"))))
def test_any_text_comes_back(tmp_path_factory, lines):
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    assert lines_of(path) == lines


def test_archives_of_several_parts(tmp_path):
    for name in ("gz", "xz", "bz2"):
        (tmp_path / name).write_bytes(PACKERS[name](b"a\nb") + PACKERS[name](b"c\nd\n"))
        assert lines_of(tmp_path / name) == ["a", "bc", "d"]


def test_bad_bytes_are_counted(tmp_path):
    (tmp_path / "f").write_bytes(b"good\nb\xffd\nfine\n\xc3\n\xed\xa0\x80\n")
    with InputLines(tmp_path / "f") as lines:
        assert (lines.bad_lines, lines.first_bad_line) == (0, None)
        assert list(lines) == ["good", "b\ufffdd", "fine", "\ufffd", "\ufffd\ufffd\ufffd"]
        assert (lines.bad_lines, lines.first_bad_line) == (3, 2)


def test_what_cannot_be_read_is_one_sentence(tmp_path):
    with pytest.raises(ElmoError, match=r"cannot read the input .*missing\.txt \(No such file"):
        InputLines(tmp_path / "missing.txt")
    with pytest.raises(ElmoError, match=r"cannot read the input .* \(Is a directory\)"):
        InputLines(tmp_path)


@pytest.mark.parametrize("packing", ["gz", "xz", "bz2"])
def test_a_damaged_archive_is_one_sentence(tmp_path, packing):
    whole = PACKERS[packing](os.urandom(5_000).hex().encode())
    for damaged in (whole[:-20], whole[: len(whole) // 2], whole[:12], whole[:2000] + b"?" * 50 + whole[2050:]):
        (tmp_path / f"c.{packing}").write_bytes(damaged)
        with pytest.raises(ElmoError, match=rf"c\.{packing} is damaged after line"):
            lines_of(tmp_path / f"c.{packing}")


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"PK\x03\x04....", "zip"), ("a\n".encode("utf-16"), "UTF-16")],
)
def test_other_kinds_of_file_are_refused(tmp_path, data, said):
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(ElmoError, match=said):
        InputLines(tmp_path / "f")


@pytest.mark.parametrize("packing", PACKERS)
def test_standard_input_that_trickles_in(monkeypatch, packing):
    reading, writing = os.pipe()
    data = PACKERS[packing](b"one\ntwo\r\nthree")

    def trickle():
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            for place in range(len(data)):
                pipe.write(data[place : place + 1])

    thread = threading.Thread(target=trickle)
    thread.start()
    with os.fdopen(reading, "rb") as pipe:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(pipe))
        assert lines_of("-") == ["one", "two", "three"]
        assert not pipe.closed, "standard input is not ours to close"
        thread.join()


def test_a_line_is_given_before_the_pipe_ends(monkeypatch):
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb", buffering=0) as other_end:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(pipe))
        other_end.write(b"first line\nsec")
        with InputLines("-") as lines:
            assert next(lines) == "first line"


@pytest.mark.parametrize("packing", PACKERS)
def test_memory_does_not_grow_with_the_file(tmp_path, packing):
    (tmp_path / "f").write_bytes(PACKERS[packing](b"the same words again\n" * 200_000))
    tracemalloc.start()
    try:
        with InputLines(tmp_path / "f") as lines:
            assert sum(1 for _ in lines) == 200_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


@pytest.mark.parametrize("packing", PACKERS)
def test_a_line_that_would_fill_the_memory(tmp_path, packing, monkeypatch):
    monkeypatch.setattr("elmokit.text.packed.LONGEST_LINE", 1 << 16)
    (tmp_path / "f").write_bytes(PACKERS[packing](b"a short one\n" + b"x" * (1 << 16) + b"\n" + b"y" * (8 << 20)))
    tracemalloc.start()
    try:
        with InputLines(tmp_path / "f") as lines:
            assert len(next(lines)) == 11
            with pytest.raises(ElmoError, match=r"line 2 of .* must have at most 65,536 bytes"):
                next(lines)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


def test_an_xz_file_that_asks_for_a_window_of_a_gigabyte(tmp_path):
    data = bytearray(lzma.compress(b"words\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]))
    data[16] = 36
    data[20:24] = zlib.crc32(data[12:20]).to_bytes(4, "little")
    (tmp_path / "f").write_bytes(data)
    with (
        pytest.raises(ElmoError, match=r"damaged after line 0 \(Memory usage limit"),
        InputLines(tmp_path / "f") as lines,
    ):
        list(lines)


@pytest.mark.parametrize("after", [b"", bytes(4), bytes(4000), b"what is no xz at all"])
@pytest.mark.parametrize("between", [b"", bytes(4), bytes(4000)])
def test_xz_files_after_each_other(tmp_path, between, after):
    (tmp_path / "f").write_bytes(lzma.compress(b"a\n") + between + lzma.compress(b"b\n") + after)
    assert lines_of(tmp_path / "f") == ["a", "b"]
