"""Files become sentences; what is skipped is counted with its first place."""

import bz2
import gzip
import io
import lzma
import sys
import tracemalloc
from importlib.util import find_spec

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elmokit.corpus import reading
from elmokit.corpus.reading import ReadingOptions, find_inputs, read_units, sentences_of
from elmokit.corpus.report import Report
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.text.tokens import word_splitter

HAS_ZSTD = sys.version_info >= (3, 14) or find_spec("zstandard") is not None


def zstd(data):
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.compress(data)
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


PACKERS = {
    "plain": bytes,
    "gz": gzip.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "bz2": bz2.compress,
    "zst": pytest.param(zstd, marks=pytest.mark.skipif(not HAS_ZSTD, reason="no package for zstd")),
}


def read(*sources, **settings):
    """The sentences of some files, and the report."""
    options = ReadingOptions(**settings)
    report = Report(max_tokens=options.max_tokens)
    inputs = find_inputs([str(source) for source in sources], report)
    report.files, tokenise = len(inputs), word_splitter(options.segment)
    units = read_units(inputs, paragraphs=options.paragraphs)
    sentences = [tokens for unit in units for tokens in sentences_of(unit, options, tokenise, report)]
    return sentences, report


def skipped(report):
    return {reason: (count, first.rpartition("/")[2]) for reason, (count, first) in report.skipped.items()}


@pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
def test_every_kind_of_file(tmp_path, pack):
    (tmp_path / "any.name").write_bytes(pack("\ufeffa b\r\n\n日本 c".encode()))
    sentences, report = read(tmp_path / "any.name")
    assert sentences == [["a", "b"], ["日本", "c"]]
    assert (report.files, report.n_lines, report.sentences, report.tokens) == (1, 3, 2, 4)
    assert report.bytes == len("a b\r\n\n日本 c".encode())


@pytest.mark.skipif(HAS_ZSTD, reason="a package for zstd is there")
def test_without_the_package_for_zstd(tmp_path):
    (tmp_path / "f.zst").write_bytes(b"\x28\xb5\x2f\xfd....")
    for source in (tmp_path, tmp_path / "f.zst"):
        with pytest.raises(MissingExtraError, match=r"pip install 'elmokit\[zstd\]'"):
            read(source)


@pytest.mark.parametrize("pack", list(PACKERS.values())[1:], ids=list(PACKERS)[1:])
def test_a_damaged_file_is_named(tmp_path, pack):
    lines = b"".join(b"%d more\n" % (number * 7919 % 100_003) for number in range(50_000))
    (tmp_path / "torn").write_bytes(pack(lines)[:-30])
    with pytest.raises(ElmoError, match=r"torn of the corpus is damaged after line [0-9,]+ \("):
        read(tmp_path / "torn")


def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a b\nc\n")))
    assert read("-")[0] == [["a", "b"], ["c"]]
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ElmoError, match="standard input is closed"):
        read("-")


def test_what_is_skipped_and_where(tmp_path):
    (tmp_path / "one.txt").write_bytes(b"good one\n\xff\xfe bad\nb\0d\n   \n1 2 3 4\n\n")  # binary, unless it is named
    (tmp_path / "two.txt").write_bytes(b"\n1 2 3\n1 2 3 4 5\n\xc3")
    sentences, report = read(tmp_path / "one.txt", tmp_path / "two.txt", max_tokens=3)
    assert sentences == [["good", "one"], ["1", "2", "3"]]
    assert skipped(report) == {
        "not_utf8": (2, "one.txt:2"),
        "nul": (1, "one.txt:3"),
        "empty": (3, "one.txt:4"),
        "too_long": (2, "one.txt:5"),
    }
    assert (report.files, report.n_lines, report.sentences, report.tokens) == (2, 10, 2, 5)
    reported = report.lines()
    assert reported[0] == f"read 2 files, {report.bytes} bytes of text, 10 lines"
    assert reported[1] == "stored 2 sentences, 5 tokens"
    assert reported[2].startswith(
        f"skipped 2 lines that are not UTF-8, the first at {tmp_path}/one.txt:2; these are 20%"
    )
    assert "iconv" in reported[2], "the whole text may have another encoding"
    report.n_lines = 100
    assert report.lines()[2] == f"skipped 2 lines that are not UTF-8, the first at {tmp_path}/one.txt:2"
    assert reported[3].startswith("skipped 1 line with NUL bytes")
    assert reported[5] == f"skipped 2 sentences of more than 3 tokens, the first at {tmp_path}/one.txt:5"


