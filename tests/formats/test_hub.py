"""Models on the Hugging Face Hub: against a stand-in for its package, and against the package's own cache."""

import doctest
import json
import logging
import os
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

from elmokit import Elmo
from elmokit.compat import tfhub
from elmokit.compat.allennlp import ElmoEmbedder
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats import bundled
from elmokit.formats.bundled import Repository, download, repository_of, resolve_model
from support.model_files import make_bilm, run, write_tensorflow

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class RepositoryNotFoundError(OSError):
    """The package's errors, by their names."""


class GatedRepoError(RepositoryNotFoundError):
    pass


class RevisionNotFoundError(OSError):
    pass


class HFValidationError(ValueError):
    pass


class LocalEntryNotFoundError(FileNotFoundError):
    pass


class ConnectError(Exception):
    """As httpx raises it, which is no OSError."""


class FakeHub(ModuleType):
    """A package whose snapshot_download records what it is asked, and answers as the test says."""

    def __init__(self, folder) -> None:
        super().__init__("huggingface_hub")
        self.folder, self.asked = folder, []
        self.error: Exception | None = None
        self.cached = False

    def snapshot_download(self, **arguments) -> str:
        self.asked.append(arguments)
        if self.error is None or (arguments["local_files_only"] and self.cached):
            return str(self.folder)
        if arguments["local_files_only"]:
            raise LocalEntryNotFoundError("nothing in the cache\nand more about it")
        raise self.error


@pytest.fixture
def fake(model_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", found := FakeHub(model_folder))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(model_folder.parent)
    download.cache_clear()
    yield found
    download.cache_clear()


def refused(model: str) -> str:
    with pytest.raises(ElmoError) as caught:
        Elmo.load(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_examples_in_the_docstrings():
    assert doctest.testmod(bundled).failed == 0


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("someone/elmo-is", Repository("someone/elmo-is")),
        ("some.one/Elmo_2.0", Repository("some.one/Elmo_2.0")),
        ("someone/elmo@v1.0", Repository("someone/elmo", "v1.0")),
        ("someone/elmo@refs/pr/3", Repository("someone/elmo", "refs/pr/3")),
        ("hf://someone/elmo", Repository("someone/elmo")),
        (f"hf://someone/elmo@{COMMIT}", Repository("someone/elmo", COMMIT)),
        ("hf://someone/elmo.zip", Repository("someone/elmo.zip")),
    ],
)
def test_names_of_models(path, expected):
    assert repository_of(path) == expected


@pytest.mark.parametrize(
    "path",
    [
        *("en", "elmo", "", ".", "./elmo", "../elmo", "~/elmo", "/models/elmo", "a/b/c", "a//b", "elmo/", "/elmo"),
        *(
            "folder/weights.hdf5",
            "folder/model.ZIP",
            "folder/options.json",
            "a b/c",
            "a/b@",
            "a/b@x y",
            "a\\b",
            "a/b\n",
        ),
    ],
)
def test_paths_that_can_be_no_name(path):
    assert repository_of(path) is None


@pytest.mark.parametrize("path", ["hf://", "hf://elmo", "hf://a/b/c", "hf://a/b@", "hf:///a/b"])
def test_addresses_that_are_none(path, fake):
    assert refused(path) == f"a model on the Hub is hf://owner/name or hf://owner/name@revision, got {path}"
    assert not fake.asked


def test_a_model_is_fetched_and_opened(fake, model_folder):
    elmo = Elmo.load("someone/elmo", device="cpu")
    assert np.array_equal(elmo.encode("the bank")[0], Elmo.load(model_folder, device="cpu").encode("the bank")[0])
    assert elmo.perplexity("the bank") > 1
    [asked] = fake.asked
    assert (asked["repo_id"], asked["revision"], asked["local_files_only"]) == ("someone/elmo", None, False)
    assert {"*.json", "model.safetensors", "lm_head.safetensors", "vocab.txt"} <= set(asked["allow_patterns"])
    assert asked["ignore_patterns"] == ["*/*"]
    assert "token" not in asked  # the package finds it
    assert "cache_dir" not in asked


