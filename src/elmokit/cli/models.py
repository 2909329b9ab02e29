"""Commands on models: embed, info, convert."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from elmokit.cli.shared import Device, Model, ModelOption, Options, Vocab, app, refuse_empty
from elmokit.formats.bundled import DEFAULT
from elmokit.formats.registry import DEFAULT_FORMAT
from elmokit.text.tokens import SegmenterName


@app.command()
def embed(
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Sentences, one an argument.")] = None,
    model: ModelOption = DEFAULT,
    options: Options = None,
    vocab: Vocab = None,
    input: Annotated[
        str | None, typer.Option(metavar="FILE", help="A sentence a line, plain or packed; - is stdin.")
    ] = None,
    output: Annotated[str | None, typer.Option(metavar="FILE", help="Where to: .h5, .npz, .parquet or .jsonl.")] = None,
    layer: Annotated[
        str | None, typer.Option(metavar="mix|top|all|N", help="Which layer [default: mix; all for bilm and allennlp].")
    ] = None,
    pool: Annotated[
        Literal["none", "mean", "max", "first", "last"], typer.Option(help="One vector a sentence.")
    ] = "none",
    format: Annotated[
        Literal["elmokit", "bilm", "allennlp"], typer.Option(help="Layout of an HDF5 output.")
    ] = "elmokit",
    segment: Annotated[
        SegmenterName | None,
        typer.Option(
            help="How lines become tokens; none: at white space [as in training, where that is known].",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an output that was interrupted.")] = False,
    batch_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens in a batch [the device's own number].", show_default=False),
    ] = None,
    device: Device = None,
    dtype: Annotated[
        Literal["float32", "float64", "float16", "bfloat16", "int8"] | None,
        typer.Option(
            help="Numbers to compute in; int8: on the CPU [float32, or int8 where it was saved so].", show_default=False
        ),
    ] = None,
) -> None:
    """Turn sentences into vectors: shown line by line, or written to a file."""
    from elmokit.commands.embed import EmbedRequest, run_embed

    refuse_empty(model=model, options=options, vocab=vocab, input=input, output=output)
    if layer is None:
        layer = "all" if output is not None and format != "elmokit" else "mix"
    run_embed(
        EmbedRequest(
            texts=texts or [],
            model=model,
            options=options,
            vocab=vocab,
            input=input,
            output=output,
            layer=layer,
            pool=pool,
            format=format,
            segment=segment,
            resume=resume,
            batch_tokens=batch_tokens,
            device=device,
            dtype=dtype,
        )
    )


@app.command()
def models() -> None:
    """List the models that come with the package; their names go wherever a MODEL is asked for."""
    from elmokit.commands.models import run_models

    run_models()


@app.command()
def info(
    model: Model,
    options: Options = None,
    vocab: Vocab = None,
) -> None:
    """Say what a model is: its format, its sizes, what it brings."""
    from elmokit.formats.card import describe
    from elmokit.formats.load import read_checkpoint

    refuse_empty(MODEL=model, options=options, vocab=vocab)
    checkpoint = read_checkpoint(model, options=options, vocab=vocab)
    rows = [("file", checkpoint.where), *describe(checkpoint)]
    if checkpoint.text:
        rows.append(("text is read with", " ".join(f"--{name} {value}" for name, value in checkpoint.text.items())))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A model of any format.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The folder to write; a .hdf5 file for --to tokens.")],
    to: Annotated[
        str, typer.Option(metavar="FORMAT", help="The format to write, such as bilm or tokens.")
    ] = DEFAULT_FORMAT,
    dtype: Annotated[
        Literal["float32", "float16", "int8"] | None,
        typer.Option(help="dtype to store, if the format can; int8 is the smallest [as they are].", show_default=False),
    ] = None,
    softmax: Annotated[
        Literal["float32", "float16", "int8", "none"] | None,
        typer.Option(
            help="The same for the softmax; none leaves it out [as --dtype says for floats, or as it is].",
            show_default=False,
        ),
    ] = None,
    options: Options = None,
    vocab: Vocab = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of a model that DST holds.")
    ] = False,
) -> None:
    """Convert a model to elmokit's own folder or to another format, such as options.json with weights.hdf5 (bilm)."""
    from elmokit.commands.convert import convert_model

    refuse_empty(SRC=source, DST=target, options=options, vocab=vocab)
    written = convert_model(
        source,
        Path(target),
        to=to,
        dtype=dtype,
        softmax=softmax,
        options=options,
        vocab=vocab,
        overwrite=overwrite,
    )
    print(f"wrote {written}")
