"""embed_dataset: every row once, also after a kill, with the bits of `Elmo.encode`. Ray is started three times."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.integrations.ray import BLOCK_BYTES, embed_dataset

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    **os.environ,
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
}


def write_texts(folder: Path) -> None:
    folder.mkdir()
    for part in range(4):
        ids = list(range(40 * part, 40 * part + 40))
        texts = [f"the bank {number} of river {number * 7 % 13} ." for number in ids]
        pq.write_table(pa.table({"id": ids, "text": texts}), folder / f"{part}.parquet")


def test_a_killed_driver_is_resumed_with_every_row_once(tmp_path, model_folder):
    write_texts(tmp_path / "texts")
    output, gate = tmp_path / "vectors", tmp_path / "gate"
    paths = [tmp_path / "texts", output, tmp_path / "checkpoint", model_folder, gate]
    command = [sys.executable, ROOT / "tests" / "support" / "ray_driver.py", *paths]

    def finished() -> list[Path]:
        """The files whose rows Ray has noted as done."""
        done = {path.stem for path in (tmp_path / "checkpoint").glob("*.parquet") if ".pending" not in path.name}
        return [path for path in output.glob("*.parquet") if path.stem.rpartition("-")[0] in done]

    with (tmp_path / "log").open("wb") as log:
        driver = subprocess.Popen(command, env=ENVIRONMENT, stdout=log, stderr=log)
    deadline = time.monotonic() + 900
    while not finished():  # the actor waits at the gate, so that the driver cannot end before
        assert driver.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.1)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    before = {path: path.read_bytes() for path in finished()}
    rows_before = sum(pq.read_metadata(path).num_rows for path in before)
    assert 0 < rows_before < 160

    gate.touch()
    again = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert all(path.read_bytes() == contents for path, contents in before.items()), "finished files stay"
    table = pq.read_table(output)
    assert sorted(table["id"].to_pylist()) == list(range(160))
    vector = pa.list_(pa.field("element", pa.float32()), 12)
    assert table.schema.field("vectors").type == pa.large_list(pa.field("element", vector))
    texts = table["text"].to_pylist()
    expected = Elmo.load(model_folder, device="cpu").encode(texts)
    for found, vectors in zip(table["vectors"].to_pylist(), expected, strict=True):
        np.testing.assert_array_equal(np.array(found, np.float32), vectors)
    assert table["tokens"].to_pylist() == [text.split() for text in texts]


def test_the_example_of_the_page_prints_what_is_below_it(tmp_path):
    page = (ROOT / "docs" / "integrations" / "ray.md").read_text(encoding="utf-8")
    code, printed = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.DOTALL).groups()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    # Ray prints warnings of its own between them when a machine is busy.
    lines = printed.splitlines()
    assert [line for line in done.stdout.splitlines() if line in lines] == lines, done.stdout


class Recorder:
    """In the place of a dataset: what it is asked for."""

    def __init__(self):
        self.context = ray.data.DataContext()

    def map_batches(self, function, **options):
        self.function, self.options = function, options
        return self


@pytest.fixture
def cluster(monkeypatch):
    """A cluster that is not started."""
    slots = {"CPU": 8.0}
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: slots)
    return slots


def test_actors_and_blocks(cluster, model_folder):
    found = embed_dataset(Recorder(), model=model_folder)
    assert found.context.target_max_block_size == BLOCK_BYTES == 64 << 20
    assert found.options["compute"].min_size == 5, "three slots are for reading, writing and the checkpoint"
    assert (found.options["num_cpus"], found.options["num_gpus"]) == (1, None)
    assert found.options["fn_constructor_kwargs"]["device"] == "cpu"
    assert found.context.checkpoint_config is None
    cluster["GPU"] = 2.0
    found = embed_dataset(Recorder(), model=model_folder, cpus=2)
    assert (found.options["compute"].min_size, found.options["num_gpus"]) == (2, 1)
    assert found.options["fn_constructor_kwargs"]["device"] is None
    assert found.options["fn_constructor_kwargs"]["threads"] == 2
    found = embed_dataset(Recorder(), model=model_folder, device="cpu")
    assert (found.options["compute"].min_size, found.options["num_gpus"]) == (5, None)


def test_a_checkpoint_has_rules(cluster, model_folder, tmp_path):
    checkpoint = tmp_path / "work" / "checkpoint"
    common = {"model": model_folder, "checkpoint": checkpoint}
    with pytest.raises(ElmoError, match="needs id_column"):
        embed_dataset(Recorder(), **common)
    with pytest.raises(ElmoError, match="needs 9 CPU slots, 3 more than its actors, got 8"):
        embed_dataset(Recorder(), **common, id_column="id", actors=6)
    ds = embed_dataset(Recorder(), **common, id_column="id", actors=5)
    assert ds.context.checkpoint_config.id_column == "id"
    assert ds.context.checkpoint_config.checkpoint_path == str(checkpoint)
    checkpoint.mkdir()  # as after a first block
    embed_dataset(Recorder(), **common, id_column="id")
    with pytest.raises(ElmoError, match='was begun with layer "mix", got layer "0"'):
        embed_dataset(Recorder(), **common, id_column="id", layer=0)
    checkpoint.rmdir()  # as after a run that has ended
    embed_dataset(Recorder(), **common, id_column="id", layer=0)


@pytest.mark.parametrize("wrong", [{"actors": 0}, {"cpus": 0}, {"layer": 9}, {"batch_texts": 0}])
def test_mistakes_are_found_before_ray_starts_an_actor(cluster, model_folder, wrong):
    with pytest.raises(ElmoError, match=next(iter(wrong))):
        embed_dataset(Recorder(), model=model_folder, **wrong)
