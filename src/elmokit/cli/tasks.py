"""Commands on tasks: elmo task train, eval, predict."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from elmokit.cli.shared import Device, ModelOption, Options, Vocab, group, refuse_empty, typed
from elmokit.errors import ElmoError
from elmokit.formats.bundled import DEFAULT
from elmokit.option_fields import shown_value, with_options_of
from elmokit.tasks.options import TaskOptions
from elmokit.text.tokens import SegmenterName

task = group("task", "Train, score and use classifiers, taggers and sentence-pair models on ELMo vectors.")

Folder = Annotated[str, typer.Argument(metavar="DIR", help="A folder that elmo task train wrote.")]
Text = Annotated[str | None, typer.Option("--text", metavar="COLUMN", help="classify: the texts [found by name].")]
Label = Annotated[str | None, typer.Option("--label", metavar="COLUMN", help="The labels or scores [found by name].")]
First = Annotated[str | None, typer.Option("--first", metavar="COLUMN", help="pair: the first sentences.")]
Second = Annotated[str | None, typer.Option("--second", metavar="COLUMN", help="pair: the second sentences.")]
TokenColumn = Annotated[str | None, typer.Option(metavar="COLUMN", help="tag: the tokens [1; FORM in CoNLL-U].")]
TagColumn = Annotated[str | None, typer.Option(metavar="COLUMN", help="tag: the tags [the last; UPOS in CoNLL-U].")]


@task.command("train")
@with_options_of(TaskOptions, {item.name: shown_value(item.default) for item in fields(TaskOptions)})
def train(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="classify, tag or pair.")],
    train: Annotated[str, typer.Argument(metavar="TRAIN", help="Examples: .tsv, .csv, .jsonl; .conll, .conllu (tag).")],
    output: Annotated[str, typer.Option(metavar="DIR", help="The folder to write: the model and its report.")] = "",
    model: ModelOption = DEFAULT,
    dev: Annotated[str | None, typer.Option(metavar="FILE", help="Examples to score on [one in ten of TRAIN].")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also train on layer 0 alone and without ELMo, and show all three.")
    ] = False,
    text: Text = None,
    label: Label = None,
    first: First = None,
    second: Second = None,
    token_column: TokenColumn = None,
    tag_column: TagColumn = None,
    segment: Annotated[
        SegmenterName | None, typer.Option(help="How texts become tokens; none: at white space [as the model's were].")
    ] = None,
    options: Options = None,
    vocab: Vocab = None,
    cache: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where ELMo vectors are kept [in ~/.cache/elmokit].")
    ] = None,
    device: Device = None,
    **changes: object,
) -> None:
    """Train a model on a file of examples; DIR then opens with elmokit.tasks.load."""
    from elmokit.commands.task import Columns, TrainTaskRequest, run_task_train

    if not output:
        raise ElmoError("--output DIR is needed: the folder in which the model and its report appear")
    refuse_empty(TRAIN=train, output=output, model=model, dev=dev, options=options, vocab=vocab, cache=cache)
    static = changes.get("static")
    refuse_empty(static=static if isinstance(static, str) else None)
    run_task_train(
        TrainTaskRequest(
            kind=kind,
            train=train,
            dev=dev,
            output=Path(output),
            model=model,
            model_options=options,
            vocab=vocab,
            columns=Columns(text, label, first, second, token_column, tag_column),
            segment=segment,
            compare=compare,
            cache=None if cache is None else Path(cache),
            device=device,
            command=shlex.join(["elmo", *typed]),
            changes={name: value for name, value in changes.items() if value is not None},
        )
    )


@task.command("eval")
def evaluate(
    folder: Folder,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Examples with their labels, as for training.")],
    text: Text = None,
    label: Label = None,
    first: First = None,
    second: Second = None,
    token_column: TokenColumn = None,
    tag_column: TagColumn = None,
    report: Annotated[str | None, typer.Option(metavar="DIR", help="Also write scores.json and pictures.")] = None,
    device: Device = None,
) -> None:
    """Score a trained model on a file of examples with labels."""
    from elmokit.commands.task import Columns, EvalTaskRequest, run_task_eval

    refuse_empty(DIR=folder, FILE=file, report=report)
    columns = Columns(text, label, first, second, token_column, tag_column)
    run_task_eval(EvalTaskRequest(folder, file, columns, None if report is None else Path(report), device))


@task.command("predict")
def predict(
    folder: Folder,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts; FIRST SECOND … for pairs.")
    ] = None,
    input: Annotated[str | None, typer.Option(metavar="FILE", help="Examples; labels are not needed.")] = None,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Where to: .jsonl, .tsv or, for tags, .conll [the screen].")
    ] = None,
    text: Text = None,
    first: First = None,
    second: Second = None,
    token_column: TokenColumn = None,
    device: Device = None,
) -> None:
    """Answer for texts with a trained model: labels with probabilities, tags, scores."""
    from elmokit.commands.task import Columns, PredictTaskRequest, run_task_predict

    refuse_empty(DIR=folder, input=input, output=output)
    run_task_predict(
        PredictTaskRequest(
            folder,
            texts or [],
            input,
            None if output is None else Path(output),
            Columns(text=text, first=first, second=second, token_column=token_column),
            device,
        )
    )
