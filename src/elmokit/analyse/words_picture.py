"""The picture of `elmo plot words`: words in their sentences as points, a panel a layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.figures import LOOKS, check_groups, drawing
from elmokit.analyse.fonts import drawable, families_for
from elmokit.analyse.index import Occurrence
from elmokit.analyse.labels import label_points
from elmokit.analyse.plane import principal_parts
from elmokit.analyse.sense_picture import snippet
from elmokit.analyse.vectors import Floats, normalised
from elmokit.errors import ElmoError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from elmokit.elmo import Elmo

MOST_OCCURRENCES = 80
_PANEL = 4.6
"""Inches."""
_REACH, _LONGEST = 2, 26
"""Words on each side in a label, and its letters."""
_FAR = 20.0
"""Gaps between a point and its label at the most."""
_SAME = 1e-4
"""Points nearer than this, as a share of the picture, are drawn as one."""


class PlacedWords(NamedTuple):
    """Occurrences of words with their vectors."""

    occurrences: tuple[Occurrence, ...]
    groups: tuple[int, ...]
    """For each, the number of its word among the words that were asked for."""
    vectors: Floats
    """[L+1, N, D] of length 1."""


def place_words(elmo: Elmo, words: Sequence[str], found: Sequence[tuple[int, Occurrence]]) -> PlacedWords:
    """The vectors in all layers of occurrences, each with the number of its word."""
    if len(found) > MOST_OCCURRENCES:
        raise ElmoError(
            f"a picture shows at most {MOST_OCCURRENCES} occurrences of {', '.join(words[:3])}, got {len(found)}: "
            "give fewer sentences, or lower --occurrences"
        )
    streamed = elmo.stream([list(occurrence.tokens) for _, occurrence in found], layer="all")
    vectors = [layers[:, occurrence.position] for layers, (_, occurrence) in zip(streamed, found, strict=True)]
    return PlacedWords(
        tuple(occurrence for _, occurrence in found),
        tuple(number for number, _ in found),
        normalised(np.stack(vectors, axis=1)),
    )


def draw_words(words: Sequence[str], placed: PlacedWords, path: Path) -> None:
    """Write up to 8 words in the plane of their largest differences, a panel a layer, as .png, .svg or .pdf."""
    check_groups(len(words), "words")
    count = len(placed.vectors)
    width, height = count * _PANEL + 0.1 * (count + 1), _PANEL + 0.75
    texts = [*words, *(snippet(each, 0, _LONGEST) for each in placed.occurrences)]
    texts += [text for each in placed.occurrences if drawable(text := snippet(each, _REACH, _LONGEST))]
    with drawing(path, (width, height), families_for(texts)) as figure:
        for number, vectors in enumerate(placed.vectors):
            left = 0.1 + number * (_PANEL + 0.1)
            axes = figure.add_axes((left / width, 0.45 / height, _PANEL / width, _PANEL / height))
            axes.set_title("layer 0, no context" if number == 0 else f"layer {number}", fontsize=10)
            flat = principal_parts(vectors.astype(np.float64), 2)
            reach = _REACH if number else 0  # without context the words around a word say nothing about its place
            _draw_panel(axes, words, placed, reach, np.pad(flat, ((0, 0), (0, 2 - flat.shape[1]))))
        handles, names = axes.get_legend_handles_labels()
        figure.legend(handles, names, loc="lower center", ncol=len(words), frameon=False, fontsize=9, borderaxespad=0.4)


def _draw_panel(axes: Axes, words: Sequence[str], placed: PlacedWords, reach: int, points: NDArray[np.float64]) -> None:
    groups = np.array(placed.groups)
    for number, (look, word) in enumerate(zip(LOOKS, words, strict=False)):
        mine = points[groups == number]
        axes.scatter(
            mine[:, 0], mine[:, 1], s=30, color=look.color, marker=look.marker, edgecolors=look.edge, linewidths=0.4,
            label=word, zorder=2,
        )  # fmt: skip
    low, high = points.min(axis=0), points.max(axis=0)
    middle, half = (low + high) / 2, np.maximum((high - low) / 2, 1e-3) * 1.25
    axes.set_xlim(middle[0] - half[0], middle[0] + half[0])
    axes.set_ylim(middle[1] - half[1], middle[1] + half[1])
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#bbbbbb")
    _label(axes, placed, reach, points, 2 * half)


def _label(axes: Axes, placed: PlacedWords, reach: int, points: NDArray[np.float64], size: NDArray[np.float64]) -> None:
    """Every point with the words around it, or with fewer of them; where there is no room at all, not every point."""
    together = _together(points / size, placed.groups)
    anchors = points[[group[0] for group in together]]
    least = min(reach, 1)
    for around, letters in [(around, letters) for around in range(reach, least - 1, -1) for letters in (7.0, 6.0)]:
        before = len(axes.texts), len(axes.lines)
        texts = [_text([placed.occurrences[number] for number in group], around) for group in together]
        boxes = label_points(axes, anchors, texts, points, size=letters, cost=_FAR)
        if len(boxes) == len(texts) or (around, letters) == (least, 6.0):
            return
        for artist in (*axes.texts[before[0] :], *axes.lines[before[1] :]):
            artist.remove()


def _text(occurrences: Sequence[Occurrence], around: int) -> str:
    first = occurrences[0]
    if len(occurrences) > 1:
        return f"{first.word} × {len(occurrences)}"
    text = snippet(first, around, _LONGEST)
    return text if drawable(text) else snippet(first, 0, _LONGEST)


def _together(points: NDArray[np.float64], groups: Sequence[int]) -> list[list[int]]:
    """Points of one word that lie on each other, as without context all of them do."""
    together: list[list[int]] = []
    for number, point in enumerate(points):
        for group in together:
            same = groups[group[0]] == groups[number]
            if same and np.abs(points[group[0]] - point).max() < _SAME:
                group.append(number)
                break
        else:
            together.append([number])
    return together
