"""`elmo embed`: what it prints and writes, how it is interrupted and resumed."""

import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit import Elmo
from elmokit.cli.embed import readable
from elmokit.output import read_vectors
from support.command_line import TEXT, call, elmo


def test_sentences_as_arguments_print_a_line_each(capsys, model_folder):
    status, out, _ = call(capsys, "embed", "the bank", "a\x07river 😀", "--model", model_folder)
    assert status == 0
    lines = out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("[2 x 12]")
    assert lines[0].endswith("the bank")
    assert lines[1].endswith("a\ufffdriver 😀")
    first = Elmo.load(model_folder).encode(["the bank"])[0][0, 0]
    assert f"{first:+.4f}" in lines[0]


@pytest.mark.parametrize("dash", [[], ["-"], ["--input", "-"]])
def test_standard_input_and_bad_bytes(model_folder, dash):
    result = elmo("embed", *dash, "--model", model_folder, stdin="the bank\nélan\n".encode() + b"bad \xff byte")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.decode().splitlines()) == 3
    assert (
        result.stderr.decode()
        .strip()
        .endswith("1 line was not UTF-8 (the first is line 3); bad bytes were read as U+FFFD")
    )


@pytest.mark.parametrize("ending", ["h5", "npz", "npy", "parquet", "jsonl", "csv"])
@pytest.mark.parametrize(("layer", "pool"), [("mix", "none"), ("all", "none"), ("1", "mean"), ("all", "max")])
def test_every_file_contains_what_encode_gives(capsys, tmp_path, model_folder, text_file, ending, layer, pool):
    output = tmp_path / f"vectors.{ending}"
    status, _, err = call(
        capsys,
        "embed",
        "--model",
        model_folder,
        "--input",
        text_file,
        "--output",
        output,
        "--layer",
        layer,
        "--pool",
        pool,
    )
    assert status == 0, err
    assert "5 sentences, 18 tokens" in err
    model = Elmo.load(model_folder)
    chosen = int(layer) if layer.isdigit() else layer
    expected = list(model.stream(TEXT, layer=chosen, pool=None if pool == "none" else pool))
    found = list(read_vectors(output))
    assert [tokens for tokens, _ in found] == [line.split() for line in TEXT]
    for (_, vectors), array in zip(found, expected, strict=True):
        np.testing.assert_array_equal(vectors, array)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["model", "text.txt", output.name])


def test_the_layouts_of_older_systems(capsys, tmp_path, model_folder, text_file):
    layers = Elmo.load(model_folder).encode(TEXT, output="layers")
    for layout in ("bilm", "allennlp"):
        output = tmp_path / f"{layout}.hdf5"
        call(capsys, "embed", "--model", model_folder, "--input", text_file, "--output", output, "--format", layout)
        with h5py.File(output) as file:
            for number, array in enumerate(layers):
                np.testing.assert_array_equal(file[str(number)][...], array)
            if layout == "allennlp":
                index = json.loads(file["sentence_to_index"][0])
                assert index["a bank raised money"] == "2"
                assert file["sentence_to_index"].shape == (1,)


def test_packed_input_and_segmenters(capsys, tmp_path, model_folder):
    packed = tmp_path / "text.gz"
    packed.write_bytes(gzip.compress(b"It's the bank.\n"))
    output = tmp_path / "v.jsonl"
    call(capsys, "embed", "--model", model_folder, "--input", packed, "--output", output, "--segment", "english")
    assert json.loads(output.read_text())["tokens"] == ["It", "'s", "the", "bank", "."]


