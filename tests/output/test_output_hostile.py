"""Files of vectors made to do harm: links to other files, kilobytes that ask for gigabytes, values of other types."""

import io
import json
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.errors import ElmoError
from elmokit.output import read_vectors
from elmokit.storage.hostile_hdf5 import VariableLengthStrings
from support.output_samples import AWKWARD, embed, numbered_lines

MUCH = 1 << 28
"""Bytes that no test may need."""


@pytest.fixture
def file(tmp_path):
    """A file in the layout for slicing."""
    embed(numbered_lines(5), tmp_path / "out.h5")
    return tmp_path / "out.h5"


def refused(path: Path, *words: str) -> None:
    """One sentence, and no memory to speak of."""
    tracemalloc.start()
    try:
        with pytest.raises(ElmoError) as caught:
            list(read_vectors(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in (str(path), *words)), caught.value
    assert peak < MUCH // 8


def changed(path: Path, name: str, change) -> None:
    """Put something else in the place of a dataset; `change` gets the file and the dataset's shape."""
    with h5py.File(path, "a") as file:
        shape = file[name].shape
        del file[name]
        change(file, shape)


@pytest.fixture
def secret(tmp_path):
    """Another file of the reader's."""
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.full((10, 8), 42, np.float32)
        file["strings"] = np.array(["secret"] * 10, h5py.string_dtype())
    (tmp_path / "secret.bin").write_bytes(bytes(10_000))
    return tmp_path / "secret.h5"


@pytest.mark.parametrize("name", ["vectors", "offsets", "tokens"])
@pytest.mark.parametrize("kind", ["external", "soft", "gone"])
def test_links_are_not_followed(file, secret, name, kind):
    link = {"external": h5py.ExternalLink(str(secret), "/x"), "soft": h5py.SoftLink("/sentences")}
    changed(file, name, lambda f, _: f.__setitem__(name, link.get(kind, h5py.SoftLink("/gone"))))
    refused(file, f"{name} points outside the file")


@pytest.mark.parametrize("layout", ["bilm", "allennlp"])
def test_links_are_not_followed_in_the_old_layouts(tmp_path, secret, layout):
    path = tmp_path / "out.h5"
    for name in ("0", "sentence_to_index")[: 1 + (layout == "allennlp")]:
        embed(numbered_lines(5), path, layout=layout)
        changed(path, name, lambda f, _, name=name: f.__setitem__(name, h5py.ExternalLink(str(secret), "/x")))
        refused(path, f"{name} points outside the file")


@pytest.mark.parametrize(("name", "dtype"), [("vectors", "f4"), ("offsets", "i8"), ("tokens", h5py.string_dtype())])
@pytest.mark.parametrize("kind", ["external", "virtual"])
def test_numbers_and_strings_in_another_file_are_not_read(file, secret, name, dtype, kind):
    def elsewhere(opened, shape):
        if kind == "external":
            storage = [(str(secret.with_suffix(".bin")), 0, h5py.h5f.UNLIMITED)]
            opened.create_dataset(name, shape, dtype, external=storage)
            return
        layout = h5py.VirtualLayout(shape, dtype)
        layout[:] = h5py.VirtualSource(str(secret), "strings" if name == "tokens" else "x", shape)
        opened.create_virtual_dataset(name, layout)

    if (name, kind) == ("tokens", "external"):
        pytest.skip("HDF5 does not make such a file")
    changed(file, name, elsewhere)
    refused(file, f"{name} must be in the file itself")


def test_a_pipe_is_not_waited_for(file, tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    changed(file, "vectors", lambda f, _: f.__setitem__("vectors", h5py.ExternalLink(str(tmp_path / "pipe"), "/x")))
    refused(file, "vectors points outside the file")


@pytest.mark.parametrize("layout", ["elmokit", "allennlp"])
def test_a_damaged_heap_does_not_keep_the_reader_for_ever(tmp_path, layout):
    """An object of -16 bytes is followed by itself."""
    path = tmp_path / "out.h5"
    embed(numbered_lines(5), path, layout=layout)
    data = bytearray(path.read_bytes())
    at = data.index(b"GCOL")
    data[at + 24 : at + 32] = (2**64 - 16).to_bytes(8, "little")
    path.write_bytes(data)
    code = f"from elmokit.output import read_vectors; list(read_vectors({str(path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"ElmoError: {path} is damaged or not a file of vectors" in done.stderr


def test_strings_are_those_that_h5py_reads(tmp_path):
    path = tmp_path / "out.h5"
    lines = [*AWKWARD, *(f"{number} " + "x" * (7 * number % 3000) for number in range(300))]
    embed(lines, path)
    for name in ("tokens", "sentences"):
        with h5py.File(path) as file, path.open("rb") as raw:
            found = VariableLengthStrings(file[name], raw, name)
            assert found.read(0, len(found)) == file[name].asstr()[:].tolist()
            assert found.read(3, 5) == file[name].asstr()[3:5].tolist()


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
def test_a_file_as_allennlp_wrote_it(tmp_path, libver):
    path = tmp_path / "elmo.hdf5"
    with h5py.File(path, "w", libver=libver) as file:
        for number, count in enumerate((2, 3)):
            file.create_dataset(str(number), (3, count, 8), dtype="float32", data=np.full((3, count, 8), number))
        listing = file.create_dataset("sentence_to_index", (1,), dtype=h5py.special_dtype(vlen=str))
        listing[0] = json.dumps({"a b": "0", "é 語 c": "1"})
    found = list(read_vectors(path))
    assert [tokens for tokens, _ in found] == [["a", "b"], ["é", "語", "c"]]
    assert [vectors.shape for _, vectors in found] == [(3, 2, 8), (3, 3, 8)]


def test_heaps_that_overlap_do_not_take_for_ever(tmp_path):
    """Each heap is as long as all that follow it, and each string is in another one."""
    path, count = tmp_path / "out.h5", 2_000
    embed(numbered_lines(5), path)
    with h5py.File(path, "a") as file:
        del file["tokens"]
        file.create_dataset("tokens", (count,), h5py.string_dtype())[:] = "x"
        offset = file["tokens"].id.get_offset()
    data = bytearray(path.read_bytes())
    objects = b"".join(np.array([1, 8, 0], "<u8").tobytes() for _ in range(20_000))
    base, heads = len(data), b""
    for number in range(count):
        rest = 16 * (count - number - 1)
        size = 16 + 16 + rest + len(objects)
        heads += b"GCOL\1\0\0\0" + size.to_bytes(8, "little")
        at = offset + 16 * number
        data[at : at + 16] = (1).to_bytes(4, "little") + (base + 16 * number).to_bytes(8, "little") + b"\1\0\0\0"
    path.write_bytes(data + heads + objects)
    refused(path)


def test_chunks_that_unpack_to_more_than_they_should(file):
    def pack(opened, shape):
        dataset = opened.create_dataset("vectors", shape, "f4", chunks=shape, compression="gzip")
        dataset.id.write_direct_chunk((0, 0), zlib.compress(bytes(MUCH), 9))

    changed(file, "vectors", pack)
    refused(file, "vectors has a chunk that unpacks to more than its")


def test_chunks_that_are_larger_than_any_vectors(file):
    def pack(opened, shape):
        width = MUCH // 4 // shape[0]
        dataset = opened.create_dataset("vectors", (shape[0], width), "f4", chunks=(1, width), compression="gzip")
        for row in range(shape[0]):
            dataset.id.write_direct_chunk((row, 0), zlib.compress(bytes(4 * width), 9))

    changed(file, "vectors", pack)
    refused(file, "vectors says that its", "do not trust it")


@pytest.mark.parametrize("chunks", [None, (1, 8)])
def test_vectors_that_were_never_written(file, chunks):
    changed(file, "vectors", lambda f, shape: f.create_dataset("vectors", shape, "f4", chunks=chunks))
    refused(file, "vectors is cut short: 0 of its")


def test_packed_vectors_are_read(file):
    plain = [vectors for _, vectors in read_vectors(file)]
    flat = np.concatenate(plain)
    options = {"chunks": (3, 4), "compression": "gzip", "shuffle": True, "fletcher32": True}
    changed(file, "vectors", lambda f, _: f.create_dataset("vectors", data=flat, **options))
    assert all(np.array_equal(*pair) for pair in zip([v for _, v in read_vectors(file)], plain, strict=True))


@pytest.mark.parametrize("filters", [{"compression": "lzf"}, {"scaleoffset": 3}])
def test_other_filters_are_refused(file, filters):
    changed(file, "vectors", lambda f, shape: f.create_dataset("vectors", data=np.ones(shape, "f4"), **filters))
    refused(file, "packed with gzip", "filters")


@pytest.mark.parametrize(
    "offsets", [[0, 1, 5, 2, 6, 10], [-1, 0, 1, 3, 6, 10], [0, 0, 1, 3, 6, 99], [0, 0, 1, 3, 6, 2**60]], ids=str
)
def test_offsets_that_lie(file, offsets):
    changed(file, "offsets", lambda f, _: f.__setitem__("offsets", np.array(offsets, "<i8")))
    refused(file, "offsets of the sentences")


@pytest.mark.parametrize("value", ["text", [1, 2], 1.5], ids=str)
def test_attributes_that_are_no_numbers(file, value):
    with h5py.File(file, "a") as opened:
        opened.attrs["pooled"] = value
    refused(file, "pooled must be a whole number")


def write_npz(path: Path, header: dict, vectors: bytes, tokens: str, method: int) -> None:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (4, 4)} | header)
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("vectors.npy", head.getvalue() + vectors)
        archive.writestr("offsets.npy", "x")
        archive.writestr("tokens.jsonl", tokens)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_npz_that_explodes(tmp_path, method):
    write_npz(tmp_path / "out.npz", {"shape": (4, MUCH // 16)}, bytes(MUCH), '["a", "b", "c", "d"]\n', method)
    refused(tmp_path / "out.npz", "vectors.npy says that its", "do not trust it")


@pytest.mark.parametrize(
    ("header", "tokens"),
    [
        ({"shape": (4, MUCH)}, '["a"]\n'),
        ({"shape": (4, -1)}, '["a"]\n'),
        ({"shape": ()}, '["a"]\n'),
        ({"shape": (4,)}, '["a"]\n'),
        ({"descr": "|O"}, '["a"]\n'),
        ({"descr": "<U4"}, '["a"]\n'),
        ({}, '{"a": 1}\n'),
        ({}, '"ab"\n'),
        ({}, "[1]\n"),
        ({}, "[" * 100_000 + "\n"),
    ],
    ids=str,
)
def test_an_npz_that_lies(tmp_path, header, tokens):
    write_npz(tmp_path / "out.npz", header, bytes(64), tokens, zipfile.ZIP_STORED)
    refused(tmp_path / "out.npz")


@pytest.mark.parametrize(
    "line",
    [
        '{"dim": 1, "tokens": "a", "vectors": [[1]]}',
        '{"dim": 1, "tokens": [1], "vectors": [[1]]}',
        '{"dim": -1, "tokens": ["a"], "vectors": [[1]]}',
        '{"dim": true, "tokens": ["a"], "vectors": [[1]]}',
        '{"dim": 1, "tokens": ["a"], "vectors": [[1%s]]}' % ("0" * 400),
        '{"dim": 1, "tokens": ["a"], "vectors": [[1], [2, 3]]}',
        '{"dim": 1, "tokens": ["a"], "vectors": {"a": 1}}',
        '{"dim": 2, "tokens": [], "vector": [1]}',
        '{"dim": 2, "tokens": [], "vector": 1}',
        '{"dim": 2, "tokens": [], "layers": 1}',
        '{"a":' * 100_000,
        '{"dim": 1, "tokens": ["a"], "vectors": [["x"]]}',
    ],
    ids=lambda line: line[:60],
)
def test_json_lines_of_other_things(tmp_path, line):
    (tmp_path / "out.jsonl").write_text(f"{line}\n")
    refused(tmp_path / "out.jsonl")


def write_parquet(path: Path, columns: dict, *, pooled: bool = False, **options: object) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    head = {"format": "elmokit-vectors", "version": 1, "pooled": pooled, "settings": {}}
    table = pa.table(columns).replace_schema_metadata({"elmokit": json.dumps(head)})
    parquet.write_table(table, path, **options)


@pytest.mark.parametrize(
    "columns",
    [
        {"tokens": [["a"]], "vectors": [[[1.0, 2.0]]]},
        {"tokens": [["a"]], "vectors": [["b"]]},
        {"tokens": [["a"]], "vectors": ["b"]},
        {"tokens": [["a"]], "vectors": [1]},
        {"tokens": [["a"]]},
        {"vectors": [[1.0]]},
        {"tokens": [[1]], "vectors": [[1.0]]},
    ],
    ids=str,
)
@pytest.mark.parametrize("pooled", [False, True])
def test_parquet_with_columns_of_other_types(tmp_path, columns, pooled):
    write_parquet(tmp_path / "out.parquet", columns, pooled=pooled)
    refused(tmp_path / "out.parquet")


@pytest.mark.parametrize("head", ["[]", "1", "{}", '{"format": "elmokit-vectors"}', "nonsense"])
def test_parquet_with_other_metadata(tmp_path, head):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pa.table({"tokens": [["a"]]}).replace_schema_metadata({"elmokit": head}), tmp_path / "a.parquet"
    )
    refused(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "options", [{}, {"use_dictionary": False, "compression": "zstd"}, {"use_dictionary": False, "compression": "gzip"}]
)
def test_parquet_that_explodes(tmp_path, options):
    pa = pytest.importorskip("pyarrow")
    size = MUCH // 4
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(size, np.float32)), size)
    write_parquet(tmp_path / "out.parquet", {"tokens": [["a"]], "vectors": vectors}, pooled=True, **options)
    assert (tmp_path / "out.parquet").stat().st_size < MUCH // 500
    refused(tmp_path / "out.parquet", "unpack to", "do not trust it")


