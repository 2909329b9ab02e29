"""Clusters of vectors: k-means with several starts, and how many clusters there are, one included."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.plane import principal_parts
from elmokit.errors import ElmoError

Values = NDArray[np.float64]
Labels = NDArray[np.int64]
MOST_CLUSTERS = 8
_DIMENSIONS = 24
_STARTS = 8
_ITERATIONS = 60
_SAMPLE = 800
_REFERENCES = 5
_EXCESS = 0.04
"""By so much the silhouette must pass that of one cloud without clusters."""
_NEARLY = 0.9
"""The fewest clusters are taken that come so near to the best number."""
_SMALLEST = 3
"""Occurrences in a cluster, where their number is found and not given."""


@dataclass(frozen=True, eq=False)
class Clustering:
    """N vectors in K clusters, the largest first."""

    labels: Labels
    """[N] the cluster of each vector, from 0."""
    silhouette: float
    """From -1 to 1, how much nearer the vectors are to their own cluster than to the next; 0 for one cluster."""

    @property
    def number(self) -> int:
        """K."""
        return int(self.labels.max()) + 1


class Judged(NamedTuple):
    """Clusters in a number that was tried."""

    labels: Labels
    silhouette: float
    excess: float
    """How far the silhouette passes that of a cloud without clusters, of the same size and shape."""


def cluster(vectors: NDArray[np.float32], number: int | None = None, *, seed: int = 1) -> Clustering:
    """Put vectors of length 1 [N, D] into clusters, as many as asked for or as there are.

    Where the number is not given, each from 2 to 8 is compared by its silhouette with a cloud of the same shape that
    has no clusters; where none is clearly better than that, all vectors are one cluster.
    """
    distinct = len(np.unique(vectors, axis=0))
    if number is not None and not 1 <= number <= distinct:
        raise ElmoError(f"the number of clusters must lie between 1 and the {distinct} distinct contexts, got {number}")
    points = principal_parts(vectors.astype(np.float64), _DIMENSIONS)
    if number is not None:
        labels = k_means(points, number, np.random.default_rng(seed)) if number > 1 else _one(points)
        return _ordered(labels, silhouette(points, labels, seed))
    tried = [_judge(points, count, seed) for count in range(2, min(MOST_CLUSTERS, distinct // _SMALLEST) + 1)]
    usable = [each for each in tried if np.bincount(each.labels).min() >= _SMALLEST]
    most = max((each.excess for each in usable), default=0.0)
    if most < _EXCESS:
        return Clustering(_one(points), 0.0)
    chosen = next(each for each in usable if each.excess >= _NEARLY * most)
    return _ordered(chosen.labels, chosen.silhouette)


def _judge(points: Values, count: int, seed: int) -> Judged:
    labels = k_means(points, count, np.random.default_rng(seed))
    value = silhouette(points, labels, seed)
    spread = points.std(axis=0)
    references = []
    for number in range(_REFERENCES):
        random = np.random.default_rng([seed, count, number])
        cloud = random.standard_normal((min(len(points), _SAMPLE), points.shape[1])) * spread
        references.append(silhouette(cloud, k_means(cloud, count, random, starts=2), seed))
    return Judged(labels, value, value - max(references))


def k_means(points: Values, count: int, random: np.random.Generator, *, starts: int = _STARTS) -> Labels:
    """The best of several starts, [N]; every cluster has a point where there are enough distinct ones."""
    squares = np.square(points).sum(axis=1)
    best_labels, least = _one(points), np.inf
    for _ in range(starts):
        centres = _spread_centres(points, squares, count, random)
        labels = _one(points)
        for turn in range(_ITERATIONS):
            distances = squares[:, None] - 2 * points @ centres.T + np.square(centres).sum(axis=1)
            nearest = distances.argmin(axis=1)
            if turn and (nearest == labels).all():
                break
            labels = nearest
            centres = _means(points, labels, distances, count)
        cost = float(np.maximum(distances[np.arange(len(points)), labels], 0).sum())
        if cost < least - 1e-12:
            best_labels, least = labels, cost
    return best_labels


def _spread_centres(points: Values, squares: Values, count: int, random: np.random.Generator) -> Values:
    """k-means++: each next centre far from those before it, by chance in proportion to the squared distance."""
    chosen = [int(random.integers(len(points)))]
    nearest = np.full(len(points), np.inf)
    while len(chosen) < count:
        last = points[chosen[-1]]
        nearest = np.minimum(nearest, np.maximum(squares - 2 * points @ last + last @ last, 0))
        total = nearest.sum()
        share = nearest / total if total > 0 else None
        chosen.append(int(random.choice(len(points), p=share)))
    return points[chosen]


def _means(points: Values, labels: Labels, distances: Values, count: int) -> Values:
    sizes = np.bincount(labels, minlength=count)
    sums = np.zeros((count, points.shape[1]))
    np.add.at(sums, labels, points)
    centres = sums / np.maximum(sizes, 1)[:, None]
    for empty in np.flatnonzero(sizes == 0):  # starts again at the point that is worst served
        centres[empty] = points[distances.min(axis=1).argmax()]
    return centres


def silhouette(points: Values, labels: Labels, seed: int = 1) -> float:
    """The mean silhouette of the points, of a sample where they are many; 0 for one cluster."""
    count = int(labels.max()) + 1
    if count < 2:
        return 0.0
    if len(points) > _SAMPLE:
        chosen = np.random.default_rng(seed).choice(len(points), _SAMPLE, replace=False)
        points, labels = points[chosen], labels[chosen]
    squares = np.square(points).sum(axis=1)
    distances = np.sqrt(np.maximum(squares[:, None] - 2 * points @ points.T + squares, 0))
    np.fill_diagonal(distances, 0)
    member = labels[:, None] == np.arange(count)
    sizes = member.sum(axis=0)
    sums = distances @ member  # [N, K]
    own = sums[member] / np.maximum(sizes[labels] - 1, 1)
    means = np.where(member | (sizes == 0), np.inf, sums / np.maximum(sizes, 1))
    other = means.min(axis=1)
    values = np.where(sizes[labels] > 1, (other - own) / np.maximum(np.maximum(other, own), 1e-12), 0.0)
    return float(np.nan_to_num(values, posinf=0.0, neginf=0.0).mean())


def _one(points: Values) -> Labels:
    return np.zeros(len(points), dtype=np.int64)


def _ordered(labels: Labels, value: float) -> Clustering:
    """Clusters numbered from the largest on, without gaps."""
    names, places, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(names))
    return Clustering(rank[places], value)
