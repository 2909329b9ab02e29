"""Measures cells of the table: a task, its inputs and seeds → scores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

import torch
from rows import Row, read_rows
from sources import BertAsElmo, StaticSource, is_bert

from elmokit import Elmo
from elmokit.analyse.probes.pos import probe_pos
from elmokit.analyse.probes.sources import LayerSource, evenly, source_of
from elmokit.analyse.probes.wic import probe_wic, read_wic
from elmokit.analyse.probes.wsd import WordNet, probe_wsd, read_evaluation, read_semcor
from elmokit.errors import ElmoError
from elmokit.tasks import TaskOptions, read_pairs, read_tagged, read_texts
from elmokit.tasks.scores import TaskScores
from elmokit.tasks.static import glove
from elmokit.tasks.task import Example

Input = Literal["elmo", "layer0", "static"]
"""The mix of all layers, layer 0, or no ELMo. A head adds its default static vectors to each, in English GloVe."""


@dataclass(frozen=True)
class Setting:
    """The options that all cells of a run share; it is sent to the worker processes."""

    models: dict[str, str]
    """Language → model."""
    data: Path
    split: Literal["dev", "test"]
    wordnet: Path | None
    limit: int | None
    device: str | None
    threads: int
    cache: Path
    table: Path


@dataclass(frozen=True)
class Unit:
    """A unit of work: the scores of one task for some inputs and seeds."""

    task: str
    inputs: tuple[Input, ...]
    seeds: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    """Options of a head that replace those of the row."""


@dataclass(frozen=True)
class Score:
    """One score of the table."""

    task: str
    input: Input
    seed: int
    value: float
    seconds: float
    details: dict[str, Any]


def run_unit(unit: Unit, setting: Setting) -> list[Score]:
    """Compute the scores of a unit."""
    torch.set_num_threads(min(torch.get_num_threads(), setting.threads))  # OMP_NUM_THREADS may have set fewer
    row = read_rows(setting.table)[unit.task]
    files = row.files(setting.data, setting.split)
    start = time.perf_counter()
    values = _probe(row, unit, files, setting) if row.is_probe else _head(row, unit, files, setting)
    seconds = (time.perf_counter() - start) / len(values)
    return [Score(unit.task, name, seed, value, round(seconds, 1), details) for name, seed, value, details in values]


Values = list[tuple[Input, int, float, dict[str, Any]]]


def _probe(row: Row, unit: Unit, files: dict[str, list[Path]], setting: Setting) -> Values:
    """The scores of a probe; one pass gives those of all layers."""
    [train], measured = files["train"], files["measured"]
    source: LayerSource
    if unit.inputs == ("static",):
        source = StaticSource(*glove())
    else:
        source = source_of(_elmo(setting.models[row.language], setting.device))
    if row.kind == "pos":
        tagged = evenly(_tagged(train), setting.limit), [example for path in measured for example in _tagged(path)]
        result = probe_pos(source, *tagged, seeds=unit.seeds, folder=_folder(setting))
        names: dict[Input, str] = {"elmo": "mix", "layer0": "0", "static": "static"}
        values: Values = []
        for number, seed in enumerate(unit.seeds):
            accuracy = {layer: runs[number] for layer, runs in result.runs.items()}
            details = {"by layer": accuracy, "most frequent tag": result.baseline}
            values += [(name, seed, accuracy[names[name]], details) for name in unit.inputs]
        return values
    if row.kind == "wsd":
        first = None if setting.wordnet is None else WordNet(setting.wordnet).first_sense
        senses = [sentence for path in measured for sentence in read_evaluation(path)]
        found = probe_wsd(source, read_semcor(train, setting.limit), senses, first_sense=first)
        scores = {layer: score.f1 for layer, score in found.nearest.items()}
        details = {"by layer": scores, **asdict(found)}
    else:
        pairs = [pair for path in measured for pair in read_wic(path)]
        likeness = probe_wic(source, evenly(read_wic(train), setting.limit), pairs)
        # The regression learns to weigh the layers, like the mix in a task's network.
        scores = likeness.logistic
        details = {"by layer": likeness.accuracy, **asdict(likeness)}
    names = {"elmo": "all" if row.kind == "wic" else "mean", "layer0": "0", "static": "static"}
    return [(name, unit.seeds[0], scores[names[name]], details) for name in unit.inputs]


def _head(row: Row, unit: Unit, files: dict[str, list[Path]], setting: Setting) -> Values:
    """The scores of a network of elmokit.tasks, trained for each input and seed."""
    from elmokit.tasks import fit

    segment = _segment(row, setting)
    read = ([e for path in files[name] for e in _examples(row, path, segment)] for name in files)
    train, dev, measured = row.divided(*read)
    train = evenly(train, setting.limit)
    values: Values = []
    for name in unit.inputs:
        for seed in unit.seeds:
            options = TaskOptions(**{**row.options, **_INPUT_OPTIONS[name], **unit.options, "seed": seed})
            fitted = fit(
                row.kind,
                train,
                dev,
                options,
                elmo=None if options.elmo == "none" else _elmo(setting.models[row.language], setting.device),
                cache=_folder(setting),
                device=setting.device,
            )
            scores = fitted.scores if setting.split == "dev" else fitted.model.score(measured)
            values.append(
                (name, seed, score_of(row, scores), {"epochs": len(fitted.history), "best epoch": fitted.epoch})
            )
    return values


_INPUT_OPTIONS: dict[Input, dict[str, Any]] = {
    "elmo": {"elmo": "mix"},
    "layer0": {"elmo": "0"},
    "static": {"elmo": "none", "elmo_output": False, "fine_tune": False},
}


def score_of(row: Row, scores: TaskScores) -> float:
    """The score by the row's metric, which must be the one that training used to choose the epoch."""
    if scores.main.name != row.metric:
        raise ElmoError(f"the metric of {row.name} must be {scores.main.name}, got {row.metric}: correct tasks.toml")
    return scores.main.value


def _examples(row: Row, path: Path, segment: Any) -> Sequence[Example]:  # noqa: ANN401 - a segmenter's name
    if row.kind == "classify":
        return read_texts(path, segment=segment, **row.columns)
    if row.kind == "pair":
        return read_pairs(path, segment=segment, **row.columns)
    return _tagged(path)


@cache
def _tagged(path: Path) -> list[Any]:
    return read_tagged(path)


def _segment(row: Row, setting: Setting) -> str:
    """The segmenter for a row: the model's own for Chinese; English texts are tokenised already, except pairs."""
    if row.language == "zh":
        return _elmo(setting.models["zh"], setting.device).segment
    return "english" if row.kind == "pair" else "none"


@cache
def _elmo(path: str, device: str | None) -> Elmo:
    """The model; a BERT-like model is wrapped with the part of Elmo's interface that frozen heads use."""
    return cast("Elmo", BertAsElmo(Path(path), device)) if is_bert(path) else Elmo.load(path, device=device)


def _folder(setting: Setting) -> Path:
    setting.cache.mkdir(parents=True, exist_ok=True)
    return setting.cache
