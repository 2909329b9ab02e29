"""An index of a small corpus by a model whose vectors are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from elmokit.analyse.index import OccurrenceIndex
from elmokit.analyse.index_builder import build_index
from support.topic_model import TopicModel, prepared


@pytest.fixture
def index(tmp_path: Path) -> OccurrenceIndex:
    return build_index(TopicModel(), prepared(tmp_path / "corpus"), tmp_path / "index")
