"""Clusters of vectors: k-means, the number of clusters (possibly one), and the plane that shows them best.

k-means and silhouette are implemented here, because a base install does not include scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elmokit.errors import ElmoError

Values = NDArray[np.float64]
Labels = NDArray[np.int64]
MAX_CLUSTERS = 8
_MIN_EXCESS = 0.04
"""Minimum difference between the silhouette and that of a reference cloud without clusters."""
_NEARLY_BEST = 0.9
"""The smallest number of clusters is chosen whose excess is at least this share of the largest excess."""
_MIN_CLUSTER_SIZE = 3
"""Minimum number of vectors in a cluster if the number of clusters is not given."""
_DIMENSIONS, _STARTS, _ITERATIONS = 24, 8, 60
_SAMPLE_SIZE, _REFERENCES = 800, 5


@dataclass(frozen=True, eq=False)
class Clustering:
    """N vectors in K clusters, the largest first."""

    labels: Labels
    """[N] the cluster of each vector, from 0."""
    silhouette: float
    """How much nearer the vectors are to their own cluster than to the next, from -1 to 1; 0 for one cluster."""

    @property
    def number(self) -> int:
        """The number of clusters, K."""
        return int(self.labels.max()) + 1


def cluster(vectors: NDArray[np.float32], number: int | None = None, *, seed: int = 1) -> Clustering:
    """Group vectors of length 1 [N, D] into a given number of clusters, by default the number that fits best.

    To find the number, the silhouette of 2 to 8 clusters is compared with that of a random cloud of the same shape. If
    none is clearly better, all vectors are one cluster.
    """
    distinct = len(np.unique(vectors, axis=0))
    if number is not None and not 1 <= number <= distinct:
        raise ElmoError(
            f"clusters must be a number from 1 to {distinct}, the number of distinct contexts, got {number}", "clusters"
        )
    points = principal_components(vectors.astype(np.float64), _DIMENSIONS)
    if number is not None:
        labels = k_means(points, number, np.random.default_rng(seed))
        return _largest_first(labels, silhouette(points, labels, seed))
    candidates = []
    for count in range(2, min(MAX_CLUSTERS, distinct // _MIN_CLUSTER_SIZE) + 1):
        labels = k_means(points, count, np.random.default_rng(seed))
        if np.bincount(labels).min() >= _MIN_CLUSTER_SIZE:
            value = silhouette(points, labels, seed)
            candidates.append((labels, value, value - _silhouette_of_cloud(points, count, seed)))
    most = max((excess for _, _, excess in candidates), default=0.0)
    if most < _MIN_EXCESS:
        return Clustering(np.zeros(len(points), dtype=np.int64), 0.0)
    labels, value = next((labels, value) for labels, value, excess in candidates if excess >= _NEARLY_BEST * most)
    return _largest_first(labels, value)


def _silhouette_of_cloud(points: Values, count: int, seed: int) -> float:
    """The best silhouette of some random clouds with the size and shape of the points [N, D]."""
    best = -np.inf
    for number in range(_REFERENCES):
        random = np.random.default_rng([seed, count, number])
        cloud = random.standard_normal((min(len(points), _SAMPLE_SIZE), points.shape[1])) * points.std(axis=0)
        best = max(best, silhouette(cloud, k_means(cloud, count, random, starts=2), seed))
    return best


def k_means(points: Values, count: int, random: np.random.Generator, *, starts: int = _STARTS) -> Labels:
    """The cluster of each point by the best of several starts, [N]; no cluster is empty if enough are distinct."""
    best, least = np.zeros(len(points), dtype=np.int64), np.inf
    for _ in range(starts if count > 1 else 0):
        centres = points[random.integers(len(points), size=1)]
        while len(centres) < count:  # k-means++: a random point, more likely if it is far from the centres so far
            nearest = _squared_distances(points, centres).min(axis=1)
            share = nearest / nearest.sum() if nearest.any() else None
            centres = np.concatenate([centres, points[random.choice(len(points), size=1, p=share)]])
        labels = np.full(len(points), -1)
        for _ in range(_ITERATIONS):
            distances = _squared_distances(points, centres)
            before, labels = labels, distances.argmin(axis=1)
            if (labels == before).all():
                break
            farthest = points[distances.min(axis=1).argmax()]  # the new centre of an empty cluster
            members = [points[labels == number] for number in range(count)]
            centres = np.stack([some.mean(axis=0) if len(some) else farthest for some in members])
        if (cost := float(distances.min(axis=1).sum())) < least - 1e-12:
            best, least = labels, cost
    return best


def _squared_distances(points: Values, centres: Values) -> Values:
    """The squared distances [N, K] of the points [N, D] from the centres [K, D]."""
    squares = np.square(points).sum(axis=1)[:, None] + np.square(centres).sum(axis=1)
    return np.asarray(np.maximum(squares - 2 * points @ centres.T, 0))


def silhouette(points: Values, labels: Labels, seed: int = 1) -> float:
    """The mean silhouette of the points, or of a sample if there are many; 0 for one cluster."""
    count = int(labels.max()) + 1
    if count < 2:
        return 0.0
    if len(points) > _SAMPLE_SIZE:
        chosen = np.random.default_rng(seed).choice(len(points), _SAMPLE_SIZE, replace=False)
        points, labels = points[chosen], labels[chosen]
    distances = np.sqrt(_squared_distances(points, points))
    np.fill_diagonal(distances, 0)
    member = labels[:, None] == np.arange(count)
    sizes = member.sum(axis=0)
    sums = distances @ member  # [N, K]
    own = sums[member] / np.maximum(sizes[labels] - 1, 1)
    other = np.where(member | (sizes == 0), np.inf, sums / np.maximum(sizes, 1)).min(axis=1)
    values = np.where(sizes[labels] > 1, (other - own) / np.maximum(np.maximum(other, own), 1e-12), 0.0)
    return float(np.nan_to_num(values, posinf=0.0, neginf=0.0).mean())


def _largest_first(labels: Labels, value: float) -> Clustering:
    """The clusters, numbered by size from the largest, without gaps."""
    names, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    rank = np.empty(len(names), dtype=np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(names))
    return Clustering(rank[inverse], value)


def principal_components(points: Values, size: int) -> Values:
    """The centred points [N, D] in their directions of largest variance, [N, at most size].

    The sign of each direction is fixed, so that the same points always give the same picture.
    """
    centred = points - points.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(centred @ _with_fixed_signs(axes[:size]).T)


def cluster_plane(points: Values, labels: Labels) -> Values:
    """Points [N, D] projected onto the plane in which the centres of their clusters are farthest apart, [N, 2].

    If the centres do not determine both directions, the others are those in which the points differ most. Distances
    are not rescaled.
    """
    centred = points - points.mean(axis=0)
    centres = np.stack([centred[labels == number].mean(axis=0) for number in range(int(labels.max()) + 1)])
    _, lengths, axes = np.linalg.svd(centres * np.sqrt(np.bincount(labels))[:, None], full_matrices=False)
    chosen = axes[: min(len(centres) - 1, 2)]
    chosen = chosen[lengths[: len(chosen)] > 1e-9]
    if len(chosen) < 2:
        _, _, more = np.linalg.svd(centred - centred @ chosen.T @ chosen, full_matrices=False)
        chosen = np.concatenate([chosen, more])[:2]
    flat = centred @ _with_fixed_signs(chosen).T
    return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))


def _with_fixed_signs(axes: Values) -> Values:
    """The axes, each with the sign that makes its largest component positive."""
    if not axes.size:
        return axes
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    return axes * np.where(largest < 0, -1.0, 1.0)
