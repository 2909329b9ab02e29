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
_LEGEND_WORDS, _LONGEST_LEGEND = 6, 78
_LONGEST_SENSE_LABEL = 30
_DIGIT_SPACE = "\u2007"
"""A space as wide as a digit."""

# Words in their sentences.
MOST_OCCURRENCES = 80
_PANEL_WIDTH, _PANEL_HEIGHT, _PANELS_ACROSS = 4.6, 3.5, 3
_REACH, _LONGEST_WORD_LABEL = 2, 26
"""Words on each side in a label, and its characters."""
_FAR = 20.0
"""The largest distance between a point and its label, in gaps."""
_SAME_POINT = 1e-4
"""Points nearer than this share of the picture are drawn as one."""

# Similarities.
MOST_TOKENS = 60
_NUMBERS_UP_TO = 16
"""Tokens of the longer sentence; with more there is no space for numbers in the squares."""
_LONGEST_TOKEN = 18
_CELL, _SMALL_CELL = 0.42, 0.24
"""The width of a square with and without a number in it."""
_LETTER = 0.085
"""The approximate width of a letter of a label."""
_COLOURS = "cividis"
"""Its lightness rises evenly, so it can be read in grey too."""

# Perplexity by position.
_STATE_LINES: dict[StateUse, tuple[str, dict[str, Any]]] = {
    "zero": ("every sentence from zero", {"color": POINT_STYLES[0].color, "linestyle": "-", "marker": "o"}),
    "carry": ("state carried", {"color": POINT_STYLES[2].color, "linestyle": (0, (4, 1.6)), "marker": "s"}),
}
_DIRECTIONS = {"forward": "forward: 1 is the first word", "backward": "backward: 1 is the last word"}
_NARROW = 30
"""The number of bins of one position; the wider ones after them have a gap between them."""
_FEWEST_PREDICTIONS = 100
"""Predictions that a point needs, if there are enough sentences."""


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
        title = f"“{senses.word}”: {counted(len(senses.rows), 'occurrence')}, {counted(count, 'way')} of use"
        axes.set_title(title, fontsize=11)
        # The largest cluster first, so that the small ones are on top.
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
    """Write a few labels near the points of a cluster, or one label anywhere if none fits near them."""
    for cost, most in ((9.0, _SENSE_LABELS), (25.0, _SENSE_LABELS - 1), (np.inf, 1)):
        if boxes := label_points(axes, points, texts, every, most=most, forbidden=used, cost=cost):
            return boxes
    return []


def _sense_legend(number: int, sense: Sense, total: int) -> str:
    words = [word for word in sense.typical if drawable(word)][:_LEGEND_WORDS]
    share = f"{sense.size / total:.0%}".rjust(4, _DIGIT_SPACE)
    return shortened(f"{number} {share}   {', '.join(words)}", _LONGEST_LEGEND)


def _sense_labels(index: OccurrenceIndex, sense: Sense) -> tuple[list[int], list[str]]:
    """Rows near the centre of a cluster with a few words of each, all different and more than the word alone."""
    rows: list[int] = []
    texts: list[str] = []
    for row in sense.rows[: 4 * _SENSE_LABELS_TRIED]:
        occurrence = index.occurrence(row)
        text = snippet(occurrence, 2, _LONGEST_SENSE_LABEL)
        known = (occurrence.word.casefold(), *(each.casefold() for each in texts))
        if text.casefold() not in known and drawable(text):
            rows.append(row)
            texts.append(text)
        if len(rows) == _SENSE_LABELS_TRIED:
            break
    return rows, texts


def snippet(occurrence: Occurrence, reach: int, longest: int) -> str:
    """A token with up to `reach` words on each side, without punctuation at the edges, in `longest` characters."""
    tokens, place = occurrence.tokens, occurrence.position
    words = [number for number, token in enumerate(tokens) if any(character.isalnum() for character in token)]
    before, after = [n for n in words if n < place], [n for n in words if n > place]
    for around in range(reach, 0, -1):
        first = before[-around:][0] if before else place
        last = after[:around][-1] if after else place
        text = join_tokens(tokens[first : last + 1])
        if len(text) <= longest:
            return text
    return shortened(tokens[place], longest)


class PlacedWords(NamedTuple):
    """Occurrences of words with their vectors."""

    occurrences: tuple[Occurrence, ...]
    groups: tuple[int, ...]
    """For each occurrence the number of its word among the words that were asked for."""
    vectors: Floats
    """[L+1, N, D] of length 1."""


