"""Commands on corpora: vocab, train, eval."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from elmokit.cli.shared import Device, Model, Options, Split, Vocab, Workers, app, refuse_empty, typed
from elmokit.errors import ElmoError
from elmokit.formats.bundled import resolved
from elmokit.pretrain.options import with_recipe_options
from elmokit.pretrain.recipe import Preset, RecipeName
from elmokit.text.tokens import SegmenterName


@app.command("vocab")
def vocabulary(
    corpus: Annotated[list[str], typer.Argument(metavar="CORPUS...", help="As for elmo train.")],
    output: Annotated[str, typer.Option(metavar="FILE", help="The vocabulary to write: a word a line, as bilm-tf's.")],
    max_size: Annotated[
        int | None, typer.Option(metavar="N", help="Most words, the three special ones among them [default: all].")
    ] = None,
    min_count: Annotated[int, typer.Option(metavar="N", min=1, help="Least occurrences of a word.")] = 1,
    segment: Annotated[SegmenterName, typer.Option(help="How lines become tokens; none: at white space.")] = "none",
    split: Annotated[Split, typer.Option(help="Raw text into sentences; as for elmo train.")] = "none",
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Longer sentences are left out.")] = 1000,
    workers: Workers = None,
    cache: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where prepared corpora are kept, as for elmo train.")
    ] = None,
) -> None:
    """Count a corpus and write its vocabulary: <S>, </S>, <UNK>, then words by falling counts."""
    from elmokit.commands.vocab import VocabRequest, run_vocab

    refuse_empty(output=output, cache=cache)
    run_vocab(
        VocabRequest(
            corpus=corpus,
            output=Path(output),
            max_size=max_size,
            min_count=min_count,
            segment=segment,
            split=split,
            max_tokens=max_tokens,
            workers=workers,
            cache=None if cache is None else Path(cache),
        )
    )


@app.command()
@with_recipe_options
def train(
    corpus: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CORPUS]...", help="Files, folders or globs of text, plain or packed; - is stdin."),
    ] = None,
    output: Annotated[str, typer.Option(metavar="DIR", help="Where the run and, in the end, the model are kept.")] = "",
    vocab: Annotated[
        str | None, typer.Option(metavar="FILE", help="The softmax's words [made from the corpus].")
    ] = None,
    preset: Annotated[Preset | None, typer.Option(help="The size of the network [small].", show_default=False)] = None,
    recipe: Annotated[RecipeName | None, typer.Option(help="The way of training [modern].", show_default=False)] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Options in TOML, or a bilm-tf options.json.")
    ] = None,
    heldout: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Text to measure perplexity on; may be repeated.")
    ] = None,
    word_vectors: Annotated[
        str | None, typer.Option(metavar="FILE", help="word2vec, GloVe or fastText vectors for --input words.")
    ] = None,
    init: Annotated[str | None, typer.Option(metavar="MODEL", help="Go on training a model of any format.")] = None,
    init_options: Annotated[
        str | None, typer.Option(metavar="FILE", help="Its options.json, where it lies apart from the weights.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in DIR, exactly; begin one if there is none.")
    ] = False,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where prepared corpora are kept, for any number of runs: each in a folder of its own, named by its "
            "files and options, until you remove it [~/.cache/elmokit].",
        ),
    ] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes that prepare it [all]. ")] = None,
    device: Device = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write DIR/tensorboard.")] = False,
    **changes: object,
) -> int:
    """Pre-train a biLM on any text; DIR then opens with Elmo.load. torchrun -m elmokit train ... uses many GPUs."""
    from elmokit.commands.train import TrainRequest, run_train

    paths = {"vocab": vocab, "config": config, "word_vectors": word_vectors, "init": init}
    paths |= {"init_options": init_options, "cache": cache}
    if not output:
        raise ElmoError("--output DIR is needed: the folder in which the run is kept and the model appears")
    refuse_empty(output=output, **paths)
    if init is not None:
        paths["init"] = str(resolved(init))
    return run_train(
        TrainRequest(
            corpus=corpus or [],
            output=Path(output),
            heldout=heldout or [],
            preset=preset,
            recipe=recipe,
            resume=resume,
            workers=workers,
            device=device,
            tensorboard=tensorboard,
            command=shlex.join(["elmo", *typed]),
            changes={name: value for name, value in changes.items() if value is not None},
            **{name: None if value is None else Path(value) for name, value in paths.items()},
        )
    )


@app.command("eval")
def evaluate(
    model: Model,
    corpus: Annotated[list[str], typer.Argument(metavar="CORPUS...", help="As for elmo train.")],
    options: Options = None,
    vocab: Vocab = None,
    segment: Annotated[
        SegmenterName | None, typer.Option(help="How lines become tokens [as in training].", show_default=False)
    ] = None,
    split: Annotated[
        Split | None, typer.Option(help="Raw text into sentences [as in training].", show_default=False)
    ] = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Longer sentences are left out.")] = 1000,
    state: Annotated[
        Literal["zero", "carry", "both"],
        typer.Option(help="Each sentence from zero, or from where the one before ended; or one reading each way."),
    ] = "zero",
    sentences: Annotated[
        str | None, typer.Option(metavar="FILE.tsv", help="Also write a table with a line for each sentence.")
    ] = None,
    by_position: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Also measure by position in the sentence: .tsv for a table, .png for a picture; may be repeated.",
        ),
    ] = None,
    device: Device = None,
    workers: Workers = None,
) -> None:
    """Measure perplexity over held-out text: forward, backward and mean, with the full softmax."""
    from elmokit.commands.eval import EvalRequest, run_eval

    refuse_empty(MODEL=model, options=options, vocab=vocab, sentences=sentences)
    for path in by_position or []:
        refuse_empty(**{"by-position": path})
    run_eval(
        EvalRequest(
            model=model,
            corpus=corpus,
            options=options,
            vocab=vocab,
            segment=segment,
            split=split,
            max_tokens=max_tokens,
            state=state,
            sentences=None if sentences is None else Path(sentences),
            by_position=[Path(path) for path in by_position or []],
            device=device,
            workers=workers,
        )
    )
