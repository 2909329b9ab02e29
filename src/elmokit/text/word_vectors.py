"""Static word vectors: files of word2vec (text and binary), GloVe and fastText, and their rows for a vocabulary.

| format | detected by | record of a word |
| --- | --- | --- |
| word2vec text, fastText .vec | line 1 is "N D" and line 2 is text | a line: the word and D numbers |
| word2vec binary | line 1 is "N D" and line 2 is not text | word, space, D float32 little endian, perhaps "\\n" |
| GloVe | line 1 is not "N D" | a line: the word and D numbers |

Each format may be compressed as .gz, .xz, .bz2 or .zst, or be the only file of a .zip. Only the numbers of wanted
words are parsed; for other words only the number of fields is checked. If a word occurs twice, the first one counts.
`write_word2vec` writes the first two formats.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError
from elmokit.storage.atomic import atomic_file
from elmokit.text.packed import BOM, READ_ERRORS, open_decompressed, read_line
from elmokit.text.vocab import Vocabulary

VectorFormat = Literal["word2vec text", "word2vec binary", "GloVe", "fastText"]
Floats = NDArray[np.float32]

_PEEK = 1 << 20
_BLOCK = 1 << 22
_LONGEST_WORD = 1 << 16
_MOST_NUMBERS = 1 << 16
_REFUSED = (
    (re.compile(rb"\xba\x16\x4f\x2f"), "a fastText .bin model", "give the .vec file that fastText writes next to it"),
    (re.compile(rb"\x80[\x02-\x05]"), "a pickle such as gensim saves", "write it with gensim's save_word2vec_format"),
    (re.compile(rb"\x93NUMPY|\x89HDF"), "an array without words", "give a file that names the word of each vector"),
    (re.compile(rb"\xff\xfe|\xfe\xff"), "UTF-16 text", "convert it first with iconv -f UTF-16 -t UTF-8"),
)
_HEADER = re.compile(rb"[ \t]*([0-9]{1,12})[ \t]+([0-9]{1,7})[ \t]*\r?\n")
_NOT_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_DAMAGED = (*READ_ERRORS, zipfile.BadZipFile, struct.error, RuntimeError, UnicodeDecodeError, OverflowError)


class VectorFile:
    """An open file of word vectors of any format; a context manager.

    `size` and `format` are known from the start, `n_words` and `n_unreadable` after `rows` has ended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.n_words = self.n_unreadable = 0
        self._open = ExitStack()
        try:
            self._file = self._unpacked()
            self.format, self.size, self._announced = self._detect()
        except _DAMAGED as error:
            self._open.close()
            raise _unreadable(path, error) from error
        except BaseException:
            self._open.close()
            raise

    def rows(self, wanted: Callable[[str], bool] | Container[str]) -> Iterator[tuple[str, Floats]]:
        """Each wanted word once with its vector [size], in file order."""
        want = wanted if callable(wanted) else wanted.__contains__
        binary = self.format == "word2vec binary"
        records, row_of = (
            (self._binary_records(), self._binary_row) if binary else (self._text_records(), self._text_row)
        )
        done: set[str] = set()
        try:
            for number, raw, data, at in records:
                self.n_words += 1
                try:
                    word = raw.decode("utf-8")
                except UnicodeDecodeError:
                    self.n_unreadable += 1
                    continue
                if not want(word) or word in done:
                    continue
                row = row_of(number, data, at)
                if not np.isfinite(row).all():
                    raise ElmoError(
                        f"{self.path}, {'word' if binary else 'line'} {number:,}: the vector of {word!r} has a value "
                        "that is not a finite number: remove the word, or get the file again"
                    )
                done.add(word)
                yield word, row
        except _DAMAGED as error:
            raise _unreadable(self.path, error) from error
        if self._announced is not None and self.n_words < self._announced:
            raise ElmoError(
                f"{self.path} is cut short: its first line announces {self._announced:,} words and it has "
                f"{self.n_words:,}: get it again, or correct that line"
            )

    def _unpacked(self) -> io.BufferedReader:
        packed: Any = self._only_member() if _is_zip(self.path) else open_decompressed(self.path, self._open)
        # A buffer over a buffer is filled completely, so that `peek` returns a whole MiB, even from a pipe.
        return self._open.enter_context(io.BufferedReader(packed, _PEEK))

    def _only_member(self) -> IO[bytes]:
        archive = self._open.enter_context(zipfile.ZipFile(self.path))
        members = [info for info in archive.infolist() if not info.filename.endswith("/")]
        if len(members) != 1:
            raise ElmoError(
                f"{self.path} must contain one file of word vectors, got {len(members)}: unpack it and give one of them"
            )
        return self._open.enter_context(archive.open(members[0]))

    def _detect(self) -> tuple[VectorFormat, int, int | None]:
        """The format, the size of a vector, and the number of words or None if the file does not state it."""
        head = self._file.peek()
        for start, kind, remedy in _REFUSED:
            if start.match(head):
                raise ElmoError(
                    f"word vectors must be word2vec, GloVe or fastText .vec, got {kind} in {self.path}: {remedy}"
                )
        head = head.removeprefix(BOM)
        if not head.strip():
            raise ElmoError(f"{self.path} is empty and contains no word vectors: get it again")
        if header := _HEADER.match(head):
            n_words, size = int(header[1]), int(header[2])
            if not (n_words and 0 < size <= _MOST_NUMBERS):
                raise ElmoError(
                    f"{self.path}: the first line must announce words of 1 to {_MOST_NUMBERS} numbers, got "
                    f"{n_words} words of {size}: it is not a file of word vectors"
                )
            if _is_binary(head[header.end() :], size):
                return "word2vec binary", size, n_words
            named_vec = ".vec" in (suffix.lower() for suffix in self.path.suffixes)
            return "fastText" if named_vec else "word2vec text", size, n_words
        # A word such as "1 000" looks like one more number, so the first lines vote on the size.
        sizes = Counter(_trailing_numbers(line) for line in head.split(b"\n")[:10] if line.strip())
        size = sizes.most_common(1)[0][0]
        if not 0 < size <= _MOST_NUMBERS or _NOT_TEXT.search(head, 0, 1000):
            raise ElmoError(
                f"{self.path} is not a file of word vectors: its lines must be a word and its numbers, as word2vec, "
                "GloVe and fastText write them"
            )
        return "GloVe", size, None

    def _text_records(self) -> Iterator[tuple[int, bytes, bytes, int]]:
        """The number of each line, its word, the line, and the offset of its numbers."""
        size = self.size
        number = 0
        while line := read_line(self._file, str(self.path), number := number + 1):
            if number == 1:
                line = line.removeprefix(BOM)
                if self._announced is not None:
                    continue
            line = line.rstrip()
            spaces = line.count(b" ")
            if spaces < size and b"\t" in line:
                line = line.replace(b"\t", b" ")
                spaces = line.count(b" ")
            if spaces == size:
                end = line.find(b" ")
            elif spaces > size:  # some spaces are inside the word, or consecutive
                word, *numbers = line.rsplit(None, size)
                end = len(word)
                # A word with so many spaces is two lines without a line end between them.
                if len(numbers) < size or word.count(b" ") >= max(size, 20):
                    raise self._damaged_line(number)
            elif not line:
                continue
            else:
                raise self._damaged_line(number)
            yield number, line[:end], line, end

    def _text_row(self, number: int, line: bytes, at: int) -> Floats:
        try:
            numbers = [float(field) for field in line[at:].split()]
        except ValueError as error:
            raise self._damaged_line(number) from error
        if len(numbers) != self.size:
            raise self._damaged_line(number)
        with np.errstate(over="ignore"):  # a number too large for float32 becomes infinite and is refused later
            return np.array(numbers, dtype=np.float32)

    def _damaged_line(self, number: int) -> ElmoError:
        return ElmoError(
            f"{self.path}, line {number:,} is damaged: it must be a word and {self.size} numbers: remove it, or get "
            "the file again"
        )

    def _binary_records(self) -> Iterator[tuple[int, bytes, bytes, int]]:
        """The number of each record, its word, a block of the file, and the offset of its numbers in the block."""
        assert self._announced is not None
        read_line(self._file, str(self.path), 1)
        width = 4 * self.size
        block, start = b"", 0
        for number in range(1, self._announced + 1):
            end = block.find(b" ", start)
            while end < 0 or end + 1 + width > len(block):
                more = self._file.read(max(_BLOCK, width))
                if not more and not block[start:].strip():
                    return
                block, start = block[start:] + more, 0
                end = block.find(b" ", start, _LONGEST_WORD)
                if not more or end < 0:
                    raise self._damaged_record(number)
            # Some files have a line end after each vector.
            word = block[start:end].lstrip(b"\n")
            if b"\0" in word or end - start > _LONGEST_WORD:
                raise self._damaged_record(number)
            yield number, word, block, end + 1
            start = end + 1 + width

    def _binary_row(self, number: int, block: bytes, at: int) -> Floats:
        return np.frombuffer(block, dtype="<f4", count=self.size, offset=at).astype(np.float32)

    def _damaged_record(self, number: int) -> ElmoError:
        return ElmoError(
            f"{self.path} is cut short or damaged at word {number:,} of {self._announced:,}: each must be a word, a "
            f"space and {self.size} float32 numbers: get the file again"
        )

    def __enter__(self) -> VectorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _is_zip(path: Path) -> bool:
    if not path.is_file():
        return False  # a pipe, whose first bytes cannot be read twice
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _is_binary(body: bytes, size: int) -> bool:
    """Whether the data after the line "N D" is word2vec's binary format and not text."""
    if _trailing_numbers(body[: body.find(b"\n") % (len(body) + 1)]) >= size:
        return False
    # More than one vector: a small one may look like text by chance.
    start = body[: max(4 * size, 1 << 12)]
    try:
        getincrementaldecoder("utf-8")().decode(start)  # the last character may be incomplete
    except UnicodeDecodeError:
        return True
    return _NOT_TEXT.search(start) is not None


