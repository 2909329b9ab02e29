"""The picture of `elmo senses`: every occurrence a point, each cluster with its own mark, colour and typical words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.figures import LOOKS, check_groups, drawing
from elmokit.analyse.fonts import drawable, families_for
from elmokit.analyse.index import Occurrence, OccurrenceIndex
from elmokit.analyse.labels import Box, label_points
from elmokit.analyse.senses import Sense, Senses
from elmokit.analyse.showing import joined
from elmokit.messages import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _PANEL, _LINE = 8.0, 5.4, 0.175
"""Inches: of the picture, the height of the panel, of a line of the legend."""
_LABELS, _TRIED = 3, 12
_SHOWN_WORDS, _LONGEST_LEGEND = 6, 78
_LONGEST_LABEL = 30
_DIGIT = "\u2007"
"""A space as wide as a digit."""


def draw_senses(senses: Senses, index: OccurrenceIndex, path: Path) -> None:
    """Write a scatter plot of the occurrences of a word in up to 8 clusters as .png, .svg or .pdf."""
    check_groups(len(senses.senses), "clusters")
    legends = [_legend(number, sense, len(senses.rows)) for number, sense in enumerate(senses.senses, 1)]
    labels = [_labels(index, sense) for sense in senses.senses]
    texts = [senses.word, *legends, *(text for _, each in labels for text in each)]
    bottom = 0.3 + _LINE * len(legends)
    height = _PANEL + bottom + 0.4
    with drawing(path, (_WIDTH, height), families_for(texts)) as figure:
        axes = figure.add_axes((0.02, bottom / height, 0.96, _PANEL / height))
        _scatter(axes, senses, legends)
        taken: list[Box] = []
        where = {row: number for number, row in enumerate(senses.rows.tolist())}
        for rows, shown in labels:
            points = senses.points[[where[row] for row in rows]]
            taken += _label(axes, points, shown, senses, taken)
        handles, names = axes.get_legend_handles_labels()
        figure.legend(
            handles, names, loc="lower left", bbox_to_anchor=(0.02, 0.12 / height), fontsize=8.5, frameon=False,
            borderaxespad=0, borderpad=0, handletextpad=0.3, labelspacing=0.45,
        )  # fmt: skip
        for handle in figure.legends[0].legend_handles:
            handle.set_sizes([36])  # type: ignore[union-attr]
            handle.set_alpha(1)  # type: ignore[union-attr]


def _scatter(axes: Axes, senses: Senses, legends: Sequence[str]) -> None:
    count = len(senses.senses)
    kinds = "1 cluster" if count == 1 else f"{count} clusters, silhouette {senses.silhouette:.2f}"
    axes.set_title(f"{senses.word}: {counted(len(senses.rows), 'occurrence')} in {kinds}", fontsize=11)
    size = 14 if len(senses.rows) > 400 else 26
    # The largest cluster first, so that the small ones lie on top and are seen.
    for number, (look, legend) in enumerate(zip(LOOKS, legends, strict=False)):
        points = senses.points[senses.labels == number]
        axes.scatter(
            points[:, 0], points[:, 1], s=size, color=look.color, marker=look.marker, alpha=0.85, linewidths=0.4,
            edgecolors=look.edge, label=legend, zorder=2,
        )  # fmt: skip
    low, high = senses.points.min(axis=0), senses.points.max(axis=0)
    margin = 0.09 * np.maximum(high - low, 1e-3)
    axes.set_xlim(low[0] - 1.4 * margin[0], high[0] + 1.4 * margin[0])
    axes.set_ylim(low[1] - margin[1], high[1] + margin[1])
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#bbbbbb")


def _label(
    axes: Axes, points: NDArray[np.float64], texts: Sequence[str], senses: Senses, taken: Sequence[Box]
) -> list[Box]:
    """A few labels for a cluster: those that find room near their points, else one wherever there is room."""
    for cost, wanted in ((9.0, _LABELS), (25.0, _LABELS - 1), (np.inf, 1)):
        boxes = label_points(axes, points, texts, senses.points, most=wanted, forbidden=taken, cost=cost)
        if boxes:
            return boxes
    return []


def _legend(number: int, sense: Sense, total: int) -> str:
    words = [word for word in sense.typical if drawable(word)][:_SHOWN_WORDS]
    share = f"{sense.size / total:.0%}".rjust(4, _DIGIT)
    text = f"{number} {share}   {', '.join(words)}"
    return text if len(text) <= _LONGEST_LEGEND else text[: _LONGEST_LEGEND - 1] + "…"


def _labels(index: OccurrenceIndex, sense: Sense) -> tuple[list[int], list[str]]:
    """Rows near the centre of a cluster and a few words of each, all different and not the word alone."""
    rows: list[int] = []
    texts: list[str] = []
    for row in sense.rows[: 4 * _TRIED]:
        occurrence = index.occurrence(row)
        text = snippet(occurrence, 2, _LONGEST_LABEL)
        known = (occurrence.word.casefold(), *(each.casefold() for each in texts))
        if text.casefold() not in known and drawable(text):
            rows.append(row)
            texts.append(text)
        if len(rows) == _TRIED:
            break
    return rows, texts


def snippet(occurrence: Occurrence, reach: int, longest: int) -> str:
    """A token with so many words on each side, fewer where they are long; marks at the edges are left out."""
    tokens, place = occurrence.tokens, occurrence.position
    before = [number for number in range(place) if _has_letters(tokens[number])]
    after = [number for number in range(place + 1, len(tokens)) if _has_letters(tokens[number])]
    for around in range(reach, 0, -1):
        first = before[-around:][0] if before else place
        last = after[:around][-1] if after else place
        text = joined(tokens[first : last + 1])
        if len(text) <= longest:
            return text
    return tokens[place] if len(tokens[place]) <= longest else tokens[place][: longest - 1] + "…"


def _has_letters(token: str) -> bool:
    return any(character.isalnum() for character in token)
