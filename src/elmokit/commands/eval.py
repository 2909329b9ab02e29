"""What `elmo eval` does: perplexity of a model over unseen text, in all, by sentence or by position in the sentence."""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal

import torch

from elmokit.analyse.pictures import draw_by_position
from elmokit.corpus.prepare import prepare
from elmokit.corpus.prepared import PreparedCorpus
from elmokit.errors import ElmoError
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.load import read_checkpoint
from elmokit.model.bilm import BiLM
from elmokit.model.language_model import MASKED_SHARE, LmHead
from elmokit.model.placement import choose_device
from elmokit.plots.style import SUFFIXES, check_picture
from elmokit.pretrain.evaluate import (
    ByPosition,
    HeldOut,
    StateUse,
    by_position,
    evaluate,
    perplexity_of,
    sentence_losses,
    write_table,
)
from elmokit.pretrain.network import LanguageModelNetwork
from elmokit.pretrain.progress import perplexity
from elmokit.pretrain.sentences import Sentences, TypeTable
from elmokit.storage.atomic import atomic_file
from elmokit.text.policy import CharacterPieces, TextPolicy
from elmokit.text.tokens import SegmenterName

_SHORT: dict[StateUse, str] = {"zero": "from zero", "carry": "carried"}


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
    state: Literal["zero", "carry", "both"] = "zero"
    sentences: Path | None = None
    by_position: Sequence[Path] = ()
    """Files to write: .tsv for a table, others for a picture."""
    device: str | None = None
    workers: int | None = None


def run_eval(request: EvalRequest) -> None:
    """Print forward, backward and mean perplexity, and write the tables and pictures that are asked for."""
    if request.sentences is not None and request.state != "zero":
        raise ElmoError(
            "--sentences gives the perplexity of each sentence by itself: leave out --state " + request.state
        )
    _check_outputs(request)
    model = read_checkpoint(request.model, options=request.options, vocab=request.vocab).in_floats()
    text, policy = TextPolicy.of_model(model.text, request.segment, model.where)
    segment, pieces = policy.name_in_files, model.character_pieces(text)
    split = request.split or model.text.get("split", "none")
    network = _network(model, choose_device(request.device))
    if request.state != "zero" and not network.bilm.context.carries_state:
        raise ElmoError(
            f"--state {request.state} needs a model with an LSTM, and {model.where} has the context encoder "
            f"{model.config.context.kind}: leave it out"
        )
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
        scored = corpus if pieces is None else _taken_apart(corpus, pieces, Path(temporary) / "characters")
        by_character = scored is not corpus
        if by_character and request.by_position:
            raise ElmoError(
                f"--by-position counts characters for {model.where}, a model of characters, and --segment {segment} "
                "gives words: use --segment chars"
            )
        types, sentences = _types(model, scored), Sentences(scored)
        states: list[StateUse] = ["zero", "carry"] if request.state == "both" else [request.state]
        positions: dict[StateUse, ByPosition] = {}
        results: dict[StateUse, HeldOut] = {}
        for state in states:
            if request.by_position:
                positions[state] = by_position(network, types, sentences, state=state)
                results[state] = positions[state].all()
            else:
                found = evaluate(network, types, sentences, state=state)
                results[state] = found.over(corpus.n_tokens + corpus.n_sentences) if by_character else found
        rows = [
            ("sentences", f"{corpus.n_sentences:,}"),
            ("tokens", f"{corpus.n_tokens:,}"),
            ("read with", f"--segment {segment} --split {split}"),
            *([("scored by", f"character, {scored.n_tokens:,}; perplexities are per token")] if by_character else []),
            (
                "outside the vocabulary",
                f"{types.unknown_rate():.2%} of the {'characters' if by_character else 'tokens'}, "
                f"counted as {_unknown(model)}",
            ),
            ("softmax", f"{len(network.head.bias):,} words, full"),
            *_perplexities(results),
        ]
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            print(f"{name:<{width}}  {value}")
        if positions:
            print()
            for line in _position_lines(positions):
                print(line)
        if request.sentences is not None:
            _write_sentences(request.sentences, network, types, corpus)
            print(f"wrote {request.sentences}")
    for path in request.by_position:
        if path.suffix.lower() == ".tsv":
            write_table(path, positions)
        else:
            draw_by_position(path, positions, Path(request.model).absolute().name)
        print(f"wrote {path}")


