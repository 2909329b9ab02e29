"""Zips that climb out, explode, are cut, or hold no model."""

import io
import struct
import tracemalloc
import zipfile
import zlib

import pytest

from elmokit import Elmo
from elmokit.cli import main
from support.model_files import make_bilm, refusal, write_bilm, write_zip


@pytest.fixture
def nlpl(tmp_path):
    folder = write_bilm(tmp_path / "folder", make_bilm())
    return write_zip(tmp_path / "136.zip", folder, rename={"weights.hdf5": "model.hdf5"})


@pytest.mark.parametrize(
    "name",
    ["../evil.txt", "a/../../evil.txt", "/etc/evil", "..\\evil.txt", "C:\\evil.txt", "C:/evil.txt", "\\\\server\\evil"],
)
def test_names_that_climb_out(nlpl, tmp_path, name):
    with zipfile.ZipFile(nlpl, "a") as archive:
        archive.writestr(name, "gotcha")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    refusal(nlpl, f"{nlpl} contains a file whose path leads out of the zip", repr(name), "do not trust it")
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_reading_a_zip_writes_nothing(nlpl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    Elmo.load(nlpl).encode(["the bank"])
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("files", [{}, {"readme.txt": b"hello"}, {"a/b/options.json": b"{}"}])
def test_a_zip_without_a_model(tmp_path, files):
    path = tmp_path / "any.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    refusal(path, str(path), "no model that elmokit knows")


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.9, 0.999])
def test_a_zip_cut_short(nlpl, share):
    data = nlpl.read_bytes()
    nlpl.write_bytes(data[: int(len(data) * share)])
    refusal(nlpl, f"{nlpl} is not a complete zip file", "fetch it again")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_member(tmp_path, method):
    folder = write_bilm(tmp_path / "folder", make_bilm())
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in folder.iterdir():
            archive.write(file, file.name)
    assert Elmo.load(path).kind == "bilm"
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("weights.hdf5")
    data = bytearray(path.read_bytes())
    start = info.header_offset + 30 + len(info.filename)
    for at in range(start + 2, start + info.compress_size, 7):
        data[at] ^= 255
    path.write_bytes(data)
    refusal(path, f"{path}!weights.hdf5 cannot be unpacked", "fetch the zip again")


def test_a_member_with_a_password(nlpl):
    data = nlpl.read_bytes()
    with zipfile.ZipFile(nlpl) as archive:
        offsets = [archive.start_dir]
        for info in archive.infolist()[:-1]:
            offsets.append(offsets[-1] + 46 + len(info.filename) + len(info.extra) + len(info.comment))
        starts = [info.header_offset for info in archive.infolist()]
    changed = bytearray(data)
    for offset in offsets:
        changed[offset + 8] |= 1
    for start in starts:
        changed[start + 6] |= 1
    nlpl.write_bytes(changed)
    refusal(nlpl, str(nlpl), "cannot be unpacked")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_bomb_is_not_unpacked(tmp_path, method):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("model.hdf5", b"\x89HDF\r\n\x1a\n" + bytes(64 << 20))
        archive.writestr("options.json", "{}")
    assert path.stat().st_size < 100_000
    refusal(path, f"{path}!model.hdf5 says that its", "do not trust it")


def zip_of(members: list[tuple[str, bytes, int]]) -> bytes:
    """A zip of deflated members by name, with the sizes that it is to state."""
    files, listed = b"", b""
    for name, packed, size in members:
        facts = struct.pack("<HHHHIIIHH", 0, 8, 0, 0x21, 0, len(packed), size, len(name), 0)
        listed += b"PK\1\2" + struct.pack("<HH", 20, 20) + facts + struct.pack("<HHHII", 0, 0, 0, 0, len(files))
        listed += name.encode()
        files += b"PK\3\4" + struct.pack("<H", 20) + facts + name.encode() + packed
    count = len(members)
    return files + listed + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, count, count, len(listed), len(files), 0)


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(data) + packer.flush()


def test_a_bomb_that_states_a_small_size(tmp_path):
    path = tmp_path / "bomb.zip"
    bomb = deflated(b"\x89HDF\r\n\x1a\n" + bytes(128 << 20))
    path.write_bytes(zip_of([("model.hdf5", bomb, 1000), ("options.json", deflated(b"{}"), 2)]))
    tracemalloc.start()
    try:
        refusal(path, "model.hdf5 cannot be unpacked")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_bomb_of_many_files(tmp_path):
    path = tmp_path / "bomb.zip"
    part = deflated(bytes(16 << 20))
    path.write_bytes(zip_of([(f"{number}.hdf5", part, 16 << 20) for number in range(200)]))
    refusal(path, f"{path} says that its", "do not trust it")


@pytest.mark.parametrize("others", [[], ["options.json"], ["a/options.json"]])
def test_a_file_without_a_name(tmp_path, others):
    path = tmp_path / "model.zip"
    path.write_bytes(zip_of([(name, deflated(b"{}"), 2) for name in ("", *others)]))
    refusal(path, f"{path} contains a file without a name", "do not trust it")


def test_json_that_would_fill_the_memory(tmp_path):
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", '{"model": [' + "[]," * (4 << 20) + "[]]}")
        archive.writestr("model.safetensors", b"x")
    refusal(path, "config.json must have at most 4,194,304 bytes")


def test_a_truncated_file_inside_a_whole_zip(tmp_path):
    folder = write_bilm(tmp_path / "folder", make_bilm())
    weights = folder / "weights.hdf5"
    weights.write_bytes(weights.read_bytes()[:-2000])
    refusal(write_zip(tmp_path / "a.zip", folder), "a.zip!weights.hdf5 is not a complete HDF5 file")
    weights.write_bytes(b"no")
    refusal(write_zip(tmp_path / "b.zip", folder), "b.zip!weights.hdf5 is not an HDF5 file")
    weights.unlink()
    refusal(write_zip(tmp_path / "c.zip", folder), "c.zip", "no model")


def test_a_file_called_zip(tmp_path):
    path = tmp_path / "model.zip"
    path.write_text("<html>404</html>")
    refusal(path, f"{path} is not a complete zip file")


def test_the_command_line_says_so_in_one_line(tmp_path, capsys):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../evil", "gotcha")
    (tmp_path / "evil.zip").write_bytes(buffer.getvalue())
    with pytest.raises(SystemExit) as caught:
        main(["info", str(tmp_path / "evil.zip")])
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
