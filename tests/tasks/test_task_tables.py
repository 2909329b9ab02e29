"""Tables of texts and pairs become examples, and every mistake in one is named with its line."""

import bz2
import csv
import gzip
import json
import lzma
from pathlib import Path

import pytest

from elmokit.errors import ElmoError
from elmokit.tasks import PairExample, TextExample, read_pairs, read_texts
from elmokit.tasks.classify import ClassifyTask
from elmokit.tasks.pair import PairTask
from elmokit.tasks.reading import escape_formula, suffix_of, unescape_formula
from support.task_samples import refused

SHARED = Path(__file__).resolve().parents[3] / "shared" / "tasks"


@pytest.fixture
def file(tmp_path):
    """Write a file and return its path."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


TWO = [TextExample(("good", "film", "!"), "pos", 2), TextExample(("dull",), "neg", 3)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "label\ttext\npos\tgood film !\nneg\tdull\n"),
        ("a.tsv", "\ufeffLabel\tReview\r\npos\tgood film !\r\nneg\tdull\r\n"),
        ("a.tsv", "id\tSentence\tGold Label\n7\tgood film !\t pos \n8\tdull\tneg\n\n\n"),
        ("a.csv", 'sentiment,content\npos,"good\nfilm !"\nneg,dull'),
        ("a.csv", "text,class\ngood film !,pos\ndull,neg\n"),
        ("a.txt", "label\ttext\npos\tgood film !\nneg\tdull\n"),
        ("a.jsonl", '\n{"text": "good film !", "label": "pos"}\n{"label": "neg", "id": 3, "text": "dull"}\n'),
        ("A.JSON", '\n{"text": "good film !", "label": "pos"}\n{"text": "dull", "label": "neg"}'),
    ],
)
def test_formats_and_usual_headers(file, name, content):
    found = read_texts(file(name, content))
    assert [(example.tokens, example.label) for example in found] == [(e.tokens, e.label) for e in TWO]
    assert [example.line for example in found] == ([2, 4] if '"good\n' in content else [2, 3])


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip), ("xz", lzma), ("bz2", bz2)])
def test_packed_files(file, suffix, pack):
    path = file(f"a.tsv.{suffix}", pack.compress(b"label\ttext\npos\tgood film !\nneg\tdull\n"))
    assert read_texts(path) == TWO


def test_zst(file):
    zstandard = pytest.importorskip("zstandard", reason="needs the extra zstd")
    packed = zstandard.ZstdCompressor().compress(b"label\ttext\npos\tgood film !\nneg\tdull\n")
    assert read_texts(file("a.tsv.zst", packed)) == TWO


def test_a_missing_file():
    with pytest.raises(ElmoError, match=r"none\.tsv") as refused_file:
        read_texts("none.tsv")
    assert "standard input" not in str(refused_file.value), "examples are not read from it"


def test_suffixes():
    assert [suffix_of(name) for name in ("a.tsv", "b/a.CSV.GZ", "a.b.jsonl.zst", "a.gz", "a")] == [
        ".tsv", ".csv", ".jsonl", "", "",
    ]  # fmt: skip


def test_lines_of_a_csv_with_line_ends_in_quotes(file):
    path = file("a.csv", 'label,text\n\na,"one\ntwo, ""three""\n\nfour"\nb,five\r\n\nc,"s\r\nix"\n')
    assert [(example.line, example.tokens) for example in read_texts(path)] == [
        (3, ("one", "two,", '"three"', "four")),
        (7, ("five",)),
        (9, ("s", "ix")),
    ]


def test_a_tsv_is_taken_literally(file):
    path = file("a.tsv", 'label\ttext\na\t"one "" two\nb\t"three\n')
    assert [example.tokens for example in read_texts(path)] == [('"one', '""', "two"), ('"three',)]


def test_only_line_feeds_end_lines(file):
    path = file("a.tsv", "label\ttext\na\tone\u2028two\x0bthree\x85four\nb\tfive\n")
    assert [example.line for example in read_texts(path)] == [2, 3]


def test_without_a_header_the_label_comes_first(file):
    path = file("a.tsv", "pos\tgood film\nneg\tdull film\nneg\tbad\n")
    assert [(e.line, e.label, e.tokens[0]) for e in read_texts(path)] == [
        (1, "pos", "good"),
        (2, "neg", "dull"),
        (3, "neg", "bad"),
    ]
    assert [e.tokens[0] for e in read_texts(path, labelled=False)] == ["good", "dull", "bad"]
    by_number = read_texts(path, text="1", label="2")
    assert [(e.label, e.tokens) for e in by_number][:2] == [("good film", ("pos",)), ("dull film", ("neg",))]
    assert read_texts(path, text="2") == read_texts(path, label="1") == read_texts(path)


def test_swapped_columns_without_a_header_are_noticed(file):
    path = file("a.tsv", "".join(f"text number {n}\t{'ab'[n % 2]}\n" for n in range(12)))
    refused(read_texts, path, "more different values than column 2", "text=1, label=2")
    assert len(read_texts(path, text="1", label="2")) == 12


def test_a_class_named_like_a_header_is_no_header(file):
    path = file("a.tsv", "question\tWhat is an atom ?\nanswer\tThe smallest part of an element .\n")
    assert [example.label for example in read_texts(path)] == ["question", "answer"]


@pytest.mark.parametrize("more", [",,", ",note,note", ",text,text"])
def test_a_header_may_repeat_a_name(file, more):
    """Spreadsheets export empty columns at the end, all with the name ""."""
    path = file("a.csv", f"label,phrase{more}\npos,a film,,\nneg,dull,,\n")
    examples = [TextExample(("a", "film"), "pos", 2), TextExample(("dull",), "neg", 3)]
    assert read_texts(path, label="1", text="2") == examples
    if "text" not in more:
        assert read_texts(path) == examples
    else:
        refused(read_texts, file("b.csv", "label,text,text\na,b,c\n"), "2 columns", "2 'text', 3 'text'")


def test_columns_by_name_and_number(file):
    path = file("a.csv", "id,Phrase,Topic,Score\n1,one two,x,3\n2,three,y,4\n")
    refused(read_texts, path, "2 columns with a usual name for the label", "3 'Topic', 4 'Score'")
    for label in ("Topic", "topic", "3"):
        assert [example.label for example in read_texts(path, label=label)] == ["x", "y"]
    assert read_texts(path, label="4", text="1")[0] == TextExample(("1",), "3", 2)
    refused(read_texts, path, "no column named 'topics' for the labels", "1 'id', 2 'Phrase'", label="topics")
    refused(read_texts, path, "no column 5 for label", label="5")
    refused(read_texts, path, "no column 0 for label", label="0")
    refused(read_texts, path, "cannot be both text and label", text="3", label="topic")
    doubled = file("b.tsv", "text\ttext\tlabel\na\tb\tc\n")
    refused(read_texts, doubled, "2 columns", text="text")
    chosen = file("c.tsv", "title\ttext\na\tb c\n")
    assert read_texts(chosen, label="title") == [TextExample(("b", "c"), "a", 2)]


@pytest.mark.parametrize(
    "header",
    [
        "sentence1\tsentence2\tlabel", "sentence_A\tsentence_B\tentailment_judgment", "Premise\tHypothesis\tgold_label",
        "question1\tquestion2\tis_duplicate", "Text A\tText B\tSimilarity",
    ],
)  # fmt: skip
def test_pairs(file, header):
    path = file("a.tsv", f"{header}\na b\tc\tyes\n")
    assert read_pairs(path) == [PairExample(("a", "b"), ("c",), "yes", 2)]
    assert read_pairs(path, labelled=False) == [PairExample(("a", "b"), ("c",), None, 2)]
    assert read_pairs(path, first="2", second="1") == [PairExample(("c",), ("a", "b"), "yes", 2)]


def test_a_file_with_a_label_and_a_score_needs_the_name(file):
    path = file("a.tsv", "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\ta\tb\t3.5\tNO\n")
    refused(read_pairs, path, "relatedness_score", "entailment_judgment", "choose one with label")
    assert read_pairs(path, label="relatedness_score")[0].label == "3.5"
    assert read_pairs(path, label="entailment_judgment")[0].label == "NO"
    assert read_pairs(path, labelled=False)[0].label is None


def test_pairs_without_a_header(file):
    three = file("a.tsv", "a b .\tc d .\tyes\ne f .\tg .\tno\n")
    refused(read_pairs, three, "no header that says which column", "3 'yes'")
    assert read_pairs(three, label="3") == [
        PairExample(("a", "b", "."), ("c", "d", "."), "yes", 1),
        PairExample(("e", "f", "."), ("g", "."), "no", 2),
    ]
    assert read_pairs(three, first="1", second="2") == read_pairs(three, label="3")
    two = file("b.tsv", "a b .\tc d .\n")
    assert read_pairs(two, labelled=False) == [PairExample(("a", "b", "."), ("c", "d", "."), None, 1)]
    refused(read_pairs, two, "must have columns for first and second and label")


def test_json_labels_of_other_kinds(file):
    lines = [{"sentence": "a", "label": label} for label in (3, 4.5, True, "x")]
    path = file("a.jsonl", "\n".join(json.dumps(line) for line in lines))
    assert [example.label for example in read_texts(path)] == ["3", "4.5", "true", "x"]


def test_prediction_input(file):
    plain = file("a.txt", "one two\nthree\tfour\ntext\n\n")
    assert [(e.line, e.tokens, e.label) for e in read_texts(plain, labelled=False)] == [
        (1, ("one", "two"), None),
        (2, ("three", "four"), None),
        (3, ("text",), None),
    ]
    column = file("a.tsv", "one two\nthree\n")
    assert [e.tokens for e in read_texts(column, labelled=False)] == [("one", "two"), ("three",)]
    headed = file("a.csv", 'text\n"one, two"\n')
    assert [e.tokens for e in read_texts(headed, labelled=False)] == [("one,", "two")]
    more = file("b.csv", "id,review\n1,one\n")
    assert read_texts(more, labelled=False) == [TextExample(("one",), None, 2)]
    named = file("b.txt", "id\treview\n1\tone\n")
    assert read_texts(named, labelled=False, text="review") == [TextExample(("one",), None, 2)]
    fields = file("c.jsonl", '{"text": "one", "label": null}\n{"text": "two"}\n')
    assert [e.tokens for e in read_texts(fields, labelled=False)] == [("one",), ("two",)]


def test_a_blank_line_among_texts_is_not_left_out(file):
    for name in ("a.txt", "a.tsv", "a.csv"):
        refused(read_texts, file(name, "one\n\ntwo\n"), "line 2: the text is empty", labelled=False)


def test_segmenters(file):
    path = file("a.tsv", "label\ttext\nx\t我有2只猫。\ny\tIt isn't.\n")
    assert read_texts(path, segment="chars")[0].tokens == ("我", "有", "2", "只", "猫", "。")
    assert read_texts(path, segment="english")[1].tokens == ("It", "is", "n't", ".")
    with pytest.raises(ElmoError, match="segmenter must be one of"):
        read_texts(path, segment="words")


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.tsv", "", ["is empty"]),
        ("a.tsv", "\n \n", ["is empty"]),
        ("a.jsonl", "\n", ["is empty"]),
        ("a.tsv", "label\ttext\n", ["a header and no examples"]),
        ("a.csv", "label,text", ["a header and no examples"]),
        ("a.tsv", "label\ttext\na\tb\na\tb\tc\n", ["line 3", "the 2 columns of line 1, got 3"]),
        ("a.csv", 'label,text\na,"b\nc"\na\n', ["line 4", "got 1"]),
        ("a.tsv", "label\ttext\na\tb\n\t c\n", ["line 3: the label is empty"]),
        ("a.tsv", "label\ttext\na\tb\nx\t \n", ["line 3: the text is empty"]),
        ("a.tsv", "label\ttext\na\tb\nx\t\u3000\n", ["line 3: the text is empty"]),
        ("a.tsv", "label\ttext\na\tb\n\t\n", ["line 3: the label is empty"]),
        ("a.tsv", b"label\ttext\na\tb\na\tcaf\xe9\n", ["line 3", "UTF-8, got byte 0xe9 at offset 5", "iconv"]),
        ("a.csv", b"label,text\na,b\na,caf\xe9\n", ["line 3", "must be UTF-8"]),
        ("a.tsv", "label\twords\na\tb\n", ["no column with a usual name for the text", "1 'label', 2 'words'"]),
        ("a.tsv", "words\ttext\na\tb\n", ["no column with a usual name for the label"]),
        ("a.tsv", "just a text\n", ["must have columns for text and label", "the only column is 1 'just a text'"]),
        ("a.tsv", "a\tb\tc\n", ["has no header that says which column has the texts", "1 'a', 2 'b', 3 'c'"]),
        ("a.csv", 'label,text\na,b\na,"b\nc,d\n', ["line 3", "not CSV", "unexpected end of data"]),
        ("a.csv", 'label,text\na,"b"c\n', ["line 2", "not CSV"]),
        ("a.jsonl", '{"text": "a", "label": "b"}\n[1, 2]\n', ["line 2", "must be a JSON object", "'[1, 2]'"]),
        ("a.jsonl", '{"text": "a", "label": "b"}\n\n{"text": \n', ["line 3", "must be a JSON object"]),
        ("a.json", '[\n{"text": "a", "label": "b"}\n]\n', ["line 1", "jq -c"]),
        ("a.json", '[{"text": "a", "label": "b"}]\n', ["line 1", "jq -c"]),
        ("a.jsonl", "[" * 100_000, ["line 1", "must be a JSON object"]),
        ("a.jsonl", "{}\n", ["line 1", "must be a JSON object with fields"]),
        ("a.jsonl", '{"text": ["a"], "label": "b"}\n', ["'text' for the texts must be a string", "'[\"a\"]'"]),
        ("a.jsonl", '{"text": 3, "label": "b"}\n', ["line 1", "must be a string, got '3'"]),
        ("a.jsonl", '{"text": "a", "label": {}}\n', ["line 1", "must be a string or a number, got '{}'"]),
        ("a.jsonl", '{"text": "a", "label": null}\n', ["line 1: the label is empty"]),
        (
            "a.jsonl", '{"text": "a", "label": "b"}\n{"text": "a", "Label": "b"}\n',
            ["line 2", "'label' for the labels is missing", "'text', 'Label'"],
        ),
        ("a.jsonl", '{"text": "a\\ud800", "label": "b"}\n', ["line 1", "half of a surrogate pair"]),
        ("a.xlsx", "label\ttext\n", ["detected from its suffix", "rename the file"]),
        ("a", "label\ttext\n", ["detected from its suffix"]),
        ("a.tsv", b"\xff\xfel\x00", ["UTF-16"]),
    ],
)  # fmt: skip
def test_mistakes(file, name, content, parts):
    refused(read_texts, file(name, content), *parts)


CELLS = ["=1+1", "'=1+1", "'@x", "+", "-LRB-", "@user", "-1.5", "+3", "'tis", "", "a=b"]


def test_formulas_are_escaped_and_read_again(file):
    escaped = [escape_formula(cell) for cell in CELLS]
    assert escaped[:6] == ["'" + cell for cell in CELLS[:6]]
    assert escaped[6:] == CELLS[6:], "numbers and other texts are left alone"
    assert [unescape_formula(cell) for cell in escaped] == CELLS
    for suffix, mark in (("tsv", "\t"), ("csv", ",")):
        path = file(f"a.{suffix}", f"label{mark}text\n'=a{mark}'-b c\n-1{mark}'tis\n")
        assert [(e.label, e.tokens) for e in read_texts(path)] == [("=a", ("-b", "c")), ("-1", ("'tis",))]


def test_prediction_input_has_its_raw_text(file):
    path = file("a.tsv", "label\ttext\nx\tIt  isn't.\n")
    assert [e.raw for e in read_texts(path, labelled=False, segment="english")] == [("It  isn't.",)]
    assert read_texts(path)[0].raw == ()


def test_pairs_with_an_empty_side(file):
    path = file("a.tsv", "premise\thypothesis\tlabel\na\tb\tx\na\t\tx\n")
    refused(read_pairs, path, "line 3: the second sentence is empty")


def test_files_that_are_not_there(tmp_path):
    refused(read_texts, tmp_path / "a.tsv", "cannot read")
    (tmp_path / "b.tsv").mkdir()
    refused(read_texts, tmp_path / "b.tsv", "cannot read")
    with pytest.raises(ElmoError, match="read from a file"):
        read_texts("-")


def test_a_torn_packed_file(file):
    packed = gzip.compress(b"label\ttext\n" + b"a\tb\n" * 1000)
    refused(read_texts, file("a.tsv.gz", packed[: len(packed) - 12]), "is damaged after line")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "label\ttext\nx\tone\nx\n"),
        ("a.csv", "label,text\nx,one\nx\n"),
        ("a.jsonl", '{"label": "x", "text": "one"}\n{\n'),
        ("a.txt", "one\n\ntwo\n"),
    ],
)
def test_a_stream_gives_examples_before_the_file_is_read(file, name, content):
    stream = ClassifyTask.read(file(name, content), labelled=False)
    assert next(stream).tokens == ("one",)
    with pytest.raises(ElmoError, match=r"line [23]"):
        next(stream)


def test_a_stream_of_pairs(file):
    stream = PairTask.read(file("a.tsv", "first\tsecond\na\tb\nc\n"), labelled=False)
    assert next(stream) == PairExample(("a",), ("b",), None, 2)
    with pytest.raises(ElmoError, match="line 3"):
        next(stream)


def test_a_document_longer_than_the_csv_module_likes(file):
    limit = csv.field_size_limit()
    path = file("a.csv", f"label,text\nx,{'word ' * 60_000}\n")
    assert len(read_texts(path)[0].tokens) == 60_000
    assert csv.field_size_limit() == limit


@pytest.mark.skipif(not SHARED.is_dir(), reason="the task files are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "label", "count", "classes"),
    [
        ("imdb/dev.tsv", None, 1000, 2),
        ("sst-fine/train.tsv", None, 8544, 5),
        ("sst-binary/dev.tsv", None, 872, 2),
        ("trec/train.tsv", None, 5452, 6),
        ("zh-toutiao/train.tsv", None, 1185, 15),
        ("zh-thucnews/dev.tsv", None, 10_000, 10),
        ("nli/dev.tsv", None, 1000, 3),
        ("wic/train.tsv", None, 5428, 2),
        ("sick/train.tsv", "entailment_judgment", 4500, 3),
    ],
)
def test_shared_files(name, label, count, classes):
    read = read_pairs if name.startswith(("nli", "wic", "sick")) else read_texts
    examples = read(SHARED / name, label=label)
    assert len(examples) == count
    assert len({example.label for example in examples}) == classes
    assert examples[-1].line == count + 1
