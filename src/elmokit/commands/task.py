"""What `elmo task` does: train a model on a file, score it on another, predict."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from elmokit import __version__
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.atomic import check_making, making
from elmokit.formats.bundled import DEFAULT
from elmokit.output.strings import counted
from elmokit.placement import choose_device
from elmokit.tasks.examples import Example, Kind, PairExample, TaggedExample, TextExample
from elmokit.tasks.folder import LAST, load, write_model
from elmokit.tasks.model import Answer
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.reading.columns import Column, read_tagged
from elmokit.tasks.reading.tables import read_pairs, read_texts
from elmokit.tasks.report import comparison_table, write_report
from elmokit.tasks.scores import Scores
from elmokit.tasks.training import Fitted, fit, with_layer_0, without_elmo
from elmokit.tasks.writing import check_suffix, on_screen, write_answers
from elmokit.text.tokens import SegmenterName

log = logging.getLogger(__name__)

_LOG_SECONDS = 15.0


@dataclass(frozen=True)
class Columns:
    """Where a file has what, by name or number; None: as the reader finds it."""

    text: str | None = None
    label: str | None = None
    first: str | None = None
    second: str | None = None
    token_column: str | None = None
    tag_column: str | None = None

    def read(self, kind: Kind, path: str, segment: SegmenterName, *, labelled: bool = True) -> list[Example]:
        """The examples of a file."""
        if kind == "classify":
            return list(read_texts(path, text=self.text, label=self.label, segment=segment, labelled=labelled))
        if kind == "pair":
            return list(
                read_pairs(
                    path, first=self.first, second=self.second, label=self.label, segment=segment, labelled=labelled
                )
            )
        return list(
            read_tagged(
                path,
                token_column=_column(self.token_column),
                tag_column=_column(self.tag_column),
                segment=segment,
                labelled=labelled,
            )
        )


@dataclass(frozen=True)
class TrainTaskRequest:
    """The arguments of `elmo task train`."""

    kind: Kind
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
    options = TaskOptions(**request.changes)
    _refuse_idle(request, options)
    check_making(request.output)
    for path in (request.train, request.dev, None if options.static in ("train", "none") else options.static):
        _refuse_missing(path)
    device, elmo = choose_device(request.device), None
    if options.elmo != "none" or request.compare:
        elmo = Elmo.load(request.model, options=request.model_options, vocab=request.vocab, device=device)
    segment = request.segment or cast(SegmenterName, "none" if elmo is None else elmo.text.get("segment", "none"))
    if request.segment is None and segment != "none":
        log.info("texts are split as the training text of the model was, --segment %s", segment)
    train = request.columns.read(request.kind, request.train, segment)
    dev = None if request.dev is None else request.columns.read(request.kind, request.dev, segment)
    told = f"{request.train}: {counted(len(train), 'example')}"
    _say(told if dev is None else f"{told}; {request.dev}: {counted(len(dev), 'example')}")

    def trained(chosen: TaskOptions, name: str) -> Fitted:
        with _Shown(name, quiet=chosen != options) as shown:
            return fit(
                request.kind,
                train,
                dev,
                chosen,
                elmo=elmo,
                segment=segment,
                cache=request.cache,
                device=device,
                watch=shown,
                paths=(request.train, request.dev),
            )

    fitted = trained(options, "" if not request.compare else _name(options))
    comparison: list[tuple[str, Scores]] = []
    if request.compare:
        comparison.append((_name(options), fitted.scores))
        for other in (with_layer_0(options), without_elmo(options)):
            if other != options:
                comparison.append((_name(other), trained(other, _name(other)).scores))
    with making(request.output, last=LAST) as folder:
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
        )
    if note:
        _say(note)
    for line in fitted.scores.table():
        print(line)
    if comparison:
        print()
        for line in comparison_table(comparison):
            print(line)
    _say(
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
    examples = request.columns.read(model.kind, request.file, model.segment)
    for note in model.answers.check(examples, request.file):
        _say(note)
    with _Bar(len(examples)) as bar:
        answers = list(bar.counted(model.stream(examples)))
    scores = model.answers.score(examples, [answer.answer for answer in answers])
    for line in scores.table():
        print(line)
    if request.report is not None:
        facts = {"model": request.folder, "file": request.file, "examples": len(examples), "elmokit": __version__}
        title = f"{model.kind}: {Path(request.file).name}"
        missing = write_report(request.report, title=title, scores=scores, history=[], mixes=[], facts=facts)
        _say(missing or f"report: {request.report / 'report.md'}")


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
    if request.output is not None:
        check_suffix(request.output)
    model = load(request.folder, device=request.device)
    if request.output is not None:
        check_suffix(request.output, model.kind)
    if request.input is not None:
        examples = request.columns.read(model.kind, request.input, model.segment, labelled=False)
    elif model.kind == "pair":
        if len(request.texts) % 2:
            raise ElmoError(f"pairs are given as FIRST SECOND FIRST SECOND …, got {len(request.texts)} texts")
        pairs = zip(request.texts[::2], request.texts[1::2], strict=True)
        examples = [PairExample(model.tokens(first), model.tokens(second)) for first, second in pairs]
    else:
        made: Callable[..., Example] = TaggedExample if model.kind == "tag" else TextExample
        examples = [made(model.tokens(text)) for text in request.texts]
    if request.output is None:  # what appears is progress enough, and a bar would stand in its way
        for example, answer in zip(examples, model.stream(examples), strict=True):
            print(on_screen(example, answer, has_spans=model.answers.scheme.has_spans))
        return
    with _Bar(len(examples)) as bar:
        write_answers(request.output, zip(examples, bar.counted(model.stream(examples)), strict=True), model)


def _refuse_idle(request: TrainTaskRequest, options: TaskOptions) -> None:
    """Refuse an option that was typed and would change nothing."""
    for name, what in options.idle(request.kind).items():
        if name in request.changes:
            shown = f"--{'no-' if request.changes[name] is False else ''}{name.replace('_', '-')}"
            raise ElmoError(f"{shown} is for {what}: it would change nothing here, so leave it out")


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


def _column(name: str | None) -> Column | None:
    return int(name) if name is not None and name.isdecimal() else name


def _say(text: str) -> None:
    print(text, file=sys.stderr)


class _Bar:
    """Shows how far an answering is: a bar on a terminal, a line now and then without one."""

    def __init__(self, total: int) -> None:
        self._bar = tqdm(total=total, desc="predicting", unit=" examples", disable=None, leave=False)

    def counted(self, answers: Iterable[Answer]) -> Iterator[Answer]:
        """The answers, counted."""
        said = time.monotonic()
        for done, answer in enumerate(answers, start=1):
            self._bar.update()
            if self._bar.disable and time.monotonic() - said > _LOG_SECONDS:
                said = time.monotonic()
                _say(f"predicting: {done:,} of {self._bar.total:,} examples")
            yield answer

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()


class _Shown:
    """Shows a training: a bar on a terminal, a line for each epoch in any case."""

    def __init__(self, name: str, *, quiet: bool) -> None:
        """`quiet`: without notes, which were shown before."""
        self._before, self._quiet = f"{name}: " if name else "", quiet
        self._bar: tqdm[Any] | None = None
        self._doing = ""
        self._said = time.monotonic()

    def note(self, text: str) -> None:
        """Say something."""
        if not self._quiet:
            self._write(text)

    def features(self, done: int, total: int) -> None:
        """Show how many sentences have their vectors."""
        self._advance("ELMo vectors", done, total, "sentences")

    def batch(self, epoch: int, done: int, total: int) -> None:
        """Show how far an epoch is."""
        self._advance(f"epoch {epoch}", done, total, "batches")

    def epoch(self, line: dict[str, Any], *, best: bool) -> None:
        """Show what an epoch brought."""
        self._close()
        self._write(
            f"{self._before}epoch {line['epoch']}: loss {line['loss']:.4f}, dev {line['name']} {line['score']:.4f}"
            f"{', the best so far' if best else ''} ({line['seconds']:.1f} s)"
        )

    def _advance(self, doing: str, done: int, total: int, unit: str) -> None:
        if doing != self._doing:
            self._close()
            self._bar = tqdm(total=total, desc=self._before + doing, unit=f" {unit}", disable=None, leave=False)
            self._doing, self._said = doing, time.monotonic()
        assert self._bar is not None
        self._bar.update(done - self._bar.n)
        if self._bar.disable:  # no terminal: a line now and then
            self._bar.n = done
            if time.monotonic() - self._said > _LOG_SECONDS:
                self._said = time.monotonic()
                self._write(f"{self._before}{doing}: {done:,} of {total:,} {unit}")

    def _write(self, text: str) -> None:
        if self._bar is not None and not self._bar.disable:
            self._bar.clear()
        _say(text)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._bar, self._doing = None, ""

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
