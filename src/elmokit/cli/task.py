"""`elmo task`: trains a task model on a file of examples, scores it on another file, and predicts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from elmokit import __version__
from elmokit.cli.registry import Command, command, command_line, group, options_of
from elmokit.cli.shared import JSON_HELP, SEGMENT_HELP, DeviceOption, ModelOptions, check_output_file, say, share_cores
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.messages import counted, printable
from elmokit.options import REQUIRED, argument, option, shown_value
from elmokit.progress import ProgressDisplay
from elmokit.tasks.options import TaskOptions
from elmokit.text.tokens import SegmenterName

if TYPE_CHECKING:
    from elmokit.elmo import Elmo
    from elmokit.tasks.model import TaskModel
    from elmokit.tasks.scores import TaskScores
    from elmokit.tasks.task import Answer, AnyTask, Example
    from elmokit.tasks.trainer import Fitted, TrainingListener
    from elmokit.text.policy import TextPolicy

log = logging.getLogger(__name__)
group("task", "Train and use classifiers, taggers and sentence-pair models on ELMo vectors.")
_FOLDER_HELP = "A folder that elmo task train wrote."
_NAMED = "found by its name"


def _defaults() -> dict[str, str]:
    return {item.name: shown_value(item.default) for item in fields(TaskOptions)}


@dataclass(frozen=True, kw_only=True)
class InputColumns(Command):
    """Options for the columns of a file that contain its texts."""

    text: str | None = option(None, "classify: column of the texts.", metavar="COLUMN", shown=_NAMED)
    first: str | None = option(None, "pair: column of the first sentences.", metavar="COLUMN", shown=_NAMED)
    second: str | None = option(None, "pair: column of the second sentences.", metavar="COLUMN", shown=_NAMED)
    token_column: str | None = option(None, "tag: column of the tokens.", metavar="COLUMN", shown="1; FORM in CoNLL-U")

    def read(
        self, task: type[AnyTask] | AnyTask, path: str, policy: TextPolicy, *, labelled: bool = True
    ) -> Iterator[Example]:
        """The examples of a file, one by one."""
        columns = {name: getattr(self, name, None) for name in task.columns}
        return task.read(path, segment=policy, labelled=labelled, **columns)


@dataclass(frozen=True, kw_only=True)
class Columns(InputColumns):
    """Options for the columns of a file that contain its texts and labels."""

    label: str | None = option(
        None, "classify and pair: column of the labels or scores.", metavar="COLUMN", shown=_NAMED
    )
    tag_column: str | None = option(
        None, "tag: column of the tags.", metavar="COLUMN", shown="the last; UPOS in CoNLL-U"
    )


@command("task train")
@dataclass(frozen=True, kw_only=True)
class TaskTrainCommand(Columns, ModelOptions):
    """Train a model on a file of examples. elmokit.tasks.load opens DIR."""

    kind: str = argument("The task: classify, tag or pair.", "KIND")
    train: str = argument("Examples: .tsv, .csv or .jsonl; .conll or .conllu for tag.", "TRAIN")
    output: Path = option(REQUIRED, "The folder to write, with the model and its report.", metavar="DIR")
    dev: str | None = option(None, "Examples to score on.", metavar="FILE", shown="one in ten of TRAIN")
    compare: bool = option(
        False, "Also train on layer 0 alone, without ELMo and, for classify, on TF-IDF, and show all scores."
    )
    segment: SegmenterName | None = option(None, SEGMENT_HELP, shown="as in the training of the ELMo model")
    cache: Path | None = option(None, "Folder for the ELMo vectors.", metavar="DIR", shown="~/.cache/elmokit")
    changes: Mapping[str, Any] = options_of(TaskOptions, _defaults)

    def run(self) -> None:
        """Train, score on the dev data, write the model with its report, and print the scores."""
        share_cores()
        from elmokit.model.placement import choose_device
        from elmokit.storage.atomic import check_new_folder, new_folder
        from elmokit.tasks.model import LAST, write_model
        from elmokit.tasks.report import TaskReport, comparison_table, write_report
        from elmokit.tasks.task import task_named
        from elmokit.tasks.trainer import fit, hold_out
        from elmokit.text.policy import TextPolicy

        task = task_named(self.kind)
        options = task.options(**self.changes)
        task.refuse_unused(options, self.changes)
        check_new_folder(self.output)
        for path in (self.train, self.dev, options.static_file):
            _refuse_missing(path)
        device = choose_device(self.device)
        elmo = self.load(self.segment) if options.elmo != "none" or self.compare else None
        policy = TextPolicy(self.segment or "whitespace") if elmo is None else elmo.text_policy
        if self.segment is None and policy.name != "whitespace":
            log.info("texts are tokenised as the training text of the model was, --segment %s", policy.name)
        train = list(self.read(task, self.train, policy))
        dev = None if self.dev is None else list(self.read(task, self.dev, policy))
        sizes = f"{self.train}: {counted(len(train), 'example')}"
        say(sizes if dev is None else f"{sizes}; {self.dev}: {counted(len(dev), 'example')}")
        _report_unknown(elmo, train, self.train)

        def trained(chosen: TaskOptions) -> Fitted:
            with TrainingDisplay(_name(chosen) if self.compare else "", notes=chosen == options) as display:
                watch, paths = cast("TrainingListener", display), (self.train, self.dev)
                given: dict[str, Any] = {"segment": policy, "cache": self.cache, "device": device, "paths": paths}
                return fit(self.kind, train, dev, chosen, elmo=elmo, watch=watch, **given)

        fitted = trained(options)
        comparison: list[tuple[str, TaskScores]] = []
        if self.compare:
            others = [other for other in (options.with_layer_0(), options.without_elmo()) if other != options]
            comparison = [(_name(options), fitted.scores), *((_name(other), trained(other).scores) for other in others)]
            parts = (train, dev) if dev is not None else hold_out(task, train, options)
            try:
                comparison += task.baselines(*parts)
            except MissingExtraError as error:
                say(str(error))
        mixes = fitted.model.network.mixes.values()
        report = TaskReport(
            title=f"{self.kind}: {Path(self.train).name}",
            scores=fitted.scores,
            history=fitted.history,
            mixes=[(mix.weights.detach().softmax(0).tolist(), mix.gamma.item()) for mix in mixes],
            facts=self._facts(fitted, len(train), dev),
            comparison=comparison,
            best_epoch=fitted.epoch,
        )
        with new_folder(self.output, last=LAST) as folder:
            write_model(fitted.model, folder)
            note = write_report(folder / "report", report)
        if note:
            say(note)
        print("\n".join(map(printable, fitted.scores.table())))
        if comparison:
            print("\n".join(["", *comparison_table(comparison)]))
        say(
            f"model: {self.output}, with the weights of epoch {fitted.epoch} (elmokit.tasks.load opens it); "
            f"report: {self.output / 'report' / 'report.md'}"
        )

    def _facts(self, fitted: Fitted, train: int, dev: list[Example] | None) -> dict[str, Any]:
        changed = ", ".join(f"{name.replace('_', '-')} {value}" for name, value in self.changes.items())
        return {
            "command": command_line(),
            "training examples": train if dev is not None else f"{train}, of which one in ten to score on",
            **({} if dev is None else {"dev examples": len(dev), "dev file": self.dev}),
            "ELMo": self.model if fitted.model.elmo is not None else "none",
            "options that were set": changed or "none",
            "best epoch": f"{fitted.epoch} of {len(fitted.history)}",
            "seconds": round(fitted.seconds, 1),
            "elmokit": __version__,
            **({"notes": " / ".join(fitted.notes)} if fitted.notes else {}),
        }


@command("task eval")
@dataclass(frozen=True, kw_only=True)
class TaskEvalCommand(Columns, DeviceOption):
    """Score a trained model on a file of examples with labels."""

    folder: str = argument(_FOLDER_HELP, "DIR")
    file: str = argument("Examples with their labels, as for training.", "FILE")
    report: Path | None = option(
        None, "Folder in which to write a report with scores.json and pictures.", metavar="DIR"
    )

    def run(self) -> None:
        """Print the scores and, with --report, write a report."""
        from elmokit.tasks.model import load
        from elmokit.tasks.report import TaskReport, write_report

        _refuse_missing(self.file)
        model = load(self.folder, device=self.device)
        task = model.task
        examples = list(self.read(task, self.file, model.text_policy))
        for note in (*task.check(examples, self.file), *task.cut_notes(examples, model.options, self.file)):
            say(note)
        _report_unknown(model.elmo, examples, self.file)
        with ProgressDisplay("predicting", "examples", total=len(examples)) as display:
            answers = list(display.count(model.stream(examples)))
        scores = task.score(examples, answers)
        print("\n".join(map(printable, scores.table())))
        if self.report is not None:
            facts = {"model": self.folder, "file": self.file, "examples": len(examples), "elmokit": __version__}
            title = f"{model.kind}: {Path(self.file).name}"
            missing = write_report(self.report, TaskReport(title=title, scores=scores, facts=facts))
            say(missing or f"report: {self.report / 'report.md'}")


@command("task predict")
@dataclass(frozen=True, kw_only=True)
class TaskPredictCommand(InputColumns, DeviceOption):
    """Predict labels with probabilities, tags, or scores for texts with a trained model."""

    folder: str = argument(_FOLDER_HELP, "DIR")
    texts: tuple[str, ...] = argument(
        "Texts, each as one argument; FIRST SECOND … for pairs.", "TEXT", default=(), blank=True
    )
    input: str | None = option(None, "A file of examples; labels are not needed.", metavar="FILE")
    output: Path | None = option(
        None,
        "File to write: .jsonl, .tsv or, for tags, .conll; - prints JSON lines.",
        metavar="FILE",
        shown="the screen",
    )
    json: bool = option(False, JSON_HELP)

    def run(self) -> None:
        """Predict for texts from arguments or a file, and print or write the answers."""
        from elmokit.output.sentence_vectors import without_surrogates
        from elmokit.storage.atomic import atomic_file
        from elmokit.tasks.model import load

        if bool(self.texts) == bool(self.input):
            given = "both" if self.texts else "neither"
            raise ElmoError(f"give either texts as arguments or a file with --input FILE, got {given}")
        if self.texts == ("-",):
            raise ElmoError("texts are given as arguments or in a file, got - (standard input): use --input FILE")
        output = None if self.output == Path("-") else self.output
        if self.json and output is not None:
            raise ElmoError(
                f"json prints to the screen, got output {output}: leave one of the two out", "json", "output"
            )
        _refuse_missing(self.input)
        if output is not None:
            check_output_file("output", output, (self.input,))
        model = load(self.folder, device=self.device)
        task = model.task
        if output is not None and output.suffix not in task.suffixes:
            endings = ", ".join(task.suffixes)
            raise ElmoError(f"output must end in {endings} for a {task.name} model, got {str(output)!r}", "output")
        examples: Iterable[Example] = self._given(model)
        if self.input is not None:
            examples = self.read(task, self.input, model.text_policy, labelled=False)
        cut = 0

        def answered() -> Iterator[tuple[Example, Answer]]:
            nonlocal cut
            read, answers = tee(examples)
            for example, answer in zip(read, model.stream(answers), strict=True):
                cut += task.count_cut([example], model.options)
                yield example, answer

        if output is None:  # no progress display, because the printed answers show the progress
            for line in task.lines(answered(), ".jsonl" if self.json or self.output else ""):
                print(without_surrogates(line))
        else:
            total = None if self.input is not None else len(self.texts)
            with (
                ProgressDisplay("predicting", "examples", total=total) as display,
                atomic_file(output) as temporary,
                temporary.open("w", encoding="utf-8", newline="\n") as file,
            ):
                lines = task.lines(display.count(answered()), output.suffix)
                file.writelines(without_surrogates(line) + "\n" for line in lines)
        if cut:
            verb = "was" if cut == 1 else "were"
            limit = f"{model.options.max_tokens} tokens (max_tokens)"
            say(f"{counted(cut, 'text')} longer than {limit} {verb} cut")

    def _given(self, model: TaskModel) -> list[Example]:
        sides = model.task.sides
        if len(self.texts) % len(sides):
            order = " ".join(side.upper() for side in sides)
            raise ElmoError(f"the texts of a {model.kind} model are given as {order} {order} …, got {len(self.texts)}")
        groups = zip(*(self.texts[side :: len(sides)] for side in range(len(sides))), strict=True)
        return [model.example(group if len(sides) > 1 else group[0]) for group in groups]


class TrainingDisplay(ProgressDisplay):
    """Shows the progress of training, and a line for each finished epoch."""

    def __init__(self, name: str, *, notes: bool) -> None:
        """`name` is shown before each line; `notes` says whether notes are shown."""
        super().__init__()
        self._before, self._notes = f"{name}: " if name else "", notes

    def note(self, text: str) -> None:
        """Show a note."""
        if self._notes:
            super().note(text)

    def features(self, done: int, total: int) -> None:
        """Show the number of sentences whose vectors are computed."""
        self.start(f"{self._before}ELMo vectors", "sentences", total)
        self.update(done)

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Show the number of batches of an epoch that are done."""
        self.start(f"{self._before}epoch {epoch}", "batches", total)
        self.update(done)

    def epoch(self, line: dict[str, Any], *, best: bool) -> None:
        """Show the loss and the score of an epoch."""
        super().note(
            f"{self._before}epoch {line['epoch']}: loss {line['loss']:.4f}, dev {line['name']} {line['score']:.4f}"
            f"{', the best so far' if best else ''} ({line['seconds']:.1f} s)"
        )


def _report_unknown(elmo: Elmo | None, examples: Iterable[Example], path: str) -> None:
    """Report tokens that the model does not know."""
    if elmo is None:
        return
    unknown = elmo.unknown_tokens()
    for example in examples:
        for tokens in example.sentences:
            unknown.add(tokens)
    if message := unknown.message():
        say(f"{path}: {message}")


def _refuse_missing(path: str | None) -> None:
    """Refuse a file that does not exist before a model is loaded, which takes time."""
    if path not in (None, "-") and not Path(path).exists():
        raise ElmoError(f"{path} does not exist: check the name")


def _name(options: TaskOptions) -> str:
    static = "" if options.static == "none" else " + static vectors"
    return {"mix": f"ELMo{static}", "0": f"layer 0 alone{static}", "none": "static vectors, no ELMo"}[options.elmo]
