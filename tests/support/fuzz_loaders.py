"""Damage one file in a way that a seed names, and read it: vectors or an ElmoError, nothing else.

The files are those of models of every format, and files of vectors. `test_fuzz.py` runs a few hundred cases, and with
the marker slow some thousand, each in a process that may take a gigabyte of memory and ten seconds. For more:

    PYTHONPATH=src:tests python -m support.fuzz_loaders weights.hdf5 0 20000
"""

import json
import os
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.save import convert_model, write_checkpoint
from elmokit.output import embed_lines, read_vectors
from support.model_files import make_bilm, make_manylangs, write_bilm, write_manylangs, write_tensorflow, write_zip
from support.tiny_models import tiny_checkpoint, transformer_config

NUMBERS = (
    0,
    1,
    2,
    3,
    0x7F,
    0x80,
    0xFF,
    0x100,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    1 << 40,
    (1 << 63) - 1,
)
VALUES = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    1.5,
    1e308,
    10**12,
    2**31 - 1,
    2**70,
    "",
    "x",
    "\ud800",
    [],
    {},
    [[]],
    [1, 2],
)
SENTENCES = [["the", "語", "<S>"], []]


PICKLES = ("token_embedder.pkl", "encoder.pkl")
PARTS = {
    "bilm": ("options.json", "weights.hdf5"),
    "words": ("options.json", "weights.hdf5", "vocab.txt"),
    "tensorflow": ("model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001", "options.json", "checkpoint", "vocab.txt"),
    "manylangs": (*PICKLES, "word.dic", "char.dic", "small.json", "config.json"),
    "manylangs-zipped": PICKLES,
    "native": ("config.json", "model.safetensors", "lm_head.safetensors", "optimizer.safetensors", "vocab.txt"),
    "mixes": ("config.json", "model.safetensors"),
    "transformer": ("config.json", "model.safetensors"),
    "int8": ("config.json", "model.safetensors", "lm_head.safetensors"),
    "symbols": ("config.json", "model.safetensors", "characters.json", "vocab.txt"),
    "bilm.zip": ("",),
    "flat.h5": ("",),
    "bilm.h5": ("",),
    "allennlp.h5": ("",),
    "layers.npz": ("",),
    "layers.jsonl": ("",),
    **({"layers.parquet": ("",)} if find_spec("pyarrow") else {}),
}
"""The files of each model that are damaged; "" is what is read itself, where it is one file."""
_IN_INT8 = ("words", "manylangs-zipped", "transformer", "int8")
"""Models that are loaded with dtype="int8"."""
_VECTORS = (".h5", ".npz", ".jsonl", ".parquet")
_MOST_BYTES, _MOST_SECONDS = 1 << 30, 10


def build(root: Path) -> dict[str, Path]:
    """A model of every kind in PARTS."""
    write_bilm(root / "bilm", make_bilm())
    write_bilm(root / "words", make_bilm(words=True))
    write_tensorflow(root / "tensorflow", make_bilm(softmax=True))
    write_manylangs(root / "manylangs", make_manylangs())
    write_manylangs(root / "manylangs-zipped", make_manylangs(), zipped=True)
    convert_model(root / "tensorflow", root / "native", to="elmokit")
    Elmo.load(root / "bilm", mixes=2).save(root / "mixes")
    convert_model(root / "manylangs", root / "symbols", to="elmokit")
    convert_model(root / "native", root / "int8", dtype="int8", softmax="int8")
    write_checkpoint(tiny_checkpoint(transformer_config()), root / "transformer")
    write_zip(root / "bilm.zip", root / "bilm", top="136/")
    for kind in PARTS:
        if kind.endswith(_VECTORS):
            write_vectors(root / kind)
    return {kind: root / kind for kind in PARTS}


def write_vectors(path: Path) -> None:
    """A file of vectors: of one layer in HDF5, and of three elsewhere."""
    layers = () if path.suffix == ".h5" else (3,)
    embed_lines(
        ["the river bank", "", "語 bank"],
        tokenise=str.split,
        encode=lambda sentences: (np.ones((*layers, len(tokens), 4), np.float32) for tokens in sentences),
        output=path,
        layout=path.stem if path.stem in ("bilm", "allennlp") else "elmokit",
        settings={"model": "none"},
    )


