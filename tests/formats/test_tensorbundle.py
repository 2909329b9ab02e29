import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.errors import ElmoError
from elmokit.formats.source import FolderSource, ZipSource
from elmokit.formats.tensorflow import TensorBundle, crc32c
from support.bundle_writer import (
    block,
    entry_proto,
    header_proto,
    masked_crc,
    table,
    table_of_blocks,
    varint,
    write_bundle,
)
from support.bundle_writer import crc32c as plain_crc32c

DTYPES = ["float32", "float64", "float16", "int32", "int64", "uint8", "bool"]


def tiny_tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    tensors = {f"of/{dtype}": (rng.normal(size=(3, 5)) * 9).astype(dtype) for dtype in DTYPES}
    tensors["global_step"] = np.array(1234567890123, np.int64)
    tensors["scalar/bool"] = np.array(True)
    tensors["empty"] = np.zeros((0, 7), np.float32)
    tensors["λ/name with space"] = np.arange(4, dtype=np.float32)
    return tensors


class MemorySource(dict):
    def open(self, name: str) -> io.BytesIO:
        if name not in self:
            raise ElmoError(f"{name} is missing")
        return self[name] if isinstance(self[name], io.BytesIO) else io.BytesIO(self[name])

    def describe(self, name: str) -> str:
        return name


def bundle_at(path: Path) -> TensorBundle:
    return TensorBundle(FolderSource(path.parent), path.name)


def check(bundle: TensorBundle, tensors: dict[str, np.ndarray]) -> None:
    assert bundle.names() == sorted(tensors, key=str.encode)
    for name, expected in tensors.items():
        assert bundle.shape(name) == expected.shape
        same(bundle.read(name), expected)


def same(got: np.ndarray, expected: np.ndarray) -> None:
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert got.tobytes() == expected.tobytes()
    assert got.flags.writeable


def in_memory(index: bytes, data: bytes = b"") -> TensorBundle:
    return TensorBundle(MemorySource({"m.index": index, "m.data-00000-of-00001": data}), "m")


def one_entry(entry: bytes, data: bytes = b"", header: bytes | None = None) -> TensorBundle:
    return in_memory(table([(b"", header_proto(1) if header is None else header), (b"x", entry)], False), data)


@pytest.mark.parametrize("snappy", [False, True], ids=["plain", "snappy"])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_dtype_scalars_and_empty(tmp_path, shards, snappy):
    write_bundle(tmp_path / "m", tiny_tensors(), shards=shards, snappy=snappy)
    check(bundle_at(tmp_path / "m"), tiny_tensors())


@pytest.mark.parametrize("snappy", [False, True], ids=["plain", "snappy"])
@pytest.mark.parametrize(("restart_interval", "block_size"), [(1, 4096), (16, 1), (2, 300), (16, 1 << 20)])
def test_many_tensors_in_many_blocks(tmp_path, snappy, restart_interval, block_size):
    tensors = {f"lm/RNN_{i % 2}/cell_{i}/kernel": np.full((i % 4, 2), i, np.float32) for i in range(300)}
    write_bundle(tmp_path / "m", tensors, 2, snappy, restart_interval, block_size)
    check(bundle_at(tmp_path / "m"), tensors)


def test_bfloat16_becomes_float32(tmp_path):
    values = np.array([[1.5, -0.0, np.inf], [3e38, 1e-40, 0.1]], np.float32)
    write_bundle(tmp_path / "m", {"x": values, "scalar": values[0, 0]}, bfloat16=["x", "scalar"])
    bundle = bundle_at(tmp_path / "m")
    same(bundle.read("x"), (values.view(np.uint32) & 0xFFFF0000).view(np.float32))
    same(bundle.read("scalar"), np.array(1.5, np.float32))


def test_no_tensors(tmp_path):
    write_bundle(tmp_path / "m", {})
    assert bundle_at(tmp_path / "m").names() == []