def _trailing_numbers(line: bytes) -> int:
    """The number of fields at the end of a line that are numbers; the first field never counts."""
    fields = line.split() if not line.startswith((b" ", b"\t")) else [b"", *line.split()]
    count = 0
    for field in reversed(fields[1:]):
        try:
            float(field)
        except ValueError:
            break
        count += 1
    return count


def _unreadable(path: Path, error: BaseException) -> ElmoError:
    reason = (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0]
    return ElmoError(f"the word vectors {path} cannot be read ({reason}): check the path, or get the file again")


# Writing


def can_be_written(word: str) -> bool:
    """Whether a file of word vectors can contain the word: it must be without white space and not empty."""
    return word.split() == [word]


def write_word2vec(path: Path, words: Sequence[str], vectors: Iterable[Floats], *, size: int, binary: bool) -> None:
    """Write words and their vectors [size] in word2vec's text or binary format, completely or not at all.

    Numbers in text have enough digits to be read back as the same float32.
    """
    for word in words:
        if not can_be_written(word):
            raise ElmoError(f"a word of a word2vec file must have no white space and not be empty, got {word!r}")
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        file.write(f"{len(words)} {size}\n".encode())
        for word, vector in zip(words, vectors, strict=True):
            row = np.ascontiguousarray(vector, dtype="<f4")
            if row.shape != (size,):
                raise ElmoError(f"the vectors must have {size} numbers each, got {row.shape} for {word!r}")
            numbers = row.tobytes() if binary else " ".join(row.astype(str).tolist()).encode()
            file.write(word.encode() + b" " + numbers + b"\n")