def damaged(data: bytes, rng: random.Random) -> bytes:
    """One to four random changes of bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        out = bytearray(data)
        at = rng.randrange(len(out) + 1) if rng.random() < 0.7 else rng.randrange(min(len(out), 600) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 32, 300))
        match rng.randrange(8):
            case 0 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at : at + size] = rng.choice(NUMBERS).to_bytes(8, rng.choice(("little", "big")))[:size]
            case 2:
                out[at : at + size] = rng.randbytes(size)
            case 3:
                out[at : at + size] = b""
            case 4:
                out[at:at] = rng.randbytes(size)
            case 5:
                other = rng.randrange(len(out) + 1)
                out[at : at + size] = out[other : other + size]
            case 6:
                del out[at:]
            case _:
                out[at : at + size] = bytes(min(size, len(out) - at))
        data = bytes(out)
    return data


def damaged_json(data: bytes, rng: random.Random) -> bytes:
    """Some value, deep or shallow, replaced by another kind of value, or a key taken away."""
    values = json.loads(data)
    place: Any = values
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = rng.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.8:
            place = place[key]
        elif rng.random() < 0.2:
            del place[key]
            break
        else:
            place[key] = rng.choice(VALUES)
            break
    return json.dumps(values).encode()


def outcome(path: Path) -> str:
    """Load and encode, or read: "vectors" or "refused"; any other exception goes through."""
    try:
        return read(path) if path.suffix in _VECTORS else encoded(path)
    except ElmoError as error:
        message = str(error)
    assert "\n" not in message
    assert len(message) > 10
    return "refused"


def read(path: Path) -> str:
    """Read a file of vectors."""
    for tokens, vectors in read_vectors(path):
        assert type(tokens) is list
        assert all(type(token) is str for token in tokens)
        assert vectors.dtype == np.float32
        assert vectors.ndim in (1, 2, 3)
    return "vectors"


def encoded(path: Path) -> str:
    """Load a model and encode two sentences."""
    elmo = Elmo.load(path, dtype="int8", device="cpu") if path.name in _IN_INT8 else Elmo.load(path)
    vectors = elmo.encode(SENTENCES)
    # A flipped exponent may make a weight of 1e38, which is a number, and vectors that are none.
    if all(float(value.abs().max()) < 1e4 for value in elmo.state_dict().values() if value.numel()):
        assert all(np.isfinite(array).all() for array in vectors)
    return "vectors"


def run_case(path: Path, name: str, seed: int) -> str:
    """Damage a file, load the model, mend the file."""
    file = path / name if name else path
    original = file.read_bytes()
    rng = random.Random(f"{path.name}/{name}/{seed}")
    damage = damaged_json if name.endswith(".json") and rng.random() < 0.7 else damaged
    try:
        file.write_bytes(damage(original, rng))
        return outcome(path)
    finally:
        file.write_bytes(original)


def run_bounded(path: Path, name: str, seeds: Sequence[int]) -> Counter[str]:
    """Run cases in a process with bounds; a case that ends it is counted, and the next process continues after it."""
    tally: Counter[str] = Counter()
    while seeds:
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            _bounded_child(path, name, seeds, theirs)
        os.close(theirs)
        with os.fdopen(ours) as file:
            lines = file.read().splitlines()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        tally.update(line for line in lines if line)
        done = len(lines)
        if status:
            print(f"{path.name}/{name} {seeds[done]} ended the process with status {status}")
            tally[f"status {status}"] += 1
            done += 1
        seeds = seeds[done:]
    return tally


def _bounded_child(path: Path, name: str, seeds: Sequence[int], report: int) -> None:
    import resource  # not on Windows

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MOST_BYTES, used + _MOST_BYTES))
    for seed in seeds:
        signal.alarm(_MOST_SECONDS)
        try:
            outcome_of_case = run_case(path, name, seed)
        except BaseException as error:  # noqa: BLE001 - these are what the run is after
            print(f"{path.name}/{name} {seed}:")
            traceback.print_exc()
            outcome_of_case = type(error).__name__
        os.write(report, f"{outcome_of_case}\n".encode())
    os._exit(0)


def main(wanted: str, start: int, count: int) -> None:
    """Run cases and print every surprise."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for kind, path in build(Path(folder)).items():
            for name in PARTS[kind]:
                if wanted in f"{kind}/{name}":
                    tally = run_bounded(path, name, range(start, start + count))
                    print(f"{kind}/{name}: {json.dumps(tally)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
