"""Commands that measure what each layer knows: elmo probe pos, wsd, wic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elmokit.cli.shared import Device, Model, Options, Vocab, group, path_or_none, refuse_empty

probe = group("probe", "What each layer of a model knows, measured.")
Train = Annotated[str, typer.Option("--train", metavar="FILE", help="What the probe learns from.")]
Dev = Annotated[str, typer.Option("--dev", metavar="FILE", help="What it is measured on.")]
Limit = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="At most N training sentences or pairs, evenly from the file.")
]
Output = Annotated[str | None, typer.Option(metavar="FILE.json", help="Also write the figures.")]
Batch = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Tokens in a batch [the device's own number].", show_default=False),
]


@probe.command("pos")
def probe_pos(
    model: Model,
    train: Train,
    dev: Dev,
    options: Options = None,
    vocab: Vocab = None,
    tag_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The tags' column: upos, xpos or a number [upos, or the last].")
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Classifiers a layer.")] = 1,
    cache: Annotated[str | None, typer.Option(metavar="DIR", help="Folder for the vectors [the cache].")] = None,
    limit: Limit = None,
    output: Output = None,
    batch_tokens: Batch = None,
    device: Device = None,
) -> None:
    """Parts of speech: a linear tagger on each layer of MODEL (CoNLL-U or CoNLL columns)."""
    from elmokit.commands.probe import PosRequest, run_pos

    refuse_empty(MODEL=model, train=train, dev=dev, options=options, vocab=vocab, output=output, cache=cache)
    run_pos(
        PosRequest(
            model,
            Path(train),
            Path(dev),
            options,
            vocab,
            limit,
            path_or_none(output),
            batch_tokens,
            device,
            column=tag_column,
            seeds=seeds,
            cache=path_or_none(cache),
        )
    )


@probe.command("wsd")
def probe_wsd(
    model: Model,
    train: Train,
    dev: Dev,
    options: Options = None,
    vocab: Vocab = None,
    wordnet: Annotated[
        str | None, typer.Option(metavar="DIR", help="WordNet 3.0, for lemmas that the training text lacks.")
    ] = None,
    limit: Limit = None,
    output: Output = None,
    batch_tokens: Batch = None,
    device: Device = None,
) -> None:
    """Word senses: the nearest sense of SemCor (--train) for each word of an evaluation set (--dev)."""
    from elmokit.commands.probe import WsdRequest, run_wsd

    refuse_empty(MODEL=model, train=train, dev=dev, options=options, vocab=vocab, output=output, wordnet=wordnet)
    run_wsd(
        WsdRequest(
            model,
            Path(train),
            Path(dev),
            options,
            vocab,
            limit,
            path_or_none(output),
            batch_tokens,
            device,
            wordnet=path_or_none(wordnet),
        )
    )


@probe.command("wic")
def probe_wic(
    model: Model,
    train: Train,
    dev: Dev,
    options: Options = None,
    vocab: Vocab = None,
    limit: Limit = None,
    output: Output = None,
    batch_tokens: Batch = None,
    device: Device = None,
) -> None:
    """Word in context: is a word meant in the same way in two sentences?"""
    from elmokit.commands.probe import WicRequest, run_wic

    refuse_empty(MODEL=model, train=train, dev=dev, options=options, vocab=vocab, output=output)
    run_wic(
        WicRequest(
            model,
            Path(train),
            Path(dev),
            options,
            vocab,
            limit,
            path_or_none(output),
            batch_tokens,
            device,
        )
    )
