"""install_allennlp: old imports find elmokit's classes, and nothing else is there."""

import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from elmokit import ElmoError
from elmokit.compat import allennlp, install_allennlp


@pytest.fixture
def _clean():
    """A process without allennlp, before and after."""
    before = {name for name in sys.modules if name.split(".")[0] == "allennlp"}
    assert not before
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "allennlp"]:
        del sys.modules[name]


@pytest.mark.usefixtures("_clean")
def test_old_imports_find_our_classes():
    install_allennlp()
    install_allennlp()
    for module, name in (
        ("allennlp.commands.elmo", "ElmoEmbedder"),
        ("allennlp.commands.elmo", "DEFAULT_OPTIONS_FILE"),
        ("allennlp.modules", "Elmo"),
        ("allennlp.modules.elmo", "Elmo"),
        ("allennlp.modules.elmo", "batch_to_ids"),
        ("allennlp.modules.scalar_mix", "ScalarMix"),
        ("allennlp.modules.token_embedders", "ElmoTokenEmbedder"),
        ("allennlp.modules.token_embedders.elmo_token_embedder", "ElmoTokenEmbedder"),
        ("allennlp.common.checks", "ConfigurationError"),
    ):
        assert getattr(import_module(module), name) is getattr(allennlp, name)
    assert find_spec("allennlp.modules.elmo") is not None
    with pytest.raises(ModuleNotFoundError, match=r"allennlp\.data\.fields"):
        import_module("allennlp.data.fields")
    with pytest.raises(ImportError, match="Seq2VecEncoder"):
        exec("from allennlp.modules import Seq2VecEncoder")


@pytest.mark.usefixtures("_clean")
def test_an_installed_allennlp_is_not_replaced(tmp_path, monkeypatch):
    (tmp_path / "allennlp").mkdir()
    (tmp_path / "allennlp" / "__init__.py").write_text("theirs = True\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in ("found on the path", "imported"):
        with pytest.raises(ElmoError, match="uninstall"):
            install_allennlp()
        assert import_module("allennlp").theirs


def test_compat_alone_does_not_import_the_classes():
    code = "import sys, elmokit.compat; print('elmokit.compat.allennlp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