def start_and_stop(arguments: list[object], folder: Path, stop: signal.Signals) -> tuple[int, bytes]:
    """Run `elmo` until it has written some vectors, then send it a signal."""
    before = sum(path.stat().st_size for path in folder.glob("vectors*")) if folder.exists() else 0
    process = subprocess.Popen(
        [sys.executable, "-m", "elmokit", *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 600
    while not folder.exists() or sum(path.stat().st_size for path in folder.glob("vectors*")) <= before:
        assert time.monotonic() < deadline, "nothing was written"
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(stop)
    _, err = process.communicate()
    return process.returncode, err


def test_stopped_killed_and_resumed_loses_nothing_and_doubles_nothing(tmp_path, model_folder):
    text = tmp_path / "text.txt"
    lines = [f"the bank number {n} of {n * 7919 % 1000} rivers ." for n in range(6000)]
    text.write_text("\n".join(lines), encoding="utf-8")
    output, partial = tmp_path / "vectors.h5", tmp_path / "vectors.h5.partial"
    arguments = ["embed", "--model", model_folder, "--input", text, "--output", output, "--batch-tokens", 64]
    status, err = start_and_stop(arguments, partial, signal.SIGINT)
    assert status == 130
    assert err.endswith(b"elmo: interrupted; the same command with --resume continues\n")
    refused = elmo(*arguments)
    assert refused.returncode == 2
    assert b"--resume" in refused.stderr
    assert start_and_stop([*arguments, "--resume"], partial, signal.SIGKILL)[0] == -signal.SIGKILL
    assert not output.exists()
    resumed = elmo(*arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert b"by an earlier run" in resumed.stderr
    assert not partial.exists()
    found = [(tokens, len(vectors)) for tokens, vectors in read_vectors(output)]
    assert found == [(line.split(), len(line.split())) for line in lines]


def test_a_terminal_sees_a_progress_bar(tmp_path, model_folder, text_file):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "elmokit", "embed", "--model", model_folder, "--input", text_file]
    result = subprocess.run(
        [*map(str, command), "--output", str(tmp_path / "v.npz")],
        stderr=follower,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    os.close(follower)
    shown = os.read(leader, 65536).decode()
    os.close(leader)
    assert result.returncode == 0
    assert "5 sentences" in shown
    assert "sentences/s" in shown or "sentences," in shown


def test_a_reader_that_leaves_ends_it_quietly(model_folder):
    many = b"the bank of the river\n" * 3000
    command = f"{sys.executable} -m elmokit embed --model {model_folder} | head -1"
    status = "; exit ${PIPESTATUS[0]}"
    result = subprocess.run(["bash", "-c", command + status], input=many, capture_output=True, check=False)
    assert result.stdout.count(b"\n") == 1
    assert result.stderr == b""
    assert result.returncode == 141, "as if SIGPIPE had ended it"


@pytest.mark.parametrize("link", [None, os.symlink, os.link])
@pytest.mark.parametrize("option", ["--input", "--vocab", "--options", "--model", "a file in --model"])
def test_the_output_is_never_a_file_that_is_read(capsys, tmp_path, model_folder, text_file, link, option):
    source = (model_folder if option == "a file in --model" else tmp_path) / "source.npz"
    source.write_bytes(b"precious")
    output = source
    if link:
        output = tmp_path / "link.npz"
        link(source, output)
    given = {"--model": model_folder, "--input": text_file}
    if option in ("--input", "--vocab", "--options", "--model"):
        given[option] = source
    status, _, err = call(capsys, "embed", *(part for pair in given.items() for part in pair), "--output", output)
    assert status == 2
    assert f"--output must not be a file that {option.split()[-1]} reads" in err
    assert source.read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["standard input", "arguments"])
def test_resume_of_any_kind_of_input(tmp_path, model_folder, kind):
    output = tmp_path / "v.npz"
    for count in (3_000, 6_000, 12_000, 24_000):  # more where the command has ended before the signal came
        output.unlink(missing_ok=True)
        lines = [f"the bank {n}" for n in range(count)]
        given = lines if kind == "arguments" else []
        arguments = ["embed", *given, "--model", model_folder, "--output", output, "--batch-tokens", 64]
        process = subprocess.Popen(
            [sys.executable, "-m", "elmokit", *map(str, arguments)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with process.stdin as pipe:
            pipe.write(b"" if given else "\n".join(lines).encode())
        partial = tmp_path / "v.npz.partial" / "sentences.jsonl"
        # With the second sentence in the file, the first one counts as done.
        while process.poll() is None and not (partial.exists() and partial.read_bytes().count(b"\n") > 1):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
        process.stderr.close()
        if process.wait():
            break
    assert process.returncode == 130, err
    resumed = elmo(*arguments, "--resume", stdin=b"" if given else "\n".join(lines).encode())
    assert resumed.returncode == 0, resumed.stderr
    assert b"by an earlier run" in resumed.stderr
    assert [" ".join(tokens) for tokens, _ in read_vectors(output)] == lines


def test_each_line_shows_as_it_comes(model_folder):
    process = subprocess.Popen(
        [sys.executable, "-m", "elmokit", "embed", "--model", str(model_folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        for word in (b"a", b"bank"):
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"  " + word + b"\n")  # while standard input is still open
        process.stdin.close()
    assert process.returncode == 0


def test_readable_keeps_what_shapes_letters_and_nothing_that_moves_them():
    shown = "👩\u200d🚀 می\u200cخواهم e\u0301"
    assert readable([shown], np.zeros((1, 2), np.float32)).endswith(f"  {shown}")
    for control in "\u202e\u2066\u200f\x1b\x00\ud800":
        assert readable([f"a{control}b"], np.zeros((1, 2), np.float32)).endswith("  a\ufffdb")


def test_one_is_singular(capsys, tmp_path, model_folder):
    _, _, err = call(capsys, "embed", "bank", "--model", model_folder, "--output", tmp_path / "v.npz")
    assert err.endswith(": 1 sentence, 1 token\n")


def test_ctrl_c_before_anything_is_stored_says_no_more(capsys, monkeypatch, tmp_path, model_folder):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Elmo, "load", interrupted)
    status, _, err = call(capsys, "embed", "x", "--model", model_folder, "--output", tmp_path / "v.h5")
    assert (status, err) == (130, "elmo: interrupted\n")


def test_the_name_of_a_file_is_not_embedded(capsys, model_folder, text_file):
    status, out, err = call(capsys, "embed", text_file, "--model", model_folder)
    assert (status, out) == (2, "")
    assert f"--input {text_file}" in err
    assert f"--text {text_file}" in err
    status, out, _ = call(capsys, "embed", "--text", text_file, "--model", model_folder)
    assert status == 0
    assert out.startswith("[1 x 12]")
    status, _, err = call(capsys, "embed", "--text", "a", "--input", text_file, "--model", model_folder)
    assert status == 2
    assert "not both" in err
    assert call(capsys, "embed", "w " * 5000, "--model", model_folder)[0] == 0, "too long for a name"


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("none", ["The bank. A river.", "of money", "", "It is. Not."]),
        ("line", ["The bank.", "A river.", "of money", "It is.", "Not."]),
        ("paragraph", ["The bank.", "A river. of money", "It is.", "Not."]),
    ],
)
def test_lines_are_split_into_sentences(capsys, tmp_path, model_folder, split, expected):
    (tmp_path / "raw.txt").write_text("The bank. A river.\nof money\n\nIt is. Not.\n")
    output = tmp_path / "v.npz"
    given = ("--input", tmp_path / "raw.txt", "--output", output, "--split", split, "--segment", "none")
    status, _, err = call(capsys, "embed", "--model", model_folder, *given)
    assert status == 0, err
    assert [" ".join(tokens) for tokens, _ in read_vectors(output)] == expected


def test_json_lines_on_standard_output(capsys, tmp_path, model_folder):
    call(capsys, "embed", "the bank", "a river", "--model", model_folder, "--output", tmp_path / "v.jsonl")
    for arguments in (("--output", "-"), ("--json",)):
        status, out, _ = call(capsys, "embed", "the bank", "a river", "--model", model_folder, *arguments)
        assert status == 0
        assert out == (tmp_path / "v.jsonl").read_text()
    status, _, err = call(capsys, "embed", "a", "--model", model_folder, "--output", "-", "--resume")
    assert status == 2
    assert "--resume needs --output FILE" in err


def test_json_says_what_was_written(capsys, tmp_path, model_folder):
    output = tmp_path / "v.npy"
    status, out, _ = call(capsys, "embed", "the bank", "--model", model_folder, "--output", output, "--json")
    assert status == 0
    assert json.loads(out) == {"output": str(output), "sentences": 1, "tokens": 2, "resumed_from": 0}


def test_a_log_shows_progress_with_total_rate_and_what_is_computed(monkeypatch, capsys, tmp_path, model_folder):
    """The clock of the display is not waited for: every update is shown."""
    monkeypatch.setattr("elmokit.progress._FIRST_SECONDS", 0.0)
    monkeypatch.setattr("elmokit.progress._LOG_SECONDS", 0.0)
    monkeypatch.setattr("elmokit.cli.embed._UPDATE_SECONDS", 0.01)
    monkeypatch.setattr("elmokit.cli.embed._WAIT_SECONDS", 0.0)
    real = Elmo.stream

    def slow(self, sentences, **options):
        for vectors in real(self, sentences, **options):
            time.sleep(0.1)
            yield vectors

    monkeypatch.setattr(Elmo, "stream", slow)
    (tmp_path / "in.txt").write_text("the bank\n" * 3)
    given = ("--input", tmp_path / "in.txt", "--output", tmp_path / "v.npz")
    _, _, err = call(capsys, "embed", "--model", model_folder, *given)
    assert "3 of 3 sentences" in err
    assert "sentences/s" in err
    assert " left" in err
    assert "tokens being computed for" in err
