"""How the compiled kernels come to be: with any compiler or none, in any folder, by any number of processes at once."""

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
from elmokit.ops.native.build import BuildError, find_compiler, load
from elmokit.ops.weights import LstmWeights

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the kernels are not made for Windows")
missing = native.reason_against(torch.float32, int8=False)
needs_compiler = pytest.mark.skipif(missing is not None, reason=str(missing))


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """As in a process that has compiled nothing yet, with a cache of its own."""
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    binding._outcome.cache_clear()
    yield tmp_path / "cache" / "native"
    binding._outcome.cache_clear()


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
        "the compiled kernels are not there: there is no C compiler here (cc, gcc, clang, or: pip install ziglang)"
    )
    assert encode_choice().startswith("packed: the compiled kernels are not there")


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
    with pytest.raises(BuildError, match="the compiler that CC names, no-such-compiler, is not there"):
        find_compiler()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'library.c:1: error: no such header' >&2; exit 1", "failed: library.c:1: error: no such header"),
        ("exit 3", "failed: status 3"),
        ("exit 0", "failed: status 0"),
        ('while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"', "made cannot be loaded"),
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
    assert native.reason_against(torch.float32, int8=False) == "the compiled kernels are not there: ELMOKIT_NATIVE is 0"
    assert encode_choice() == "packed: the compiled kernels are not there: ELMOKIT_NATIVE is 0"
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
def test_where_the_cache_cannot_be_written_it_still_works(fresh, monkeypatch, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert native.reason_against(torch.float32, int8=False) is None


@needs_compiler
def test_processes_may_build_at_once(fresh):
    code = "import torch; from elmokit.ops import native; print(native.reason_against(torch.float32, int8=True))"
    # Processes on their own, without what pytest changes in this one.
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in started:
        out, err = process.communicate(timeout=120)
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
        ("layer", binding.Layer),
        ("bilstm", binding.BiLstm),
        ("linear", binding.Linear),
        ("product", binding.Product),
        ("filters", binding.Filters),
        ("highway", binding.Highway),
        ("characters", binding.Characters),
    ):
        body = text.split(f"struct {name} {{")[1].split("\n};")[0]
        declared = re.findall(r"(\w+)(?=[,;])", re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL))
        assert declared == [field for field, _ in structure._fields_]
