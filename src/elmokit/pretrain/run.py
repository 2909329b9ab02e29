"""A complete training run: corpus → vocabulary → network → training → a model that `Elmo.load` opens."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit import __version__
from elmokit.corpus.prepare import find_prepared
from elmokit.corpus.prepared import PreparedCorpus, read_description
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats import bilm
from elmokit.formats.card import earlier_section, training_section
from elmokit.formats.load import read_checkpoint
from elmokit.formats.save import write_checkpoint
from elmokit.messages import counted, duration, perplexity
from elmokit.model.placement import choose_device
from elmokit.pretrain.checkpoints import RunFolder
from elmokit.pretrain.curve import draw_curve
from elmokit.pretrain.distributed import Processes, process_group
from elmokit.pretrain.loop import Training, held_out_state
from elmokit.pretrain.metrics import RunRecorder
from elmokit.pretrain.recipe import Recipe, make_recipe, read_config
from elmokit.pretrain.request import TrainRequest, resolve_request, store_request
from elmokit.pretrain.setup import Say, Start, completed_recipe, corpora, data_of, start_of
from elmokit.pretrain.updates import estimated_cost


def run_training(request: TrainRequest, report: Say = lambda _: None) -> int:
    """Train to the end or a signal, export the model, and return the exit status: 0, or 128 + the signal.

    `report` is called with each line of text for the user.
    """
    with process_group(request.device) as processes, ExitStack() as stack:
        folder = RunFolder(request.output)
        if processes.first:
            stack.enter_context(folder.locked())
        say = report if processes.first else lambda _: None
        before = Recipe(**folder.read_request()["recipe"]) if folder.started else None
        request, recipe = resolve_request(request, folder)
        if not before:
            recipe = _with_known_text_options(request, recipe, say)
        for item in fields(recipe) if before else ():
            if (old := getattr(before, item.name)) != (new := getattr(recipe, item.name)):
                say(f"changed: {item.name} {old} → {new}")
        processes.wait()  # all processes must have read the folder before the first one writes to it
        return _train(request, recipe, folder, processes, say)


def _with_known_text_options(request: TrainRequest, recipe: Recipe, say: Say) -> Recipe:
    """The recipe with the `segment` and `split` of the prepared corpus or the model of `init`, unless given."""
    text: Mapping[str, Any]
    named: Mapping[str, Any] = {}
    if prepared := find_prepared(request.corpus):
        text, name = read_description(prepared)["settings"], prepared.name
    elif request.init is not None:
        text, name = read_checkpoint(request.init, options=request.init_options).text, request.init.name
        named = {**({} if request.config is None else read_config(request.config)), **request.changes}
    else:
        return recipe
    usual = {name: text[name] for name in ("segment", "split") if name in text and name not in named}
    changed: dict[str, Any] = {name: value for name, value in usual.items() if value != getattr(recipe, name)}
    if changed:
        shown = ", ".join(f"{name} {value}" for name, value in changed.items())
        say(f"text: read as the text of {name} was: {shown}")
    return replace(recipe, **changed)


def _train(request: TrainRequest, recipe: Recipe, folder: RunFolder, processes: Processes, say: Say) -> int:
    device = choose_device(_device(request.device, processes))
    corpus, heldout = corpora(request, recipe, folder, processes, say)
    start = start_of(request, recipe, corpus)
    for line in start.messages:
        say(line)
    recipe = completed_recipe(recipe, start, corpus, device, processes.count)
    data = data_of(recipe, start, corpus, heldout)
    training = Training(recipe, start.network, data, folder, device=device, processes=processes, slots=start.slots)
    snapshot = folder.latest(say)
    if snapshot is not None:
        training.restore(snapshot)
        say(f"continuing from step {training.progress.step:,}")
        steps = training.objective.n_steps
        if steps and steps < training.progress.step:
            raise ElmoError(
                f"the run is at update {training.progress.step:,} already, and {steps:,} were requested: "
                "give more steps or epochs",
                "steps",
                "epochs",
            )
    if processes.broadcast(training.progress.step) != training.progress.step:
        raise ElmoError(f"output {folder.folder} must be one folder that all machines share", "output")
    if processes.first:
        store_request(request, recipe, folder, {"corpus": corpus, "heldout": heldout}, start.vocab)
    _describe(training, say)
    with RunRecorder(
        folder if processes.first else None,
        training.progress,
        training.objective.total,
        tensorboard=request.tensorboard,
    ) as training.recorder:
        for missed in training.unwritten:
            training.recorder.record(missed)
        stopped = training.run()
    if processes.first and training.progress.step:
        _finish(request, training, start, corpus, heldout, say)
    if stopped:
        say(f"stopped at step {training.progress.step:,}; resume to continue from here")
    processes.wait()  # as soon as one process ends, torchrun ends the first one, which may still be writing
    return 128 + stopped if stopped else 0


def _device(asked: str | None, processes: Processes) -> str | None:
    """The device of this process: each process of a machine gets its own GPU."""
    if asked not in (None, "cuda") or not torch.cuda.is_available():
        return asked
    return f"cuda:{processes.local_rank % torch.cuda.device_count()}"


def _describe(training: Training, say: Say) -> None:
    """Report the network, its dtype, softmax and device, and the length of the run."""
    recipe, network = training.recipe, training.updates.network
    parameters = sum(parameter.numel() for parameter in network.parameters())
    softmax = f"sampled softmax ({recipe.negatives:,} of " if training.updates.sampled else "full softmax ("
    steps = training.objective.n_steps
    minutes = f"{recipe.minutes:g} minute{'' if recipe.minutes == 1 else 's'}" if recipe.minutes else ""
    length = " or ".join(filter(None, [counted(steps, "update") if steps else "", minutes]))
    say(
        f"network: {parameters:,} parameters, {softmax}{len(network.head.bias):,} words), {recipe.optimizer}, "
        f"{str(training.updates.precision).removeprefix('torch.')} on {training.device}"
    )
    if training.device.type == "cpu" and (advice := _cpu_advice(training)):
        say(advice)
    say(f"training: {length}, {training.objective.describe()}")
    if training.data.heldout is None:
        say("no text is held out, so no perplexity on unseen text is measured: give some with heldout")


def _cpu_advice(training: Training) -> str:
    """A line about the cost of the softmax on a CPU, with advice to make updates faster; empty if it is cheap."""
    updates, recipe = training.updates, training.recipe
    rest, full, sampled = estimated_cost(recipe, updates.network)
    share, times = full / (rest + full), f"{(rest + full) / (rest + sampled):.1f} x"
    if updates.sampled:
        return f"softmax: sampled, because the full one would take {times} as long"
    if share < 1 / 3:
        return ""
    remedies = (
        [f"loss sampled ({times})"] if recipe.negatives < len(updates.network.head.bias) and sampled < full else []
    )
    others = " or ".join(["a smaller vocab_size", *remedies])
    return f"softmax: about {share:.0%} of the time of an update; {others} would make it faster"


def _finish(
    request: TrainRequest,
    training: Training,
    start: Start,
    corpus: PreparedCorpus,
    heldout: PreparedCorpus | None,
    say: Say,
) -> None:
    """Export the best weights, or the last ones of a run that was stopped; draw the curve; report the result."""
    folder, progress = training.folder, training.progress
    best = None
    if training.ended or training.diverged:
        try:
            best = folder.best()
        except ElmoError as error:
            say(f"{error}: the model has the last weights")
    weights = best.part("network") if best else training.updates.network.state_dict()
    measured = best.facts["heldout"] if best else None
    facts = _facts(request, training, start, corpus, heldout, measured)
    text = {"segment": training.recipe.segment, "split": training.recipe.split}
    for line in _export(start, weights, folder.folder, facts, text):
        say(line)
    try:
        draw_curve(folder.metrics, folder.folder / "curve.png")
        say(f"curve: {folder.folder / 'curve.png'}")
    except MissingExtraError as error:
        say(f"no curve: {error}")
    early = ", stopped early" if progress.stopped_early else ""
    result = f"held-out perplexity {perplexity(measured['mean'])} at step {progress.best_step:,}" if measured else ""
    if measured and measured.get("masked"):
        result += f", masked words {perplexity(measured['masked'])}"
    end = "done" if training.ended else f"this leg ends at {training.share:.2%} of the run; resume to continue it"
    if training.stop_signals.signal:
        end = f"stopped at {training.share:.2%} of the run"
    updates, result = counted(progress.step, "update"), f"; {result}" if result else ""
    say(f"{end}: {updates} in {duration(progress.seconds)}{early}{result}")


def _export(
    start: Start, weights: Mapping[str, Tensor], folder: Path, facts: Mapping[str, str], text: Mapping[str, str]
) -> list[str]:
    """Write the model to the run's folder, and to bilm/ in it if possible; returns lines about what was written."""
    checkpoint = start.checkpoint(str(folder), weights)
    checkpoint.notes = training_section(facts) + earlier_section(start.notes)
    checkpoint.text = dict(text)
    write_checkpoint(checkpoint, folder)
    lines = [f"model: {folder} (Elmo.load opens it)"]
    if checkpoint.config.context.kind not in bilm.FORMAT.contexts:
        return lines
    try:
        # Without `text`, which the run's folder stores: otherwise a warning says that this format cannot store it.
        write_checkpoint(replace(checkpoint, text={}), folder / "bilm", "bilm")
        lines.append(f"for older systems: {folder / 'bilm'}")
    except ElmoError as error:
        lines.append(f"no bilm files: {error}")
    return lines


