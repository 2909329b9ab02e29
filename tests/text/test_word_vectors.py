"""Static word vectors come to the vocabulary by word, whatever the file's format, and bad files end in a sentence."""

import bz2
import gzip
import io
import lzma
import os
import threading
import tracemalloc
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import ElmoError
from elmokit.text.vocab import Vocabulary
from elmokit.text.word_vectors import VectorFile, align, write_word2vec


def read_word_vectors(path: Path, wanted) -> SimpleNamespace:
    with VectorFile(path) as file:
        rows = dict(file.rows(wanted))
    return SimpleNamespace(
        rows=rows, size=file.size, format=file.format, n_words=file.n_words, n_unreadable=file.n_unreadable
    )


VECTORS = {
    "the": [0.25, -1.5, 3.0],
    "bank": [1e-3, 0.0, -2.0],
    "Río": [4.0, 5.0, 6.0],
    "银行": [-7.0, 8.5, 0.125],
    "\xa0": [1.0, 1.0, 1.0],
    "a\u2028b": [2.0, 2.0, 2.0],
    "\x85": [3.0, 3.0, 3.0],
}
SPACED = {"New York": [9.0, 9.0, 9.0], ". . .": [8.0, 8.0, 8.0], "1 000": [7.0, 7.0, 7.0]}


def lines_of(vectors, *, end="\n"):
    return "".join(f"{word} {' '.join(map(str, row))}{end}" for word, row in vectors.items())


def glove(vectors):
    return lines_of(vectors).encode()


def text(vectors):
    return f"{len(vectors)} {len(next(iter(vectors.values())))}\n{lines_of(vectors)}".encode()


def text_of_word2vec(vectors):
    """As its own program writes: a space after the last number."""
    return f"{len(vectors)} 3\n{lines_of(vectors, end=' ' + chr(10))}".encode()


def binary(vectors, *, line_ends=True):
    size = len(next(iter(vectors.values())))
    rows = [word.encode() + b" " + np.array(row, "<f4").tobytes() for word, row in vectors.items()]
    return f"{len(vectors)} {size}\n".encode() + b"".join(row + b"\n" * line_ends for row in rows)


WRITERS = {
    "GloVe": glove,
    "word2vec text": text,
    "word2vec's own text": text_of_word2vec,
    "binary with line ends": binary,
    "binary without": lambda vectors: binary(vectors, line_ends=False),
}
FORMATS = ["GloVe", "word2vec text", "word2vec text", "word2vec binary", "word2vec binary"]


