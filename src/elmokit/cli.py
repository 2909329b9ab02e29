"""The command `elmo`: thin commands, heavy imports inside each, one sentence and exit status 2 for a user's mistake."""

from __future__ import annotations

import io
import logging
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from elmokit import __version__
from elmokit.errors import ElmoError
from elmokit.pretrain.options import with_recipe_options
from elmokit.pretrain.recipe import Preset, RecipeName

app = typer.Typer(
    name="elmo",
    help="ELMo on today's Python: load every released model, train your own, turn words in context into vectors.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model of any format: folder, .hdf5, .zip or checkpoint.")
]
Options = Annotated[
    str | None, typer.Option(metavar="FILE", help="options.json, where it lies apart from the weights.")
]
Vocab = Annotated[str | None, typer.Option(metavar="FILE", help="vocab.txt, where it lies apart from the weights.")]
_INTERRUPTED = 130
_typed: list[str] = []
"""The arguments of this call, for what is recorded of it."""
Segment = Literal["none", "english", "jieba", "chars"]
Split = Literal["none", "line", "paragraph"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a user's mistake ends in one sentence on stderr and exit status 2."""
    _prepare_streams()
    logging.basicConfig(format="elmo: %(message)s", level=logging.WARNING, stream=sys.stderr)
    # Whichever click typer brings: its usage errors derive from these.
    usage_error: type[BaseException] = typer.BadParameter.__mro__[1]
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    _typed[:] = map(str, arguments)
    try:
        status = app(arguments, standalone_mode=False)
        sys.stdout.flush()  # an error must show here, not while Python exits
    except ElmoError as error:
        _stop(str(error), 2)
    except usage_error as error:
        _stop(f"{error.format_message()} (elmo --help shows the usage)", 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        status = _INTERRUPTED
    except OSError as error:
        if not _stdout_fails():
            raise
        # Keep Python from flushing into it once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has gone (`elmo embed … | head`): leave quietly
            sys.exit(141)
        _stop(f"standard output cannot be written: {error.strerror or error}", 2)
    if status == _INTERRUPTED:  # typer turns Ctrl-C into this number itself
        _stop("interrupted", _INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _prepare_streams() -> None:
    """Let stdout take any text, and put something in the place of a stream that the shell closed (`2>&-`)."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 -- open till the end, as stdout is
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _stdout_fails() -> bool:
    """Whether an error came from stdout, which then fails again; an empty line does no harm before a traceback."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _refuse_empty(**values: str | None) -> None:
    """An unset shell variable arrives as an empty string, which as a path would mean the current folder."""
    for name, value in values.items():
        if value is not None and not value.strip():
            shown = name if name.isupper() else f"--{name}"
            raise ElmoError(f"{shown} must not be empty: is a shell variable unset?")


def _stop(message: str, status: int) -> None:
    print(f"elmo: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


def _version(value: bool) -> None:
    if value:
        print(f"elmokit {__version__}")
        raise typer.Exit


@app.callback()
def elmo(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what is chosen, and why.")] = False,
) -> None:
    """ELMo on today's Python: load every released model, train your own, turn words in context into vectors."""
    if verbose:
        logging.getLogger().setLevel(logging.INFO)


@app.command()
def embed(
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Sentences, one an argument.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="A model of any format (see elmo info).")
    ] = None,
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
        Segment | None,
        typer.Option(
            help="How lines become tokens; none splits on white space [as in training, where that is known].",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an output that was interrupted.")] = False,
    batch_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens in a batch.")] = 2048,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … [default: a GPU if there is one]."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "float64", "float16", "bfloat16"], typer.Option(help="Numbers to compute in.")
    ] = "float32",
) -> None:
    """Turn sentences into vectors: shown line by line, or written to a file."""
    from elmokit.embed_command import EmbedRequest, run_embed

    _refuse_empty(model=model, options=options, vocab=vocab, input=input, output=output)
    if model is None:
        raise ElmoError("--model is needed: this version of elmokit brings no model of its own")
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


@app.command("vocab")
def vocabulary(
    corpus: Annotated[list[str], typer.Argument(metavar="CORPUS...", help="As for elmo train.")],
    output: Annotated[str, typer.Option(metavar="FILE", help="The vocabulary to write: a word a line, as bilm-tf's.")],
    max_size: Annotated[
        int | None, typer.Option(metavar="N", help="Most words, the three special ones among them [default: all].")
    ] = None,
    min_count: Annotated[int, typer.Option(metavar="N", min=1, help="Least occurrences of a word.")] = 1,
    segment: Annotated[Segment, typer.Option(help="How lines become tokens; none splits on white space.")] = "none",
    split: Annotated[Split, typer.Option(help="Raw text into sentences; as for elmo train.")] = "none",
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Longer sentences are left out.")] = 1000,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes that read the text [default: all].")
    ] = None,
    cache: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the prepared corpus [default: in ~/.cache/elmokit].")
    ] = None,
) -> None:
    """Count a corpus and write its vocabulary: <S>, </S>, <UNK>, then words by falling counts."""
    from elmokit.vocab_command import VocabRequest, run_vocab

    _refuse_empty(output=output, cache=cache)
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
        str | None, typer.Option(metavar="DIR", help="Where the prepared corpus is kept [~/.cache/elmokit].")
    ] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", min=1, help="Processes that prepare it [all]. ")] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … [a GPU if there is one].")
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write DIR/tensorboard.")] = False,
    **changes: object,
) -> int:
    """Pre-train a biLM on any text; DIR then opens with Elmo.load. torchrun -m elmokit train ... uses many GPUs."""
    from elmokit.train_command import TrainRequest, run_train

    paths = {"vocab": vocab, "config": config, "word_vectors": word_vectors, "init": init}
    paths |= {"init_options": init_options, "cache": cache}
    if not output:
        raise ElmoError("--output DIR is needed: the folder in which the run is kept and the model appears")
    _refuse_empty(output=output, **paths)
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
            command=shlex.join(["elmo", *_typed]),
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
        Segment | None, typer.Option(help="How lines become tokens [as in training].", show_default=False)
    ] = None,
    split: Annotated[
        Split | None, typer.Option(help="Raw text into sentences [as in training].", show_default=False)
    ] = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=1, help="Longer sentences are left out.")] = 1000,
    state: Annotated[
        Literal["zero", "carry"], typer.Option(help="Each sentence from zero, or from where the one before ended.")
    ] = "zero",
    sentences: Annotated[
        str | None, typer.Option(metavar="FILE.tsv", help="Also write a table with a line for each sentence.")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … [default: a GPU if there is one]."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Processes that read the text [default: all].")
    ] = None,
) -> None:
    """Measure perplexity over held-out text: forward, backward and mean, with the full softmax."""
    from elmokit.eval_command import EvalRequest, run_eval

    _refuse_empty(MODEL=model, options=options, vocab=vocab, sentences=sentences)
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
            device=device,
            workers=workers,
        )
    )


@app.command()
def info(
    model: Model,
    options: Options = None,
    vocab: Vocab = None,
) -> None:
    """Say what a model is: its format, its sizes, what it brings."""
    from elmokit.formats.card import describe
    from elmokit.formats.load import read_checkpoint

    _refuse_empty(MODEL=model, options=options, vocab=vocab)
    checkpoint = read_checkpoint(model, options=options, vocab=vocab)
    rows = [("file", checkpoint.where), *describe(checkpoint)]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A model of any format.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The folder to write; a .hdf5 file for --to tokens.")],
    to: Annotated[Literal["elmokit", "bilm", "tokens"], typer.Option(help="The format to write.")] = "elmokit",
    options: Options = None,
    vocab: Vocab = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of a model that DST holds.")
    ] = False,
) -> None:
    """Convert a model to elmokit's folder, to options.json + weights.hdf5, or to token embeddings."""
    from elmokit.convert import convert_model

    _refuse_empty(SRC=source, DST=target, options=options, vocab=vocab)
    written = convert_model(Path(source), Path(target), to=to, options=options, vocab=vocab, overwrite=overwrite)
    print(f"wrote {written}")