@pytest.mark.parametrize("name", ["out.parquet", "out.npz", "out.h5"])
def test_our_own_file_of_zeros_is_read(tmp_path, name):
    """It shrinks as much as any that is written here."""
    zeros = np.zeros((40, 4096), np.float32)
    line = " ".join(["the"] * len(zeros))
    embed([line] * 200, tmp_path / name, encode=lambda sentences: (zeros for _ in sentences))
    assert sum(len(vectors) for _, vectors in read_vectors(tmp_path / name)) == 200 * len(zeros)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-10],
        lambda data: data[:200],
        lambda data: data.replace(b"(10, 8)", b"(99, 8)"),
        lambda data: data.replace(b"(10, 8)", b"(10,-8)"),
        lambda data: data.replace(b"<f4", b"|O8"),
        lambda data: data.replace(b'["w3"', b'["w3","w4"'),
        lambda data: data + b"[1]\n",
        lambda data: data + b"[" * 100_000,
    ],
)
def test_an_npy_that_lies(tmp_path, damage):
    path = tmp_path / "out.npy"
    embed(["w3 a b", "w4", "a b c d e f"], path)
    data = path.read_bytes()
    assert b"(10, 8)" in data
    path.write_bytes(damage(data))
    refused(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "sentence,position,token,d1\n1,1\n",
        "sentence,position,token,d1\n1,1,a,x\n",
        "sentence,position,token,d1,d2\n1,1,a,1\n",
        "sentence,position,token,layer,d1\n1,1,a,x,1\n",
        "sentence,position,token,layer,d1\n1,1,a,0,1\n1,2,b,0,1\n1,2,b,1,1\n",
        "sentence,position,token,layer,d1\n1,1,a,1,1\n",
        "sentence,tokens,d1\n1\n",
        "sentence,position,token,d1\n\n",
    ],
)
def test_a_csv_of_other_things(tmp_path, text):
    (tmp_path / "out.csv").write_text(text)
    refused(tmp_path / "out.csv")
