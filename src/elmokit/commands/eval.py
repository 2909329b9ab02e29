"""What `elmo eval` does: perplexity of a model over text it has not seen, in all or sentence by sentence."""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from elmokit.errors import ElmoError
from elmokit.formats.atomic import replacing
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.load import read_checkpoint
from elmokit.model.bilm import BiLM
from elmokit.model.lm_head import LmHead
from elmokit.placement import choose_device
from elmokit.pretrain.corpus.prepare import prepare
from elmokit.pretrain.corpus.prepared import PreparedCorpus
from elmokit.pretrain.evaluate import evaluate, perplexity_of, sentence_losses
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.type_table import TypeTable
from elmokit.pretrain.windows import Sentences
from elmokit.text.tokens import SegmenterName


@dataclass(frozen=True)
class EvalRequest:
    """The arguments of `elmo eval`."""

    model: str
    corpus: Sequence[str]
    options: str | None = None
    vocab: str | None = None
    segment: SegmenterName | None = None
    """None: as the model's training text was read, or at white space where that is not known."""
    split: Literal["none", "line", "paragraph"] | None = None
    max_tokens: int = 1000
    state: Literal["zero", "carry"] = "zero"
    sentences: Path | None = None
    device: str | None = None
    workers: int | None = None


def run_eval(request: EvalRequest) -> None:
    """Print forward, backward and mean perplexity, and write the table of sentences where one is asked for."""
    if request.sentences is not None and request.state == "carry":
        raise ElmoError("--sentences gives the perplexity of each sentence by itself: leave out --state carry")
    if request.sentences is not None:
        _check_table(request.sentences, request)
    model = read_checkpoint(request.model, options=request.options, vocab=request.vocab).in_floats()
    segment = request.segment or model.text.get("segment", "none")
    split = request.split or model.text.get("split", "none")
    network = _network(model, choose_device(request.device))
    with tempfile.TemporaryDirectory(prefix="elmo-eval-") as temporary:
        corpus = prepare(
            request.corpus,
            segment=segment,
            split=split,
            max_tokens=request.max_tokens,
            folder=Path(temporary) / "corpus",
            workers=request.workers,
        )
        for line in corpus.report.lines():
            print(line, file=sys.stderr)
        types = _types(model, corpus)
        result = evaluate(network, types, Sentences(corpus), state=request.state)
        rows = [
            ("sentences", f"{corpus.n_sentences:,}"),
            ("tokens", f"{corpus.n_tokens:,}"),
            ("read with", f"--segment {segment} --split {split}"),
            ("outside the vocabulary", f"{types.unknown_rate():.2%} of the tokens, counted as {_unknown(model)}"),
            ("softmax", f"{len(network.head.bias):,} words, full"),
            ("state", "zero before every sentence" if request.state == "zero" else "carried from sentence to sentence"),
            ("forward perplexity", f"{result.forward:.2f}"),
        ]
        if result.backward is not None:
            rows += [("backward perplexity", f"{result.backward:.2f}"), ("mean perplexity", f"{result.mean:.2f}")]
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            print(f"{name:<{width}}  {value}")
        if request.sentences is not None:
            _write_table(request.sentences, network, types, corpus)
            print(f"wrote {request.sentences}")


def _check_table(path: Path, request: EvalRequest) -> None:
    """What would fail at the end, or cost the user a file, should fail before anything is read."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ElmoError(f"--sentences must be a file in a folder that exists, got {path}")
    read = [Path(source) for source in (*request.corpus, request.model, request.options, request.vocab) if source]
    for source in (file for given in read for file in (given, *given.glob("*"))):
        if path.exists() and source.exists() and path.samefile(source):
            raise ElmoError(f"--sentences must not be a file that is read, got {path}: it would be written over")


def _network(model: Checkpoint, device: torch.device) -> LanguageModelNetwork:
    if not model.head:
        raise ElmoError(
            f"{model.where} has no softmax, so it has no perplexity; a TensorFlow checkpoint or a model trained with "
            "elmokit brings one"
        )
    if model.vocab is None:
        raise ElmoError(f"{model.where} has a softmax and no vocabulary: give its vocab.txt with --vocab")
    bilm, head = BiLM(model.config), LmHead(*model.head["weight"].shape)
    bilm.load_state_dict(model.weights)
    head.load_state_dict(model.head)
    return LanguageModelNetwork(bilm, head).to(device).eval()


def _types(model: Checkpoint, corpus: PreparedCorpus) -> TypeTable:
    assert model.vocab is not None
    characters = model.config.characters
    return TypeTable(
        corpus,
        model.vocab,
        model.indexer(),
        widest_filter=characters.widest_filter if characters else 0,
        directions=model.config.n_directions,
    )


def _unknown(model: Checkpoint) -> str:
    assert model.vocab is not None
    return model.vocab.specials[2]


def _write_table(path: Path, network: LanguageModelNetwork, types: TypeTable, corpus: PreparedCorpus) -> None:
    """A TSV with a line for each sentence: its number, tokens, perplexities and text."""
    sentences = Sentences(corpus)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, dialect="excel-tab", lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
        table.writerow(["sentence", "tokens", "forward", "backward", "mean", "text"])
        begin = 0
        for row in sentence_losses(network, types, sentences):
            end = int(corpus.ends[row.index])
            text = " ".join(corpus.type_text(int(index)) for index in corpus.tokens[begin:end])
            begin = end
            losses = [row.forward] if row.backward is None else [row.forward, row.backward]
            shown = [f"{perplexity_of(loss / (row.tokens + 1)):.2f}" for loss in losses]
            mean = f"{perplexity_of(sum(losses) / len(losses) / (row.tokens + 1)):.2f}"
            table.writerow([row.index + 1, row.tokens, shown[0], shown[1] if len(shown) > 1 else "", mean, text])
