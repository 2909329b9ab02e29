"""A user's mistake on the command line: exit status 2, one line on stderr, no traceback, nothing written."""

import json
import os
import subprocess
import sys
import unicodedata

import h5py
import numpy as np
import pytest

from elmokit.cli import main
from support.model_files import make_bilm, make_manylangs, run, write_bilm, write_manylangs


def stopped(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    written = capsys.readouterr()
    assert caught.value.code == 2
    assert not written.out
    assert written.err.startswith("elmo: ")
    assert written.err.count("\n") == 1
    assert "Traceback" not in written.err
    return written.err


def damage(folder, how: str) -> str:
    """Break a model; the name of the file that the sentence must hold."""
    weights = folder / "weights.hdf5"
    if how == "missing options":
        (folder / "options.json").unlink()
        return "options.json"
    if how == "broken options":
        (folder / "options.json").write_text('{\n"lstm": {\n')
        return "options.json"
    if how == "cut weights":
        weights.write_bytes(weights.read_bytes()[:3000])
    elif how == "text weights":
        weights.write_text("not\nhdf5\n")
    elif how == "missing dataset":
        with h5py.File(weights, "a") as file:
            del file["char_embed"]
    else:
        with h5py.File(weights, "a") as file:
            file["CNN/b_cnn_0"][0] = np.nan
    return "weights.hdf5"


DAMAGES = ["missing options", "broken options", "cut weights", "text weights", "missing dataset", "NaN"]


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("command", ["info", "embed", "convert"])
def test_a_damaged_model(tmp_path, capsys, how, command):
    folder = write_bilm(tmp_path / "model", make_bilm())
    name = damage(folder, how)
    arguments = {
        "info": ["info", folder],
        "embed": ["embed", "the bank", "--model", folder, "--output", tmp_path / "out.h5"],
        "convert": ["convert", folder, tmp_path / "out"],
    }[command]
    assert name in stopped(capsys, *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_path_with_a_line_break(tmp_path, capsys):
    stopped(capsys, "info", tmp_path / "two\nlines")


def test_convert_refuses(tmp_path, capsys):
    bilm = write_bilm(tmp_path / "bilm", make_bilm())
    manylangs = write_manylangs(tmp_path / "manylangs", make_manylangs())
    assert "format elmokit" in stopped(capsys, "convert", manylangs, tmp_path / "to", "--to", "bilm")
    assert "--overwrite" in stopped(capsys, "convert", bilm, manylangs)
    assert "must be a folder" in stopped(capsys, "convert", bilm, bilm / "weights.hdf5")
    assert "vocab" in stopped(capsys, "convert", bilm, tmp_path / "to.hdf5", "--to", "tokens")
    assert ".hdf5" in stopped(capsys, "convert", bilm, tmp_path / "to", "--to", "tokens")
    assert "does not exist" in stopped(capsys, "convert", bilm, tmp_path / "no" / "to.hdf5", "--to", "tokens")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bilm", "manylangs"]


def test_a_process_of_its_own(tmp_path):
    """As a user runs it, torch's and h5py's own messages included."""
    folder = write_bilm(tmp_path, make_bilm())
    damage(folder, "cut weights")
    result = subprocess.run(
        [sys.executable, "-m", "elmokit", "info", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"elmo: {folder / 'weights.hdf5'} is not a complete HDF5 file")
    assert result.stderr.count("\n") == 1


HOSTILE = "x\x1b]0;title\x07\x9b31m\u202ey"


@pytest.mark.parametrize("what", ["metadata", "tensor", "missing", "target", "warning", "usage"])
def test_no_control_character_reaches_the_terminal(tmp_path, capsys, what):
    model = write_bilm(tmp_path / "model", make_bilm())
    arguments = {
        "metadata": ["info", tmp_path / "native"],
        "tensor": ["info", model],
        "missing": ["info", tmp_path / HOSTILE],
        "target": ["convert", model, tmp_path / HOSTILE],
        "warning": ["embed", "a river bank.", "--model", tmp_path / HOSTILE],
        "usage": ["info", model, f"--{HOSTILE}"],
    }[what]
    if what == "metadata":
        assert run("convert", model, tmp_path / "native") == 0
        config = json.loads((tmp_path / "native" / "config.json").read_text())
        config["about"] = {HOSTILE: HOSTILE}
        (tmp_path / "native" / "config.json").write_text(json.dumps(config))
    elif what == "tensor":
        with h5py.File(model / "weights.hdf5", "a") as file:
            file[f"CNN/{HOSTILE}"] = np.zeros(3, np.float32)
    elif what == "warning":
        model.rename(tmp_path / HOSTILE)
    capsys.readouterr()
    if what == "warning":  # pytest has handlers of its own for the messages of this process
        done = subprocess.run([sys.executable, "-m", "elmokit", *map(str, arguments)], capture_output=True, check=True)
        shown = done.stderr.decode()
    else:
        run(*arguments)
        shown = "".join(capsys.readouterr())
    assert "title" in shown
    assert not any(unicodedata.category(letter) in ("Cc", "Cf") and letter != "\n" for letter in shown), shown
