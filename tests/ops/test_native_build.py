"""How the compiled kernels come to be: with any compiler or none, in any folder, by any number of processes at once."""

import ctypes
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elmokit.ops import native
from elmokit.ops.bilstm import choose
from elmokit.ops.native import binding, build
from elmokit.ops.native.binding import Library
from elmokit.ops.native.build import BuildError, find_compiler, load
from elmokit.ops.weights import LstmWeights
from support.native_cases import needs_kernels as needs_compiler

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the kernels are not made for Windows")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """As in a process that has compiled nothing yet, with a cache of its own."""
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    binding._load_once.cache_clear()
    yield tmp_path / "cache" / "native"
    binding._load_once.cache_clear()


@pytest.fixture(scope="module")
def library_bytes() -> bytes:
    return build._compile(find_compiler(), build.MACHINES)


@pytest.fixture
def compilations(fresh, monkeypatch, library_bytes):
    """How often the library was compiled, which here takes no time."""
    done = []
    monkeypatch.setattr(build, "_compile", lambda *arguments: done.append(arguments) or library_bytes)
    return done


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def encode_choice() -> str:
    """What the dispatcher would do with a small batch, in words."""
    weights = LstmWeights(torch.ones(8, 1), torch.ones(8, 1), torch.ones(8), None)
    choice = choose(torch.ones(1, 1, 1), [[weights]], gradient=False)
    return f"{choice.path}: {choice.why}"


def test_without_a_compiler_torch_does_the_work(fresh, monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    assert native.reason_against(torch.float32, int8=True) == (
        "there are no compiled kernels: no C compiler was found (cc, gcc, clang, or: pip install ziglang)"
    )
    assert encode_choice().startswith("packed: there are no compiled kernels")


def test_the_wheel_ziglang_is_a_compiler(monkeypatch, tmp_path):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: name == "ziglang" or None)
    assert find_compiler() == [sys.executable, "-m", "ziglang", "cc"]


def test_cc_is_taken_at_its_word(monkeypatch, tmp_path):
    ours = script(tmp_path / "mycc", "exit 0")
    monkeypatch.setenv("CC", f"{ours} -flag")
    assert find_compiler() == [str(ours), "-flag"]
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BuildError, match="the compiler that CC names, no-such-compiler, was not found"):
        find_compiler()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'library.c:1: error: no such header' >&2; exit 1", "failed: library.c:1: error: no such header"),
        ("exit 3", "failed: status 3"),
        ("exit 0", "failed: status 0"),
        ('while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"', "compiled cannot be loaded"),
    ],
)
def test_a_broken_compiler_is_reported_and_leaves_nothing(fresh, monkeypatch, tmp_path, text, words):
    monkeypatch.setenv("CC", str(script(tmp_path / "broken", text)))
    reason = native.reason_against(torch.float32, int8=False)
    assert reason is not None
    assert words in reason
    assert "\n" not in reason
    assert encode_choice().startswith("packed: ")
    assert not list(fresh.iterdir())


def test_a_compiler_that_hangs_is_given_up(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", str(script(tmp_path / "slow", "sleep 20")))
    monkeypatch.setattr(build, "SECONDS", 0.05)
    assert "did not run" in str(native.reason_against(torch.float32, int8=False))


@needs_compiler
def test_the_switch_turns_it_off_and_on(monkeypatch):
    monkeypatch.setenv("ELMOKIT_NATIVE", "0")
    assert native.reason_against(torch.float32, int8=False) == "there are no compiled kernels: ELMOKIT_NATIVE is 0"
    assert encode_choice() == "packed: there are no compiled kernels: ELMOKIT_NATIVE is 0"
    monkeypatch.delenv("ELMOKIT_NATIVE")
    assert encode_choice().startswith(f"native: {native.description()}")


@needs_compiler
def test_it_is_compiled_once_and_kept(fresh, monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="elmokit")
    load()
    [kept] = fresh.iterdir()
    assert kept.suffix == ".so"
    assert "compiling the kernels for this CPU" in caplog.text
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    load()


@needs_compiler
def test_a_damaged_file_is_made_anew(fresh):
    load()
    [kept] = fresh.iterdir()
    whole = kept.read_bytes()
    kept.unlink()
    kept.write_bytes(b"not a library")
    load()
    assert kept.stat().st_size == len(whole)


@needs_compiler
@pytest.mark.parametrize("damage", ["cut short", "changed", "longer", "empty"])
def test_a_library_that_is_not_whole_is_compiled_again(fresh, compilations, damage):
    """Mapped into memory, a file that is cut short would end the process."""
    load()
    [cached] = fresh.iterdir()
    whole = cached.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    cached.write_bytes({"cut short": whole[:40_000], "changed": changed, "longer": whole + b"x", "empty": b""}[damage])
    assert Library(load()).instructions()
    assert cached.read_bytes() == whole
    assert len(compilations) == 2


def assert_not_trusted(folder: Path, why: str) -> None:
    """What is in this folder is neither used nor replaced, and what happens instead is reported."""
    before = {path: path.lstat().st_mtime_ns for path in folder.iterdir()}
    assert native.reason_against(torch.float32, int8=False) is None
    assert why in native.description()
    assert {path: path.lstat().st_mtime_ns for path in folder.iterdir()} == before


@needs_compiler
def test_a_library_of_another_user_is_not_loaded(fresh, compilations, give_away):
    load()
    [cached] = fresh.iterdir()
    give_away(cached)
    load()
    assert len(compilations) == 2
    assert cached.stat().st_uid == os.geteuid()


@needs_compiler
def test_a_folder_that_belongs_to_another_user(fresh, compilations, give_away):
    load()
    give_away(fresh)
    own = fresh.with_name(f"native-{os.geteuid()}")
    assert_not_trusted(fresh, f"in {own}: {fresh} belongs to another user")
    assert len(list(own.iterdir())) == 1
    assert len(compilations) == 2


@needs_compiler
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_a_folder_that_others_can_write_to(fresh, compilations, mode):
    load()
    fresh.chmod(mode)
    assert_not_trusted(fresh, f"can be changed by other users (mode {mode:o})")
    assert len(compilations) == 2


@needs_compiler
def test_a_file_that_others_can_write_to(fresh, compilations):
    load()
    [cached] = fresh.iterdir()
    cached.chmod(0o666)
    load()
    assert not cached.stat().st_mode & 0o022
    assert len(compilations) == 2


@needs_compiler
def test_links_in_the_cache_are_not_followed(fresh, compilations, tmp_path):
    load()
    [cached] = fresh.iterdir()
    cached.rename(tmp_path / "elsewhere.so")
    cached.symlink_to(tmp_path / "elsewhere.so")
    load()
    assert not cached.is_symlink()
    fresh.rename(tmp_path / "elsewhere")
    fresh.symlink_to(tmp_path / "elsewhere")
    assert_not_trusted(tmp_path / "elsewhere", "must not be a link")
    assert len(compilations) == 3


@needs_compiler
def test_where_nothing_can_be_trusted_a_process_compiles_for_itself(fresh, compilations):
    for name in ("native", f"native-{os.geteuid()}"):
        fresh.with_name(name).mkdir(parents=True)
        fresh.with_name(name).chmod(0o777)
    assert_not_trusted(fresh, "for this process only")
    assert not list(fresh.iterdir())


@needs_compiler
def test_a_cache_that_cannot_be_written_is_read(fresh, compilations, monkeypatch):
    load()

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(build, "_store", refuse)
    load()
    assert len(compilations) == 1
    assert (
        load(machines=[["-O2"]]).note
        == f"for this process only: {fresh.parent} cannot be written (Read-only file system)"
    )


@needs_compiler
def test_two_libraries_in_one_process(fresh, compilations):
    """Both are loaded from memory, where one must not be taken for the other."""
    places = {
        ctypes.cast(library.functions.elmokit_bilstm, ctypes.c_void_p).value
        for library in (load(), load(machines=[["-O2"]]))
    }
    assert len(places) == 2
    assert len(list(fresh.iterdir())) == 2


@needs_compiler
def test_a_system_that_loads_nothing_from_memory(fresh, compilations, monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    for _ in range(2):
        assert Library(load()).instructions()
    assert len(compilations) == 1


def test_without_a_folder_for_temporary_files(fresh, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", str(script(tmp_path / "mycc", "exit 0")))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path / "gone"))
    assert "there is no folder for temporary files" in str(native.reason_against(torch.float32, int8=False))


def test_the_compiler_works_in_a_private_folder_and_finds_no_modules_in_this_one(fresh, monkeypatch, tmp_path):
    noted = tmp_path / "noted"
    text = f'ls -ld "$TMPDIR/" > {noted}; echo "$PYTHONSAFEPATH" >> {noted}; exit 1'
    monkeypatch.setenv("CC", str(script(tmp_path / "noting", text)))
    native.reason_against(torch.float32, int8=False)
    rights, safe = noted.read_text().splitlines()
    assert rights.startswith("drwx------")
    assert safe == "1"


@needs_compiler
def test_where_the_cache_cannot_be_written_it_still_works(fresh, monkeypatch, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert native.reason_against(torch.float32, int8=False) is None


@needs_compiler
@pytest.mark.parametrize("count", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_may_build_at_once(fresh, count):
    code = "import torch; from elmokit.ops import native; print(native.reason_against(torch.float32, int8=True))"
    # Processes on their own, without what pytest changes in this one.
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for process in started:
        out, err = process.communicate(timeout=600)
        assert out.strip() == "None", err
    assert len(list(fresh.iterdir())) == 1


def test_the_name_of_the_library_tells_compilers_and_flags_apart(tmp_path):
    one = build._fingerprint([sys.executable], [["-march=native"]])
    assert one == build._fingerprint([sys.executable], [["-march=native"]])
    assert one != build._fingerprint([sys.executable], [["-march=x86-64"]])
    assert one != build._fingerprint([str(tmp_path / "cc")], [["-march=native"]])


def test_structures_agree_with_the_sources():
    """Fields in the order in which the C sources declare them; ctypes cannot see those."""
    text = "".join(path.read_text(encoding="utf-8") for path in build.SOURCES.iterdir())
    for name, structure in (
        ("matrix", binding.Matrix),
        ("layer", binding.LayerArguments),
        ("bilstm", binding.BiLstm),
        ("linear", binding.Linear),
        ("affine", binding.AffineArguments),
        ("filters", binding.Filters),
        ("highway", binding.HighwayArguments),
        ("characters", binding.Characters),
        ("block", binding.Block),
        ("transformer", binding.Transformer),
    ):
        body = text.split(f"struct {name} {{")[1].split("\n};")[0]
        declared = re.findall(r"(\w+)(?=[,;])", re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL))
        assert declared == [field for field, _ in structure._fields_]
