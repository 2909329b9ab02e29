"""The sentences of an index: those of a corpus that have an occurrence to keep."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from elmokit.analyse.choosing import Choice, chosen_parts
from elmokit.corpus.encoding import EncodedSentences
from elmokit.corpus.prepared import CorpusBuilder, PreparedCorpus
from elmokit.corpus.report import Tally
from elmokit.messages import counted
from elmokit.text.tokens import SegmenterName, word_splitter


def write_text(
    folder: Path, shown: Path, corpus: PreparedCorpus, kept: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Write the sentences that have an occurrence to keep.

    Gives the corpus's id of each type that was written [V], and the token of each row [R].
    """
    types = list(corpus.type_texts())
    tokens_of_rows = np.empty(int(kept.sum()), dtype=np.int64)
    written = 0
    total = Tally()
    folder.mkdir()
    with CorpusBuilder(folder, shown=shown, max_types=1 << 32) as builder:
        for part in chosen_parts(corpus, kept):
            lengths = np.diff(part.ends, prepend=0)
            sentence = np.repeat(np.arange(len(lengths)), lengths)
            wanted = np.bincount(sentence[part.rows >= 0], minlength=len(lengths)) > 0
            inside = wanted[sentence]
            rows, tokens = part.rows[inside], part.tokens[inside]
            places = np.flatnonzero(rows >= 0)
            tokens_of_rows[rows[places]] = written + places
            written += len(tokens)
            distinct, ids, counts = np.unique(tokens, return_inverse=True, return_counts=True)
            tally = Tally()
            tally.sentences, tally.tokens = int(wanted.sum()), len(tokens)
            texts = [types[number] for number in distinct.tolist()]
            builder.add(EncodedSentences(texts, counts, ids.astype(np.uint32), lengths[wanted], tally), total)
        builder.finish(total.report(types=builder.n_types), corpus.settings, None)
    number_of = {text: number for number, text in enumerate(types)}
    numbers = [number_of[text] for text in PreparedCorpus.open(folder).type_texts()]
    return np.array(numbers, dtype=np.int64), tokens_of_rows


def in_pieces(word: str, segment: str | None) -> str | None:
    """That a word is several tokens, as a sentence; None where it is one.

    >>> in_pieces("银行", "chars")
    'as the text is read (--segment chars) it is 2 tokens, 银 行: ask for one of them'
    """
    pieces = word_splitter(cast(SegmenterName, segment or "none"))(word)
    if len(pieces) < 2:
        return None
    read = f"as the text is read (--segment {segment or 'none'})"
    return f"{read} it is {len(pieces)} tokens, {' '.join(pieces)}: ask for one of them"


def nothing_kept(choice: Choice, corpus: PreparedCorpus) -> str:
    """Why a choice keeps nothing of a corpus, as a sentence."""
    size = f"{counted(corpus.n_tokens, 'token')} of the corpus"
    if choice.words is None:
        return f"no word occurs {choice.min_count:,} times or more among the {size}: lower --min-count"
    shown = ", ".join(choice.words[:5]) + (", …" if len(choice.words) > 5 else "")
    if choice.min_count > 1:
        return f"{shown} does not occur {choice.min_count:,} times or more among the {size}: lower --min-count"
    folded = Choice(choice.words, ignore_case=True)
    found = [text for text in corpus.type_texts() if folded.matches(text)]
    if found and not choice.ignore_case:
        return f"{shown} does not occur among the {size}, but {', '.join(found[:5])} does: add --ignore-case"
    if pieces := in_pieces(choice.words[0], corpus.settings.get("segment")):
        return f"{choice.words[0]} does not occur among the {size}: {pieces}"
    return (
        f"{shown} does not occur among the {size}: look at its spelling, and at --segment and --split, which say how "
        "the text becomes tokens"
    )