def test_inside_a_zip(tmp_path):
    write_bundle(tmp_path / "m", tiny_tensors(), shards=2)
    with zipfile.ZipFile(tmp_path / "m.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in tmp_path.glob("m.*[!p]"):
            archive.write(file, f"inner/{file.name}")
    source = ZipSource(tmp_path / "m.zip")
    check(TensorBundle(source, "m"), tiny_tensors())
    with pytest.raises(ElmoError, match=r"other\.index"):
        TensorBundle(source, "other")


def test_reads_have_memory_of_their_own(tmp_path):
    write_bundle(tmp_path / "m", tiny_tensors())
    bundle = bundle_at(tmp_path / "m")
    bundle.read("of/float32")[:] = 0
    same(bundle.read("of/float32"), tiny_tensors()["of/float32"])


def test_missing_files_are_named(tmp_path):
    with pytest.raises(ElmoError, match=r"m\.index"):
        bundle_at(tmp_path / "m")
    write_bundle(tmp_path / "m", tiny_tensors(), shards=2)
    (tmp_path / "m.data-00001-of-00002").unlink()
    bundle = bundle_at(tmp_path / "m")
    with pytest.raises(ElmoError, match=r"m\.data-00001-of-00002"):
        [bundle.read(name) for name in bundle.names()]


def test_a_folder_in_place_of_a_file(tmp_path):
    (tmp_path / "m.index").mkdir()
    with pytest.raises(ElmoError, match=r"m\.index cannot be read"):
        bundle_at(tmp_path / "m")


def test_damaged_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("m.index", bytes(1000))
    raw = bytearray((tmp_path / "m.zip").read_bytes())
    raw[500] ^= 1
    (tmp_path / "m.zip").write_bytes(raw)
    with pytest.raises(ElmoError, match=r"m\.index .*CRC"):
        TensorBundle(ZipSource(tmp_path / "m.zip"), "m")


def test_a_type_we_do_not_read_spoils_only_its_own_tensor():
    good = entry_proto(1, (1,), 0, 0, 4, masked_crc(bytes(4)))
    items = [(b"", header_proto(1)), (b"graph", entry_proto(7, (), 0, 0, 3, 0)), (b"x", good)]
    bundle = in_memory(table(items, False), bytes(4))
    assert bundle.names() == ["graph", "x"]
    assert bundle.read("x") == 0
    with pytest.raises(ElmoError, match=r"tensor 'graph' must be float32.*got TensorFlow type 7"):
        bundle.read("graph")


def test_partitioned_tensor():
    items = [
        (b"", header_proto(1)),
        (b"\0\x01x\0\x01\xff", entry_proto(1, (1,), 0, 0, 4, 0)),
        (b"x", entry_proto(1, (2,), 0, 0, 0, 0) + b"\x3a\x00"),
    ]
    bundle = in_memory(table(items, False), bytes(8))
    assert bundle.names() == ["x"]
    with pytest.raises(ElmoError, match="tensor 'x' must be stored in one piece"):
        bundle.read("x")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (entry_proto(1, (2,), 0, 0, 4, 0), r"shape \(2,\) must take 8 bytes, got 4"),
        (entry_proto(1, (2,), 0, 0, 12, 0), "must take 8 bytes, got 12"),
        (entry_proto(1, (2,), 0, 1, 8, 0), "bytes 1 to 9 must be in the file, got 8 bytes"),
        (entry_proto(1, (2,), 0, 1 << 62, 8, 0), "must be in the file"),
        (entry_proto(1, (1 << 40,), 0, 0, 1 << 42, 0), "must be in the file"),
        (entry_proto(1, (2,), 0, 0, 8, 1), "the checksum must be 0x00000001 as stored, got 0x"),
        (entry_proto(1, (-2,), 0, 0, 8, 0), r"must not be negative or too large for memory, got \[-2\]"),
        (entry_proto(1, (-1, -2), 0, 0, 8, 0), "must not be negative"),
        (entry_proto(1, (0, 1 << 62), 0, 0, 0, 0), "too large"),
        (entry_proto(1, [1 << 62] * 20, 0, 0, 0, 0), "too large"),
        (entry_proto(1, [1] * 33, 0, 0, 4, 0), "at most 32 dimensions, got 33"),
        (entry_proto(1, (2,), 1, 0, 8, 0), "must be in data file 0 to 0, got 1"),
        (entry_proto(1, (2,), -1, 0, 8, 0), "must be in data file 0 to 0, got -1"),
        (entry_proto(1, (2,), 0, -1, 8, 0), "offset and size must not be negative, got -1 and 8"),
        (entry_proto(1, (2,), 0, 0, -8, 0), "offset and size must not be negative"),
        (b"\x08\x01\x12\x02\x18\x01", "known rank"),
        (b"\x08" + b"\xff" * 10, "a varint must fit in 64 bits"),
        (b"\x08" + b"\xff" * 9 + b"\x02", "a varint must fit in 64 bits"),
        (b"\x08\xff", "a field of 1 bytes must be inside its block, got 0 bytes"),
        (b"\x12" + varint(1 << 63), "must be inside its block"),
        (b"\x0b", "wire type 0, 1, 2 or 5, got 3"),
        (b"\x10\x01", "must be a message, got the number 1"),
        (b"\x0a\x01x", "must be a number, got 1 bytes"),
        (b"\x08\x01\x12\x02\x10\x01", "must be a message"),
    ],
)
def test_lying_entries(entry, message):
    with pytest.raises(ElmoError, match=message) as caught:
        one_entry(entry, bytes(8)).read("x")
    assert str(caught.value).startswith(("m.index: tensor 'x': ", "m.data-00000-of-00001: tensor 'x': "))
    assert "\n" not in str(caught.value)