def test_paragraphs_between_blank_lines_are_joined(tmp_path):
    (tmp_path / "book.txt").write_bytes(
        b"\r\n \r\nIt was a dark\r\nnight. Rain\r\nfell.\r\n\r\n\t\r\nNo one\r\ncame.\xff\r\n\r\nThe end"
    )
    sentences, report = read(tmp_path / "book.txt", split="paragraph")
    assert [" ".join(tokens) for tokens in sentences] == ["It was a dark night.", "Rain fell.", "The end"]
    assert skipped(report) == {"not_utf8": (1, "book.txt:8")}
    assert report.n_lines == 11


def test_lines_as_paragraphs(tmp_path):
    (tmp_path / "wiki.txt").write_text("One here. Two there.\n\nThree\nfour.\n")
    sentences, report = read(tmp_path / "wiki.txt", split="line", segment="english")
    assert sentences == [["One", "here", "."], ["Two", "there", "."], ["Three"], ["four", "."]]
    assert skipped(report) == {"empty": (1, "wiki.txt:2")}


@pytest.mark.parametrize(
    ("segment", "text", "tokens"),
    [
        ("none", "don't  stop.", ["don't", "stop."]),
        ("english", "don't stop.", ["do", "n't", "stop", "."]),
        ("chars", "你好 ok", ["你", "好", "ok"]),
    ],
)
def test_segmenters(tmp_path, segment, text, tokens):
    (tmp_path / "t").write_text(text)
    assert read(tmp_path / "t", segment=segment)[0] == [tokens]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"segment": "klingon"}, "the segmenter must be one of"),
        ({"split": "page"}, "split must be one of none, line, paragraph, got 'page'"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
    ],
)
def test_settings_that_are_refused(settings, said):
    with pytest.raises(ElmoError, match=said):
        ReadingOptions(**settings)


text_files = st.lists(st.sampled_from([b"a", b"b c", b"", b" ", b"\n", b"\r\n", b"\n\n", b"\xff", b"d. E"])).map(
    b"".join
)


@example(b"aaaaaaa\na", "paragraph", 3)
@example(b"aaaa\n   \na", "paragraph", 3)
@example(b"aaaa\n   ", "paragraph", 3)
@example(b"aaaa\naaa", "paragraph", 3)
@settings(max_examples=300)
@given(text_files, st.sampled_from(["none", "line", "paragraph"]), st.sampled_from([3, 5, 1 << 24]))
def test_every_line_and_byte_is_counted_and_large_units_are_skipped(tmp_path_factory, data, split, largest):
    path = tmp_path_factory.getbasetemp() / "units.txt"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "LARGEST_UNIT", largest)
        _, report = read(path, split=split)
    assert report.n_lines == data.count(b"\n") + (data[-1:] not in (b"", b"\n"))
    assert report.bytes == len(data)
    if largest > len(data):
        assert "too_large" not in report.skipped
    elif split != "paragraph":
        assert report.skipped.get("too_large", (0, ""))[0] == sum(len(line) > largest for line in data.split(b"\n"))


@pytest.mark.parametrize("split", ["none", "paragraph"])
def test_a_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch, split):
    monkeypatch.setattr(reading, "LARGEST_UNIT", 1 << 18)
    (tmp_path / "t").write_bytes(b"first\n\n" + b"x y " * (1 << 20) + b"\n\nlast\n")
    tracemalloc.start()
    try:
        sentences, report = read(tmp_path / "t", split=split)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sentences == [["first"], ["last"]]
    assert skipped(report)["too_large"] == (1, "t:3")
    assert (report.n_lines, report.bytes) == (5, 7 + (4 << 20) + 7)
    assert peak < 3 << 20
