"""What `elmo task` does: train a model on a file, score it on another, predict."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elmokit import __version__
from elmokit.commands.task_progress import AnswerBar, TrainingShown, say
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.bundled import DEFAULT
from elmokit.messages import counted
from elmokit.model.placement import choose_device
from elmokit.storage.atomic import check_new_folder, new_folder
from elmokit.tasks.model import LAST, load, write_answers, write_model
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.report import comparison_table, write_report
from elmokit.tasks.scores import TaskScores
from elmokit.tasks.task import AnyTask, Example, task_named
from elmokit.tasks.trainer import Fitted, fit
from elmokit.text.policy import TextPolicy
from elmokit.text.tokens import SegmenterName

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Columns:
    """Where a file has what, by name or number; None: as the reader finds it."""

    text: str | None = None
    label: str | None = None
    first: str | None = None
    second: str | None = None
    token_column: str | None = None
    tag_column: str | None = None

    def read(
        self, task: type[AnyTask] | AnyTask, path: str, policy: TextPolicy, *, labelled: bool = True
    ) -> Iterator[Example]:
        """The examples of a file, one by one."""
        columns = {name: getattr(self, name) for name in task.columns}
        return task.read(path, segment=policy, labelled=labelled, **columns)


@dataclass(frozen=True)
class TrainTaskRequest:
    """The arguments of `elmo task train`."""

    kind: str
    train: str
    dev: str | None
    output: Path
    model: str = DEFAULT
    model_options: str | None = None
    vocab: str | None = None
    columns: Columns = field(default_factory=Columns)
    segment: SegmenterName | None = None
    """None: as the model's training text was read, where strings have to be split."""
    compare: bool = False
    cache: Path | None = None
    device: str | None = None
    command: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)


def run_task_train(request: TrainTaskRequest) -> None:
    """Train, score on the dev data, write the model with its report, and print what came out."""
    task = task_named(request.kind)
    options = task.options(**request.changes)
    task.refuse_unused(options, request.changes)
    check_new_folder(request.output)
    for path in (request.train, request.dev, None if options.static in ("train", "none") else options.static):
        _refuse_missing(path)
    device, elmo = choose_device(request.device), None
    if options.elmo != "none" or request.compare:
        elmo = Elmo.load(
            request.model,
            options=request.model_options,
            vocab=request.vocab,
            device=device,
            segment=request.segment,
        )
    policy = TextPolicy(request.segment or "whitespace") if elmo is None else elmo.text_policy
    if request.segment is None and policy.name != "whitespace":
        log.info("texts are tokenised as the training text of the model was, --segment %s", policy.name)
    train = list(request.columns.read(task, request.train, policy))
    dev = None if request.dev is None else list(request.columns.read(task, request.dev, policy))
    told = f"{request.train}: {counted(len(train), 'example')}"
    say(told if dev is None else f"{told}; {request.dev}: {counted(len(dev), 'example')}")
    _report_unknown(elmo, train, request.train)

    def trained(chosen: TaskOptions, name: str) -> Fitted:
        with TrainingShown(name, quiet=chosen != options) as shown:
            return fit(
                request.kind,
                train,
                dev,
                chosen,
                elmo=elmo,
                segment=policy,
                cache=request.cache,
                device=device,
                watch=shown,
                paths=(request.train, request.dev),
            )

    fitted = trained(options, "" if not request.compare else _name(options))
    comparison: list[tuple[str, TaskScores]] = []
    if request.compare:
        comparison.append((_name(options), fitted.scores))
        for other in (options.with_layer_0(), options.without_elmo()):
            if other != options:
                comparison.append((_name(other), trained(other, _name(other)).scores))
    with new_folder(request.output, last=LAST) as folder:
        write_model(fitted.model, folder)
        note = write_report(
            folder / "report",
            title=f"{request.kind}: {Path(request.train).name}",
            scores=fitted.scores,
            history=fitted.history,
            mixes=[
                (mix.weights.detach().softmax(0).tolist(), mix.gamma.item())
                for mix in fitted.model.network.mixes.values()
            ],
            facts=_facts(request, fitted, len(train), dev),
            comparison=comparison or None,
            best_epoch=fitted.epoch,
        )
    if note:
        say(note)
    for line in fitted.scores.table():
        print(line)
    if comparison:
        print()
        for line in comparison_table(comparison):
            print(line)
    say(
        f"model: {request.output}, as it was after epoch {fitted.epoch} (elmokit.tasks.load opens it); "
        f"report: {request.output / 'report' / 'report.md'}"
    )


