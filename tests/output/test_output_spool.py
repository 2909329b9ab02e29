"""The spool keeps what was committed, whatever happens to the files after, and refuses what does not belong to it."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elmokit.errors import ElmoError
from elmokit.output import read_vectors
from elmokit.output.embed_lines import Spool
from support.output_samples import FORMATS, SETTINGS, embed, encoder, numbered_lines, tokenise, vectors_for
from support.refusals import full_disk

LINES = numbered_lines(8)
COMMITS = (0, 2, 5, 7)


def fill(output):
    """A spool with a commit after some sentences and a tail that was never committed."""
    with Spool(output, settings=SETTINGS) as spool:
        spool.skip_committed(iter(()))
        for number, line in enumerate(LINES, 1):
            spool.append(line, tokenise(line), vectors_for(tokenise(line), "one"))
            if number in COMMITS:
                spool.commit()
    return output.with_name(output.name + ".partial")


def content(output):
    with Spool(output, settings=SETTINGS, resume=True) as spool:
        spool.skip_committed(iter(LINES))
        return [(text, tokens, rows.tolist()) for text, tokens, rows in spool.stored().items()]


def expected(count):
    return [(line, tokenise(line), vectors_for(tokenise(line), "one").tolist()) for line in LINES[:count]]


def same(output, lines, kind="one"):
    back = list(read_vectors(output))
    return len(back) == len(lines) and all(
        np.array_equal(vectors, vectors_for(tokenise(line), kind))
        for line, (_, vectors) in zip(lines, back, strict=True)
    )


def test_what_was_not_committed_is_cut_off(tmp_path):
    fill(tmp_path / "o.npz")
    assert content(tmp_path / "o.npz") == expected(7)


@pytest.mark.parametrize("name", ["vectors.bin", "sentences.jsonl"])
def test_a_file_cut_at_any_byte_keeps_the_commit_or_starts_again(tmp_path, name):
    whole = fill(tmp_path / "whole")
    done = json.loads((whole / "state.json").read_text(encoding="ascii"))["done"]
    committed = done["vector_bytes" if name == "vectors.bin" else "text_bytes"]
    size = (whole / name).stat().st_size
    assert committed <= size
    for length in range(size, -1, -1):
        shutil.rmtree(tmp_path / "o.partial", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "o.partial")
        with (tmp_path / "o.partial" / name).open("r+b") as file:
            file.truncate(length)
        assert content(tmp_path / "o") == expected(7 if length >= committed else 0)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names of open files are read from /proc")
def test_data_are_on_the_disk_before_the_journal_counts_them(tmp_path, monkeypatch):
    steps = []

    def named(fd):
        return Path(os.readlink(f"/proc/self/fd/{fd}")).name  # noqa: PTH115

    def noting(name, real):
        def wrapped(first, *rest):
            steps.append((name, named(first) if isinstance(first, int) else Path(first).name))
            return real(first, *rest)

        return wrapped

    with Spool(tmp_path / "o.jsonl", settings=SETTINGS) as spool:
        spool.append("a", ["a"], np.zeros((1, 4)))
        for name in ("write", "fsync", "replace", "unlink"):
            monkeypatch.setattr(os, name, noting(name, getattr(os, name)))
        spool.commit()
        assert [step for step in steps if step[0] in ("fsync", "replace")][:4] == [
            ("fsync", "vectors.bin"),
            ("fsync", "sentences.jsonl"),
            ("fsync", "state.json"),
            ("replace", "state.json"),
        ]
        steps.clear()
        spool.publish(lambda stored, target: target.touch())
    assert [step for step in steps if step[0] in ("fsync", "replace")][:6] == [
        ("fsync", "result.tmp"),
        ("replace", "result.tmp"),
        ("fsync", tmp_path.name),
        ("fsync", "state.json"),
        ("replace", "state.json"),
        ("fsync", "o.jsonl.partial"),
    ]


def test_work_goes_on_after_a_fall_back(tmp_path):
    folder = fill(tmp_path / "o.npz")
    (folder / "vectors.bin").write_bytes((folder / "vectors.bin").read_bytes()[:-500])
    summary = embed(LINES, tmp_path / "o.npz", resume=True)
    assert summary.resumed_from in COMMITS
    assert same(tmp_path / "o.npz", LINES)


def test_an_earlier_run_needs_resume_or_deletion(tmp_path):
    fill(tmp_path / "o.npz")
    with pytest.raises(ElmoError, match=r"7 sentences of an earlier run: continue it with resume, or delete"):
        embed(LINES, tmp_path / "o.npz")
    assert content(tmp_path / "o.npz") == expected(7)


def test_a_spool_without_a_commit_is_started_again(tmp_path):
    (tmp_path / "o.npz.partial").mkdir()
    embed(LINES, tmp_path / "o.npz")
    folder = fill(tmp_path / "p.npz")
    (folder / "vectors.bin").unlink()
    embed(LINES, tmp_path / "p.npz", settings={"other": 1})
    assert same(tmp_path / "p.npz", LINES)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer": "top"}, r'were layer "mix", got layer "top"'),
        ({"layer": "top", "model": 1}, r'were layer "mix", model "sha256:abc", got layer "top", model 1'),
        ({"new": True}, "were new null, got new true"),
    ],
)
def test_resume_with_other_settings(tmp_path, change, said):
    folder = fill(tmp_path / "o.npz")
    with pytest.raises(ElmoError, match=f"{said}: use the earlier settings, or delete .*partial"):
        embed(LINES, tmp_path / "o.npz", settings={**SETTINGS, **change}, resume=True)
    with pytest.raises(ElmoError, match="were pooled false, got pooled true"):
        embed(LINES, tmp_path / "o.npz", "pooled", resume=True)
    assert folder.exists()
    assert content(tmp_path / "o.npz") == expected(7)


@pytest.mark.parametrize(
    "lines",
    [["x", *LINES[1:]], [*LINES[:6], "x", LINES[7]], LINES[:6], ["", *LINES], ["\n".join(LINES[:2]), *LINES[2:], ""]],
    ids=["first", "last", "short", "shifted", "joined"],
)
def test_resume_with_other_input(tmp_path, lines):
    fill(tmp_path / "o.npz")
    with pytest.raises(ElmoError, match=r"the same input.* the 7 lines already done: restore it, or delete .*partial"):
        embed(lines, tmp_path / "o.npz", resume=True)
    assert content(tmp_path / "o.npz") == expected(7)


def test_input_may_grow_between_runs(tmp_path):
    fill(tmp_path / "o.npz")
    embed([*LINES, "some more"], tmp_path / "o.npz", resume=True)
    assert same(tmp_path / "o.npz", [*LINES, "some more"])


def test_resume_without_an_earlier_run_starts(tmp_path):
    assert embed(LINES, tmp_path / "o.npz", resume=True).resumed_from == 0


def test_two_processes(tmp_path):
    with (
        Spool(tmp_path / "o.npz", settings={}),
        pytest.raises(ElmoError, match=r"another process is writing .*o\.npz: wait"),
    ):
        embed(LINES, tmp_path / "o.npz", resume=True)
    code = "import sys; from support.output_samples import *; embed(['a'], Path(sys.argv[1]))"
    here = Path(__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": f"{here.parent / 'src'}{os.pathsep}{here}"}
    with Spool(tmp_path / "o.npz", settings={}):
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path / "o.npz"], env=env, capture_output=True, text=True, check=False
        )
    assert "another process is writing" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    folder = tmp_path / "o.npz.partial"
    folder.mkdir()
    (folder / "diary").write_text("Dear diary", encoding="ascii")
    with pytest.raises(ElmoError, match="not the folder of an unfinished run"):
        embed(LINES, tmp_path / "o.npz", resume=True)
    assert (folder / "diary").read_text(encoding="ascii") == "Dear diary"
    shutil.rmtree(folder)
    folder.write_text("a file", encoding="ascii")
    with pytest.raises(ElmoError, match="must be a folder or absent, got a file"):
        embed(LINES, tmp_path / "o.npz")


def test_a_spool_of_another_version(tmp_path):
    folder = fill(tmp_path / "o.npz")
    settings = json.loads((folder / "state.json").read_text(encoding="ascii"))
    (folder / "state.json").write_text(json.dumps({**settings, "version": 2}), encoding="ascii")
    with pytest.raises(ElmoError, match="must be of version 1, got 2"):
        embed(LINES, tmp_path / "o.npz", resume=True)


def embed_until(name, output, monkeypatch):
    """A run that stops, as a kill would stop it, when the spool is about to delete this file of its own."""
    real, removed = os.unlink, []

    def unlink(path, *args, **options):
        removed.append(Path(path).name)
        # Each commit replaces state.json too, and removes what is left of the temporary file.
        if removed[-1] == name and (name != "state.json" or "vectors.bin" in removed):
            raise KeyboardInterrupt
        real(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            embed(LINES, output)


@pytest.mark.parametrize("name", ["vectors.bin", "sentences.jsonl", "state.json"])
def test_a_run_stopped_while_it_cleans_up_is_not_done_again(tmp_path, name, monkeypatch):
    output = tmp_path / "o.npz"
    embed_until(name, output, monkeypatch)
    written = output.stat().st_mtime_ns
    never = lambda sentences: pytest.fail("encoded again")  # noqa: E731
    with pytest.raises(ElmoError, match="the same input"):
        embed([*LINES, "one more"], output, resume=True, encode=never)
    assert embed(LINES, output, resume=True, encode=never).resumed_from == len(LINES)
    assert output.stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [output]


def test_a_finished_run_whose_output_vanished_is_done_again(tmp_path, monkeypatch):
    output = tmp_path / "o.npz"
    for name, resumed in (("vectors.bin", len(LINES)), ("state.json", 0)):
        embed_until(name, output, monkeypatch)
        output.unlink()
        assert embed(LINES, output, resume=True).resumed_from == resumed
        assert same(output, LINES)


def test_a_finished_run_is_no_obstacle_to_a_new_one(tmp_path, monkeypatch):
    output = tmp_path / "o.npz"
    embed_until("vectors.bin", output, monkeypatch)
    embed(["other"], output, settings={})
    assert same(output, ["other"])


@pytest.mark.parametrize(("name", "layout"), FORMATS)
def test_disk_full_while_the_output_is_written(tmp_path, name, layout, monkeypatch):
    lines = numbered_lines(60)
    output = tmp_path / name

    def stop_at_the_end(sentences):
        yield from encoder("all")(sentences)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(lines, output, "all", encode=stop_at_the_end)
    for size in (0, 100, 3_000, 9_000):  # in the first bytes, within the data, and for HDF5 on closing
        with (
            full_disk(size, monkeypatch),
            pytest.raises(ElmoError, match=rf"no space is left .*{name}: free some .* resume.*partial"),
        ):
            embed(lines, output, "all", layout=layout, resume=True)
        assert [path.name for path in tmp_path.iterdir()] == [f"{name}.partial"]
        assert not (tmp_path / f"{name}.partial" / "result.tmp").exists()
    assert embed(lines, output, "all", layout=layout, resume=True).resumed_from == len(lines)
    assert same(output, lines, "all")


@pytest.mark.parametrize("size", [350, 1_000, 2_000])
def test_disk_full_while_vectors_are_collected(tmp_path, size, monkeypatch):
    lines = numbered_lines(60)
    output = tmp_path / "o.npz"
    with full_disk(size, monkeypatch), pytest.raises(ElmoError, match="no space is left on the disk"):
        embed(lines, output, commit_bytes=100)
    summary = embed(lines, output, resume=True)
    assert size < 1_000 or summary.resumed_from > 0
    assert same(output, lines)


def test_other_disk_errors_are_one_sentence_too(tmp_path, monkeypatch):
    def broken(fd):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(ElmoError, match=r"o\.npz cannot be written \(Input/output error\).* again$"):
            embed(LINES, tmp_path / "o.npz")
    embed(LINES, tmp_path / "o.npz", resume=True)
    assert same(tmp_path / "o.npz", LINES)


def test_vectors_must_fit_the_tokens_and_each_other(tmp_path):
    with Spool(tmp_path / "o.npz", settings={}) as spool:
        with pytest.raises(ValueError, match="2 tokens must have 2 vectors"):
            spool.append("a b", ["a", "b"], np.zeros((3, 4)))
        with pytest.raises(ValueError, match=r"\[T, D\] or \[L\+1, T, D\]"):
            spool.append("a", ["a"], np.zeros(4))
        spool.append("a", ["a"], np.zeros((1, 4)))
        with pytest.raises(ValueError, match="must have the shape"):
            spool.append("a", ["a"], np.zeros((1, 5)))
        with pytest.raises(ValueError, match="must have the shape"):
            spool.append("a", ["a"], np.zeros((2, 1, 4)))
