"""`elmo serve`: what it refuses before it serves."""

import sys

import pytest

from elmokit.cli import main
from elmokit.serve.server import bind


def refused(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["serve", *arguments])
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_a_port_in_use(capsys):
    with bind("127.0.0.1", 0) as taken:
        port = str(taken.getsockname()[1])
        message = refused(capsys, "--port", port)
    assert f"--port {port}" in message


def test_a_model_that_is_not_there(capsys):
    assert "no-such-model" in refused(capsys, "no-such-model", "--port", "0")


def test_a_layer_that_the_model_does_not_have(capsys, model_folder):
    assert "--layer must be" in refused(capsys, str(model_folder), "--port", "0", "--layer", "9")


def test_the_extra_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    for name in [name for name in sys.modules if name.startswith(("starlette", "elmokit.serve."))]:
        if not name.endswith(("settings", "errors")):
            monkeypatch.setitem(sys.modules, name, None) if name.startswith("starlette") else monkeypatch.delitem(
                sys.modules, name
            )
    assert "elmokit[serve]" in refused(capsys, "--port", "0")
