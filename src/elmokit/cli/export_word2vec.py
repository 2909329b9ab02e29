"""`elmo export word2vec`: writes one vector per word, for gensim and other programs that read word2vec files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elmokit.cli.registry import command, group
from elmokit.cli.shared import (
    AS_IN_TRAINING,
    CORPUS_HELP,
    MODEL_HELP,
    SEGMENT_HELP,
    SPLIT_HELP,
    DeviceOption,
    ModelFileOptions,
    Split,
    check_output_file,
    prepare_and_report,
    say,
)
from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.options import REQUIRED, argument, option
from elmokit.text.tokens import SegmenterName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from elmokit.corpus.prepared import PreparedCorpus
    from elmokit.elmo import Elmo
    from elmokit.layers import Layer, Vectors

group("export", "Export a model for other programs.")

_BINARY = {".txt": False, ".vec": False, ".bin": True}
_WORDS_IN_A_ROW = 64
"""Number of words that are encoded as one sentence, which does not change their layer 0."""


@command("export word2vec")
@dataclass(frozen=True, kw_only=True)
class ExportWord2vecCommand(ModelFileOptions, DeviceOption):
    """Write one vector per word as a word2vec file. Without --corpus these are vectors without context."""

    model: str = argument(MODEL_HELP, "MODEL")
    output: Path = option(REQUIRED, "File to write: .txt or .vec is word2vec's text form, .bin its binary form.")
    words: Path | None = option(
        None, "Words to export, one per line.", shown="the model's vocabulary, or all words of --corpus"
    )
    corpus: tuple[str, ...] = option(
        (),
        f"{CORPUS_HELP}; a word's vector is then the mean over its occurrences; may be repeated.",
        metavar="CORPUS",
    )
    min_count: int = option(5, "Minimum number of times a word must occur in --corpus.", least=1)
    layer: str | None = option(
        None,
        "Layer of the vectors: mix is the model's weighted mean, 0 is without context.",
        metavar="mix|top|N",
        shown="0; with --corpus the last block of a Transformer, mix for an LSTM",
    )
    segment: SegmenterName | None = option(None, SEGMENT_HELP, shown=AS_IN_TRAINING)
    split: Split | None = option(None, SPLIT_HELP, shown=AS_IN_TRAINING)
    workers: int | None = option(None, "Number of processes that read the text.", least=1, shown="all cores")

    def run(self) -> None:
        """Choose the words, compute their vectors and write the file."""
        from elmokit.cli.embed import parse_layer
        from elmokit.elmo import Elmo
        from elmokit.layers import check_layer
        from elmokit.text.word_vectors import can_be_written, write_word2vec

        if (binary := _BINARY.get(self.output.suffix.lower())) is None:
            raise ElmoError(f"output must end in {', '.join(_BINARY)}, got {self.output}", "output")
        layer = None if self.layer is None else parse_layer(self.layer)
        if layer not in (None, 0) and not self.corpus:
            raise ElmoError(f"layer {self.layer} depends on the context of a word: add --corpus", "layer")
        check_output_file("output", self.output, (self.model, self.words, *self.corpus))
        listed = None if self.words is None else _read_words(self.words)
        elmo = Elmo.load(self.model, options=self.options, vocab=self.vocab, device=self.device, segment=self.segment)
        layer = layer if layer is not None else elmo.default_layer if self.corpus else 0
        check_layer(layer, elmo.config.n_outputs, single=True)
        with tempfile.TemporaryDirectory(prefix="elmo-export-") as folder:
            corpus = self._corpus(elmo, Path(folder)) if self.corpus else None
            offered = listed if listed is not None else _model_words(elmo) if corpus is None else _corpus_words(corpus)
            words = [word for word in dict.fromkeys(offered) if can_be_written(word)]
            if corpus is not None:
                words = _frequent_words(words, corpus, self.min_count)
            if layer == 0:
                words = [word for word in words if _is_known(elmo, word)]
            if not words:
                raise ElmoError(
                    f"there are no words to export to {self.output}: give other --words, or a lower --min-count"
                )
            if corpus is not None and layer != 0:
                vectors, size = iter(_mean_vectors(elmo, corpus, words, layer)), elmo.config.vector_size
            else:
                vectors, size = _vectors_without_context(elmo, words), elmo.config.token_size
            write_word2vec(self.output, words, vectors, size=size, binary=binary)
        say(f"wrote {self.output}: {counted(len(words), 'word')} of {size} numbers")
        if left := len(set(offered)) - len(words):
            say(f"elmo: {counted(left, 'word')} left out: too rare, unknown to the model, or with white space")

    def _corpus(self, elmo: Elmo, folder: Path) -> PreparedCorpus:
        split = self.split or elmo.text.get("split", "none")
        segment = elmo.text_policy.name_in_files
        return prepare_and_report(self.corpus, segment=segment, split=split, folder=folder, workers=self.workers)


def _read_words(path: Path) -> list[str]:
    from elmokit.corpus.lines import InputLines

    with InputLines(path) as lines:
        return [word for line in lines if (word := line.strip())]


def _model_words(elmo: Elmo) -> list[str]:
    """The words of the model's vocabulary, without the special words."""
    if elmo.vocab is None:
        raise ElmoError(f"{elmo.where} has no vocabulary: give --words FILE or --corpus FILE")
    return [word for word in elmo.vocab if word not in elmo.vocab.specials]


