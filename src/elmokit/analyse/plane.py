"""Many numbers a point brought down to few: principal parts, and the plane in which clusters are seen apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


def principal_parts(points: Values, size: int) -> Values:
    """Points [N, D] in the directions of their largest variance, [N, at most size], centred.

    The sign of each direction is fixed, so that the same points always give the same picture.
    """
    centred = points - points.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(centred @ _signed(axes[:size]).T)


def sense_plane(points: Values, labels: NDArray[np.int64]) -> Values:
    """Points [N, D] seen so that the centres of their clusters lie apart, [N, 2].

    The plane goes through the centres as well as a plane can; a direction that they leave free is that in which the
    points differ most. It is a shadow of the points as they are: nothing is stretched.
    """
    centred = points - points.mean(axis=0)
    count = int(labels.max()) + 1
    sizes = np.bincount(labels, minlength=count)
    centres = np.stack([centred[labels == number].mean(axis=0) for number in range(count)])
    _, lengths, axes = np.linalg.svd(centres * np.sqrt(sizes)[:, None], full_matrices=False)
    chosen = axes[: min(count - 1, 2)]
    chosen = chosen[lengths[: len(chosen)] > 1e-9]
    if len(chosen) < 2:
        rest = centred - centred @ chosen.T @ chosen
        _, _, more = np.linalg.svd(rest, full_matrices=False)
        chosen = np.concatenate([chosen, more])[:2]
    flat = centred @ _signed(chosen).T
    return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))


def _signed(axes: Values) -> Values:
    """The same axes, each pointing to where its largest number is positive."""
    if not axes.size:
        return axes
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    return axes * np.where(largest < 0, -1.0, 1.0)
