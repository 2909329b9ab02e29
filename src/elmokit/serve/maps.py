"""The occurrences of a word as the page shows them: groups, sentences, and a map of every layer."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from elmokit.analyse import OccurrenceIndex, Senses
    from elmokit.elmo import Elmo

Points = NDArray[np.float64]

DEMO = Path(__file__).parent / "demo"
"""Sentences that were written for the demo; each ambiguous word has several of every sense."""
DEMO_WORDS = {
    "en": ("bank", "spring", "play", "match", "light", "ring", "letter", "watch", "note", "bat"),
    "zh": ("苹果", "杜鹃", "火", "花", "打", "包"),
}
"""The ambiguous words. An index of a model of characters needs their names, because some have two characters."""


def demo_language(elmo: Elmo) -> str:
    """The demo for a model: zh or en."""
    return "zh" if elmo.segment in ("chars", "jieba") else "en"


def demo_index(elmo: Elmo) -> OccurrenceIndex:
    """The index of the demo's sentences, which is built once and then cached."""
    from elmokit.analyse.index_cache import find_index

    language = demo_language(elmo)
    words = DEMO_WORDS["zh"] if language == "zh" else None
    return find_index(elmo, None, corpus=[str(DEMO / f"{language}.txt")], split="line", words=words)


def layer_of(index: OccurrenceIndex) -> str | int:
    """The layer of an index: mix, or a number."""
    layer: str | int = index.description["layer"]
    return layer


def senses_object(found: Senses, index: OccurrenceIndex, occurrences: Sequence[Any]) -> dict[str, Any]:
    """The groups of a word, its sentences, and its points on the map of the index's layer."""
    numbers = {row: number for number, row in enumerate(found.rows.tolist())}
    return {
        "word": found.word,
        "layer": layer_of(index),
        "silhouette": round(found.silhouette, 4),
        "points": {str(layer_of(index)): np.round(found.points, 5)},
        "labels": found.labels,
        "sentences": [{"tokens": each.tokens, "position": each.position} for each in occurrences],
        "senses": [
            {"size": sense.size, "typical": sense.typical, "examples": [numbers[row] for row in sense.rows[:5]]}
            for sense in found.senses
        ],
    }


def layer_maps(vectors: NDArray[np.float32], found: Senses, start: int) -> dict[str, Any]:
    """For each layer the points on a map, the share of variance that it shows, and the matrix for further vectors.

    Each map is rotated and mirrored onto its neighbour, from the index's layer outwards, so that points do not jump
    when the layer changes. A vector of length 1 with a 1 appended, times the matrix [D+1, 2], is a point of the map.
    """
    from elmokit.analyse.clusters import cluster_plane

    layers = len(vectors)
    points: dict[int, Points] = {}
    for layer in (*range(start, layers), *range(start - 1, -1, -1)):
        own = cluster_plane(vectors[layer].astype(np.float64), found.labels)
        before = points.get(layer - 1 if layer > start else layer + 1)
        points[layer] = own if before is None else _aligned(own, before)
    answer: dict[str, Any] = {"points": {}, "variance": {}, "matrices": {}}
    for layer in range(layers):
        plane, values = points[layer], vectors[layer].astype(np.float64)
        total = float(values.var(axis=0).sum())
        answer["points"][str(layer)] = np.round(plane, 5)
        answer["variance"][str(layer)] = np.round(plane.var(axis=0) / total if total else np.zeros(2), 4)
        centre = values.mean(axis=0)
        axes = np.linalg.lstsq(values - centre, plane - plane.mean(axis=0), rcond=1e-6)[0]
        matrix = np.vstack([axes, plane.mean(axis=0) - centre @ axes]).astype("<f4")
        answer["matrices"][str(layer)] = b64encode(matrix.tobytes()).decode()
    return answer


def _aligned(points: Points, onto: Points) -> Points:
    """Points [N, 2] rotated and mirrored to be near others, never stretched (orthogonal Procrustes)."""
    centred = points - points.mean(axis=0)
    u, _, v = np.linalg.svd(centred.T @ (onto - onto.mean(axis=0)))
    return np.asarray(centred @ u @ v)
