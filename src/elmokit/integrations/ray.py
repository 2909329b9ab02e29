"""ELMo in Ray Data: adds vectors to a dataset of texts, with a pool of actors on one machine or several.

    ds = ray.data.read_parquet("texts/")
    ds = embed_dataset(ds, column="text", id_column="id", checkpoint="checkpoint/")
    ds.write_parquet("vectors/")

With a checkpoint, a run that was killed continues, and every row is written exactly once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats.bundled import DEFAULT
from elmokit.integrations.arrow import EmbedBatch
from elmokit.layers import Layer, Pool
from elmokit.options import check_value
from elmokit.text.tokens import SegmenterName

try:
    import ray
    from pyarrow.fs import FileSystem, FileType
    from ray.data import ActorPoolStrategy, Dataset
    from ray.data.checkpoint import CheckpointConfig
except ImportError as error:
    raise MissingExtraError("ray", "ray", "embed_dataset") from error

__all__ = ["EmbedBatch", "embed_dataset"]

BATCH_TEXTS = 1024
BLOCK_BYTES = 64 << 20
"""The size of a block: one write task writes a block, and a killed run loses it. Ray's default is twice as large."""
OTHER_SLOTS = 3
"""CPU slots besides those of the actors: for reading, for writing, and for the filter of finished rows."""


def embed_dataset(
    ds: Dataset,
    *,
    column: str = "text",
    id_column: str | None = None,
    checkpoint: str | Path | None = None,
    model: str | Path = DEFAULT,
    layer: Layer | None = None,
    pool: Pool | None = None,
    segment: SegmenterName | None = None,
    device: str | None = None,
    dtype: str | None = None,
    batch_tokens: int | None = None,
    actors: int | None = None,
    cpus: int = 1,
    gpus: float | None = None,
    batch_texts: int = BATCH_TEXTS,
    block_bytes: int = BLOCK_BYTES,
) -> Dataset:
    """The dataset with the columns that `EmbedBatch` adds; Ray computes them when the dataset is written.

    - `checkpoint`: a folder or URL where Ray stores which rows are written. It needs `id_column`, a column of distinct
      ids, a dataset that was read from files, and `write_parquet` as the next step.
    - `actors`: the number of processes with a model; by default one per GPU, or one per CPU slot that Ray leaves free.
    - `cpus`: CPU slots and threads per actor. `gpus`: GPUs per actor, by default 1 if the cluster has any.
    - `batch_texts`: texts per call of an actor. `block_bytes`: the approximate size of a write task; it sets
      `ds.context.target_max_block_size`.
    - The other arguments are those of `EmbedBatch`.
    """
    for name, value in {"cpus": cpus, "batch_texts": batch_texts, "block_bytes": block_bytes}.items():
        check_value(name, value, int, {"least": 1})
    if not ray.is_initialized():
        ray.init()
    slots = ray.cluster_resources()
    if gpus is None:
        gpus = 1.0 if slots.get("GPU") and (device is None or device.startswith("cuda")) else 0.0
    if actors is None:
        free = slots.get("GPU", 0) / gpus if gpus else (slots.get("CPU", 1) - OTHER_SLOTS) / cpus
        actors = max(1, int(free))
    check_value("actors", actors, int, {"least": 1})
    options: dict[str, Any] = {
        "column": column, "model": model, "layer": layer, "pool": pool, "segment": segment, "dtype": dtype,
        "batch_tokens": batch_tokens,
    }  # fmt: skip
    local = EmbedBatch(**options, device="cpu")
    settings = local.settings()  # a wrong argument is found here, not in an actor
    if checkpoint is not None:
        _check_slots(slots.get("CPU", 0), actors * cpus)
        ds.context.checkpoint_config = _checkpoint_config(id_column, str(checkpoint), settings)
    ds.context.target_max_block_size = block_bytes
    return ds.map_batches(
        EmbedBatch,
        fn_constructor_kwargs={
            **options,
            "model": local.model,
            "device": device if gpus else "cpu",
            "threads": cpus,
        },
        batch_format="pyarrow",
        batch_size=batch_texts,
        compute=ActorPoolStrategy(size=actors),
        num_cpus=cpus,
        num_gpus=gpus or None,
        udf_modifying_row_count=False,
    )


def _check_slots(available: float, wanted: int) -> None:
    """Refuse a cluster on which a run with a checkpoint would wait forever."""
    if available < wanted + OTHER_SLOTS:
        raise ElmoError(
            f"a run with a checkpoint needs {wanted + OTHER_SLOTS} CPU slots, {OTHER_SLOTS} more than its actors, got "
            f"{available:g}: give fewer actors or cpus, or start Ray with more slots, which may exceed the number of "
            "cores",
            "checkpoint",
        )


def _checkpoint_config(id_column: str | None, path: str, settings: dict[str, Any]) -> CheckpointConfig:
    """Ray's settings for a checkpoint; a checkpoint that was begun with other settings is refused."""
    if id_column is None:
        raise ElmoError("checkpoint needs id_column, a column of distinct ids", "checkpoint", "id_column")
    path = path if "://" in path else str(Path(path).absolute())
    config = CheckpointConfig(id_column=id_column, checkpoint_path=path)
    files, folder = FileSystem.from_uri(path)
    settings = {**settings, "id_column": id_column}
    record = f"{folder.rstrip('/')}.elmokit.json"  # next to the folder, because Ray reads every file in it
    begun = files.get_file_info(folder).type == FileType.Directory
    if begun and files.get_file_info(record).type == FileType.File:
        with files.open_input_stream(record) as file:
            before = json.loads(file.read())
        if differ := [name for name in settings if before.get(name) != settings[name]]:
            earlier, given = (
                ", ".join(f"{n} {json.dumps(each.get(n))}" for n in differ) for each in (before, settings)
            )
            raise ElmoError(
                f"checkpoint {path} was begun with {earlier}, got {given}: use the earlier settings, or another "
                "checkpoint and another folder for the vectors",
                "checkpoint",
            )
    if "://" not in path:
        Path(record).parent.mkdir(parents=True, exist_ok=True)
    with files.open_output_stream(record) as file:
        file.write(json.dumps(settings, indent=1).encode())
    return config