def test_unknown_protobuf_fields_are_skipped():
    entry = entry_proto(1, (1,), 0, 0, 4, masked_crc(bytes(4)))
    assert one_entry(entry + b"\x51" + bytes(8) + b"\x5d" + bytes(4) + b"\x60\x05", bytes(4)).read("x") == 0


def test_a_bool_is_0_or_1():
    array = one_entry(entry_proto(10, (3,), 0, 0, 3, masked_crc(b"\x00\x02\xff")), b"\x00\x02\xff").read("x")
    same(array, np.array([False, True, True]))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (header_proto(1, big_endian=True), "little-endian"),
        (header_proto(0), "1 to 99999 data files, got 0"),
        (header_proto(-1), "1 to 99999 data files, got -1"),
        (header_proto(1 << 40), "1 to 99999 data files"),
        (b"\xff", "must be inside its block"),
    ],
)
def test_lying_header(header, message):
    with pytest.raises(ElmoError, match=message):
        one_entry(b"", header=header)


HEADER = (b"", header_proto(1))
ENTRY = entry_proto(1, (), 0, 0, 4, masked_crc(bytes(4)))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"", "footer of 48 bytes, got 0"),
        (bytes(47), "footer of 48 bytes, got 47"),
        (bytes(48), "must end in the number 0xdb4775248b80fb57, got 0x0"),
        (table([HEADER], False)[:-1], "must end in the number"),
        (table([], False), "the first key must be the header's"),
        (table([(b"x", ENTRY)], False), "the first key must be the header's"),
        (table([HEADER, (b"y", ENTRY), (b"x", ENTRY)], False), "the keys must rise after b'y', got b'x'"),
        (table([HEADER, (b"x", ENTRY), (b"x", ENTRY)], False, block_size=1), "the keys must rise"),
        (table([HEADER, (b"\xff", ENTRY)], False), "must be UTF-8"),
        (table([HEADER, (b"x" * 4097, ENTRY)], False), "at most 4096 bytes, got 4097"),
        (table_of_blocks([(b"", b"")]), "must contain its restart points"),
        (table_of_blocks([(b"", b"\xff\xff\xff\xff")]), "must contain its restart points, got 4294967295"),
        (table_of_blocks([(b"", b"\x01\x00\x00" + block([]))]), "may share at most 0 bytes with the one before, got 1"),
        (table_of_blocks([(b"", b"\x00\x00" + varint(1 << 63) + block([]))]), "must be inside its block"),
    ],
)
def test_lying_tables(index, message):
    with pytest.raises(ElmoError, match=message) as caught:
        in_memory(index)
    assert str(caught.value).startswith("m.index: ")


