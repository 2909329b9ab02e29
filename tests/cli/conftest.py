"""Fixtures for the commands."""

from pathlib import Path

import pytest

from support.command_line import TEXT


@pytest.fixture(autouse=True)
def _no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not make a command show its progress; tests of progress set the time to 0."""
    monkeypatch.setattr("elmokit.progress._FIRST_SECONDS", 3600)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(TEXT) + "\n", encoding="utf-8")
    return path