def packed_zip(data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vectors.txt", data)
    return buffer.getvalue()


PACKERS = {"plain": bytes, "gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "zip": packed_zip}


def saved(tmp_path, data, name="any.name"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def same(rows, vectors):
    assert list(rows) == list(vectors)
    for word, row in rows.items():
        assert row.dtype == np.float32
        np.testing.assert_array_equal(row, np.array(vectors[word], np.float32))


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize(("writer", "kind"), [*zip(WRITERS, FORMATS, strict=True)])
def test_every_format_in_every_packing(tmp_path, writer, kind, packing):
    path = saved(tmp_path, PACKERS[packing](WRITERS[writer](VECTORS)))
    vectors = read_word_vectors(path, lambda word: True)
    assert (vectors.format, vectors.size, vectors.n_words, vectors.n_unreadable) == (kind, 3, 7, 0)
    same(vectors.rows, VECTORS)


@pytest.mark.parametrize("writer", WRITERS)
def test_only_wanted_words_are_read(tmp_path, writer):
    vectors = read_word_vectors(saved(tmp_path, WRITERS[writer](VECTORS)), {"银行", "the", "absent"})
    same(vectors.rows, {word: VECTORS[word] for word in ("the", "银行")})
    assert vectors.n_words == 7


@pytest.mark.parametrize("writer", [glove, text, text_of_word2vec])
def test_words_with_spaces(tmp_path, writer):
    vectors = read_word_vectors(saved(tmp_path, writer(VECTORS | SPACED)), lambda word: True)
    same(vectors.rows, VECTORS | SPACED)


def test_a_first_word_that_looks_like_numbers_does_not_widen_the_vectors(tmp_path):
    vectors = {"1 000": [1.0, 2.0], "the": [3.0, 4.0], "of": [5.0, 6.0]}
    same(read_word_vectors(saved(tmp_path, glove(vectors)), lambda word: True).rows, vectors)


def test_dot_vec_is_called_fasttext(tmp_path):
    for name in ("cc.en.300.vec", "wiki.VEC.gz"):
        data = text(VECTORS) if name.endswith("vec") else gzip.compress(text(VECTORS))
        with VectorFile(saved(tmp_path, data, name)) as file:
            assert (file.format, file.size) == ("fastText", 3)


def test_line_ends_of_windows_a_mark_tabs_and_blank_lines(tmp_path):
    data = "\ufeff" + lines_of(VECTORS, end="\r\n") + "\r\n" + "tab\t1\t2\t3\nwide  4   5    6\n\n"
    rows = read_word_vectors(saved(tmp_path, data.encode()), lambda word: True).rows
    same(rows, VECTORS | {"tab": [1, 2, 3], "wide": [4, 5, 6]})
    header = ("\ufeff2 3\r\na 1 2 3\r\nb 4 5 6\r\n").encode()
    same(read_word_vectors(saved(tmp_path, header), lambda word: True).rows, {"a": [1, 2, 3], "b": [4, 5, 6]})


@pytest.mark.parametrize(
    "data",
    [
        b"a 1 2\nb 3 4\na 5 6\n",
        b"3 2\na 1 2\nb 3 4\na 5 6\n",
        b"3 2\na " + np.array([1, 2], "<f4").tobytes() + b"b \0\0\0\0\0\0\0\0a " + np.array([5, 6], "<f4").tobytes(),
    ],
)
def test_of_equal_words_the_first_counts(tmp_path, data):
    assert read_word_vectors(saved(tmp_path, data), lambda word: True).rows["a"].tolist() == [1, 2]


def test_words_that_are_not_utf8_are_counted(tmp_path):
    vectors = read_word_vectors(saved(tmp_path, b"caf\xe9 1 2\nthe 3 4\n"), lambda word: True)
    assert (list(vectors.rows), vectors.n_words, vectors.n_unreadable) == (["the"], 2, 1)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=" \ufeff"), min_size=1, max_size=8),
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4),
        min_size=1,
    ),
    st.sampled_from(sorted(WRITERS)),
)
def test_any_words_come_back(tmp_path_factory, vectors, writer):
    if writer == "word2vec's own text":
        writer = "word2vec text"
    path = saved(tmp_path_factory.getbasetemp(), WRITERS[writer](vectors), "property")
    same(read_word_vectors(path, lambda word: True).rows, vectors)


def test_binary_records_across_blocks(tmp_path):
    """More than one block of 4 MiB, and vectors whose bytes look like spaces and line ends."""
    rows = np.random.default_rng(0).normal(size=(5000, 300)).astype("<f4")
    rows[1::7] = np.frombuffer(b" \n \n", "<f4")
    vectors = {f"w{number}": row for number, row in enumerate(rows)}
    for line_ends in (True, False):
        path = saved(tmp_path, binary(vectors, line_ends=line_ends))
        same(read_word_vectors(path, {f"w{number}" for number in range(5000)}).rows, vectors)


def test_small_vectors_whose_bytes_look_like_text(tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 20, 1)).astype("<f4")
    for sample in rows:
        vectors = {f"w{number}": row for number, row in enumerate(sample)}
        same(read_word_vectors(saved(tmp_path, binary(vectors)), lambda word: True).rows, vectors)


def test_memory_does_not_grow_with_the_file(tmp_path):
    path = tmp_path / "big.txt"
    row = " ".join(["0.123456"] * 100)
    with path.open("w") as file:
        for number in range(20_000):
            file.write(f"w{number} {row}\n")
    assert path.stat().st_size > 18_000_000
    tracemalloc.start()
    try:
        read_word_vectors(path, {"w7"})
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a thing of POSIX")
def test_a_pipe_that_delivers_in_pieces(tmp_path):
    data = gzip.compress(binary(VECTORS))
    os.mkfifo(tmp_path / "pipe")

    def deliver():
        with (tmp_path / "pipe").open("wb", buffering=0) as pipe:
            for start in range(0, len(data), 7):
                pipe.write(data[start : start + 7])

    thread = threading.Thread(target=deliver)
    thread.start()
    try:
        same(read_word_vectors(tmp_path / "pipe", lambda word: True).rows, VECTORS)
    finally:
        thread.join()


