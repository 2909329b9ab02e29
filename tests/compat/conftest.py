"""Models on disk, written once for all tests of a module."""

from __future__ import annotations

from pathlib import Path

import pytest

import elmokit
from elmokit.compat.allennlp import (
    _ElmoBiLm,
)
from elmokit.formats.save import write_checkpoint
from support.allennlp_samples import CONFIGS, checkpoint


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A folder with options.json and weights.hdf5 for each configuration, and one in elmokit's own format."""
    root = tmp_path_factory.mktemp("models")
    for number, config in enumerate(CONFIGS.values()):
        write_checkpoint(checkpoint(config, seed=number), root / str(number), "bilm")
    made = {name: root / str(number) for number, name in enumerate(CONFIGS)}
    elmokit.Elmo(checkpoint()).save(root / "native")
    return made | {"native": root / "native"}


@pytest.fixture(scope="module")
def files(folders) -> tuple[str, str]:
    return str(folders["plain"] / "options.json"), str(folders["plain"] / "weights.hdf5")


@pytest.fixture
def bilm(files) -> _ElmoBiLm:
    return _ElmoBiLm(*files)
