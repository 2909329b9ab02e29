"""`elmo senses`: groups the occurrences of a word into clusters, with examples and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elmokit.cli.registry import command
from elmokit.cli.shared import FONT_HELP, JSON_HELP, LAYER_HELP, IndexOptions, terminal_width
from elmokit.errors import ElmoError
from elmokit.messages import counted, json_line, printable
from elmokit.options import argument, option

if TYPE_CHECKING:
    from elmokit.analyse.senses import Senses


@command("senses")
@dataclass(frozen=True, kw_only=True)
class SensesCommand(IndexOptions):
    """Group the occurrences of a word into clusters, each with typical sentences and words."""

    word: str = argument("The word.", "WORD")
    output: Path | None = option(None, "Also draw the clusters: .png, .svg or .pdf.", metavar="FILE")
    clusters: int | None = option(None, "Number of clusters.", least=1, shown="1 to 8, chosen by the silhouette")
    examples: int = option(4, "Number of sentences to show for each cluster.", least=0)
    layer: str | None = option(None, LAYER_HELP, metavar="mix|top|N", shown="top")
    seed: int = option(1, "Seed of the clustering.", least=0)
    font: Path | None = option(None, FONT_HELP, metavar="FILE")
    json: bool = option(False, JSON_HELP)

    def run(self) -> None:
        """Find or build the index, print the clusters with examples and, with --output, draw them."""
        from elmokit.analyse.pictures import draw_senses
        from elmokit.analyse.senses import find_senses
        from elmokit.plots.style import add_font, check_groups, check_picture, font_families

        if self.output is not None:
            check_picture(self.output)
            check_groups(self.clusters or 1, "clusters")
            if self.font is not None:
                add_font(self.font)
            font_families([self.word])  # reports a missing font before anything is read
        elif self.font is not None:
            raise ElmoError("--font is for the picture: add --output FILE.png")
        elmo = self.load(self.segment)
        index = self.find_index(elmo, [self.word])
        senses = find_senses(
            index, self.word, self.clusters, ignore_case=self.ignore_case, examples=self.examples, seed=self.seed
        )
        if self.json:
            _print_json(senses)
        else:
            _print(senses)
        if self.output is not None:
            draw_senses(senses, index, self.output)
            if not self.json:
                print(printable(f"wrote {self.output}"))


def _print(senses: Senses) -> None:
    from elmokit.analyse.sentence_display import mark_token

    width = terminal_width()
    total, count = len(senses.rows), len(senses.senses)
    found = f"{counted(total, 'occurrence')} in {counted(count, 'cluster')}"
    print(f"{printable(senses.word)}: {found}" + (f" (silhouette {senses.silhouette:.2f})" if count > 1 else ""))
    for number, sense in enumerate(senses.senses, 1):
        print()
        words = f": {printable(', '.join(sense.typical))}" if sense.typical else ""
        print(f"{number}  {sense.size / total:.0%}, {counted(sense.size, 'occurrence')}{words}")
        for example in sense.examples:
            columns = None if width is None else width - 3
            print(f"   {mark_token(example.tokens, example.position, width=columns, bold=width is not None)}")


def _print_json(senses: Senses) -> None:
    """Print one JSON object per cluster."""
    for number, sense in enumerate(senses.senses, 1):
        examples = [{"position": each.position + 1, "tokens": each.tokens} for each in sense.examples]
        record = {"cluster": number, "size": sense.size, "typical": sense.typical, "examples": examples}
        print(json_line({"word": senses.word, **record}))
