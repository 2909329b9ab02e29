"""The registry of formats: what is in it, and a format from outside the package that is used end to end."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit import Elmo, ElmoConfig
from elmokit.cli import main
from elmokit.errors import ElmoError
from elmokit.formats import Format, ModelFiles, formats, register_format, unregister_format
from elmokit.formats.bundled import file_patterns
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.load import detect, read_checkpoint
from elmokit.formats.source import Source, read_text
from elmokit.text.vocab import Vocabulary
from support.model_files import make_bilm, make_manylangs, refusal, write_bilm, write_hdf5, write_manylangs, write_zip

ROOT = Path(__file__).parents[2]
OURS = ["elmokit", "manylangs", "tensorflow", "bilm", "tokens"]


# A format as a user of the package writes it: a JSON text with all weights, in a folder.


def detect_toy(source: Source, name: str | None) -> str | None:
    if name not in (None, "toy.txt") or "toy.txt" not in source.names():
        return None
    return "toy.txt" if read_text(source, "toy.txt").startswith("toy 1\n") else None


def read_toy(files: ModelFiles) -> Checkpoint:
    values = json.loads(read_text(files.source, files.main).removeprefix("toy 1\n"))
    return Checkpoint(
        ElmoConfig.from_dict(values["config"]),
        {name: torch.tensor(value, dtype=torch.float32) for name, value in values["weights"].items()},
        kind=files.format.name,
        where=files.where,
        vocab=None if values["words"] is None else Vocabulary(values["words"]),
    )


def write_toy(checkpoint: Checkpoint, folder: Path) -> None:
    checkpoint = checkpoint.in_floats()
    values = {
        "config": checkpoint.config.to_dict(),
        "weights": {name: value.float().tolist() for name, value in sorted(checkpoint.weights.items())},
        "words": None if checkpoint.vocab is None else list(checkpoint.vocab),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy.txt").write_text("toy 1\n" + json.dumps(values), encoding="utf-8")


TOY = Format("toy", "a toy folder (toy.txt)", detect_toy, read_toy, write_toy, files=("toy.txt",))


@pytest.fixture
def toy():
    register_format(TOY)
    yield TOY
    unregister_format("toy")


@pytest.fixture
def toy_folder(toy, make_elmo, tmp_path):
    make_elmo().save(tmp_path / "toy", format="toy")
    return tmp_path / "toy"


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(map(str, arguments)))
    return stop.value.code or 0


def names() -> list[str]:
    return [format.name for format in formats()]


@pytest.mark.parametrize("name", ["", "toy.txt"])
def test_a_format_from_outside_is_detected_and_read(toy_folder, make_elmo, name):
    elmo = Elmo.load(toy_folder / name)
    assert (elmo.kind, elmo.where) == ("toy", str(toy_folder / "toy.txt"))
    sentence = ["the", "river", "bank"]
    assert np.array_equal(elmo.encode([sentence])[0], make_elmo().encode([sentence])[0])


def test_a_format_from_outside_in_a_zip_and_in_int8(toy_folder, tmp_path):
    assert read_checkpoint(write_zip(tmp_path / "toy.zip", toy_folder)).kind == "toy"
    expected = read_checkpoint(toy_folder).in_int8()
    found = read_checkpoint(toy_folder, int8=True)  # its reader knows nothing of int8
    assert found.int8
    assert all(torch.equal(value, expected.weights[name]) for name, value in found.weights.items())


def test_a_format_from_outside_on_the_command_line(toy_folder, tmp_path, capsys):
    assert run("info", toy_folder) == 0
    assert ["format", "toy"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert run("convert", toy_folder, tmp_path / "ours") == 0
    assert run("convert", tmp_path / "ours", tmp_path / "again", "--to", "toy") == 0
    assert (tmp_path / "again" / "toy.txt").read_bytes() == (toy_folder / "toy.txt").read_bytes()
    assert Elmo.load(tmp_path / "ours").kind == "elmokit"
    assert Elmo.load(tmp_path / "again").kind == "toy"
    capsys.readouterr()


def test_a_format_from_outside_is_named_like_our_own(toy, tmp_path, capsys):
    assert "a toy folder (toy.txt)" in refusal(tmp_path / "gone")
    assert "toy.txt" in file_patterns()
    elmo = Elmo.load(write_bilm(tmp_path / "model", make_bilm()))
    for unknown in ("tpy", "tensorflow", "manylangs"):  # no such format, and formats that are only read
        with pytest.raises(ElmoError, match=f"must be elmokit, bilm, tokens or toy, got '{unknown}'"):
            elmo.save(tmp_path / "to", format=unknown)
        assert run("convert", tmp_path / "model", tmp_path / "to", "--to", unknown) == 2
        message = capsys.readouterr().err
        assert "elmokit, bilm, tokens or toy" in message
        assert message.count("\n") == 1
    with pytest.raises(ElmoError, match="toy stores float32, got dtype int8"):
        elmo.save(tmp_path / "to", format="toy", dtype="int8")
    assert not (tmp_path / "to").exists()
    elmo.save(tmp_path / "to", format="toy")
    refusal(tmp_path / "to", "the format tensorflow or bilm", options=tmp_path / "model" / "options.json")


def test_a_model_that_another_format_would_hide_is_not_written(toy_folder, make_elmo):
    make_elmo().save(toy_folder, format="elmokit")  # is asked first, so nothing hides it
    with pytest.raises(ElmoError, match=r"toy contains another model \(config\.json\)"):
        make_elmo().save(toy_folder, format="toy")


def test_without_it_its_files_are_nothing(toy_folder):
    unregister_format("toy")
    try:
        refusal(toy_folder, "no model that elmokit knows", "toy.txt")
        assert names() == OURS
    finally:
        register_format(TOY)


def test_the_order_is_that_in_which_formats_are_asked(toy, tmp_path):
    assert names() == [*OURS, "toy"]
    write_bilm(tmp_path, make_bilm())
    (tmp_path / "toy.txt").write_text("toy 1\n")
    assert detect(tmp_path).format.name == "bilm"
    unregister_format("toy")
    register_format(TOY, before="bilm")
    assert names() == ["elmokit", "manylangs", "tensorflow", "toy", "bilm", "tokens"]
    assert detect(tmp_path).format.name == "toy"
    assert detect(tmp_path / "weights.hdf5").format.name == "bilm"


def test_names_that_are_taken_or_unknown(toy):
    with pytest.raises(ElmoError, match="toy is registered"):
        register_format(TOY)
    other = Format("other", "", detect_toy, read_toy)
    for call in (lambda: register_format(other, before="bilmm"), lambda: unregister_format("bilmm")):
        with pytest.raises(ElmoError, match="elmokit, manylangs, tensorflow, bilm, tokens or toy, got 'bilmm'"):
            call()
    assert names() == [*OURS, "toy"]


def test_every_format_of_ours_is_in_the_docs():
    page = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert set(OURS) <= {row.split("`")[1] for row in rows}


def test_errors_name_every_format_that_is_a_model(tmp_path):
    sentence = refusal(tmp_path)
    for format in formats():
        assert format.description in sentence
    assert [format.name for format in formats() if not format.description] == ["tokens"]


def test_a_file_of_one_format_in_a_folder_of_another(tmp_path):
    """What the path names counts, whatever else is in its folder."""
    write_manylangs(tmp_path, make_manylangs())
    write_hdf5(tmp_path / "tokens.hdf5", {"embedding": np.zeros((3, 5), np.float32)})
    assert detect(tmp_path).format.name == "manylangs"
    assert detect(tmp_path / "tokens.hdf5").format.name == "tokens"


def test_our_own_folder_opens_without_the_other_formats():
    code = """
import sys
from elmokit import Elmo
Elmo.load("en", device="cpu")
print([name for name in ("h5py", "elmokit.formats.bilm", "elmokit.formats.manylangs") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"