def _machine(device: torch.device, processes: int) -> str:
    """The machine and software of a run, for its model card."""
    cpu = f"CPU, {counted(torch.get_num_threads(), 'thread')}"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    count = f", {processes} processes" if processes > 1 else ""
    return f"{name}{count}; elmokit {__version__}, torch {torch.__version__}, Python {platform.python_version()}"


def _facts(
    request: TrainRequest,
    training: Training,
    start: Start,
    corpus: PreparedCorpus,
    heldout: PreparedCorpus | None,
    measured: Mapping[str, Any] | None,
) -> dict[str, str]:
    """The facts about the training for the model card."""
    recipe, progress = training.recipe, training.progress
    sources = ", ".join(Path(source).name or source for source in request.corpus)
    epochs = progress.predictions / max(1, training.data.sentences.n_predictions)
    usual = make_recipe(preset=request.preset, recipe=request.recipe, changes={"context": recipe.context})
    chosen = {
        f.name: getattr(recipe, f.name) for f in fields(recipe) if getattr(recipe, f.name) != getattr(usual, f.name)
    }
    messages = "; ".join(start.messages)
    if request.init and start.where:
        messages = messages.replace(start.where, request.init.name)  # the card is published: no paths of this machine
    shape = f"the shape of {request.init.name}" if request.init else f"preset {request.preset or 'small'}"
    processes, rate = training.processes.count, f"{recipe.learning_rate:g}"
    if progress.fall_backs:
        rate += f" ({progress.rate_factor * recipe.learning_rate:g} after going back to the best checkpoint)"
    facts = {
        "data": f"{sources}; {'; '.join(corpus.report.lines())}",
        "start": (f"from {request.init.name}; {messages}" if request.init else messages),
        "seen": f"{progress.predictions:,} tokens in {progress.step:,} updates, {epochs:.2f} epochs",
        "recipe": f"{shape}, recipe {request.recipe or 'modern'}"
        + "".join(f", {name} {value}" for name, value in chosen.items()),
        "updates": f"{recipe.optimizer} at {rate}, gradients clipped at {recipe.clip_norm:g}, "
        f"{training.objective.describe()}, dropout {recipe.dropout:g}",
        **training.objective.facts(),
        "time": duration(progress.seconds),
        "machine": _machine(training.device, processes),
        "command": training.folder.read_request()["command"],
    }
    if measured:
        types, sentences = training.data.heldout_types, training.data.heldout
        assert types is not None
        where = "held-out files" if heldout is not None else "sentences held out of the corpus"
        state = "each sentence from a zero state" if held_out_state(recipe) == "zero" else "the state carried on"
        facts["perplexity"] = (
            f"{measured['mean']:.2f} (forward {measured['forward']:.2f}"
            + (f", backward {measured['backward']:.2f}" if measured["backward"] else "")
            + (f", masked words {measured['masked']:.2f}" if measured.get("masked") else "")
            + f") over {measured['predictions']:,} predictions of {where}, {state}, full softmax over "
            f"{len(start.vocab):,} words, {types.unknown_rate(sentences):.2%} of their tokens outside the vocabulary"
        )
    return facts