def test_a_process_asks_once(fake):
    for _ in range(2):
        Elmo.load("someone/elmo", device="cpu")
        Elmo.load("someone/elmo@v2", device="cpu")
    assert [asked["revision"] for asked in fake.asked] == [None, "v2"]


def test_everything_that_a_format_reads_is_fetched(tmp_path, model_folder):
    from fnmatch import fnmatch

    for folder in (model_folder, write_tensorflow(tmp_path / "tf", make_bilm(softmax=True))):
        for file in folder.iterdir():
            assert any(fnmatch(file.name, pattern) for pattern in bundled.file_patterns()), file
    for name in ("pytorch_model.bin", "model-00001-of-00002.safetensors", "tokenizer.model", "code.py", "a.pkl"):
        assert not any(fnmatch(name, pattern) for pattern in bundled.file_patterns()), name


def test_a_path_goes_before_a_name(fake, make_elmo, tmp_path):
    make_elmo(head=False).save(tmp_path / "someone" / "elmo")
    assert Elmo.load("someone/elmo", device="cpu").head is None
    write_tensorflow(tmp_path / "runs", make_bilm())
    assert Elmo.load("runs/model.ckpt-7", device="cpu").kind == "tensorflow"
    assert not fake.asked
    assert Elmo.load("hf://someone/elmo", device="cpu").head is not None
    with pytest.raises(ElmoError, match="does not exist; a model is"):
        Elmo.load(tmp_path / "someone" / "other")
    assert len(fake.asked) == 1


def test_every_command_takes_one(fake, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("the bank of the river\nmoney .\n" * 20)
    assert run("info", "someone/elmo") == 0
    assert run("embed", "the bank", "--model", "hf://someone/elmo@v1") == 0
    assert run("eval", "someone/elmo@v2", tmp_path / "text.txt") == 0
    assert run("convert", "hf://someone/elmo@v3", tmp_path / "copy") == 0
    train = ("--output", tmp_path / "run", "--init", "hf://someone/elmo@v4", "--steps", 1, "--batch-size", 2)
    assert run("train", tmp_path / "text.txt", *train, "--window", 4) == 0
    assert [asked["revision"] for asked in fake.asked] == [None, "v1", "v2", "v3", "v4"]
    assert Elmo.load(tmp_path / "copy", device="cpu").head is not None
    capsys.readouterr()


def test_other_ways_in(fake, model_folder):
    assert resolve_model("someone/elmo") == model_folder
    expected = Elmo.load(model_folder, device="cpu").encode([["a", "bank"]], output="layers")[0]
    for name in ("someone/elmo", "hf://someone/elmo@v2"):
        assert tfhub.Module(name, device="cpu")(["a bank"]).shape == (1, expected.shape[-1])
        np.testing.assert_allclose(ElmoEmbedder(weight_file=name).embed_sentence(["a", "bank"]), expected, atol=1e-6)


def test_scikit_learn_loads_a_model_once(fake, model_folder):
    pytest.importorskip("sklearn")
    from elmokit.integrations.models import forget_models as forget
    from elmokit.integrations.models import open_model

    forget()
    assert open_model(model_folder, "cpu") is open_model("someone/elmo", "cpu")
    forget()


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (RepositoryNotFoundError("404 Client Error.\n\nmore"), "someone/elmo@v2 does not exist, neither as a path nor"),
        (GatedRepoError("403"), "accept its terms at https://huggingface.co/someone/elmo and set HF_TOKEN"),
        (RevisionNotFoundError("404"), "someone/elmo on the Hugging Face Hub has no revision v2"),
        (HFValidationError("no id"), "does not exist, neither as a path nor"),
        (ConnectError("[Errno -2] Name or service not known\nmore"), "from the Hugging Face Hub ([Errno -2] Name or"),
        (TimeoutError(), "(TimeoutError): check the name and the connection"),
    ],
)
def test_what_goes_wrong_is_one_sentence(fake, error, fact, capsys):
    fake.error = error
    assert fact in refused("someone/elmo@v2")
    assert run("info", "someone/elmo@v2") == 2
    message = capsys.readouterr().err
    assert fact in message
    assert message.count("\n") == 1
    assert "Traceback" not in message