def _corpus_words(corpus: PreparedCorpus) -> list[str]:
    """The words of a corpus, the most frequent first, as is usual in word2vec files."""
    from elmokit.corpus.prepared import build_vocabulary

    vocabulary = build_vocabulary(corpus)
    return [word for word in vocabulary if word not in vocabulary.specials]


def _frequent_words(words: Sequence[str], corpus: PreparedCorpus, min_count: int) -> list[str]:
    """The words that occur at least `min_count` times in a corpus."""
    found = {
        text for text, count in zip(corpus.type_texts(), corpus.counts.tolist(), strict=True) if count >= min_count
    }
    return [word for word in words if word in found]


def _is_known(elmo: Elmo, word: str) -> bool:
    """Whether the model has a vector of its own for a word without context, not that of the unknown word."""
    unknown = elmo.unknown_tokens()
    unknown.add([word])
    return not unknown.unknown


def _vectors_without_context(elmo: Elmo, words: Sequence[str]) -> Iterator[Vectors]:
    """The token vector of each word, [P]; layer 0 of an LSTM contains it twice, and only the first half is used."""
    rows = (words[start : start + _WORDS_IN_A_ROW] for start in range(0, len(words), _WORDS_IN_A_ROW))
    for vectors in elmo.stream(rows, layer=0):
        yield from vectors[:, : elmo.config.token_size]


def _mean_vectors(elmo: Elmo, corpus: PreparedCorpus, words: Sequence[str], layer: Layer) -> Vectors:
    """The mean of each word's vectors over all its occurrences in a corpus, [words, D]."""
    import numpy as np

    from elmokit.progress import ProgressDisplay

    numbers = {word: number for number, word in enumerate(words)}
    texts = list(corpus.type_texts())
    rows = np.array([numbers.get(text, -1) for text in texts])  # [V]: the row of each type, -1 for none
    sums = np.zeros((len(words), elmo.config.vector_size))
    counts = np.zeros((len(words), 1))
    ends = np.asarray(corpus.ends)
    starts = np.concatenate([[0], ends[:-1]])
    wanted = np.flatnonzero(
        np.logical_or.reduceat((rows >= 0)[corpus.tokens], starts)
    )  # sentences with one of the words

    def types() -> Iterator[NDArray[np.uint32]]:
        return (corpus.tokens[starts[number] : ends[number]] for number in wanted)

    unknown = elmo.unknown_tokens()
    with ProgressDisplay("embedding", "sentences", total=len(wanted)) as display:
        stream = elmo.stream(([texts[number] for number in each] for each in types()), layer=layer)
        for each, vectors in zip(types(), display.count(stream), strict=True):
            used = rows[each] >= 0
            np.add.at(sums, rows[each][used], vectors[used])
            np.add.at(counts, rows[each][used], 1)
            unknown.add(texts[number] for number in each)
    if message := unknown.message():
        say(f"elmo: {message}")
    found: Vectors = (sums / counts).astype(np.float32)
    return found