# The rows of a vocabulary

# Names of `<S>`, `</S>` and `<UNK>` in other systems; the first name that the file has is used.
_OTHER_NAMES = (
    ("<S>", "<s>", "<bos>", "<BOS>", "[BOS]"),
    ("</S>", "</s>", "<eos>", "<EOS>", "[EOS]"),
    ("<UNK>", "<unk>", "<oov>", "<OOV>", "[UNK]"),
)
_EXAMPLES = 5
_NOT_FOUND = 127


@dataclass(frozen=True)
class AlignedVectors:
    """Word vectors in the order of a vocabulary. The counts exclude `<S>`, `</S>` and `<UNK>`."""

    matrix: Floats
    """[V, size] float32; zeros for words that are not in the file."""
    found: NDArray[np.bool_]
    """[V] whether the row comes from the file."""
    n_words: int
    """Number of words in the vocabulary."""
    n_found: int
    """Number of these words that are in the file."""
    token_coverage: float | None
    """The share of the text's tokens whose words are in the file; None without counts."""
    missing: tuple[str, ...]
    """The first few words of the vocabulary that are not in the file."""
    file: VectorFile
    """The file, closed."""

    def report(self) -> str:
        """A sentence with the number of words that were found."""
        shares = _percent(self.n_found / self.n_words) + " of the words"
        if self.token_coverage is not None:
            shares += f", {_percent(self.token_coverage)} of the text"
        text = f"{self.n_found:,} of {self.n_words:,} words have a vector in the {self.file.format} file ({shares})"
        if self.missing:
            more = " ..." if self.n_words - self.n_found > len(self.missing) else ""
            text += f"; without one: {' '.join(self.missing)}{more}"
        if self.file.n_unreadable:
            text += f"; {self.file.n_unreadable:,} words of the file are not UTF-8"
        return text