def test_a_failure_is_not_remembered(fake):
    fake.error = ConnectError("down")
    refused("someone/elmo")
    fake.error = None
    assert Elmo.load("someone/elmo", device="cpu").head is not None


def test_without_a_connection_the_copy_in_the_cache_is_used(fake, caplog):
    fake.error, fake.cached = ConnectError("down"), True
    with caplog.at_level(logging.WARNING):
        assert Elmo.load("someone/elmo", device="cpu").head is not None
    assert "the Hub cannot be reached (down): someone/elmo is the copy in the cache" in caplog.text
    assert [asked["local_files_only"] for asked in fake.asked] == [False, True]


def test_a_model_that_is_gone_from_the_hub_is_not_taken_from_the_cache(fake):
    fake.error, fake.cached = RepositoryNotFoundError("404"), True
    assert "does not exist" in refused("someone/elmo")


def test_offline_and_not_in_the_cache(fake, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fake.error = LocalEntryNotFoundError("outgoing traffic has been disabled")
    assert refused("someone/elmo").endswith(
        "nor complete in the cache of the Hugging Face Hub: unset HF_HUB_OFFLINE to fetch it"
    )


def test_without_the_package(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.chdir(tmp_path)
    download.cache_clear()
    with pytest.raises(MissingExtraError):
        Elmo.load("someone/elmo")
    assert run("info", "someone/elmo") == 2
    message = capsys.readouterr().err
    assert message.startswith("elmo: someone/elmo does not exist as a path, and")
    assert message.endswith("needs the package huggingface_hub: pip install 'elmokit[hub]'\n")


def test_a_repository_of_another_kind(fake, tmp_path):
    fake.folder = tmp_path / "bert"
    fake.folder.mkdir()
    (fake.folder / "config.json").write_text('{"model_type": "bert"}')
    (fake.folder / "model.safetensors").write_bytes(b"")
    assert "config.json does not describe an ELMo model: format must be elmokit, got None" in refused("someone/other")


SCRIPT = """
import json, sys
from elmokit import Elmo
from elmokit.errors import ElmoError
answers = {}
for name in sys.argv[1:]:
    try:
        answers[name] = Elmo.load(name, device="cpu").where
    except ElmoError as error:
        answers[name] = str(error)
print(json.dumps(answers))
"""


@pytest.mark.parametrize("way", ["offline", "no connection", "HF_HUB_CACHE"])
def test_the_packages_own_cache(make_elmo, tmp_path, way):
    """As a user has it after a download: refs name a commit, snapshots hold its files."""
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    repository = tmp_path / "home" / "hub" / "models--someone--elmo"
    snapshot = repository / "snapshots" / COMMIT
    make_elmo(head=True).save(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    there, missing = ["someone/elmo", "hf://someone/elmo"], ["someone/elmo@v9", "someone/other"]
    if way != "no connection":  # with a commit for a revision, the package tries again and again
        there.append(f"someone/elmo@{COMMIT}")
    given = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    if way == "no connection":
        given |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:1", "no_proxy": "127.0.0.1"}
    elif way == "HF_HUB_CACHE":
        given |= {"HF_HOME": str(tmp_path / "nothing"), "HF_HUB_CACHE": str(tmp_path / "home" / "hub")}
    stored = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, *there, *missing],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**stored, **given},
    )
    assert result.returncode == 0, result.stderr
    answers = json.loads(result.stdout)
    for name in there:
        assert answers[name] == str(snapshot / "model.safetensors")
    fact = "could not be fetched" if way == "no connection" else "unset HF_HUB_OFFLINE to fetch it"
    for name in missing:
        assert fact in answers[name]
        assert "\n" not in answers[name]
