"""`elmo eval`: measures the perplexity of a model on unseen text, also by sentence or by position in the sentence."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from elmokit.cli.registry import command
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
)
from elmokit.errors import ElmoError
from elmokit.messages import aligned, perplexity, printable
from elmokit.options import argument, option
from elmokit.progress import ProgressDisplay
from elmokit.text.tokens import SegmenterName

if TYPE_CHECKING:
    import torch

    from elmokit.corpus.prepared import PreparedCorpus
    from elmokit.formats.checkpoint import Checkpoint
    from elmokit.pretrain.evaluate import ByPosition, HeldOutPerplexity, StateUse
    from elmokit.pretrain.network import LanguageModelNetwork
    from elmokit.pretrain.sentences import TypeTable
    from elmokit.text.policy import CharacterPieces

_STATE_NAMES: dict[StateUse, str] = {"zero": "from zero", "carry": "carried"}


@command("eval")
@dataclass(frozen=True, kw_only=True)
class EvalCommand(ModelFileOptions, DeviceOption):
    """Measure perplexity on held-out text: forward, backward and mean, with the full softmax."""

    model: str = argument(MODEL_HELP, "MODEL")
    corpus: tuple[str, ...] = argument(f"{CORPUS_HELP}.", "CORPUS")
    segment: SegmenterName | None = option(None, SEGMENT_HELP, shown=AS_IN_TRAINING)
    split: Split | None = option(None, SPLIT_HELP, shown=AS_IN_TRAINING)
    max_tokens: int = option(1000, "Number of tokens above which a sentence is left out.", least=1)
    state: Literal["zero", "carry", "both"] = option(
        "zero", "LSTM state before a sentence: zero, or carried over from the previous sentence; both measures both."
    )
    sentences: Path | None = option(None, "Also write a table with one line per sentence.", metavar="FILE.tsv")
    by_position: tuple[Path, ...] = option(
        (),
        "Also measure by position in the sentence and write a table (.tsv) or a picture (.png, .svg, .pdf); may be "
        "repeated.",
        metavar="FILE",
    )
    workers: int | None = option(None, "Number of processes that read the text.", least=1, shown="all cores")

    def run(self) -> None:
        """Print forward, backward and mean perplexity, and write the requested tables and pictures."""
        from elmokit.analyse.pictures import draw_by_position
        from elmokit.formats.load import read_checkpoint
        from elmokit.model.placement import choose_device
        from elmokit.pretrain.evaluate import write_table
        from elmokit.text.policy import TextPolicy

        self._check_outputs()
        model = read_checkpoint(self.model, options=self.options, vocab=self.vocab).in_floats()
        text, policy = TextPolicy.of_model(model.text, self.segment, model.where)
        segment, pieces = policy.name_in_files, model.character_pieces(text)
        split = self.split or model.text.get("split", "none")
        network = _network(model, choose_device(self.device))
        if self.state != "zero" and not network.bilm.context.carries_state:
            raise ElmoError(
                f"--state {self.state} needs a model with an LSTM, but {model.where} has the context encoder "
                f"{model.config.context.kind}: leave --state out"
            )
        with tempfile.TemporaryDirectory(prefix="elmo-eval-") as temporary:
            limits = {"max_tokens": self.max_tokens, "workers": self.workers}
            folder = Path(temporary) / "corpus"
            corpus = prepare_and_report(self.corpus, segment=segment, split=split, folder=folder, **limits)
            scored = corpus if pieces is None else _split_into_pieces(corpus, pieces, Path(temporary) / "characters")
            by_character = scored is not corpus
            if by_character and self.by_position:
                raise ElmoError(
                    f"--by-position counts characters for {model.where}, a model of characters, but --segment "
                    f"{segment} gives words: use --segment chars"
                )
            types = _type_table(model, scored)
            results, positions = self._measure(network, types)
            if by_character:
                predictions = corpus.n_tokens + corpus.n_sentences
                results = {state: result.over(predictions) for state, result in results.items()}
            assert model.vocab is not None
            unknown = f"{types.unknown_rate():.2%} of the {'characters' if by_character else 'tokens'}"
            rows = [
                ("sentences", f"{corpus.n_sentences:,}"),
                ("tokens", f"{corpus.n_tokens:,}"),
                ("read with", f"--segment {segment} --split {split}"),
                ("outside the vocabulary", f"{unknown}, counted as {model.vocab.specials[2]}"),
                ("softmax", f"{len(network.head.bias):,} words, full"),
                *_perplexities(results),
            ]
            if by_character:
                rows.insert(3, ("scored by", f"character, {scored.n_tokens:,}; perplexities are per token"))
            print("\n".join(aligned(rows)))
            if positions:
                print("\n".join(["", *_position_lines(positions)]))
            if self.sentences is not None:
                _write_sentences(self.sentences, network, types, corpus)
                print(printable(f"wrote {self.sentences}"))
        for path in self.by_position:
            if path.suffix.lower() == ".tsv":
                write_table(path, positions)
            else:
                draw_by_position(path, positions, Path(self.model).absolute().name)
            print(printable(f"wrote {path}"))

    def _measure(
        self, network: LanguageModelNetwork, types: TypeTable
    ) -> tuple[dict[StateUse, HeldOutPerplexity], dict[StateUse, ByPosition]]:
        """The perplexities for each state and, with --by-position, by position."""
        from elmokit.pretrain.evaluate import by_position, evaluate, masked_perplexity
        from elmokit.pretrain.sentences import Sentences

        sentences, masks = Sentences(types.corpus), network.bilm.context.predicts_masked
        states: list[StateUse] = ["zero", "carry"] if self.state == "both" else [self.state]
        results: dict[StateUse, HeldOutPerplexity] = {}
        positions: dict[StateUse, ByPosition] = {}
        with ProgressDisplay() as display:
            for state in states:
                total = sentences.n_predictions
                display.start(f"scoring the text, state {_STATE_NAMES[state]}", "predictions", total)

                def show(share: float, total: int = total) -> None:
                    display.update(round(share * total))

                if self.by_position:
                    positions[state] = by_position(network, types, sentences, state=state, on_progress=show)
                    results[state] = positions[state].all()
                    if masks:
                        display.start("scoring masked words", "predictions", total)
                        masked = masked_perplexity(network, types, sentences, on_progress=show)
                        results[state] = replace(results[state], masked=masked)
                else:
                    results[state] = evaluate(network, types, sentences, state=state, on_progress=show)
        return results, positions

    def _check_outputs(self) -> None:
        """Check, before anything is read, that all outputs can be written and overwrite no file that is read."""
        from elmokit.plots.style import SUFFIXES, check_picture

        if self.sentences is not None and self.state != "zero":
            raise ElmoError(f"--sentences measures each sentence alone: leave out --state {self.state}")
        reads = (*self.corpus, self.model, self.options, self.vocab)
        if self.sentences is not None:
            check_output_file("sentences", self.sentences, reads)
        for path in self.by_position:
            if path.suffix.lower() not in (".tsv", *SUFFIXES):
                endings = ", ".join(SUFFIXES)
                raise ElmoError(f"--by-position must end in .tsv, or in {endings} for a picture, got {path}")
            check_output_file("by_position", path, reads)
            if path.suffix.lower() != ".tsv":
                check_picture(path, "by_position")
        written = [path.absolute() for path in (*self.by_position, self.sentences) if path is not None]
        if twice := [path for path in written if written.count(path) > 1]:
            raise ElmoError(f"each output must be a file of its own, got {twice[0]} twice")


def _perplexities(results: Mapping[StateUse, HeldOutPerplexity]) -> list[tuple[str, str]]:
    """The rows with the perplexities; with two states each row has both values."""
    from elmokit.model.language_model import MASKED_SHARE

    words = {"zero": "zero before every sentence", "carry": "carried from sentence to sentence"}
    rows = [("state", ", and ".join(words[state] for state in results))]
    for direction in ("forward", "backward", "mean"):
        values = {state: getattr(result, direction) for state, result in results.items()}
        if direction == "mean" and next(iter(results.values())).backward is None:
            continue
        shown = {state: f"{value:.2f}" for state, value in values.items() if value is not None}
        if shown:
            both = ", ".join(f"{value} {_STATE_NAMES[state]}" for state, value in shown.items())
            rows.append((f"{direction} perplexity", both if len(results) > 1 else next(iter(shown.values()))))
    if (masked := results["zero"].masked if "zero" in results else None) is not None:
        rows.append(("masked perplexity", f"{masked:.2f} (of {MASKED_SHARE:.0%} of the words, from both sides)"))
    return rows


def _position_lines(positions: Mapping[StateUse, ByPosition]) -> list[str]:
    """A table of the perplexity by position in the sentence, counted from where each direction starts."""
    directions = ["forward", "backward"][: len(next(iter(positions.values())).losses)]
    table = [
        [
            "position",
            *(f"{direction}, {_STATE_NAMES[state]}" for direction in directions for state in positions),
            "predictions",
        ]
    ]
    for name, first, last in (("1", 1, 1), ("2-5", 2, 5), ("6-10", 6, 10), ("11+", 11, None), ("all", 1, None)):
        found = {state: measured.between(first, last) for state, measured in positions.items()}
        here = next(iter(found.values()))
        if here is not None:
            values = [getattr(found[state], direction) for direction in directions for state in positions]
            table.append([name, *map(perplexity, values), f"{here.predictions:,}"])
    return aligned(table, right=True)


def _network(model: Checkpoint, device: torch.device) -> LanguageModelNetwork:
    from elmokit.model.bilm import BiLM
    from elmokit.model.language_model import LmHead
    from elmokit.pretrain.network import LanguageModelNetwork

    if not model.head:
        raise ElmoError(
            f"{model.where} has no softmax, so it has no perplexity: use a TensorFlow checkpoint or a model trained "
            "with elmokit, which have one"
        )
    if model.vocab is None:
        raise ElmoError(f"{model.where} has a softmax but no vocabulary: give its vocab.txt with --vocab")
    bilm, head = BiLM(model.config), LmHead(*model.head["weight"].shape)
    bilm.load_state_dict(model.weights)
    head.load_state_dict(model.head)
    return LanguageModelNetwork(bilm, head).to(device).eval()


def _type_table(model: Checkpoint, corpus: PreparedCorpus) -> TypeTable:
    from elmokit.pretrain.sentences import TypeTable

    assert model.vocab is not None
    characters = model.config.characters
    return TypeTable(
        corpus,
        model.vocab,
        model.indexer(),
        widest_filter=characters.widest_filter if characters else 0,
        directions=model.config.n_directions,
    )


def _split_into_pieces(corpus: PreparedCorpus, pieces: CharacterPieces, folder: Path) -> PreparedCorpus:
    """The corpus with each token replaced by its pieces; the corpus itself if every token is one piece."""
    from elmokit.corpus.prepared import PreparedCorpus

    pieces_of_types = [pieces.of(text) for text in corpus.type_texts()]
    if all(len(of) == 1 for of in pieces_of_types):
        return corpus
    spans = pairwise(chain([0], corpus.ends.tolist()))
    return PreparedCorpus.from_sentences(
        (
            [piece for index in corpus.tokens[begin:end].tolist() for piece in pieces_of_types[index]]
            for begin, end in spans
        ),
        folder,
    )


def _write_sentences(path: Path, network: LanguageModelNetwork, types: TypeTable, corpus: PreparedCorpus) -> None:
    """Write a TSV file with a line for each sentence of `corpus`: its number, tokens, perplexities and text."""
    from elmokit.pretrain.evaluate import perplexity_of, sentence_losses
    from elmokit.pretrain.sentences import Sentences
    from elmokit.storage.atomic import atomic_file
    from elmokit.tasks.reading import escape_formula

    with (
        ProgressDisplay("each sentence", "sentences", total=corpus.n_sentences) as display,
        atomic_file(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="") as file,
    ):
        table = csv.writer(file, dialect="excel-tab", lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
        table.writerow(["sentence", "tokens", "forward", "backward", "mean", "text"])
        spans = pairwise(chain([0], corpus.ends.tolist()))
        found = zip(spans, sentence_losses(network, types, Sentences(types.corpus)), strict=True)
        for number, ((begin, end), losses) in enumerate(display.count(found), 1):
            text = " ".join(corpus.type_text(int(index)) for index in corpus.tokens[begin:end])
            shown = [f"{perplexity_of(loss / (end - begin + 1)):.2f}" for loss in losses]
            mean = f"{perplexity_of(sum(losses) / len(losses) / (end - begin + 1)):.2f}"
            table.writerow([number, end - begin, *shown, *[""] * (2 - len(shown)), mean, escape_formula(text)])