def align(
    vocab: Vocabulary,
    path: Path,
    *,
    size: int,
    counts: Sequence[int] | None = None,
    size_option: str = "words.embedding_size",
) -> AlignedVectors:
    """The vectors of the vocabulary's words from a file, as rows [V, size].

    A special word is also found under its usual names in other systems (`<unk>` for `<UNK>`). `counts` [V] are the
    frequencies of the words; `size_option` is the option that an error about the size names.
    """
    if counts is not None and len(counts) != len(vocab):
        raise ElmoError(f"counts must have a value for each of the {len(vocab):,} words, got {len(counts):,}")
    ordinary = np.array([word not in vocab.specials for word in vocab])
    if not ordinary.any():
        raise ElmoError("word vectors need a vocabulary with words, got only special words: give another vocabulary")
    with VectorFile(path) as file:
        if file.size != size:
            raise ElmoError(
                f"word vectors must have the {size} numbers of the model's words, got {file.size} in {path}: set "
                f"{size_option} to {file.size}, or give vectors of {size}",
                size_option,
            )
        # For each name in the file: the vocabulary's rows that it can fill, and its rank among the names of a row.
        uses: dict[str, list[tuple[int, int]]] = {}
        for index, word in enumerate(vocab):
            names = _OTHER_NAMES[vocab.specials.index(word)] if word in vocab.specials else ()
            for rank, name in enumerate(dict.fromkeys((word, *names))):
                uses.setdefault(name, []).append((index, rank))
        matrix = np.zeros((len(vocab), size), dtype=np.float32)
        best = np.full(len(vocab), _NOT_FOUND, dtype=np.int8)
        for name, row in file.rows(uses):
            for index, rank in uses[name]:
                if rank < best[index]:
                    matrix[index], best[index] = row, rank
    found = best != _NOT_FOUND
    n_found = int((found & ordinary).sum())
    if not n_found:
        raise ElmoError(
            f"none of the {int(ordinary.sum()):,} words of the vocabulary is among the {file.n_words:,} of {path}: "
            "give vectors of the same language, split into words in the same way"
        )
    token_coverage = None
    if counts is not None and (total := int(np.asarray(counts)[ordinary].sum())):
        token_coverage = int(np.asarray(counts)[ordinary & found].sum()) / total
    missing = tuple(vocab[int(index)] for index in np.flatnonzero(ordinary & ~found)[:_EXAMPLES])
    return AlignedVectors(matrix, found, int(ordinary.sum()), n_found, token_coverage, missing, file)


def _percent(share: float) -> str:
    # Rounded down, so that 100 % means that no word is missing.
    return f"{int(share * 1000) / 10:g} %"
