"""runs/clean.py: what it repairs, what it leaves out, and that the first copy stays."""

import importlib.util
import lzma
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "runs" / "clean.py"
spec = importlib.util.spec_from_file_location("clean", SCRIPT)
assert spec is not None
assert spec.loader is not None
clean = importlib.util.module_from_spec(spec)
spec.loader.exec_module(clean)

LONG = "The committee met in the old town hall on a rainy morning in March and talked about the new bridge"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (
            "Hindus () are persons , who [[x|live]] &amp; adhere .",
            "Hindus are persons, who live & adhere.",
        ),
        ("《正斗中文》（），是由香港電台", "《正斗中文》，是由香港電台"),
        ("It was '''bold'''{{citation needed}} <b>and</b> soft\u00adened.", "It was bold and softened."),
        ("  two\u2028lines\t here ", "two lines here"),
    ],
)
def test_markup_is_repaired(raw, text):
    assert clean.repaired(raw) == text


@pytest.mark.parametrize(
    ("script", "text", "reason"),
    [
        ("latin", LONG + ".", None),
        ("latin", "For the current status of this publication, see the website.", "notice"),
        ("latin", "12.5 | 13.7 | 14.9 | 3", "not prose"),
        ("latin", "where formula_1 is a constant and formula_2 another one.", "not prose"),
        ("latin", "See also", "heading"),
        ("latin", "He left.", None),
        ("latin", "अहिंसा परमॊ यज्ञस तथाहिस्मा परं बलम।", "script"),
        ("chinese", "艾希莉‧维多利亚‧班森为美国女演员及模特儿，知名的作品包括电视影集（Pretty Little Liars）。", None),
        ("chinese", "Only English words are in this line.", "script"),
    ],
)
def test_the_rule_that_leaves_a_paragraph_out(script, text, reason):
    assert clean.Cleaner(script).reason_against(text) == reason


def test_of_copies_the_first_stays():
    cleaner = clean.Cleaner("latin")
    assert cleaner.reason_against(LONG + ".") is None
    assert cleaner.reason_against(LONG.upper() + "!") == "repeated"
    assert cleaner.reason_against(LONG + " that nobody wanted.") == "near copy"
    assert cleaner.reason_against("Nobody knew why " + LONG + ".") == "near copy"
    assert cleaner.reason_against("The committee met again.") is None


def test_files_are_cleaned_against_the_heldout_text(tmp_path, capsys):
    heldout = tmp_path / "heldout.txt"
    heldout.write_text(f"Before that, {LONG}.\n", encoding="utf-8")
    raw = tmp_path / "wiki-0.txt.xz"
    with lzma.open(raw, "wt", encoding="utf-8") as file:
        file.write(f"\n\nA first paragraph that stays here.\nSo {LONG} again and again.\n\n\nA second document.\n")
    assert clean.main([str(tmp_path / "out"), str(raw), "--against", str(heldout)]) == 0
    text = (tmp_path / "out" / "wiki-0.txt").read_text(encoding="utf-8")
    assert text == "A first paragraph that stays here.\n\nA second document.\n"
    assert "2 of 3 paragraphs stay; left out: held out 1" in capsys.readouterr().out


def test_traditional_paragraphs_are_also_written_in_simplified_characters(tmp_path, capsys):
    pytest.importorskip("opencc", reason="opencc-python-reimplemented is not installed")
    raw = tmp_path / "zhwiki-0.txt"
    raw.write_text("北京是中國的首都。\n他在银行工作。\n\n臺灣有很多樹。\n", encoding="utf-8")
    assert clean.main([str(tmp_path / "out"), str(raw), "--script", "chinese", "--simplify"]) == 0
    assert (tmp_path / "out" / "zhwiki-0.txt").read_text("utf-8") == raw.read_text("utf-8")
    simplified = (tmp_path / "out" / "zhwiki-0.simplified.txt").read_text("utf-8")
    assert simplified == "北京是中国的首都。\n\n台湾有很多树。\n"
    assert "2 of 3 paragraphs also in simplified characters" in capsys.readouterr().out


def test_a_missing_opencc_is_reported_before_anything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "opencc", None)
    (tmp_path / "raw.txt").write_text("北京是中國的首都。\n", encoding="utf-8")
    assert clean.main([str(tmp_path / "out"), str(tmp_path / "raw.txt"), "--script", "chinese", "--simplify"]) == 2
    assert "pip install" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def test_mistakes_end_in_one_sentence(tmp_path, capsys):
    raw = tmp_path / "raw.txt"
    raw.write_text("A paragraph of text.\n", encoding="utf-8")
    assert clean.main([str(tmp_path), str(raw)]) == 2
    assert clean.main([str(tmp_path / "out"), str(tmp_path / "missing.txt")]) == 2
    assert raw.read_text(encoding="utf-8") == "A paragraph of text.\n"
    assert capsys.readouterr().err.count("\n") == 2
