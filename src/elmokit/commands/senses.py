"""What `elmo senses` does: the occurrences of a word in clusters, shown with examples and drawn."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from elmokit.analyse.index_cache import IndexOptions
from elmokit.analyse.pictures import draw_senses
from elmokit.analyse.senses import Senses, find_senses
from elmokit.analyse.sentence_display import mark_token
from elmokit.commands.index_display import find_index_with_progress, terminal_width
from elmokit.commands.model_request import ModelRequest
from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.plots.style import add_font, check_groups, check_picture, font_families


@dataclass(frozen=True)
class SensesRequest(ModelRequest):
    """The options of `elmo senses`."""

    word: str
    where: IndexOptions = field(default_factory=IndexOptions)
    clusters: int | None = None
    """None: as many as there are, from 1 to 8."""
    examples: int = 4
    ignore_case: bool = False
    output: Path | None = None
    """The picture; None: none."""
    font: Path | None = None
    seed: int = 1
    json: bool = False


def run_senses(request: SensesRequest) -> None:
    """Find the index or build it, print the clusters with examples and draw them where that is asked for."""
    if request.output is not None:
        check_picture(request.output)
        check_groups(request.clusters or 1, "clusters")
        if request.font is not None:
            add_font(request.font)
        font_families([request.word])  # a missing font has to show before anything is read
    elif request.font is not None:
        raise ElmoError("--font is for the picture: add --output FILE.png")
    elmo = request.load(request.where.segment)
    index = find_index_with_progress(request.where, elmo, words=[request.word], ignore_case=request.ignore_case)
    senses = find_senses(
        index,
        request.word,
        request.clusters,
        ignore_case=request.ignore_case,
        examples=request.examples,
        seed=request.seed,
    )
    if request.json:
        _print_json(senses)
    else:
        _print(senses)
    if request.output is not None:
        draw_senses(senses, index, request.output)
        if not request.json:
            print(f"wrote {request.output}")


def _print(senses: Senses) -> None:
    width = terminal_width()
    total, count = len(senses.rows), len(senses.senses)
    found = f"{counted(total, 'occurrence')} in {counted(count, 'cluster')}"
    print(f"{senses.word}: {found}" + (f" (silhouette {senses.silhouette:.2f})" if count > 1 else ""))
    for number, sense in enumerate(senses.senses, 1):
        print()
        print(f"{number}  {sense.size / total:.0%}, {counted(sense.size, 'occurrence')}: {', '.join(sense.typical)}")
        for example in sense.examples:
            room = None if width is None else width - 3
            print(f"   {mark_token(example.tokens, example.position, width=room, bold=width is not None)}")


def _print_json(senses: Senses) -> None:
    """A line a cluster."""
    for number, sense in enumerate(senses.senses, 1):
        examples = [{"position": each.position + 1, "tokens": each.tokens} for each in sense.examples]
        record = {"cluster": number, "size": sense.size, "typical": sense.typical, "examples": examples}
        print(json.dumps({"word": senses.word, **record}, ensure_ascii=False))
