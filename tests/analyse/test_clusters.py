"""Clusters: as many as there are, one included, and the same ones every time."""

from __future__ import annotations

import numpy as np
import pytest

from elmokit import ElmoError
from elmokit.analyse.clusters import cluster, cluster_plane, k_means, principal_components, silhouette
from elmokit.analyse.index import normalised


def blobs(count: int, size: int = 60, seed: int = 0, spread: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    centres = normalised(random.standard_normal((count, 30)).astype(np.float32))
    sizes = [size + 10 * number for number in range(count)]
    labels = np.repeat(np.arange(count), sizes)
    noise = spread * random.standard_normal((len(labels), 30))
    return normalised((centres[labels] + noise).astype(np.float32)), labels


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_number_is_found(count) -> None:
    vectors, labels = blobs(count)
    found = cluster(vectors)
    assert found.number == count
    pairs = set(zip(found.labels.tolist(), labels.tolist(), strict=True))
    assert len(pairs) == count, "each cluster is one blob"
    assert (np.diff(np.bincount(found.labels)) <= 0).all(), "the largest comes first"


def test_a_stretched_cloud_is_one_cluster() -> None:
    random = np.random.default_rng(3)
    cloud = random.standard_normal((300, 30)) * np.linspace(1, 0.05, 30) + 3
    assert cluster(normalised(cloud.astype(np.float32))).number == 1


def test_a_given_number_is_used() -> None:
    vectors, _ = blobs(3)
    for count in (1, 2, 3, 7):
        assert cluster(vectors, count).number == count
    twice = cluster(vectors, 4, seed=5), cluster(vectors, 4, seed=5)
    assert (twice[0].labels == twice[1].labels).all()


def test_few_and_equal_vectors() -> None:
    vectors, _ = blobs(2)
    assert cluster(vectors[:1]).number == 1
    assert cluster(np.repeat(vectors[:1], 20, axis=0)).number == 1
    assert cluster(np.repeat(vectors[:2], 5, axis=0), 2).number == 2
    for wrong in (0, 3):
        with pytest.raises(ElmoError, match=f"from 1 to 2, .*, got {wrong}"):
            cluster(np.repeat(vectors[:2], 5, axis=0), wrong)


def test_silhouette_is_that_of_its_definition() -> None:
    random = np.random.default_rng(1)
    points = random.standard_normal((40, 3))
    labels = k_means(points, 3, random)
    values = []
    for place, point in enumerate(points):
        distances = np.linalg.norm(points - point, axis=1)
        means = [distances[(labels == label) & (np.arange(40) != place)].mean() for label in range(3)]
        own = means[labels[place]]
        other = min(mean for label, mean in enumerate(means) if label != labels[place])
        values.append((other - own) / max(other, own))
    assert silhouette(points, labels) == pytest.approx(np.mean(values))


def test_the_plane_shows_clusters_apart() -> None:
    vectors, labels = blobs(3)
    flat = cluster_plane(vectors.astype(np.float64), labels)
    assert flat.shape == (len(vectors), 2)
    assert silhouette(flat, labels) > 0.7
    for few in (vectors[:1], vectors[:2]):
        assert cluster_plane(few.astype(np.float64), np.zeros(len(few), dtype=np.int64)).shape == (len(few), 2)


def test_principal_parts_keep_distances() -> None:
    points = np.random.default_rng(0).standard_normal((20, 5))
    parts = principal_components(points, 5)
    assert np.linalg.norm(parts[3] - parts[7]) == pytest.approx(np.linalg.norm(points[3] - points[7]))
    assert (np.diff(parts.var(axis=0)) <= 0).all()
