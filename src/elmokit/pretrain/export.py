"""The end of a run: the trained model as our own folder with its card, and as files that older systems read."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from elmokit import __version__
from elmokit.errors import ElmoError
from elmokit.formats import bilm
from elmokit.formats.card import earlier_section, training_section
from elmokit.formats.save import write_checkpoint
from elmokit.pretrain.setup import Start


def export(
    start: Start, weights: Mapping[str, Tensor], folder: Path, facts: Mapping[str, str], text: Mapping[str, str]
) -> list[str]:
    """Write the model into the run's folder and bilm/ below it; what was written, or why not, in sentences."""
    checkpoint = start.checkpoint(str(folder), weights)
    checkpoint.notes = training_section(facts) + earlier_section(start.notes)
    checkpoint.text = dict(text)
    write_checkpoint(checkpoint, folder)
    said = [f"model: {folder} (Elmo.load opens it)"]
    if checkpoint.config.context.kind not in bilm.FORMAT.contexts:
        return said
    try:
        # Without `text`, which the folder above has: no warning that this format cannot store it.
        write_checkpoint(replace(checkpoint, text={}), folder / "bilm", "bilm")
        said.append(f"for older systems: {folder / 'bilm'}")
    except ElmoError as error:
        said.append(f"no bilm files: {error}")
    return said


def machine(device: torch.device, processes: int) -> str:
    """What a run ran on, for its card."""
    threads = torch.get_num_threads()
    cpu = f"CPU, {threads} thread{'' if threads == 1 else 's'}"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu
    many = f", {processes} processes" if processes > 1 else ""
    return f"{name}{many}; elmokit {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
