"""Commands that look inside: neighbours, senses, plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elmokit.cli.shared import (
    Device,
    ModelOption,
    Options,
    Split,
    Vocab,
    Workers,
    app,
    group,
    path_or_none,
    refuse_empty,
)
from elmokit.formats.bundled import DEFAULT
from elmokit.text.tokens import SegmenterName

if TYPE_CHECKING:
    from elmokit.analyse.index_cache import IndexOptions

plot = group("plot", "Pictures of what the layers make of words in sentences.")

Corpus = Annotated[
    list[str] | None,
    typer.Option("--corpus", metavar="CORPUS", help="Files, folders or globs of text, - is stdin; may be repeated."),
]
Index = Annotated[
    str | None,
    typer.Option(
        "--index", metavar="DIR", help="Keep an index of all words here, or ask the one that is here [in the cache]."
    ),
]
Layer = Annotated[
    str | None, typer.Option(metavar="mix|top|N", help="Which layer's vectors [top].", show_default=False)
]
Words = Annotated[
    list[str] | None,
    typer.Option("--words", metavar="WORD", help="A new index of many words holds only these; may be repeated."),
]
MinCount = Annotated[
    int, typer.Option(metavar="N", min=1, help="A new index of many words leaves out those that occur less often.")
]
MaxOccurrences = Annotated[
    int, typer.Option(metavar="N", min=0, help="Of each word so many are kept, evenly over the text; 0: all.")
]
TextSegment = Annotated[
    SegmenterName | None, typer.Option(help="How lines become tokens [as in training].", show_default=False)
]
TextSplit = Annotated[Split | None, typer.Option(help="Raw text into sentences [as in training].", show_default=False)]
IgnoreCase = Annotated[bool, typer.Option("--ignore-case", help="Upper and lower case are the same word.")]
Json = Annotated[bool, typer.Option("--json", help="A JSON object a line.")]
Picture = Annotated[str, typer.Option("--output", metavar="FILE", help="The picture: .png, .svg or .pdf.")]
Font = Annotated[
    str | None, typer.Option("--font", metavar="FILE", help="A font file, for characters that no other has.")
]


def _where(
    *,
    corpus: list[str] | None,
    index: str | None,
    layer: str | None = None,
    segment: SegmenterName | None,
    split: Split | None,
    words: list[str] | None = None,
    min_count: int = 1,
    max_occurrences: int = 1000,
    workers: int | None,
) -> IndexOptions:
    from elmokit.analyse.index_cache import IndexOptions

    return IndexOptions(
        corpus=corpus or (),
        index=path_or_none(index),
        layer=layer,
        segment=segment,
        split=split,
        words=words or None,
        min_count=min_count,
        max_occurrences=max_occurrences,
        workers=workers,
    )


@app.command()
def neighbours(
    word: Annotated[str, typer.Argument(metavar="WORD", help="A word of the context.")],
    context: Annotated[str, typer.Option(metavar="TEXT", help="The sentence that the word is used in.")],
    model: ModelOption = DEFAULT,
    corpus: Corpus = None,
    index: Index = None,
    k: Annotated[int, typer.Option("--k", metavar="N", min=1, help="So many contexts.")] = 10,
    any_word: Annotated[
        bool, typer.Option("--any-word/--same-word", help="Contexts of all words, not of this word alone.")
    ] = False,
    position: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Which token of the context, from 1, where the word is there twice."),
    ] = None,
    ignore_case: IgnoreCase = False,
    layer: Layer = None,
    words: Words = None,
    min_count: MinCount = 1,
    max_occurrences: MaxOccurrences = 1000,
    segment: TextSegment = None,
    split: TextSplit = None,
    json: Json = False,
    options: Options = None,
    vocab: Vocab = None,
    device: Device = None,
    workers: Workers = None,
) -> None:
    """Show the sentences of a text in which a word is used most as it is in a given one."""
    from elmokit.commands.neighbours import NeighboursRequest, run_neighbours

    refuse_empty(WORD=word, model=model, context=context, index=index, options=options, vocab=vocab)
    run_neighbours(
        NeighboursRequest(
            word=word,
            context=context,
            model=model,
            options=options,
            vocab=vocab,
            where=_where(
                corpus=corpus,
                index=index,
                layer=layer,
                segment=segment,
                split=split,
                words=words,
                min_count=min_count,
                max_occurrences=max_occurrences,
                workers=workers,
            ),
            k=k,
            any_word=any_word,
            ignore_case=ignore_case,
            position=position,
            json=json,
            device=device,
        )
    )


@app.command()
def senses(
    word: Annotated[str, typer.Argument(metavar="WORD", help="The word.")],
    model: ModelOption = DEFAULT,
    corpus: Corpus = None,
    index: Index = None,
    output: Annotated[
        str | None, typer.Option("--output", metavar="FILE", help="Also draw the clusters: .png, .svg or .pdf.")
    ] = None,
    clusters: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="How many clusters [found, 1 to 8].", show_default=False)
    ] = None,
    examples: Annotated[int, typer.Option(metavar="N", min=0, help="Sentences shown of each.")] = 4,
    ignore_case: IgnoreCase = False,
    layer: Layer = None,
    max_occurrences: MaxOccurrences = 1000,
    segment: TextSegment = None,
    split: TextSplit = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the clustering.")] = 1,
    font: Font = None,
    json: Json = False,
    options: Options = None,
    vocab: Vocab = None,
    device: Device = None,
    workers: Workers = None,
) -> None:
    """Put the occurrences of a word in a text into clusters, with typical sentences and words."""
    from elmokit.commands.senses import SensesRequest, run_senses

    refuse_empty(WORD=word, model=model, index=index, output=output, font=font, options=options, vocab=vocab)
    run_senses(
        SensesRequest(
            word=word,
            model=model,
            options=options,
            vocab=vocab,
            where=_where(
                corpus=corpus,
                index=index,
                layer=layer,
                segment=segment,
                split=split,
                max_occurrences=max_occurrences,
                workers=workers,
            ),
            clusters=clusters,
            examples=examples,
            ignore_case=ignore_case,
            output=path_or_none(output),
            font=path_or_none(font),
            seed=seed,
            json=json,
            device=device,
        )
    )


@plot.command("similarity")
def plot_similarity(
    first: Annotated[str, typer.Argument(metavar="TEXT", help="A sentence.")],
    second: Annotated[str, typer.Argument(metavar="TEXT", help="Another.")],
    output: Picture,
    model: ModelOption = DEFAULT,
    segment: TextSegment = None,
    font: Font = None,
    options: Options = None,
    vocab: Vocab = None,
    device: Device = None,
) -> None:
    """Draw how similar the words of two sentences are, layer by layer."""
    from elmokit.commands.plot import SimilarityRequest, run_similarity

    refuse_empty(output=output, font=font, options=options, vocab=vocab)
    run_similarity(
        SimilarityRequest(
            first=first,
            second=second,
            output=Path(output),
            model=model,
            options=options,
            vocab=vocab,
            segment=segment,
            font=path_or_none(font),
            device=device,
        )
    )


@plot.command("words")
def plot_words(
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="The words.")],
    output: Picture,
    model: ModelOption = DEFAULT,
    sentence: Annotated[
        list[str] | None,
        typer.Option("--sentence", metavar="TEXT", help="A sentence that contains them; may be repeated."),
    ] = None,
    corpus: Corpus = None,
    index: Index = None,
    occurrences: Annotated[int, typer.Option(metavar="N", min=1, help="So many of each word, from a corpus.")] = 8,
    ignore_case: IgnoreCase = False,
    segment: TextSegment = None,
    split: TextSplit = None,
    font: Font = None,
    options: Options = None,
    vocab: Vocab = None,
    device: Device = None,
    workers: Workers = None,
) -> None:
    """Draw words in their sentences as points, layer by layer."""
    from elmokit.commands.plot import WordsRequest, run_words

    refuse_empty(index=index, output=output, font=font, options=options, vocab=vocab)
    run_words(
        WordsRequest(
            words=words,
            output=Path(output),
            model=model,
            options=options,
            vocab=vocab,
            sentences=sentence or (),
            where=_where(corpus=corpus, index=index, segment=segment, split=split, workers=workers),
            occurrences=occurrences,
            ignore_case=ignore_case,
            font=path_or_none(font),
            device=device,
        )
    )