def _perplexities(results: Mapping[StateUse, HeldOut]) -> list[tuple[str, str]]:
    """The last rows of what is printed; with two states each row has both values."""
    words = {"zero": "zero before every sentence", "carry": "carried from sentence to sentence"}
    rows = [("state", ", and ".join(words[state] for state in results))]
    for way in ("forward", "backward", "mean"):
        values = {state: getattr(result, way) for state, result in results.items()}
        if way == "mean" and next(iter(results.values())).backward is None:
            continue
        shown = {state: f"{value:.2f}" for state, value in values.items() if value is not None}
        if shown:
            both = ", ".join(f"{value} {_SHORT[state]}" for state, value in shown.items())
            rows.append((f"{way} perplexity", both if len(results) > 1 else next(iter(shown.values()))))
    if (masked := results["zero"].masked if "zero" in results else None) is not None:
        rows.append(("masked perplexity", f"{masked:.2f} (of {MASKED_SHARE:.0%} of the words, from both sides)"))
    return rows


def _position_lines(positions: Mapping[StateUse, ByPosition]) -> list[str]:
    """An aligned table: perplexity at the start of a sentence and further on, counted from each direction's start."""
    ways = ["forward", "backward"][: len(next(iter(positions.values())).losses)]
    table = [["position", *(f"{way}, {_SHORT[state]}" for way in ways for state in positions), "predictions"]]
    for name, first, last in (("1", 1, 1), ("2-5", 2, 5), ("6-10", 6, 10), ("11+", 11, None), ("all", 1, None)):
        found = {state: measured.between(first, last) for state, measured in positions.items()}
        here = next(iter(found.values()))
        if here is not None:
            values = [getattr(found[state], way) for way in ways for state in positions]
            table.append([name, *map(perplexity, values), f"{here.predictions:,}"])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in table]


def _check_outputs(request: EvalRequest) -> None:
    """What would fail at the end, or cost the user a file, should fail before anything is read."""
    if request.sentences is not None:
        _check_file("--sentences", request.sentences, request)
    for path in request.by_position:
        if path.suffix.lower() not in (".tsv", *SUFFIXES):
            raise ElmoError(f"--by-position must end in .tsv, or in {', '.join(SUFFIXES)} for a picture, got {path}")
        _check_file("--by-position", path, request)
        if path.suffix.lower() != ".tsv":
            check_picture(path, "by_position")
    written = [path.absolute() for path in (*request.by_position, request.sentences) if path is not None]
    if len(set(written)) < len(written):
        twice = next(path for path in written if written.count(path) > 1)
        raise ElmoError(f"each output must be a file of its own, got {twice} twice")


def _check_file(option: str, path: Path, request: EvalRequest) -> None:
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ElmoError(f"{option} must be a file in a folder that exists, got {path}")
    read = [Path(source) for source in (*request.corpus, request.model, request.options, request.vocab) if source]
    for source in (file for given in read for file in (given, *given.glob("*"))):
        if path.exists() and source.exists() and path.samefile(source):
            raise ElmoError(f"{option} must not be a file that is read, got {path}: it would be written over")


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


def _taken_apart(corpus: PreparedCorpus, pieces: CharacterPieces, folder: Path) -> PreparedCorpus:
    """The corpus with the pieces of each token in its place; the corpus itself if every token is one piece."""
    apart = [pieces.of(text) for text in corpus.type_texts()]
    if all(len(of) == 1 for of in apart):
        return corpus
    spans = pairwise(chain([0], corpus.ends.tolist()))
    return PreparedCorpus.from_sentences(
        ([piece for index in corpus.tokens[begin:end].tolist() for piece in apart[index]] for begin, end in spans),
        folder,
    )


def _unknown(model: Checkpoint) -> str:
    assert model.vocab is not None
    return model.vocab.specials[2]


def _write_sentences(path: Path, network: LanguageModelNetwork, types: TypeTable, corpus: PreparedCorpus) -> None:
    """A TSV with a line for each sentence of `corpus`: its number, tokens, perplexities and text."""
    sentences = Sentences(types.corpus)
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, dialect="excel-tab", lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
        table.writerow(["sentence", "tokens", "forward", "backward", "mean", "text"])
        begin = 0
        for row in sentence_losses(network, types, sentences):
            end = int(corpus.ends[row.index])
            text = " ".join(corpus.type_text(int(index)) for index in corpus.tokens[begin:end])
            tokens, begin = end - begin, end
            losses = [row.forward] if row.backward is None else [row.forward, row.backward]
            shown = [f"{perplexity_of(loss / (tokens + 1)):.2f}" for loss in losses]
            mean = f"{perplexity_of(sum(losses) / len(losses) / (tokens + 1)):.2f}"
            table.writerow([row.index + 1, tokens, shown[0], shown[1] if len(shown) > 1 else "", mean, text])
