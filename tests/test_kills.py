"""Processes that are killed in the middle of their work: nothing is half written, and a second run ends well.

Each process kills itself at a known place, so that the tests depend on no clock. Embedding and training have such tests
in tests/output/test_output_crash.py and tests/pretrain/test_resume.py.
"""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")

KILL = "import os, signal, sys\ndef die():\n    os.kill(os.getpid(), signal.SIGKILL)\n"
INDEX = """
import elmokit.analyse.index_builder as builder
from elmokit import Elmo
from elmokit.analyse import build_index
from elmokit.corpus.prepare import prepare
model, text, corpus, output, last = sys.argv[1:]
builder._REPORT_EVERY, builder._SYNC_SECONDS = 1, 0.0
prepared = prepare([text], segment="whitespace", folder=corpus, workers=1)
def report(done, total):
    if done >= int(last):
        die()
build_index(Elmo.load(model), prepared, output, batch_tokens=8, on_progress=report)
"""
TASK = """
import elmokit.tasks.trainer as trainer
from elmokit.cli.main import main
last, count, real = int(sys.argv[1]), 0, trainer.WeightAverages.update
def update(self):
    global count
    count += 1
    if count == last:
        die()
    real(self)
trainer.WeightAverages.update = update
main(sys.argv[2:])
"""


def run(script, *arguments):
    command = [sys.executable, "-c", KILL + script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("last", [3, 20])
def test_an_index(tmp_path, model_folder, last):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"the bank of river {n}\n" for n in range(40)), encoding="utf-8")
    common = (model_folder, text, tmp_path / "corpus")
    assert run(INDEX, *common, tmp_path / "killed", last).returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "index.json").exists()
    for folder in ("killed", "whole"):
        done = run(INDEX, *common, tmp_path / folder, 10**9)
        assert done.returncode == 0, done.stderr
    killed, whole = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.bin")} for name in ("killed", "whole")
    )
    assert killed == whole
    assert killed.keys() >= {"vectors.bin", "tokens.bin"}


@pytest.mark.parametrize("last", [1, 4])
def test_the_training_of_a_task(tmp_path, model_folder, last):
    data = tmp_path / "reviews.tsv"
    data.write_text("label\ttext\n" + "good\ta bank of money\nbad\tthe river\n" * 20, encoding="utf-8")

    def train(output, last):
        options = ("--model", model_folder, "--hidden", 8, "--epochs", 2, "--batch-size", 8, "--device", "cpu")
        return run(TASK, last, "task", "train", "classify", data, "--output", tmp_path / output, *options)

    assert train("killed", last).returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "task.json").exists()
    for output in ("killed", "whole"):
        done = train(output, 10**9)
        assert done.returncode == 0, done.stderr
    weights = [(tmp_path / name / "network.safetensors").read_bytes() for name in ("killed", "whole")]
    assert weights[0] == weights[1]
