"""Fixtures for the commands."""

from pathlib import Path

import pytest

from support.command_line import TEXT


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(TEXT) + "\n", encoding="utf-8")
    return path
