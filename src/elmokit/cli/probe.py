"""`elmo probe`: measures what each layer of a model knows about parts of speech, word senses and words in context."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmokit.cli.registry import command, group
from elmokit.cli.shared import MODEL_HELP, DeviceOption, ModelFileOptions, check_output_file, say
from elmokit.messages import aligned, counted
from elmokit.options import REQUIRED, argument, option

if TYPE_CHECKING:
    from elmokit.analyse.probes.pos import PosResult
    from elmokit.analyse.probes.sources import LayerSource, Vectors
    from elmokit.analyse.probes.wic import WicResult
    from elmokit.analyse.probes.wsd import WsdResult

group("probe", "Measure what each layer of a model knows.")


@dataclass(frozen=True, kw_only=True)
class ProbeCommand(ModelFileOptions, DeviceOption):
    """The options and checks that the three probes share."""

    model: str = argument(MODEL_HELP, "MODEL")
    train: Path = option(REQUIRED, "The data that the probe is trained on.", metavar="FILE")
    dev: Path = option(REQUIRED, "The data that the probe is measured on.", metavar="FILE")
    limit: int | None = option(
        None, "Maximum number of training sentences or pairs, spread evenly over the file.", least=1, shown="all"
    )
    output: Path | None = option(None, "Also write the results as JSON.", metavar="FILE.json")
    batch_tokens: int | None = option(None, "Number of tokens per batch.", least=1, shown="chosen for the device")

    def check(self) -> None:
        """Check, before anything is read, that the output can be written."""
        if self.output is not None:
            check_output_file("output", self.output, (self.train, self.dev))

    def source(self) -> LayerSource:
        """The model as a source of vectors that shows the progress."""
        from elmokit.analyse.probes.sources import ElmoSource
        from elmokit.elmo import Elmo
        from elmokit.progress import ProgressDisplay

        elmo = Elmo.load(self.model, options=self.options, vocab=self.vocab, device=self.device)

        class ShownSource(ElmoSource):
            display = ProgressDisplay(quiet=True)

            def stream(self, sentences: Iterable[Sequence[str]]) -> Iterator[Vectors]:
                with ProgressDisplay("ELMo vectors", "sentences") as display:
                    yield from display.count(super().stream(sentences))

            def progress(self, done: int, total: int | None) -> None:
                if done == 1:
                    self.display = ProgressDisplay("ELMo vectors", "sentences")
                self.display.update(done, total)
                if done == total:
                    self.display.close()

        return ShownSource(elmo, self.batch_tokens)

    def report(self, result: Any, lines: Sequence[str]) -> None:  # noqa: ANN401 - any result dataclass
        """Print a result and, with --output, write it to a file."""
        from elmokit.storage.atomic import write_text

        print("\n".join(lines))
        if self.output is not None:
            write_text(self.output, json.dumps(asdict(result), indent=2, ensure_ascii=False) + "\n")
            say(f"wrote {self.output}")


@command("probe pos")
@dataclass(frozen=True, kw_only=True)
class ProbePosCommand(ProbeCommand):
    """Train a linear tagger of parts of speech on each layer of MODEL (files: CoNLL-U or CoNLL columns)."""

    tag_column: str | None = option(
        None, "Column of the tags: upos, xpos or a number from 1.", metavar="COLUMN", shown="upos, or the last one"
    )
    seeds: int = option(1, "Number of classifiers to train per layer, each with its own seed.", least=1)
    cache: Path | None = option(None, "Folder for the ELMo vectors.", metavar="DIR", shown="~/.cache/elmokit")

    def run(self) -> None:
        """Print the accuracy of a linear tagger on each layer."""
        from elmokit.analyse.probes.pos import probe_pos
        from elmokit.analyse.probes.sources import evenly
        from elmokit.tasks.tag import read_tagged

        self.check()
        train, dev = (read_tagged(path, tag_column=self.tag_column) for path in (self.train, self.dev))
        seeds = range(1, self.seeds + 1)
        result = probe_pos(self.source(), evenly(train, self.limit), dev, seeds=seeds, folder=self.cache)
        self.report(result, pos_lines(result))


@command("probe wsd")
@dataclass(frozen=True, kw_only=True)
class ProbeWsdCommand(ProbeCommand):
    """Find the nearest sense in SemCor (--train) for each word of an evaluation set (--dev), layer by layer."""

    wordnet: Path | None = option(
        None, "Folder of WordNet 3.0, for lemmas that the training text lacks.", metavar="DIR"
    )

    def run(self) -> None:
        """Print the F1 of the nearest sense for each layer."""
        from elmokit.analyse.probes.wsd import WordNet, probe_wsd, read_evaluation, read_semcor

        self.check()
        first_sense = None if self.wordnet is None else WordNet(self.wordnet).first_sense
        train, evaluation = read_semcor(self.train, self.limit), read_evaluation(self.dev)
        result = probe_wsd(self.source(), train, evaluation, first_sense=first_sense)
        self.report(result, wsd_lines(result))


@command("probe wic")
@dataclass(frozen=True, kw_only=True)
class ProbeWicCommand(ProbeCommand):
    """Decide whether a word has the same meaning in two sentences (WiC), layer by layer."""

    def run(self) -> None:
        """Print the accuracy of a threshold for each layer."""
        from elmokit.analyse.probes.sources import evenly
        from elmokit.analyse.probes.wic import probe_wic, read_wic

        self.check()
        train, dev = evenly(read_wic(self.train), self.limit), read_wic(self.dev)
        result = probe_wic(self.source(), train, dev)
        self.report(result, wic_lines(result))


def pos_lines(result: PosResult) -> list[str]:
    """The result as a table."""
    rows = [(_layer_name(layer), f"{accuracy:.2%}") for layer, accuracy in result.accuracy.items()]
    rows += [("most frequent tag of the word", f"{result.baseline:.2%}")]
    seen = f"{counted(result.train_tokens, 'token')} to train, {result.dev_tokens:,} to measure"
    return [f"accuracy of {len(result.tags)} tags, {seen}", *aligned(rows, right=True)]


def wsd_lines(result: WsdResult) -> list[str]:
    """The result as a table."""
    heading = ("", "nearest mean", "nearest context", "mean, unseen wrong")
    rows = [
        (_layer_name(layer), f"{mean.f1:.1%}", f"{result.nearest[layer].f1:.1%}", f"{mean.unseen_wrong:.1%}")
        for layer, mean in result.centroid.items()
    ]
    frequent = result.most_frequent
    rows += [("most frequent sense", f"{frequent.f1:.1%}", "", f"{frequent.unseen_wrong:.1%}")]
    if result.first_sense is not None:
        rows += [("first sense of WordNet", f"{result.first_sense:.1%}", "", "")]
    unseen, answered = result.words - result.seen, result.answered - result.seen
    fallback = f"WordNet's first sense answers {answered} of these" if answered else "no WordNet answers for these"
    return [
        f"F1 over {counted(result.words, 'word')}; the training text lacks the lemma of {unseen}"
        + (f", {fallback}" if unseen else ""),
        *aligned([heading, *rows], right=True),
    ]


def wic_lines(result: WicResult) -> list[str]:
    """The result as a table."""
    heading = ("", "threshold", "in training", "logistic")
    rows = [
        (_layer_name(layer), f"{accuracy:.2%}", f"{result.train_accuracy[layer]:.2%}", f"{result.logistic[layer]:.2%}")
        for layer, accuracy in result.accuracy.items()
    ]
    rows += [("all layers together", "", "", f"{result.logistic['all']:.2%}")]
    rows += [("the more frequent answer", f"{result.majority:.2%}", "", "")]
    return ["accuracy: does the word have the same meaning?", *aligned([heading, *rows], right=True)]


def _layer_name(layer: str) -> str:
    return {"mean": "mean of the layers", "mix": "learned mix of the layers"}.get(layer, f"layer {layer}")
