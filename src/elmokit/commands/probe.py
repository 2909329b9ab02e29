"""What `elmo probe` does: what each layer of a model knows of parts of speech, word senses and words in context."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from elmokit.analyse.probes.pos import PosResult, probe_pos
from elmokit.analyse.probes.sources import ElmoSource, LayerSource, Tokens, Vectors, evenly
from elmokit.analyse.probes.wic import WicResult, probe_wic, read_wic
from elmokit.analyse.probes.wsd import WordNet, WsdResult, probe_wsd, read_evaluation, read_semcor
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.messages import counted
from elmokit.storage.atomic import write_text
from elmokit.tasks.tag import read_tagged

_LOG_EVERY = 5_000


@dataclass(frozen=True)
class ProbeRequest:
    """What the three probes have in common."""

    model: str
    train: Path
    dev: Path
    options: str | None = None
    vocab: str | None = None
    limit: int | None = None
    """At most so many training sentences or pairs, evenly from the file."""
    output: Path | None = None
    """A JSON file for the figures."""
    batch_tokens: int | None = None
    device: str | None = None


@dataclass(frozen=True)
class PosRequest(ProbeRequest):
    """The arguments of `elmo probe pos`."""

    column: str | None = None
    """The column of the tags; None: UPOS of CoNLL-U, the last one elsewhere."""
    seeds: int = 1
    cache: Path | None = None
    """A folder for the vectors; None: features/ in the cache folder."""


@dataclass(frozen=True)
class WsdRequest(ProbeRequest):
    """The arguments of `elmo probe wsd`."""

    wordnet: Path | None = None


@dataclass(frozen=True)
class WicRequest(ProbeRequest):
    """The arguments of `elmo probe wic`."""


def run_pos(request: PosRequest) -> None:
    """Print the accuracy of a linear tagger on each layer."""
    _check(request)
    train, dev = (read_tagged(path, tag_column=request.column) for path in (request.train, request.dev))
    source = _source(request)
    result = probe_pos(
        source,
        evenly(train, request.limit),
        dev,
        seeds=range(1, request.seeds + 1),
        folder=request.cache,
    )
    _report(request, result, pos_lines(result))


def run_wsd(request: WsdRequest) -> None:
    """Print the F1 of the nearest sense on each layer."""
    _check(request)
    wordnet = None if request.wordnet is None else WordNet(request.wordnet)
    train, evaluation = read_semcor(request.train, request.limit), read_evaluation(request.dev)
    result = probe_wsd(
        _source(request), train, evaluation, first_sense=None if wordnet is None else wordnet.first_sense
    )
    _report(request, result, wsd_lines(result))


def run_wic(request: WicRequest) -> None:
    """Print the accuracy of a threshold on each layer."""
    _check(request)
    train, dev = evenly(read_wic(request.train), request.limit), read_wic(request.dev)
    result = probe_wic(_source(request), train, dev)
    _report(request, result, wic_lines(result))


def pos_lines(result: PosResult) -> list[str]:
    """The result as a table."""
    rows = [(_name(layer), f"{accuracy:.2%}") for layer, accuracy in result.accuracy.items()]
    rows += [("most frequent tag of the word", f"{result.baseline:.2%}")]
    seen = f"{counted(result.train_tokens, 'token')} to train, {result.dev_tokens:,} to measure"
    return [f"accuracy of {len(result.tags)} tags, {seen}", *_table(rows)]


def wsd_lines(result: WsdResult) -> list[str]:
    """The result as a table."""
    heading = ("", "nearest mean", "nearest context", "mean, unseen wrong")
    rows = [
        (_name(layer), f"{mean.f1:.1%}", f"{result.nearest[layer].f1:.1%}", f"{mean.unseen_wrong:.1%}")
        for layer, mean in result.centroid.items()
    ]
    frequent = result.most_frequent
    rows += [("most frequent sense", f"{frequent.f1:.1%}", "", f"{frequent.unseen_wrong:.1%}")]
    if result.first_sense is not None:
        rows += [("first sense of WordNet", f"{result.first_sense:.1%}", "", "")]
    unseen, answered = result.words - result.seen, result.answered - result.seen
    fallback = f"WordNet's first sense answers {answered} of these" if answered else "no WordNet answers for these"
    return [
        f"F1 over {counted(result.words, 'word')}; the training text lacks the lemma of {unseen}"
        + (f", {fallback}" if unseen else ""),
        *_table([heading, *rows]),
    ]


def wic_lines(result: WicResult) -> list[str]:
    """The result as a table."""
    heading = ("", "threshold", "in training", "logistic")
    rows = [
        (_name(layer), f"{accuracy:.2%}", f"{result.train_accuracy[layer]:.2%}", f"{result.logistic[layer]:.2%}")
        for layer, accuracy in result.accuracy.items()
    ]
    rows += [("all layers together", "", "", f"{result.logistic['all']:.2%}")]
    rows += [("the commoner answer", f"{result.majority:.2%}", "", "")]
    return ["accuracy: is the word meant in the same way?", *_table([heading, *rows])]


class _ShownSource(ElmoSource):
    """An Elmo that shows how many sentences it has read: a bar on a terminal, a line now and then elsewhere."""

    _bar = tqdm(disable=True)

    def stream(self, sentences: Iterable[Tokens]) -> Iterator[Vectors]:
        for number, layers in enumerate(super().stream(sentences), start=1):
            self.progress(number, None)
            yield layers
        self._bar.close()

    def progress(self, done: int, total: int | None) -> None:
        if done == 1:
            self._bar = tqdm(total=total, unit=" sentences", disable=None, leave=False)
        self._bar.update(done - self._bar.n)
        if self._bar.disable and done % _LOG_EVERY == 0:
            print(f"{counted(done, 'sentence')} embedded", file=sys.stderr, flush=True)
        if done == total:
            self._bar.close()


def _check(request: ProbeRequest) -> None:
    """What would fail at the end should fail at once."""
    if request.limit is not None and request.limit < 1:
        raise ElmoError(f"--limit must be at least 1, got {request.limit}")
    output = request.output
    if output is not None and (output.is_dir() or not output.absolute().parent.is_dir()):
        raise ElmoError(f"--output must be a file in a folder that exists, got {output}")
    if (
        output is not None
        and output.exists()
        and any(path.exists() and output.samefile(path) for path in (request.train, request.dev))
    ):
        raise ElmoError(f"--output must not be a file that is read, got {output}: it would be written over")


def _source(request: ProbeRequest) -> LayerSource:
    elmo = Elmo.load(request.model, options=request.options, vocab=request.vocab, device=request.device)
    return _ShownSource(elmo, request.batch_tokens)


def _report(request: ProbeRequest, result: Any, lines: Sequence[str]) -> None:  # noqa: ANN401 - any result dataclass
    print("\n".join(lines))
    if request.output is not None:
        write_text(request.output, json.dumps(asdict(result), indent=2, ensure_ascii=False) + "\n")
        print(f"wrote {request.output}", file=sys.stderr)


def _name(layer: str) -> str:
    return {"mean": "mean of the layers", "mix": "learned mix of the layers"}.get(layer, f"layer {layer}")


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip()
        for row in rows
    ]