DAMAGED = {
    "empty": (b"", "any.name is empty and contains no word vectors: get it again"),
    "blank": (b"\n \n", "is empty"),
    "prose": (b"The bank raised rates .\nIt rained .\n", "is not a file of word vectors"),
    "one number": (b"12\n", "is not a file of word vectors"),
    "no words promised": (b"0 300\n", "got 0 words of 300"),
    "no numbers promised": (b"300 0\n", "got 300 words of 0"),
    "short line": (b"a 1 2 3\nb 1 2\n", "line 2 is damaged: it must be a word and 3 numbers"),
    "short line under a header": (b"2 3\na 1 2 3\nb 1 2\n", "line 3 is damaged"),
    "first line under a header": (b"2 3\nhello world\nb 1 2 3\n", "line 2 is damaged"),
    "joined lines": (glove({f"w{n}": [float(n)] * 30 for n in range(20)}).replace(b"\nw7", b"w7"), "line 7 is damaged"),
    "a word among the numbers": (b"a 1 2 3\nb 1 x 3\n", "line 2 is damaged"),
    "decimal commas": (b"a 1 2 3\nb 1 2 0,5\n", "line 2 is damaged"),
    "nan": (b"a 1 2 3\nb 1 nan 3\n", "line 2: the vector of 'b' has a value that is not a finite number"),
    "infinite": (b"a 1 2 3\nb 1 -inf 3\n", "not a finite number"),
    "beyond float32": (b"a 1 2 3\nb 1 2 1e60\n", "not a finite number"),
    "nan in binary": (binary({"a": [1, 2], "b": [3, float("nan")]}), "word 2: the vector of 'b' has"),
    "too few lines": (b"3 2\na 1 2\nb 3 4\n", "announces 3 words and it has 2: get it again"),
    "too few records": (binary(VECTORS).replace(b"7 3", b"9 3"), "announces 9 words and it has 7"),
    "cut in a vector": (binary(VECTORS, line_ends=False)[:-1], "cut short or damaged at word 7 of 7"),
    "cut in a word": (binary(VECTORS, line_ends=False)[:-14], "cut short or damaged at word 7 of 7"),
    "another width": (binary(VECTORS).replace(b"7 3", b"7 2"), "cut short or damaged at word"),
    "packed and cut": (gzip.compress(glove(VECTORS))[:-12], "cannot be read"),
    "packed and flipped": (gzip.compress(glove(VECTORS) * 100)[:-9] + b"x" * 9, "cannot be read"),
    "zip of two": (None, "must contain one file of word vectors, got 2: unpack it"),
    "zip with another packing": (packed_zip(glove(VECTORS)).replace(b"\x14\0\0\0\x08", b"\x14\0\0\0\x61"), "cannot be"),
    "broken zip": (b"PK\x03\x04 nothing", "cannot be read"),
    "fastText .bin": (b"\xba\x16\x4f\x2f\x0c\0\0\0", "a fastText .bin model in .*: give the .vec"),
    "pickle": (b"\x80\x04\x95", "save_word2vec_format"),
    "numpy": (b"\x93NUMPY\x01\0", "an array without words"),
    "UTF-16": ("the 1 2".encode("utf-16"), "iconv"),
    "packed fastText .bin": (gzip.compress(b"\xba\x16\x4f\x2f\x0c\0\0\0"), "fastText .bin"),
    "an image": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR 1 2\n", "is not a file of word vectors"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_one_sentence(tmp_path, case):
    data, message = DAMAGED[case]
    if data is None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("50d.txt", glove(VECTORS))
            archive.writestr("100d.txt", glove(VECTORS))
        data = buffer.getvalue()
    with pytest.raises(ElmoError, match=message) as raised:
        read_word_vectors(saved(tmp_path, data), lambda word: True)
    assert "any.name" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_path_that_is_no_file(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(ElmoError, match=f"cannot read the input {path} "):
            read_word_vectors(path, {"the"})


def test_damage_in_words_nobody_wants_is_no_matter(tmp_path):
    same(read_word_vectors(saved(tmp_path, b"a 1 2 3\nb 1 nan x\n"), {"a"}).rows, {"a": [1, 2, 3]})


def test_align_by_word(tmp_path):
    vocab = Vocabulary(["<S>", "</S>", "<UNK>", "银行", "gone", "the"])
    found = align(vocab, saved(tmp_path, glove(VECTORS)), size=3, counts=[1, 1, 1, 5, 10, 85])
    assert found.found.tolist() == [False, False, False, True, False, True]
    expected = np.array([[0] * 3, [0] * 3, [0] * 3, VECTORS["银行"], [0] * 3, VECTORS["the"]], np.float32)
    np.testing.assert_array_equal(found.matrix, expected)
    assert found.matrix.dtype == np.float32
    assert (found.n_words, found.n_found, found.token_coverage, found.missing) == (3, 2, 0.9, ("gone",))
    assert found.report() == (
        "2 of 3 words have a vector in the GloVe file (66.6 % of the words, 90 % of the text); without one: gone"
    )


def test_specials_under_their_other_names(tmp_path):
    vocab = Vocabulary(["<S>", "</S>", "<UNK>", "the", "<s>"])
    path = saved(tmp_path, b"<unk> 1 1\n</s> 2 2\n</S> 3 3\nthe 4 4\n<s> 5 5\n")
    found = align(vocab, path, size=2, counts=[9, 9, 9, 3, 1])
    assert found.matrix[:, 0].tolist() == [5, 3, 1, 4, 5]
    assert found.token_coverage == 1
    assert (found.n_found, found.n_words) == (2, 2)


def test_words_in_another_case_are_other_words(tmp_path):
    path = saved(tmp_path, b"apple 1 1\nApple 2 2\nPARIS 3 3\n")
    vocab = Vocabulary(["<S>", "</S>", "<UNK>", "APPLE", "Apple", "paris"])
    assert align(vocab, path, size=2).matrix[:, 0].tolist() == [0, 0, 0, 0, 2, 0]


def test_another_width_names_both_numbers_and_the_option(tmp_path):
    vocab = Vocabulary(["<S>", "</S>", "<UNK>", "the"])
    with pytest.raises(ElmoError, match=r"512 .* got 3 in .*any.name: set word_size to 3") as raised:
        align(vocab, saved(tmp_path, glove(VECTORS)), size=512, size_option="word_size")
    assert raised.value.arguments == ("word_size",)


def test_nothing_in_common(tmp_path):
    path = saved(tmp_path, glove(VECTORS | {"<unk>": [0.0, 0.0, 1.0]}))
    with pytest.raises(ElmoError, match="none of the 2 words of the vocabulary is among the 8 of"):
        align(Vocabulary(["<S>", "</S>", "<UNK>", "x", "y"]), path, size=3)
    with pytest.raises(ElmoError, match="with words, got only special words"):
        align(Vocabulary(["<S>", "</S>", "<UNK>"]), path, size=3)


def test_counts_must_fit_the_vocabulary(tmp_path):
    with pytest.raises(ElmoError, match="for each of the 4 words, got 2"):
        align(Vocabulary(["<S>", "</S>", "<UNK>", "the"]), saved(tmp_path, glove(VECTORS)), size=3, counts=[1, 2])


@pytest.mark.parametrize("binary", [False, True])
def test_what_is_written_is_read_again(tmp_path, binary):
    words = ["bank", "Zürich", "銀行", "1", "1.5", "😀"]
    vectors = np.random.default_rng(0).standard_normal((len(words), 3)).astype(np.float32)
    vectors[0] = [1e-45, 3.4e38, -0.0]
    write_word2vec(tmp_path / "v", words, vectors, size=3, binary=binary)
    found = read_word_vectors(tmp_path / "v", lambda _: True)
    assert found.format == ("word2vec binary" if binary else "word2vec text")
    assert list(found.rows) == words
    assert np.stack([*found.rows.values()]).tobytes() == vectors.tobytes()


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = saved(tmp_path, b"old 1 2\n")
    rows = np.zeros((2, 2), np.float32)
    for words, size, message in (
        (["a", "New York"], 2, "'New York'"),
        (["a", ""], 2, "got ''"),
        (["a", "b"], 3, "3 numbers"),
    ):
        with pytest.raises(ElmoError, match=message):
            write_word2vec(path, words, rows, size=size, binary=False)
    with pytest.raises(ValueError, match="zip"):
        write_word2vec(path, ["a", "b", "c"], rows, size=2, binary=True)
    assert path.read_bytes() == b"old 1 2\n"
    assert [*path.parent.iterdir()] == [path]
