"""`elmo export onnx`: writes a model as one ONNX file, after a comparison of its vectors with elmokit's.

from elmokit.integrations.onnx_export import export_onnx
print(export_onnx(Elmo.load(), "elmo.onnx", dtype="float16"))
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import elmokit
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.bundled import name_of
from elmokit.integrations.onnx import METADATA, VERSION, OnnxElmo
from elmokit.integrations.onnx_graph import Dtype, network_model
from elmokit.layers import Vectors
from elmokit.model.scalar_mix import ScalarMix
from elmokit.options import check_value
from elmokit.storage.atomic import atomic_file
from elmokit.text.english import ABBREVIATIONS
from elmokit.text.policy import TextPolicy

LARGEST_DIFFERENCE = 1e-4
"""The largest allowed difference between a value of a float32 file and elmokit's."""
LARGEST_SHARE = 2e-5
"""The same limit relative to the layer's largest value; it is the higher one if that value is above 5."""
LEAST_COSINE = 0.998
"""The smallest allowed cosine between a token's vector of a float16 or int8 file and elmokit's float32 vector."""
_CHOSEN_COSINE = 0.999
"""The cosine that an int8 file must reach before all parts are float16; other text may be harder than the test text."""
_SENTENCES, _LONGEST = 100, 200
_DEMO = Path(elmokit.__file__).parent / "serve" / "demo"
_SIZE_LIMIT = 2_000_000_000
"""Bytes; the weights of a larger ONNX model would need further files."""


@dataclass(frozen=True)
class OnnxReport:
    """The file that was written, and how close its vectors are to elmokit's."""

    path: Path
    megabytes: float
    difference: float
    """The largest difference between two values."""
    cosine: float
    """The smallest cosine between two vectors of a token."""
    float16_parts: int
    """Number of the first parts of an int8 network (tokens, layers or blocks, prediction) that had to be float16."""

    def __str__(self) -> str:
        more = f"; the first {self.float16_parts} parts in float16" if self.float16_parts else ""
        return (
            f"wrote {self.path} ({self.megabytes:.1f} MB): largest difference from elmokit {self.difference:.1e}, "
            f"worst cosine {self.cosine:.6f}{more}"
        )


def export_onnx(elmo: Elmo, path: str | Path, *, dtype: Dtype = "float32") -> OnnxReport:
    """Write a model of any dtype as an ONNX file, completely or not at all.

    Before that, the file is opened with ONNX Runtime and compared with elmokit on 100 sentences of 1 to 200 tokens. For
    int8, as many of the first parts of the network as needed are stored in float16.
    """
    check_value("dtype", dtype, Dtype)
    path = Path(path)
    if path.suffix != ".onnx":
        raise ElmoError(f"output must be a file that ends in .onnx, got {path}", "output")
    exact = _in_float32(elmo)
    if 4 * sum(weight.numel() for weight in exact.bilm.parameters()) > _SIZE_LIMIT:
        raise ElmoError("an ONNX file can have at most 2 GB, and this model is larger in float32")
    sentences = _test_sentences(exact)
    expected = exact.encode(sentences, output="layers")
    largest = np.max([np.abs(layers).max(axis=(1, 2)) for layers in expected], axis=0)
    allowed = np.maximum(LARGEST_DIFFERENCE, LARGEST_SHARE * largest)
    context = exact.config.context
    parts = 1 + getattr(context, "n_blocks", context.n_layers) + getattr(context, "prediction_layer", False)
    most = parts if dtype == "int8" else 0
    with atomic_file(path) as temporary:
        for float16_parts in range(most + 1):
            model = network_model(exact.bilm, dtype, float16_parts)
            model.producer_name, model.producer_version = "elmokit", elmokit.__version__
            entry = model.metadata_props.add()
            entry.key, entry.value = METADATA, json.dumps(_metadata(exact, dtype), ensure_ascii=False)
            temporary.write_bytes(model.SerializeToString())
            opened = OnnxElmo(temporary, threads=1)
            differences, cosine = _compared(opened.encode(sentences, output="layers"), expected)
            wanted = LEAST_COSINE if float16_parts == most else _CHOSEN_COSINE
            difference = float(differences.max())
            if cosine >= wanted and (dtype != "float32" or bool((differences <= allowed).all())):
                return OnnxReport(path, temporary.stat().st_size / 1e6, difference, cosine, float16_parts)
        raise ElmoError(
            f"an ONNX file must differ from elmokit by at most {allowed.max():.1e} in float32, with cosines of at "
            f"least {LEAST_COSINE} in any dtype, got {difference:.1e} and {cosine:.4f} in {dtype}: {path} was not "
            "written, try another dtype"
        )


def _in_float32(elmo: Elmo) -> Elmo:
    """The model in float32 on the CPU, stateless, without boundaries in its outputs."""
    return Elmo(elmo.checkpoint().in_floats(softmax=False)).to(device="cpu", dtype=torch.float32)


def _metadata(elmo: Elmo, dtype: Dtype) -> dict[str, Any]:
    """The metadata that a reader needs besides the network; `words` only for a model with a word table."""
    mix = elmo.mixes[0]
    assert isinstance(mix, ScalarMix)
    about: dict[str, Any] = {
        "version": VERSION,
        "elmokit": elmokit.__version__,
        "name": name_of(elmo.where),
        "dtype": dtype,
        "model": elmo.config.to_dict(),
        "text": elmo.text,
        "segment": elmo.segment,
        "layers": elmo.config.n_outputs,
        "size": elmo.config.vector_size,
        "default_layer": elmo.default_layer,
        "mix": {"weights": mix.weights.tolist(), "gamma": mix.gamma.item(), "layer_norm": bool(mix.layer_norm)},
        "begin": elmo.indexer.begin,
        "end": elmo.indexer.end,
    }
    if elmo.segment == "english":  # for tokenizers in other languages than Python
        about["english"] = {name: sorted(words) for name, words in ABBREVIATIONS.items()}
    if elmo.vocab is not None:
        about["specials"] = elmo.vocab.specials
        if elmo.config.words is not None:
            about["words"] = [*elmo.vocab]
    if elmo.symbols is not None:
        about["symbols"] = dict(elmo.symbols.ids)
    return about


def _test_sentences(elmo: Elmo) -> list[list[str]]:
    """The joined example sentences, cut into 100 texts of 1 to 200 tokens."""
    name = "zh" if elmo.segment in ("chars", "jieba") else "en"
    lines = (_DEMO / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    policy = TextPolicy("chars" if name == "zh" else "english")
    tokens = [*chain.from_iterable(policy.sentences_of(lines))]
    if elmo.config.words is not None and elmo.vocab is not None:
        known = sum(token in elmo.vocab for token in tokens)
        if known < len(tokens) / 2:  # a model of another language: use its own words
            tokens = [*elmo.vocab]
    stream = cycle(tokens)
    lengths = np.linspace(1, _LONGEST, _SENTENCES).astype(int).tolist()
    return [[*islice(stream, length)] for length in lengths]


def _compared(found: Sequence[Vectors], expected: Sequence[Vectors]) -> tuple[Vectors, float]:
    """The largest difference in each layer [L+1], and the smallest cosine of any token in any layer."""
    differences, cosine = np.zeros(len(expected[0]), np.float32), 1.0
    for one, other in zip(found, expected, strict=True):
        differences = np.maximum(differences, np.abs(one - other).max(axis=(1, 2)))
        lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
        cosine = min(cosine, float(((one * other).sum(axis=-1) / np.maximum(lengths, 1e-30)).min()))
    return (differences, cosine) if np.isfinite(differences).all() and np.isfinite(cosine) else (differences, -1.0)