def place_words(elmo: Elmo, words: Sequence[str], found: Sequence[tuple[int, Occurrence]]) -> PlacedWords:
    """The vectors of occurrences in all layers; each occurrence comes with the number of its word."""
    if len(found) > MOST_OCCURRENCES:
        raise ElmoError(
            f"a picture shows at most {MOST_OCCURRENCES} places of {', '.join(words[:3])}, got {len(found)}: "
            "give fewer sentences, or lower occurrences",
            "occurrences",
        )
    streamed = elmo.stream([list(occurrence.tokens) for _, occurrence in found], layer="all")
    vectors = [layers[:, occurrence.position] for layers, (_, occurrence) in zip(streamed, found, strict=True)]
    groups, occurrences = zip(*found, strict=True)
    return PlacedWords(occurrences, groups, normalised(np.stack(vectors, axis=1)))


def draw_words(words: Sequence[str], placed: PlacedWords, path: Path) -> None:
    """Write up to 8 words in the plane of their largest differences, one panel per layer, as .png, .svg or .pdf.

    Up to 8 sentences have a colour each, and words a mark each; with more sentences, words have the colours.
    """
    check_groups(len(words), "words")
    numbers = {occurrence.sentence: occurrence.tokens for occurrence in placed.occurrences}
    by_sentence = 1 < len(numbers) <= len(POINT_STYLES)
    sentences = [shortened(join_tokens(tokens), _LONGEST_LEGEND) for tokens in numbers.values()] if by_sentence else []
    colours = [list(numbers).index(each.sentence) for each in placed.occurrences] if by_sentence else placed.groups
    shown = (
        sentences if all(map(drawable, sentences)) else [f"sentence {number + 1}" for number in range(len(sentences))]
    )
    texts = [*words, *shown, *(snippet(each, 0, _LONGEST_WORD_LABEL) for each in placed.occurrences)]
    texts += [text for each in placed.occurrences if drawable(text := snippet(each, _REACH, _LONGEST_WORD_LABEL))]
    across = min(len(placed.vectors), _PANELS_ACROSS)
    down = -(-len(placed.vectors) // across)
    bottom = 0.35 + _LEGEND_LINE * len(shown)
    width, height = across * _PANEL_WIDTH, down * _PANEL_HEIGHT + bottom
    with drawing(path, (width, height), texts) as figure:
        for number, vectors in enumerate(placed.vectors):
            row, column = divmod(number, across)
            left, low = column * _PANEL_WIDTH + 0.06, height - (row + 1) * _PANEL_HEIGHT
            size = (_PANEL_WIDTH - 0.12) / width, (_PANEL_HEIGHT - 0.3) / height
            axes = figure.add_axes((left / width, low / height, *size))
            axes.set_title(_layer_title(number), fontsize=10)
            flat = principal_components(vectors.astype(np.float64), 2)
            points = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
            middle, half = (points.min(axis=0) + points.max(axis=0)) / 2, np.ptp(points, axis=0) / 2
            half = np.maximum(half * 1.12, 1e-3)  # as near to the frame as labels next to the points allow
            axes.set_xlim(middle[0] - 1.25 * half[0], middle[0] + 1.25 * half[0])
            axes.set_ylim(middle[1] - half[1], middle[1] + half[1])
            blank_panel(axes)
            # Without context the words around a word say nothing about its place.
            together = _same_points(points / (2 * half), placed.groups)
            for group in together:
                marker = POINT_STYLES[placed.groups[group[0]]].marker
                # One point that belongs to several sentences has the colour of none.
                several = len({colours[each] for each in group}) > 1
                color, _, edge = POINT_STYLES[colours[group[0]]]
                color, edge = (GREY, "white") if several else (color, edge)
                x, y = points[group[0]]
                axes.scatter(x, y, s=34, color=color, marker=marker, edgecolors=edge, linewidths=0.5)
            _label_words(axes, placed, _REACH if number else 0, points, together)
        _words_legend(figure, words, shown, height)


def _words_legend(figure: Figure, words: Sequence[str], sentences: Sequence[str], height: float) -> None:
    """Below the panels: the mark of each word, and the colour of each sentence if sentences have colours."""
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
            place = (0.01, low / height)
            figure.legend(handles=handles, loc="lower left", bbox_to_anchor=place, ncol=columns, **options)


def _layer_title(number: int) -> str:
    return f"layer {number}" if number else "layer 0: words without context"


def _label_words(
    axes: Axes, placed: PlacedWords, reach: int, points: Points, together: Sequence[Sequence[int]]
) -> None:
    """Label every point with the words around it, or with fewer of them; the last try may leave points without."""
    anchors = points[[group[0] for group in together]]
    tries = [(around, letters) for around in range(reach, min(reach, 1) - 1, -1) for letters in (7.0, 6.0)]
    for around, letters in tries:
        before = len(axes.texts), len(axes.lines)
        texts = [_word_label([placed.occurrences[number] for number in group], around) for group in together]
        boxes = label_points(axes, anchors, texts, points, size=letters, cost=_FAR)
        if len(boxes) == len(texts) or (around, letters) == tries[-1]:
            return
        for artist in (*axes.texts[before[0] :], *axes.lines[before[1] :]):
            artist.remove()


def _word_label(occurrences: Sequence[Occurrence], around: int) -> str:
    first = occurrences[0]
    if len(occurrences) > 1:
        return f"{first.word} × {len(occurrences)}"
    text = snippet(first, around, _LONGEST_WORD_LABEL)
    return text if drawable(text) else snippet(first, 0, _LONGEST_WORD_LABEL)


def _same_points(points: Points, groups: Sequence[int]) -> list[list[int]]:
    """Points [N, 2] of one word at the same place, as all are without context, in one list each."""
    together: list[list[int]] = []
    for number, point in enumerate(points):
        for group in together:
            if groups[group[0]] == groups[number] and np.abs(points[group[0]] - point).max() < _SAME_POINT:
                group.append(number)
                break
        else:
            together.append([number])
    return together


def similarities(elmo: Elmo, first: Sequence[str], second: Sequence[str]) -> Floats:
    """The cosine of every token of one sentence with every token of the other in every layer, [L+1, T1, T2]."""
    one, other = (normalised(layers) for layers in elmo.stream([list(first), list(second)], layer="all"))
    return np.asarray(one @ other.transpose(0, 2, 1), dtype=np.float32)


def draw_similarity(values: Floats, first: Sequence[str], second: Sequence[str], path: Path) -> None:
    """Write a heat map of cosines [L+1, T1, T2], one panel per layer on one scale, as .png, .svg or .pdf."""
    longest = max(len(first), len(second))
    if not first or not second or longest > MOST_TOKENS:
        raise ElmoError(
            f"a heat map is of two sentences of 1 to {MOST_TOKENS} tokens, got {len(first)} and {len(second)}"
        )
    rows, columns = ([shortened(token, _LONGEST_TOKEN) for token in tokens] for tokens in (first, second))
    cell = _CELL if longest <= _NUMBERS_UP_TO else _SMALL_CELL
    upright = _LETTER * max(map(display_width, columns)) < 0.9 * cell
    size = cell * len(columns) * len(values) + 2, cell * len(rows) + 1.2
    with drawing(path, size, [*rows, *columns], layout="constrained", crop=True) as figure:
        low = float(np.floor(values.min() * 10) / 10)
        panels = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
        for number, (axes, layer) in enumerate(zip(panels, values, strict=True)):
            image = axes.imshow(layer, cmap=_COLOURS, vmin=low, vmax=1.0)
            axes.set_title(_layer_title(number), fontsize=9)
            axes.set_xticks(range(len(columns)), labels=columns, rotation=0 if upright else 90, fontsize=8)
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
    some = next(iter(measured.values()))
    panels = list(_DIRECTIONS)[: len(some.losses)]
    bins = some.bins()
    # The picture is about the first words, so they are drawn in any case.
    fewest = _FEWEST_PREDICTIONS if bins[0][1].predictions >= _FEWEST_PREDICTIONS else 0
    drawn = [number for number, (_, here) in enumerate(bins) if here.predictions >= fewest]
    title = f"Perplexity by position in the sentence: {name if drawable(name) else 'a model'}"
    with drawing(path, (8, 0.8 + 2.7 * len(panels)), [title]) as figure:
        grid: Any = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
        for axes, way in zip(grid[:, 0], panels, strict=True):
            _draw_direction(axes, measured, way, drawn)
        ticks = [number for number in drawn if number >= _NARROW or not number or number % 5 == 4]
        axes.set_xticks(_bin_places(ticks), [bins[number][0].replace("-", "–") for number in ticks])
        axes.set_xlabel("position, counted from where the direction starts")
        figure.suptitle(title, fontsize=11)
        figure.tight_layout()


def _draw_direction(axes: Axes, measured: Mapping[StateUse, ByPosition], way: str, drawn: Sequence[int]) -> None:
    shown = []
    places = _bin_places(drawn)
    for state, found in measured.items():
        words, style = _STATE_LINES[state]
        bins = found.bins()
        values = np.array([getattr(bins[number][1], way) for number in drawn])
        label: str | None = f"{perplexity(getattr(found.all(), way))}  {words}"
        for part in (places <= _NARROW, places > _NARROW):
            axes.plot(places[part], values[part], label=label, markersize=3.5, **style)
            label = None
        shown.append(values[np.isfinite(values)])
    if not (finite := np.concatenate(shown)).size:
        raise ElmoError(f"every {way} perplexity is infinite, so there is nothing to draw: leave out the picture")
    perplexity_axis(axes, finite)
    axes.set_title(_DIRECTIONS[way], fontsize=10, loc="left")
    axes.legend(title="over all positions", alignment="left", fontsize=9, **LEGEND)
    open_panel(axes)


def _bin_places(bins: Sequence[int]) -> Points:
    """The places of bins on the axis: the position itself, and wide bins with gaps between them."""
    number = np.array(bins, np.float64)
    return np.where(number < _NARROW, number + 1, _NARROW + 3 + 3 * (number - _NARROW))