def sealed(content: bytes, compression: int) -> bytes:
    return content + bytes([compression]) + masked_crc(content + bytes([compression])).to_bytes(4, "little")


def table_of_index(body: bytes, index: bytes) -> bytes:
    footer = varint(0) + varint(0) + varint(len(body)) + varint(len(index))
    return body + sealed(index, 0) + footer.ljust(40, b"\0") + table([], False)[-8:]


def table_of_handles(body: bytes, handles: list[tuple[int, int]]) -> bytes:
    return table_of_index(
        body, block([(bytes([i]), varint(at) + varint(size)) for i, (at, size) in enumerate(handles)])
    )


def test_handles_must_not_overlap_or_leave_the_table():
    body = block([HEADER, (b"x", ENTRY)])
    good = table_of_handles(sealed(body, 0), [(0, len(body))])
    assert in_memory(good, bytes(4)).read("x") == 0
    for handles in ([(0, len(body))] * 2, [(0, len(body)), (len(body), 0)]):
        with pytest.raises(ElmoError, match="the next block must begin at byte"):
            in_memory(table_of_handles(sealed(body, 0), handles))
    index_block = (len(body) + 5, 10)
    for handle in (index_block, (0, 1 << 63), ((1 << 64) - 1, 1), (1 << 20, 0)):
        with pytest.raises(ElmoError, match="a block must end before byte"):
            in_memory(table_of_handles(sealed(body, 0), [handle]))


@pytest.mark.parametrize(
    ("content", "compression", "message"),
    [
        (varint(4) + b"\x0cabc", 1, "must be inside its block"),
        (varint(5) + b"\x0cabcd", 1, "must unpack to its 5 bytes, got 4"),
        (varint(3) + b"\x0cabcd", 1, "must unpack to its 3 bytes, got 4"),
        (varint(8) + b"\x0cabcd\x01\x05", 1, "must reach back 1 to 4 bytes, got 5"),
        (varint(8) + b"\x0cabcd\x01\x00", 1, "must reach back 1 to 4 bytes, got 0"),
        (varint(8) + b"\xfc\xff\xff\xff\xff", 1, "must be inside its block"),
        (varint(1 << 32), 1, "must fit in"),
        (block([HEADER]), 2, r"must be 0 \(none\) or 1 \(snappy\), got 2"),
    ],
)
def test_lying_compression(content, compression, message):
    with pytest.raises(ElmoError, match=message):
        in_memory(table_of_handles(sealed(content, compression), [(0, len(content))]))


def test_keys_that_unfold_without_end_are_refused():
    # Each entry of 9 bytes repeats a prefix of 4,000: 180 kB of table, 80 MB of keys.
    first = varint(0) + varint(4000) + varint(0) + b"k" * 4000
    rest = b"".join(varint(4000) + b"\x05\x00" + b"%05d" % i for i in range(20_000))
    body = block([HEADER])[:-8] + first + rest + bytes(4) + (1).to_bytes(4, "little")
    with pytest.raises(ElmoError, match="keys must fit in"):
        in_memory(table_of_handles(sealed(body, 0), [(0, len(body))]))


def test_data_cut_short_after_its_size_was_taken():
    class Shrinking(io.BytesIO):
        def readinto(self, buffer: object) -> int:
            return 0

    index = table([HEADER, (b"x", ENTRY)], False)
    source = MemorySource({"m.index": index, "m.data-00000-of-00001": Shrinking(bytes(4))})
    with pytest.raises(ElmoError, match="the data must have 4 bytes, got 0"):
        TensorBundle(source, "m").read("x")