@dataclass(frozen=True)
class EvalTaskRequest:
    """The arguments of `elmo task eval`."""

    folder: str
    file: str
    columns: Columns = field(default_factory=Columns)
    report: Path | None = None
    device: str | None = None


def run_task_eval(request: EvalTaskRequest) -> None:
    """Print a trained model's scores on a labelled file; write a report of them where one is asked for."""
    _refuse_missing(request.file)
    model = load(request.folder, device=request.device)
    task = model.task
    examples = list(request.columns.read(task, request.file, model.text_policy))
    for note in (*task.check(examples, request.file), *task.cut_notes(examples, model.options, request.file)):
        say(note)
    _report_unknown(model.elmo, examples, request.file)
    with AnswerBar(len(examples)) as bar:
        answers = list(bar.counted(model.stream(examples)))
    scores = task.score(examples, answers)
    for line in scores.table():
        print(line)
    if request.report is not None:
        facts = {"model": request.folder, "file": request.file, "examples": len(examples), "elmokit": __version__}
        title = f"{model.kind}: {Path(request.file).name}"
        missing = write_report(request.report, title=title, scores=scores, history=[], mixes=[], facts=facts)
        say(missing or f"report: {request.report / 'report.md'}")


@dataclass(frozen=True)
class PredictTaskRequest:
    """The arguments of `elmo task predict`."""

    folder: str
    texts: list[str]
    input: str | None = None
    output: Path | None = None
    columns: Columns = field(default_factory=Columns)
    device: str | None = None


def run_task_predict(request: PredictTaskRequest) -> None:
    """Answer for sentences given as arguments, or for a file; to the screen, or to a .jsonl, .tsv or .conll file."""
    if bool(request.texts) == bool(request.input):
        raise ElmoError("give texts as arguments or a file with --input FILE, one of the two")
    _refuse_missing(request.input)
    model = load(request.folder, device=request.device)
    task, sides = model.task, len(model.task.sides)
    if request.output is not None:
        task.check_suffix(request.output)
    examples: Iterable[Example]
    if request.input is not None:
        examples = request.columns.read(task, request.input, model.text_policy, labelled=False)
    elif len(request.texts) % sides:
        order = " ".join(side.upper() for side in task.sides)
        raise ElmoError(f"the texts of a {task.name} model are given as {order} {order} …, got {len(request.texts)}")
    else:
        groups = zip(*(request.texts[side::sides] for side in range(sides)), strict=True)
        examples = [model.example(group if sides > 1 else group[0]) for group in groups]
    cut = 0

    def watched() -> Iterator[Example]:
        nonlocal cut
        for example in examples:
            cut += task.is_cut(example, model.options)
            yield example

    if request.output is None:  # what appears is progress enough, and a bar would stand in its way
        for example, answer in model.answered(watched()):
            print(task.on_screen(example, answer))
    else:
        with AnswerBar(None if request.input is not None else len(request.texts)) as bar:
            write_answers(request.output, bar.counted(model.answered(watched())), task)
    if cut:
        say(f"{counted(cut, 'text')} longer than {model.options.max_tokens} tokens (max_tokens): cut")


def _report_unknown(elmo: Elmo | None, examples: Iterable[Example], path: str) -> None:
    if elmo is None:
        return
    unknown = elmo.unknown_tokens()
    for example in examples:
        for tokens in example.sentences:
            unknown.add(tokens)
    if message := unknown.message():
        say(f"{path}: {message}")


def _refuse_missing(path: str | None) -> None:
    """A misspelt name shows before a model is loaded."""
    if path not in (None, "-") and not Path(path).exists():
        raise ElmoError(f"{path} does not exist: check the name")


def _facts(request: TrainTaskRequest, fitted: Fitted, train: int, dev: list[Example] | None) -> dict[str, Any]:
    changed = {name.replace("_", "-"): value for name, value in request.changes.items()}
    return {
        "command": request.command,
        "training examples": train if dev is not None else f"{train}, of which one in ten to score on",
        **({} if dev is None else {"dev examples": len(dev), "dev file": request.dev}),
        "ELMo": request.model if fitted.model.elmo is not None else "none",
        "options that were set": ", ".join(f"{name} {value}" for name, value in changed.items()) or "none",
        "best epoch": f"{fitted.epoch} of {len(fitted.history)}",
        "seconds": round(fitted.seconds, 1),
        "elmokit": __version__,
        **({"notes": " / ".join(fitted.notes)} if fitted.notes else {}),
    }


def _name(options: TaskOptions) -> str:
    static = "" if options.static == "none" else " + static vectors"
    return {"mix": f"ELMo{static}", "0": f"layer 0 alone{static}", "none": "static vectors, no ELMo"}[options.elmo]
