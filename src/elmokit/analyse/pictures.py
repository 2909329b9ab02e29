"""The pictures of the analysis commands: senses, words in their sentences, similarities, perplexity by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.clusters import principal_components
from elmokit.analyse.index import Floats, Occurrence, OccurrenceIndex, normalised
from elmokit.analyse.senses import Sense, Senses
from elmokit.analyse.sentence_display import join_tokens
from elmokit.errors import ElmoError
from elmokit.messages import counted, display_width, perplexity
from elmokit.plots.style import (
    GREY,
    LEGEND,
    POINT_STYLES,
    Box,
    blank_panel,
    check_groups,
    drawable,
    drawing,
    label_points,
    open_panel,
    shortened,
)
from elmokit.pretrain.curve import perplexity_axis
from elmokit.pretrain.evaluate import ByPosition, StateUse

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from elmokit.elmo import Elmo

Points = NDArray[np.float64]

# Senses. Sizes of all pictures are in inches.
_SENSES_WIDTH, _SENSES_PANEL, _LEGEND_LINE = 8.0, 5.4, 0.175
_SENSE_LABELS, _SENSE_LABELS_TRIED = 3, 12
_LEGEND_WORDS, _MAX_LEGEND = 6, 78
_MAX_SENSE_LABEL = 30
_DIGIT_SPACE = "\u2007"
"""A space of the width of a digit."""

# Words in their sentences.
MAX_DRAWN = 80
_PANEL_WIDTH, _PANEL_HEIGHT, _PANELS_ACROSS = 4.6, 3.5, 3
_LABEL_CONTEXT, _MAX_WORD_LABEL = 2, 26
"""Maximum number of words on each side in a label, and of characters in it."""
_MAX_LABEL_DISTANCE = 20.0
"""Maximum distance between a point and its label; the unit is the gap of `label_points`."""
_SAME_POINT = 1e-4
"""Points nearer than this share of the picture are drawn as one point."""

# Similarities.
MAX_TOKENS = 60
_NUMBERS_UP_TO = 16
"""Maximum number of tokens of the longer sentence for which the squares are large enough for numbers."""
_MAX_TOKEN_LABEL = 18
_CELL, _SMALL_CELL = 0.42, 0.24
"""The width of a square with a number in it, and without."""
_LETTER = 0.085
"""The approximate width of a letter of a label."""
_COLOURS = "cividis"
"""A colour map whose lightness rises evenly, so that it can also be read in greyscale."""

# Perplexity by position.
_STATE_LINES: dict[StateUse, tuple[str, dict[str, Any]]] = {
    "zero": ("every sentence from zero", {"color": POINT_STYLES[0].color, "linestyle": "-", "marker": "o"}),
    "carry": ("state carried", {"color": POINT_STYLES[2].color, "linestyle": (0, (4, 1.6)), "marker": "s"}),
}
_DIRECTIONS = {"forward": "forward: 1 is the first word", "backward": "backward: 1 is the last word"}
_SINGLE_BINS = 30
"""The number of bins with a single position; the wider bins after them are drawn with gaps between them."""
_MIN_PREDICTIONS = 100
"""Minimum number of predictions for a point, unless the first position has fewer."""


def draw_senses(senses: Senses, index: OccurrenceIndex, path: Path) -> None:
    """Write a scatter plot of the occurrences of a word in up to 8 clusters as .png, .svg or .pdf."""
    check_groups(len(senses.senses), "clusters")
    legends = [_sense_legend(number, sense, len(senses.rows)) for number, sense in enumerate(senses.senses, 1)]
    labels = [_sense_labels(index, sense) for sense in senses.senses]
    texts = [senses.word, *legends, *(text for _, each in labels for text in each)]
    bottom = 0.3 + _LEGEND_LINE * len(legends)
    height = _SENSES_PANEL + bottom + 0.4
    with drawing(path, (_SENSES_WIDTH, height), texts) as figure:
        axes = figure.add_axes((0.02, bottom / height, 0.96, _SENSES_PANEL / height))
        count = len(senses.senses)
        title = f"“{senses.word}”: {counted(len(senses.rows), 'occurrence')}, {counted(count, 'cluster')}"
        axes.set_title(title, fontsize=11)
        # The largest cluster is drawn first, so that smaller ones are on top of it.
        for number, (style, name) in enumerate(zip(POINT_STYLES, legends, strict=False)):
            x, y = senses.points[senses.labels == number].T
            axes.scatter(
                x, y, s=14 if len(senses.rows) > 400 else 26, color=style.color,
                marker=style.marker, edgecolors=style.edge, alpha=0.85, linewidths=0.4, label=name, zorder=2,
            )  # fmt: skip
        low, high = senses.points.min(axis=0), senses.points.max(axis=0)
        margin = 0.09 * np.maximum(high - low, 1e-3)
        axes.set_xlim(low[0] - 1.4 * margin[0], high[0] + 1.4 * margin[0])
        axes.set_ylim(low[1] - margin[1], high[1] + margin[1])
        blank_panel(axes)
        used: list[Box] = []
        number_of = {row: number for number, row in enumerate(senses.rows.tolist())}
        for rows, shown in labels:
            used += _label_cluster(axes, senses.points[[number_of[row] for row in rows]], shown, senses.points, used)
        handles, names = axes.get_legend_handles_labels()
        legend = figure.legend(
            handles, names, loc="lower left", bbox_to_anchor=(0.02, 0.12 / height), fontsize=8.5, frameon=False,
            borderaxespad=0, borderpad=0, handletextpad=0.3, labelspacing=0.45,
        )  # fmt: skip
        for handle in legend.legend_handles:
            handle.set(sizes=[36], alpha=1)  # type: ignore[union-attr]


def _label_cluster(axes: Axes, points: Points, texts: Sequence[str], every: Points, used: Sequence[Box]) -> list[Box]:
    """Write a few labels near the points of a cluster, or one label anywhere if there is no space near them."""
    for cost, most in ((9.0, _SENSE_LABELS), (25.0, _SENSE_LABELS - 1), (np.inf, 1)):
        if boxes := label_points(axes, points, texts, every, most=most, forbidden=used, cost=cost):
            return boxes
    return []


def _sense_legend(number: int, sense: Sense, total: int) -> str:
    words = [word for word in sense.typical if drawable(word)][:_LEGEND_WORDS]
    share = f"{sense.size / total:.0%}".rjust(4, _DIGIT_SPACE)
    return shortened(f"{number} {share}   {', '.join(words)}", _MAX_LEGEND)


def _sense_labels(index: OccurrenceIndex, sense: Sense) -> tuple[list[int], list[str]]:
    """Rows near the centre of a cluster and their labels, which are distinct and have more than the word itself."""
    rows: list[int] = []
    texts: list[str] = []
    for row in sense.rows[: 4 * _SENSE_LABELS_TRIED]:
        occurrence = index.occurrence(row)
        text = snippet(occurrence, 2, _MAX_SENSE_LABEL)
        known = (occurrence.word.casefold(), *(each.casefold() for each in texts))
        if text.casefold() not in known and drawable(text):
            rows.append(row)
            texts.append(text)
        if len(rows) == _SENSE_LABELS_TRIED:
            break
    return rows, texts


def snippet(occurrence: Occurrence, reach: int, longest: int) -> str:
    """A token with up to `reach` words on each side, in at most `longest` characters, without outer punctuation."""
    tokens, position = occurrence.tokens, occurrence.position
    words = [number for number, token in enumerate(tokens) if any(character.isalnum() for character in token)]
    before, after = [n for n in words if n < position], [n for n in words if n > position]
    for around in range(reach, 0, -1):
        first = before[-around:][0] if before else position
        last = after[:around][-1] if after else position
        text = join_tokens(tokens[first : last + 1])
        if len(text) <= longest:
            return text
    return shortened(tokens[position], longest)


class OccurrenceVectors(NamedTuple):
    """Occurrences of some words with their vectors."""

    occurrences: tuple[Occurrence, ...]
    groups: tuple[int, ...]
    """The number of the word of each occurrence, from 0."""
    vectors: Floats
    """[L+1, N, D] of length 1."""


def occurrence_vectors(elmo: Elmo, words: Sequence[str], found: Sequence[tuple[int, Occurrence]]) -> OccurrenceVectors:
    """The vectors in all layers of occurrences, each of which is given with the number of its word."""
    if len(found) > MAX_DRAWN:
        raise ElmoError(
            f"a picture shows at most {MAX_DRAWN} uses of {', '.join(words[:3])}, got {len(found)}: "
            "give fewer sentences, or lower occurrences",
            "occurrences",
        )
    streamed = elmo.stream([list(occurrence.tokens) for _, occurrence in found], layer="all")
    vectors = [layers[:, occurrence.position] for layers, (_, occurrence) in zip(streamed, found, strict=True)]
    groups, occurrences = zip(*found, strict=True)
    return OccurrenceVectors(occurrences, groups, normalised(np.stack(vectors, axis=1)))


def draw_words(words: Sequence[str], found: OccurrenceVectors, path: Path) -> None:
    """Write a scatter plot of up to 8 words, one panel per layer, as .png, .svg or .pdf.

    Each panel is the plane in which the vectors differ most. Each word has a marker. Up to 8 sentences have a colour
    each; if there are more, words have the colours.
    """
    check_groups(len(words), "words")
    numbers = {occurrence.sentence: occurrence.tokens for occurrence in found.occurrences}
    by_sentence = 1 < len(numbers) <= len(POINT_STYLES)
    sentences = [shortened(join_tokens(tokens), _MAX_LEGEND) for tokens in numbers.values()] if by_sentence else []
    colours = [list(numbers).index(each.sentence) for each in found.occurrences] if by_sentence else found.groups
    shown = (
        sentences if all(map(drawable, sentences)) else [f"sentence {number + 1}" for number in range(len(sentences))]
    )
    texts = [*words, *shown, *(snippet(each, 0, _MAX_WORD_LABEL) for each in found.occurrences)]
    texts += [text for each in found.occurrences if drawable(text := snippet(each, _LABEL_CONTEXT, _MAX_WORD_LABEL))]
    across = min(len(found.vectors), _PANELS_ACROSS)
    down = -(-len(found.vectors) // across)
    bottom = 0.35 + _LEGEND_LINE * len(shown)
    width, height = across * _PANEL_WIDTH, down * _PANEL_HEIGHT + bottom
    with drawing(path, (width, height), texts) as figure:
        for number, vectors in enumerate(found.vectors):
            row, column = divmod(number, across)
            left, low = column * _PANEL_WIDTH + 0.06, height - (row + 1) * _PANEL_HEIGHT
            size = (_PANEL_WIDTH - 0.12) / width, (_PANEL_HEIGHT - 0.3) / height
            axes = figure.add_axes((left / width, low / height, *size))
            axes.set_title(_layer_title(number), fontsize=10)
            flat = principal_components(vectors.astype(np.float64), 2)
            points = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
            middle, half = (points.min(axis=0) + points.max(axis=0)) / 2, np.ptp(points, axis=0) / 2
            half = np.maximum(half * 1.12, 1e-3)  # leaves space for labels between the points and the frame
            axes.set_xlim(middle[0] - 1.25 * half[0], middle[0] + 1.25 * half[0])
            axes.set_ylim(middle[1] - half[1], middle[1] + half[1])
            blank_panel(axes)
            point_groups = _group_points(points / (2 * half), found.groups)
            for group in point_groups:
                marker = POINT_STYLES[found.groups[group[0]]].marker
                # A point of several sentences is grey.
                several = len({colours[each] for each in group}) > 1
                color, _, edge = POINT_STYLES[colours[group[0]]]
                color, edge = (GREY, "white") if several else (color, edge)
                x, y = points[group[0]]
                axes.scatter(x, y, s=34, color=color, marker=marker, edgecolors=edge, linewidths=0.5)
            # Layer 0 has no context, so its labels are the words alone.
            _label_words(axes, found, _LABEL_CONTEXT if number else 0, points, point_groups)
        _words_legend(figure, words, shown, height)


def _words_legend(figure: Figure, words: Sequence[str], sentences: Sequence[str], height: float) -> None:
    """Add a legend below the panels with the marker of each word and, if sentences have colours, their colours."""
    from matplotlib.lines import Line2D

    def mark(name: str, colour: str, marker: str) -> Line2D:
        return Line2D([], [], linestyle="none", label=name, color=colour, marker=marker, markersize=6)

    marks = [
        mark(word, GREY if sentences else style.color, style.marker)
        for word, style in zip(words, POINT_STYLES, strict=False)
    ]
    colours = [mark(text, style.color, "o") for text, style in zip(sentences, POINT_STYLES, strict=False)]
    under = 0.1 + _LEGEND_LINE * len(sentences)
    options: dict[str, Any] = {
        "frameon": False,
        "fontsize": 8.5,
        "borderaxespad": 0,
        "borderpad": 0,
        "labelspacing": 0.45,
    }
    for handles, low, columns in ((marks, under, len(marks)), (colours, 0.06, 1)):
        if handles:
            anchor = (0.01, low / height)
            figure.legend(handles=handles, loc="lower left", bbox_to_anchor=anchor, ncol=columns, **options)


def _layer_title(number: int) -> str:
    return f"layer {number}" if number else "layer 0: words without context"


def _label_words(
    axes: Axes, found: OccurrenceVectors, reach: int, points: Points, point_groups: Sequence[Sequence[int]]
) -> None:
    """Label each point with the words around it, with fewer words if space is short; some points may get no label."""
    anchors = points[[group[0] for group in point_groups]]
    tries = [(around, letters) for around in range(reach, min(reach, 1) - 1, -1) for letters in (7.0, 6.0)]
    for around, letters in tries:
        before = len(axes.texts), len(axes.lines)
        texts = [_word_label([found.occurrences[number] for number in group], around) for group in point_groups]
        boxes = label_points(axes, anchors, texts, points, size=letters, cost=_MAX_LABEL_DISTANCE)
        if len(boxes) == len(texts) or (around, letters) == tries[-1]:
            return
        for artist in (*axes.texts[before[0] :], *axes.lines[before[1] :]):
            artist.remove()


def _word_label(occurrences: Sequence[Occurrence], around: int) -> str:
    first = occurrences[0]
    if len(occurrences) > 1:
        return f"{first.word} × {len(occurrences)}"
    text = snippet(first, around, _MAX_WORD_LABEL)
    return text if drawable(text) else snippet(first, 0, _MAX_WORD_LABEL)


def _group_points(points: Points, groups: Sequence[int]) -> list[list[int]]:
    """Groups of points [N, 2] that belong to one word and coincide, as all of them do in layer 0."""
    point_groups: list[list[int]] = []
    for number, point in enumerate(points):
        for group in point_groups:
            if groups[group[0]] == groups[number] and np.abs(points[group[0]] - point).max() < _SAME_POINT:
                group.append(number)
                break
        else:
            point_groups.append([number])
    return point_groups


def similarities(elmo: Elmo, first: Sequence[str], second: Sequence[str]) -> Floats:
    """The cosine of each token of one sentence with each token of the other in each layer, [L+1, T1, T2]."""
    one, other = (normalised(layers) for layers in elmo.stream([list(first), list(second)], layer="all"))
    return np.asarray(one @ other.transpose(0, 2, 1), dtype=np.float32)


def draw_similarity(values: Floats, first: Sequence[str], second: Sequence[str], path: Path) -> None:
    """Write a heat map of cosines [L+1, T1, T2] as .png, .svg or .pdf, one panel per layer, all on one scale."""
    longest = max(len(first), len(second))
    if not first or not second or longest > MAX_TOKENS:
        raise ElmoError(
            f"a heat map needs two sentences of 1 to {MAX_TOKENS} tokens, got {len(first)} and {len(second)}"
        )
    rows, columns = ([shortened(token, _MAX_TOKEN_LABEL) for token in tokens] for tokens in (first, second))
    cell = _CELL if longest <= _NUMBERS_UP_TO else _SMALL_CELL
    horizontal = _LETTER * max(map(display_width, columns)) < 0.9 * cell
    size = cell * len(columns) * len(values) + 2, cell * len(rows) + 1.2
    with drawing(path, size, [*rows, *columns], layout="constrained", crop=True) as figure:
        low = float(np.floor(values.min() * 10) / 10)
        panels = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
        for number, (axes, layer) in enumerate(zip(panels, values, strict=True)):
            image = axes.imshow(layer, cmap=_COLOURS, vmin=low, vmax=1.0)
            axes.set_title(_layer_title(number), fontsize=9)
            axes.set_xticks(range(len(columns)), labels=columns, rotation=0 if horizontal else 90, fontsize=8)
            axes.set_yticks(range(len(rows)), labels=rows, fontsize=8)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            if cell == _CELL:
                _write_numbers(axes, layer, low)
        bar = figure.colorbar(image, ax=panels, aspect=30, pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=7, length=2)
        bar.ax.set_title("similarity", fontsize=8)


def _write_numbers(axes: Axes, values: Floats, low: float) -> None:
    for (row, column), value in np.ndenumerate(values):
        light = (value - low) / max(1.0 - low, 1e-6) > 0.55
        text = f"{round(float(value), 2) + 0.0:.2f}".replace("0.", ".", 1)
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color="black" if light else "white")


def draw_by_position(path: Path, measured: Mapping[StateUse, ByPosition], name: str) -> None:
    """Draw the perplexity by position in the sentence, one panel per direction and one line per state."""
    first = next(iter(measured.values()))
    panels = list(_DIRECTIONS)[: len(first.losses)]
    bins = first.bins()
    # The first position is always drawn, and with it all others if it has few predictions.
    minimum = _MIN_PREDICTIONS if bins[0][1].predictions >= _MIN_PREDICTIONS else 0
    drawn = [number for number, (_, here) in enumerate(bins) if here.predictions >= minimum]
    title = f"Perplexity by position in the sentence: {name if drawable(name) else 'a model'}"
    with drawing(path, (8, 0.8 + 2.7 * len(panels)), [title]) as figure:
        grid: Any = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
        for axes, direction in zip(grid[:, 0], panels, strict=True):
            _draw_direction(axes, measured, direction, drawn)
        ticks = [number for number in drawn if number >= _SINGLE_BINS or not number or number % 5 == 4]
        axes.set_xticks(_bin_positions(ticks), [bins[number][0].replace("-", "–") for number in ticks])
        axes.set_xlabel("position, counted from where the direction starts")
        figure.suptitle(title, fontsize=11)
        figure.tight_layout()


def _draw_direction(axes: Axes, measured: Mapping[StateUse, ByPosition], direction: str, drawn: Sequence[int]) -> None:
    shown = []
    positions = _bin_positions(drawn)
    for state, result in measured.items():
        words, style = _STATE_LINES[state]
        bins = result.bins()
        values = np.array([getattr(bins[number][1], direction) for number in drawn])
        label: str | None = f"{perplexity(getattr(result.all(), direction))}  {words}"
        for part in (positions <= _SINGLE_BINS, positions > _SINGLE_BINS):
            axes.plot(positions[part], values[part], label=label, markersize=3.5, **style)
            label = None
        shown.append(values[np.isfinite(values)])
    if not (finite := np.concatenate(shown)).size:
        raise ElmoError(f"every {direction} perplexity is infinite, so there is nothing to draw: leave out the picture")
    perplexity_axis(axes, finite)
    axes.set_title(_DIRECTIONS[direction], fontsize=10, loc="left")
    axes.legend(title="over all positions", alignment="left", fontsize=9, **LEGEND)
    open_panel(axes)


def _bin_positions(bins: Sequence[int]) -> Points:
    """The x coordinates of bins: the position itself for single positions, and with gaps for wide bins."""
    number = np.array(bins, np.float64)
    return np.where(number < _SINGLE_BINS, number + 1, _SINGLE_BINS + 3 + 3 * (number - _SINGLE_BINS))
