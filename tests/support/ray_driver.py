"""A driver of Ray that embeds a folder of parquet files, for tests that kill it.

    ray_driver.py TEXTS OUTPUT CHECKPOINT MODEL GATE

The actor embeds two batches, and waits before the next until the file GATE exists.
"""

import os
import sys
import time
from pathlib import Path

import ray

from elmokit.integrations import ray as adapter

CALLS = 2


class GatedBatch(adapter.EmbedBatch):
    calls = 0

    def __call__(self, batch):
        self.calls += 1
        while self.calls > CALLS and not Path(os.environ["GATE"]).exists():
            time.sleep(0.05)
        return super().__call__(batch)


if __name__ == "__main__":
    texts, output, checkpoint, model, gate = sys.argv[1:]
    os.environ["GATE"] = gate  # before Ray starts, whose workers inherit it
    from support.ray_driver import GatedBatch as Importable  # not of __main__, which actors do not have

    adapter.EmbedBatch = Importable
    ray.init(address="local", num_cpus=6, include_dashboard=False, log_to_driver=False)
    ds = ray.data.read_parquet(texts)
    ds = adapter.embed_dataset(
        ds, id_column="id", checkpoint=checkpoint, model=model, actors=1, batch_texts=20, block_bytes=10_000
    )
    ds.write_parquet(output)
