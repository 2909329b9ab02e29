"""Labels: none on another, none across a line, none outside."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elmokit.plots.style import Box, leader, place_boxes

FRAME = Box(0, 0, 800, 600)


@given(seed=st.integers(0, 10_000), count=st.integers(1, 30), crowd=st.floats(5, 300))
def test_nothing_overlaps(seed, count, crowd) -> None:
    random = np.random.default_rng(seed)
    anchors = np.clip(random.normal((400, 300), crowd, (count, 2)), 0, (800, 600))
    sizes = [(float(width), 14.0) for width in random.uniform(20, 140, count)]
    boxes = place_boxes(anchors, sizes, anchors, FRAME, gap=5)
    found = [(anchor, box) for anchor, box in zip(anchors, boxes, strict=True) if box is not None]
    assert found
    for _, box in found:
        assert box.inside(FRAME)
    for (anchor, box), (other_anchor, other) in combinations(found, 2):
        assert not box.overlaps(other)
        for line, crossed in ((leader(anchor, box), other), (leader(other_anchor, other), box)):
            inside = (line > (crossed.left, crossed.bottom)) & (line < (crossed.right, crossed.top))
            assert not inside.all(axis=1).any()


def test_a_free_place_is_taken_before_one_on_points() -> None:
    crowd = np.array([[x, y] for x in range(100, 300, 10) for y in range(250, 350, 10)], dtype=float)
    (box,) = place_boxes(np.array([[295.0, 300.0]]), [(80, 14)], crowd, FRAME, gap=5)
    assert box is not None
    assert box.left > 295


def test_no_room_is_no_label() -> None:
    frame = Box(0, 0, 50, 50)
    assert place_boxes(np.array([[25.0, 25.0]]), [(80, 14)], np.empty((0, 2)), frame, gap=5) == [None]
    anchors = np.array([[400.0, 300.0], [100.0, 100.0], [600.0, 500.0]])
    boxes = place_boxes(anchors, [(80, 14)] * 3, anchors, FRAME, gap=5, most=2)
    assert [box is None for box in boxes] == [False, False, True]
