"""The model card says how a model was trained, and still says it after load and save."""

import doctest
import zipfile

import pytest

from elmokit.formats import card
from elmokit.formats.card import CARD_TITLE, earlier_section, model_card, notes_in, training_section
from elmokit.formats.load import read_checkpoint
from elmokit.formats.save import convert_model, write_checkpoint
from support.tiny_models import tiny_checkpoint

FACTS = {
    "data": "news.txt, 1,000 sentences, 21,234 tokens",
    "recipe": "preset tiny\nlearning rate 0.002\n",
    "held-out perplexity": "88.1 forward, 91.3 backward, 89.7 mean (2,000 tokens, 3.1 % unknown)",
    "skipped": "",
    "command": "elmo train news.txt \\\n  --output model",
}


def test_examples_in_the_docstrings():
    result = doctest.testmod(card)
    assert (result.failed, result.attempted) == (0, 2)


def test_facts_as_markdown():
    assert training_section(FACTS).splitlines() == [
        "## Training",
        "",
        "- data: news.txt, 1,000 sentences, 21,234 tokens",
        "- recipe:",
        "  - preset tiny",
        "  - learning rate 0.002",
        "- held-out perplexity: 88.1 forward, 91.3 backward, 89.7 mean (2,000 tokens, 3.1 % unknown)",
        "",
        "```bash",
        "elmo train news.txt \\",
        "  --output model",
        "```",
    ]


def test_the_notes_of_the_model_before_stand_below_ours():
    assert earlier_section("\n") == ""
    notes = "## Training\n\n```bash\n# a comment\n```\n\n#hash\n\n###### Licence\n"
    lines = earlier_section(notes).split("\n")
    assert lines[2] == "## The model it started from"
    assert lines[6:] == ["### Training", "", "```bash", "# a comment", "```", "", "#hash", "", "###### Licence"]


def test_a_card_without_notes_has_no_place_for_them():
    text = model_card(tiny_checkpoint())
    assert text.startswith(CARD_TITLE)
    assert "<!--" not in text
    assert notes_in(text) == ""


@pytest.mark.parametrize(
    "notes",
    [training_section(FACTS), "one line", "# 银行 <S> `x`\n\n```\n  code\n```\n\n<!-- a comment -->", "  indented"],
)
def test_notes_survive_load_and_save(tmp_path, notes):
    checkpoint = tiny_checkpoint(head=True)
    checkpoint.notes = notes
    write_checkpoint(checkpoint, tmp_path / "first")
    first = (tmp_path / "first" / "README.md").read_bytes()
    assert notes.encode() in first
    loaded = read_checkpoint(tmp_path / "first")
    assert loaded.notes == notes
    write_checkpoint(loaded, tmp_path / "second")
    assert (tmp_path / "second" / "README.md").read_bytes() == first
    convert_model(tmp_path / "second", tmp_path / "third", to="elmokit")
    assert read_checkpoint(tmp_path / "third").notes == notes
    write_checkpoint(loaded, tmp_path / "first")
    assert (tmp_path / "first" / "README.md").read_bytes() == first


def test_notes_are_read_from_a_zip(tmp_path):
    checkpoint = tiny_checkpoint(head=True)
    checkpoint.notes = "from a zip"
    write_checkpoint(checkpoint, tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        for path in (tmp_path / "model").iterdir():
            archive.write(path, path.name)
    assert read_checkpoint(tmp_path / "model.zip").notes == "from a zip"


def test_marks_within_notes_do_not_end_them(tmp_path):
    checkpoint = tiny_checkpoint()
    checkpoint.notes = "before <!-- end of the notes --> after"
    assert notes_in(model_card(checkpoint)) == "before  after"


def test_a_card_that_someone_edited(tmp_path):
    checkpoint = tiny_checkpoint()
    checkpoint.notes = "kept"
    write_checkpoint(checkpoint, tmp_path)
    path = tmp_path / "README.md"
    path.write_bytes(b"# Mine\r\n" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_checkpoint(tmp_path).notes == "kept"
    path.write_text(model_card(checkpoint).split("<!-- end")[0], encoding="utf-8")
    assert read_checkpoint(tmp_path).notes == ""


def test_a_model_loads_whatever_its_card_is(tmp_path):
    write_checkpoint(tiny_checkpoint(), tmp_path)
    for data in (b"", b"\xff\xfe\x00", b"<!-- notes: kept when the model is saved again -->"):
        (tmp_path / "README.md").write_bytes(data)
        assert read_checkpoint(tmp_path).notes == ""


@pytest.mark.parametrize(
    ("segment", "example"), [("chars", "他在银行存钱。"), ("english", "The bank raised"), ("", "The bank")]
)
def test_the_example_is_a_sentence_that_the_model_can_read(segment, example):
    checkpoint = tiny_checkpoint()
    checkpoint.text = {"segment": segment} if segment else {}
    assert f'elmo.encode(["{example}' in model_card(checkpoint)