def read_all(index: bytes, data: bytes) -> dict[str, bytes]:
    """Return what a damaged bundle gives, without what it says is damaged."""
    arrays: dict[str, bytes] = {}
    messages = []
    try:
        bundle = in_memory(index, data)
    except ElmoError as error:
        messages.append(str(error))
    else:
        for name in bundle.names():
            try:
                arrays[name] = bundle.read(name).tobytes()
            except ElmoError as error:
                messages.append(str(error))
    for message in messages:
        assert message.startswith(("m.index: ", "m.data-"))
        assert "\n" not in message
        assert len(message) < 1000
    return arrays


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "snappy"])
def pair(tmp_path_factory, request) -> tuple[bytes, bytes]:
    prefix = tmp_path_factory.mktemp("fuzz") / "m"
    write_bundle(prefix, tiny_tensors(), snappy=request.param, block_size=150)
    return Path(f"{prefix}.index").read_bytes(), Path(f"{prefix}.data-00000-of-00001").read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_flips_and_cuts_give_the_right_arrays_or_an_error(pair, data):
    files = [bytearray(pair[0]), bytearray(pair[1])]
    for file in files:
        for at in data.draw(st.lists(st.integers(0, len(file) * 8 - 1), max_size=3)):
            file[at // 8] ^= 1 << at % 8
        if data.draw(st.booleans()):
            del file[data.draw(st.integers(0, len(file))) :]
    expected = {name: tensor.tobytes() for name, tensor in tiny_tensors().items()}
    assert read_all(bytes(files[0]), bytes(files[1])).items() <= expected.items()


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["file", "footer", "block", "value", "snappy", "handle", "index"]))
def test_random_bytes_behind_good_checksums_never_crash(noise, place):
    tail = block([HEADER])
    index = {
        "file": noise,
        "footer": noise[:40].ljust(40, b"\xff") + table([], False)[-8:],
        "block": table_of_blocks([(b"", tail[:-8] + noise)]),
        "value": table([HEADER, (b"x", noise), (b"y", ENTRY)], False),
        "snappy": table_of_handles(sealed(noise, 1), [(0, len(noise))]),
        "handle": table_of_index(sealed(tail, 0), block([(b"", noise)])),
        "index": table_of_index(sealed(tail, 0), noise),
    }[place]
    read_all(index, bytes(64))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_blocks_behind_good_checksums_never_crash(data):
    body = bytearray(block([HEADER, *((f"lm/{i}".encode(), ENTRY) for i in range(5))], 2))
    for at in data.draw(st.lists(st.integers(0, len(body) * 8 - 1), min_size=1, max_size=4)):
        body[at // 8] ^= 1 << at % 8
    read_all(table_of_blocks([(b"", bytes(body))], data.draw(st.booleans())), bytes(64))


def test_crc32c_known_values():
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.mark.parametrize("size", [*range(1, 40), 1023, 1024, 4097, 65535, 65536, 65537, 65543, 131072, 200_001])
def test_crc32c_at_awkward_sizes(size):
    data = np.random.default_rng(size).bytes(size + 1)
    assert crc32c(data) == plain_crc32c(data)
    assert crc32c(memoryview(data)[1:]) == plain_crc32c(data[1:])


HDF5_CELLS = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}


def checkpoint_name(dataset: str) -> str:
    """Return the TensorFlow variable that a dataset of weights.hdf5 was dumped from."""
    if not dataset.startswith("RNN_"):
        return f"lm/{dataset}"
    direction, _, _, cell, _, weight = dataset.split("/")
    return f"lm/{direction}/rnn/multi_rnn_cell/cell_{cell.removeprefix('Cell')}/lstm_cell/{HDF5_CELLS[weight]}"


@pytest.mark.golden
def test_golden_checkpoint_equals_its_hdf5():
    beside = Path(__file__).parents[3] / "shared" / "golden"
    folder = Path(os.environ.get("ELMOKIT_GOLDEN", beside)) / "tf-checkpoint"
    if not folder.is_dir():
        pytest.skip(f"no golden checkpoint at {folder}: set ELMOKIT_GOLDEN")
    h5py = pytest.importorskip("h5py")
    bundle = bundle_at(folder / "model.ckpt-1")
    with h5py.File(folder / "weights.hdf5") as file:
        names = []
        file.visit(names.append)
        datasets = {name: file[name][()] for name in names if isinstance(file[name], h5py.Dataset)}
    assert len(datasets) > 10
    for name, expected in datasets.items():
        np.testing.assert_array_equal(bundle.read(checkpoint_name(name)), expected, err_msg=name)
    assert bundle.read("global_step") == 1
    assert bundle.shape("lm/softmax/W") == (32, 16)
    for name in bundle.names():
        bundle.read(name)
