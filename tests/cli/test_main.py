"""`elmo` itself: help, versions, mistakes, streams that are closed or full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elmokit import __version__
from elmokit.output import read_vectors
from support.command_line import call, elmo, shell


def test_version_and_help(capsys):
    assert call(capsys, "--version")[:2] == (0, f"elmokit {__version__}\n")
    status, out, _ = call(capsys, "--help")
    assert status == 0
    for name in ("embed", "info", "convert"):
        assert name in out
    assert call(capsys) == (0, out, "")


@pytest.mark.parametrize("command", ["train text.txt --output new", "task train classify text.tsv --output new"])
@pytest.mark.parametrize(
    ("given", "spins"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")]
)
def test_training_shares_the_cores(command, given, spins):
    code = f"""
import os, sys
class AtTorch:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), flush=True)
            os._exit(0)
sys.meta_path.insert(0, AtTorch())
from elmokit.cli.main import main
main({command.split()!r})
"""
    others = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run([sys.executable, "-c", code], env=others | given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{spins}\n"), done.stderr


@pytest.mark.parametrize("name", ["task", "plot", "probe"])
def test_a_word_with_commands_behind_it_shows_them(capsys, name):
    status, out, err = call(capsys, name)
    assert (status, err) == (0, "")
    assert f" {name} [OPTIONS] COMMAND" in out.splitlines()[0]


@pytest.mark.parametrize("name", [[], ["embed"], ["task"], ["task", "train"]])
def test_a_short_option_shows_the_help(capsys, name):
    status, out, err = call(capsys, *name, "-h")
    assert (status, err) == (0, "")
    assert out == call(capsys, *name, "--help")[1]
    assert "-q, --quiet" in out or name == ["task"]


def test_required_options_are_marked(capsys):
    help = " ".join(call(capsys, "neighbours", "-h")[1].split())
    assert "--context TEXT The sentence in which the word is used. [required]" in help


@pytest.mark.parametrize("before", [True, False])
def test_quiet_leaves_results_and_errors(capsys, tmp_path, model_folder, before):
    quiet = ["--quiet"] if before else []
    arguments = ["the bank", "--model", model_folder, "--output", tmp_path / "v.npz", *([] if before else ["-q"])]
    assert call(capsys, *quiet, "embed", *arguments) == (0, "", "")
    assert "wrote" in call(capsys, "embed", *arguments[:5])[2], "the next call is not quiet"
    assert call(capsys, "-q", "info", "nowhere")[2].startswith("elmo: nowhere does not exist")


def test_a_shell_can_complete_it():
    complete = {"_ELMO_COMPLETE": "complete_bash", "COMP_WORDS": "elmo embed --pool m", "COMP_CWORD": "3"}
    assert elmo(env={**os.environ, **complete}).stdout.split() == [b"mean", b"max"]


def test_it_can_say_what_it_chose(model_folder):
    result = elmo("--verbose", "embed", "the bank", "--model", model_folder)
    assert result.returncode == 0
    assert b"elmo: device " in result.stderr
    assert b"device" not in elmo("embed", "the bank", "--model", model_folder).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embed", "x", "--model", "nowhere"], "nowhere does not exist"),
        (["embed", "x", "--model", "{model}", "--layer", "9"], "layer must be mix, top, all or 0 to 2, got 9"),
        (["embed", "x", "--model", "{model}", "--layer", "best"], "--layer must be mix, top, all or a number"),
        (["embed", "x", "--model", "{model}", "--pool", "sum"], "--pool"),
        (["embed", "x", "--model", "{model}", "--input", "f"], "not both"),
        (["embed", "--model", "{model}", "--input", "nofile"], "nofile"),
        (["embed", "--model", "{model}", "--input", "{text}", "--output", "v.doc"], "--output must end in one of"),
        (["embed", "--model", "{model}", "--input", "{text}", "--output", "no/v.h5"], "must exist"),
        (
            ["embed", "--model", "{model}", "--input", "{text}", "--output", "v.npz", "--format", "bilm"],
            "for the layout bilm",
        ),
        (["embed", "--model", "{model}", "--input", "{text}", "--format", "bilm"], "add --output"),
        (["embed", "x", "--model", "{model}", "--resume"], "--resume needs --output"),
        (["embed", "x", "--model", "{model}", "--batch-tokens", "0"], "--batch-tokens"),
        (["embed", "x", "--model", "{model}", "--device", "abacus"], "the device 'abacus' cannot be used here"),
        (["embed", "x", "--model", ""], "--model must not be empty"),
        (["embed", "--model", "{model}", "--input", ""], "--input must not be empty"),
        (["embed", "x", "--model", "{model}", "--output", ""], "--output must not be empty"),
        (["info", ""], "MODEL must not be empty"),
        (["embed", "x", "--model", "{model}", "--output", "x" * 250 + ".h5"], "File name too long"),
        (["embed", "x", "--device", "gpu"], "--device must be cpu, cuda, cuda:1 or mps, got 'gpu'"),
        (["embed", "x", "--model", "bert-base-uncased"], "bert-base-uncased is a model of another kind"),
        (["info", "google-bert/bert-base-chinese"], "zh (Chinese) is in the package"),
        (["embed", "--nonsense"], "No such option: --nonsense (elmo embed --help shows"),
        (["embed", "x", "--modle", "en"], "did you mean --model? (elmo embed --help shows"),
        (["embed", "x", "--model"], "'--model' requires an argument. (elmo embed --help shows"),
        (["--quiet", "task", "trian"], "Did you mean 'train'? (elmo task --help shows"),
        (["info", "a\x1b[31mb"], "a\ufffd[31mb does not exist"),
        (["frobnicate"], "frobnicate"),
        (["info"], "MODEL"),
        (["convert", "{model}", "{model}"], "not empty"),
        (["convert", "{model}", "{text}"], "DST must be a folder"),
        (["convert", "{model}", "out", "--to", "tokens"], "end in .hdf5"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(
    capsys, monkeypatch, tmp_path, model_folder, text_file, arguments, message
):
    monkeypatch.chdir(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    filled = [argument.format(model=model_folder, text=text_file) for argument in arguments]
    status, out, err = call(capsys, *filled)
    assert status == 2
    assert out == ""
    assert err.startswith("elmo: ")
    assert err.count("\n") == 1
    assert message in err
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "nothing may be left behind"


def test_ctrl_c_while_the_commands_are_imported(capsys, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["elmokit.cli.main"], "import_module", interrupted)
    assert call(capsys, "models") == (130, "", "elmo: interrupted\n")


def test_a_cache_that_cannot_be_looked_into(capsys, monkeypatch, tmp_path, model_folder, text_file):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / ("x" * 300)))  # such a name has an error of its own
    status, out, err = call(capsys, "senses", "bank", "--model", model_folder, "--corpus", text_file)
    assert (status, out) == (2, "")
    assert err.startswith("elmo: ")
    assert "File name too long" in err
    (tmp_path / "a.tsv").write_text("a\tthe bank\nb\ta river\n" * 9)
    files = [tmp_path / "a.tsv", "--model", model_folder, "--output", tmp_path / "out"]
    status, _, err = call(capsys, "task", "train", "classify", *files)
    assert status == 2
    assert "File name too long" in err


def test_closed_streams(tmp_path, model_folder):
    for dash in ("", "--input -", "-"):
        result = shell(f"elmo embed {dash} --model {model_folder} <&-")
        assert result.returncode == 2
        assert result.stderr.startswith(b"elmo: nothing to embed")
    result = shell(f"elmo embed 'the bank' --model {model_folder} --output {tmp_path / 'v.h5'} 2>&-")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")
    assert [tokens for tokens, _ in read_vectors(tmp_path / "v.h5")] == [["the", "bank"]]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this device")
@pytest.mark.parametrize("command", ["--help", "--version", "info {model}", "embed x --model {model}"])
def test_a_stdout_that_cannot_be_written_is_one_sentence(model_folder, command):
    result = shell(f"elmo {command.format(model=model_folder)} >/dev/full")
    assert result.returncode == 2
    assert result.stderr == b"elmo: standard output cannot be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has this device")
def test_a_lost_stderr_changes_neither_the_work_nor_the_status(tmp_path, model_folder):
    result = shell(f"elmo embed 'the bank' --model {model_folder} --output {tmp_path / 'v.h5'} 2>/dev/full")
    assert result.returncode == 0
    assert [tokens for tokens, _ in read_vectors(tmp_path / "v.h5")] == [["the", "bank"]]
    assert shell("elmo info nowhere 2>/dev/full").returncode == 2


def test_a_stdout_that_is_not_utf8(model_folder):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = elmo("embed", "the élan", "--model", model_folder, env=environment)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(b"the ?lan\n")
