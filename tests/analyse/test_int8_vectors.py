"""One byte a number: cosines stay what they were."""

from __future__ import annotations

import numpy as np
import pytest

from elmokit.analyse import index
from elmokit.analyse.index import Int8Vectors, largest_scores, normalised, products


def test_cosines_stay(monkeypatch) -> None:
    monkeypatch.setattr(index, "BLOCK_VALUES", 17 * 64)  # several blocks, the last one not full
    random = np.random.default_rng(0)
    values = (random.standard_normal((100, 64)) * random.uniform(0.1, 50, (100, 1))).astype(np.float32)
    values[7] = 0
    packed = Int8Vectors.quantise(values)
    assert np.linalg.norm(packed.floats(), axis=1) == pytest.approx(np.where(np.arange(100) == 7, 0, 1), abs=1e-5)
    query = normalised(random.standard_normal(64).astype(np.float32))
    assert products(packed.codes, query) * packed.scales == pytest.approx(normalised(values) @ query, abs=5e-3)


def test_best_are_in_order() -> None:
    scores = np.array([0.1, 0.9, 0.5, 0.9, -1.0], dtype=np.float32)
    assert largest_scores(scores, 3).tolist() == [1, 3, 2]
    assert largest_scores(scores, 1).tolist() == [1]
    assert largest_scores(scores, 99).tolist() == [1, 3, 2, 0, 4]
    assert largest_scores(scores[:0], 3).tolist() == []
