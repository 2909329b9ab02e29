"""`elmo vocab`: the vocabulary of a corpus."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from elmokit.cli.registry import Command, command
from elmokit.cli.shared import CORPUS_HELP, SEGMENT_HELP, SPLIT_HELP, Split, check_output_file, prepare_and_report, say
from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.options import REQUIRED, argument, option
from elmokit.text.tokens import SegmenterName


@command("vocab")
@dataclass(frozen=True, kw_only=True)
class VocabCommand(Command):
    """Write the vocabulary of a corpus: <S>, </S>, <UNK>, and then its words, the most frequent first."""

    corpus: tuple[str, ...] = argument(f"{CORPUS_HELP}.", "CORPUS")
    output: Path = option(REQUIRED, "The vocabulary to write: one word per line, as for bilm-tf.", metavar="FILE")
    max_size: int | None = option(None, "Maximum number of words, including the three special words.", shown="all")
    min_count: int = option(1, "Minimum number of times a word must occur.", least=1)
    segment: SegmenterName = option("none", SEGMENT_HELP)
    split: Split = option("none", SPLIT_HELP)
    max_tokens: int = option(1000, "Number of tokens above which a sentence is left out.", least=1)
    workers: int | None = option(None, "Number of processes that read the text.", least=1, shown="all cores")
    cache: Path | None = option(
        None, "Folder for prepared corpora, which any number of runs share.", metavar="DIR", shown="~/.cache/elmokit"
    )

    def run(self) -> None:
        """Prepare the corpus if it is not in the cache, and write the vocabulary."""
        from elmokit.corpus.prepared import build_vocabulary, coverage, write_vocabulary

        check_output_file("output", self.output, self.corpus)
        if self.max_size is not None and self.max_size <= 3:
            raise ElmoError(f"--max-size must be more than 3, because it includes 3 special words, got {self.max_size}")
        with ExitStack() as stack:
            cache = self.cache
            if "-" in self.corpus and cache is None:  # no later call could find standard input in the cache
                cache = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="elmo-vocab-"))) / "corpus"
            limits = {"max_tokens": self.max_tokens, "workers": self.workers}
            corpus = prepare_and_report(self.corpus, segment=self.segment, split=self.split, folder=cache, **limits)
            vocabulary = build_vocabulary(corpus, max_size=self.max_size, min_count=self.min_count)
            write_vocabulary(vocabulary, self.output)
            share = f"{coverage(corpus, vocabulary):.2%}"
            say(f"wrote {self.output}: {counted(len(vocabulary), 'word')}, which cover {share} of the tokens")
