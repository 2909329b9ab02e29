"""CoNLL columns and CoNLL-U become sentences with tags, and every mistake in a file is named with its line."""

import lzma
from pathlib import Path

import pytest

from elmokit.errors import ElmoError
from elmokit.tasks import TaggedExample, read_tagged, reading
from elmokit.tasks.tag import TagTask
from support.task_samples import refused

SHARED = Path(__file__).resolve().parents[3] / "shared" / "tasks"
CONLLU = """# sent_id = 1
# text = I don't
1\tI\tI\tPRON\tPRP\t_\t2\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\tMood=Ind\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t_\t_

# sent_id = 2
1\t10 000\t10 000\tNUM\tCD\t_\t0\troot\t_\t_
"""


@pytest.fixture
def file(tmp_path):
    """Write a file and return its path."""

    def write(content: str | bytes, name: str = "a.conll") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize(
    "content",
    [
        "EU B-ORG\nrejects O\n\nNo O\n",
        "EU\tB-ORG\nrejects\tO\n\nNo\tO",
        "\ufeffEU   B-ORG \r\nrejects  O\r\n  \t\r\nNo O\r\n\r\n\r\n",
        "EU NNP B-ORG\nrejects VBZ O\n\nNo DT O\n",
    ],
)
def test_columns(file, content):
    expected = [TaggedExample(("EU", "rejects"), ("B-ORG", "O"), 1), TaggedExample(("No",), ("O",), 4)]
    assert read_tagged(file(content)) == expected
    assert read_tagged(file(lzma.compress(content.encode()), "a.conll.xz")) == expected
    assert read_tagged(file(content, "train.txt")) == expected  # the suffix of many such files
    unlabelled = read_tagged(file(content), labelled=False)
    assert unlabelled == [TaggedExample(example.tokens, None, example.line) for example in expected]


def test_chosen_columns(file):
    path = file("1 EU NNP B-ORG\n2 rejects VBZ O\n")
    assert read_tagged(path, token_column=2, tag_column=3) == [TaggedExample(("EU", "rejects"), ("NNP", "VBZ"), 1)]
    assert read_tagged(path, token_column="2", tag_column="4")[0].tags == ("B-ORG", "O")
    refused(read_tagged, path, "tag_column must be a number from 1 to 4, got 5", tag_column=5)
    refused(read_tagged, path, "tag_column must be a number from 1 to 4, got upos", tag_column="upos")
    refused(read_tagged, path, "token_column must be a number from 1 to 4, got 0", token_column=0)
    refused(read_tagged, path, "column 4 cannot be both the token and the tag", token_column=4)


def test_documents_are_skipped_and_end_sentences(file):
    path = file("-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\n-DOCSTART- -X- O O\nNo DT I-NP O\n")
    assert [(e.tokens, e.line) for e in read_tagged(path)] == [(("EU",), 3), (("No",), 5)]


def test_a_number_sign_is_a_token_where_it_fits(file):
    path = file("# sent_id = 1\n# a comment with words\nbuy O\n# O\n1 O\n\n# O\n#end of part\n")
    refused(read_tagged, path, "line 8", "2 columns")
    path = file("# sent_id = 1\n# a comment with words\nbuy O\n# O\n1 O\n\n# B-X\n2 O\n\n#end of part 3\n")
    assert [(e.tokens, e.line) for e in read_tagged(path)] == [(("buy", "#", "1"), 3), (("#", "2"), 7)]
    metadata = file("# id = 1\na b c O\n# # # O\n\n# id = 2\nd e f O\n")
    assert [e.tokens for e in read_tagged(metadata)] == [("a", "#"), ("d",)]
    tabs = file("#\tO\n# id = 1\n")
    refused(read_tagged, tabs, "line 2", "2 columns")
    assert read_tagged(file("#\tO\n"))[0].tokens == ("#",)
    one = file("# a comment\n#tag\nx\n")
    assert read_tagged(one, labelled=False) == [TaggedExample(("#tag", "x"), None, 2)]


def test_spaces_of_other_kinds_are_tokens(file):
    path = file("\u3000\tO\n\xa0\tO\n中\tB-LOC\n")
    assert read_tagged(path)[0].tokens == ("\u3000", "\xa0", "中")
    assert read_tagged(file("\u3000 O\n中 B-LOC\n"))[0].tokens == ("\u3000", "中")


def test_conllu(file):
    path = file(CONLLU, "a.conllu")
    assert read_tagged(path) == [
        TaggedExample(("I", "do", "n't"), ("PRON", "AUX", "PART"), 3),
        TaggedExample(("10 000",), ("NUM",), 10),
    ]
    for column in ("xpos", "XPOS", 5, "5"):
        assert read_tagged(path, tag_column=column)[0].tags == ("PRP", "VBP", "RB")
    assert read_tagged(path, tag_column="feats")[0].tags == ("_", "Mood=Ind", "_")
    assert read_tagged(path, token_column="lemma")[0].tokens == ("I", "do", "not")
    assert read_tagged(path, labelled=False)[0] == TaggedExample(("I", "do", "n't"), None, 3)
    refused(read_tagged, path, "one of id, form, lemma, upos", tag_column="pos")
    refused(read_tagged, path, "line 3: the word has no deps (_)", tag_column="deps")
    refused(read_tagged, path, "cannot be both", tag_column="form")


def test_segment_digits(file):
    path = file("科0\tO\n技1\tO\n全0\tB-X\n")
    assert read_tagged(path)[0].tokens == ("科", "技", "全")
    assert read_tagged(path, segment_digits=False)[0].tokens == ("科0", "技1", "全0")
    assert read_tagged(file("科0\n技1\n"), labelled=False)[0].tokens == ("科", "技")
    doubtful = file("口0\tO\n腔1\tO\n\n12\tO\n")  # 12 would be a third character without a second
    assert read_tagged(doubtful)[0].tokens == ("口0", "腔1")
    assert [e.tokens for e in read_tagged(doubtful, segment_digits=True)] == [("口", "腔"), ("1",)]
    refused(read_tagged, file("科0\tO\n技\tO\n"), "line 2", "must end in a digit", segment_digits=True)


def test_a_few_slips_do_not_hide_segment_digits(file):
    lines = ["科0\tO\n", "技1\tO\n"] * 100 + ["\ufffd\ufffd0\tO\n"]
    assert read_tagged(file("".join(lines)))[0].tokens[-3:] == ("科", "技", "\ufffd\ufffd")


def test_a_stream_gives_sentences_before_the_file_is_read(file, monkeypatch):
    stream = TagTask.read(file("EU B-ORG\nsays O\n\nNo O\n\nAda\n"))
    assert [next(stream).tokens for _ in range(2)] == [("EU", "says"), ("No",)]
    with pytest.raises(ElmoError, match="line 6"):
        next(stream)
    monkeypatch.setattr(reading, "_SEGMENT_TOKENS", 3)
    stream = TagTask.read(file("科0\tO\n技1\tO\n\n" * 3 + "全\tO\n"))
    assert [next(stream).tokens for _ in range(3)] == [("科", "技")] * 3
    with pytest.raises(ElmoError, match=r"line 10.*must end in a digit"):
        next(stream)


def test_ordinary_files_keep_their_digits(file):
    assert read_tagged(file("A1\tO\nis\tO\n"))[0].tokens == ("A1", "is")
    assert read_tagged(file("A4\tO\nB7\tO\n"))[0].tokens == ("A4", "B7")
    assert read_tagged(file("1\tO\n0\tO\n"))[0].tokens == ("1", "0")


def test_raw_text_for_prediction(file):
    path = file("The  EU rejects .\n\nNo\n", "a.txt")
    expected = [TaggedExample(("The", "EU", "rejects", "."), None, 1), TaggedExample(("No",), None, 3)]
    assert read_tagged(path, labelled=False) == expected
    chinese = file("我有猫\n", "a.txt")
    assert read_tagged(chinese, labelled=False, segment="chars")[0].tokens == ("我", "有", "猫")
    columns = file("a x\nb y\n", "a.txt")
    assert read_tagged(columns, labelled=False, token_column=2)[0].tokens == ("x", "y")
    one = file("The\nEU\n\nNo\n")
    assert [e.tokens for e in read_tagged(one, labelled=False)] == [("The", "EU"), ("No",)]
    refused(read_tagged, file("\n \n", "a.txt"), "has no sentences", labelled=False)


@pytest.mark.parametrize(
    ("content", "name", "parts"),
    [
        ("", "a.conll", ["has no sentences"]),
        ("\n\n", "a.conll", ["has no sentences"]),
        ("-DOCSTART- O\n\n", "a.conll", ["has no sentences"]),
        ("# only = comments\n", "a.conllu", ["has no sentences"]),
        ("EU\nrejects\n", "a.conll", ["line 1", "a token and a tag", "'EU'"]),
        ("EU B-ORG\nrejects\n", "a.conll", ["line 2", "2 columns", "got 1 in 'rejects'", "spaces"]),
        ("EU\tB-ORG\nrejects O\n", "a.conll", ["line 2", "got 1", "one tab"]),
        ("EU\tB-ORG\nrejects\tVBZ\tO\n", "a.conll", ["line 2", "got 3"]),
        ("EU\tB-ORG\nrejects\t\n", "a.conll", ["line 2: the tag is empty"]),
        ("EU\tB-ORG\n\tO\n", "a.conll", ["line 2: the token is empty"]),
        (b"EU B-ORG\ncaf\xe9 O\n", "a.conll", ["line 2", "must be UTF-8"]),
        ("EU B-ORG\n", "a.conllu", ["line 1", "10 columns", "got 1"]),
        (CONLLU.replace("2\tdo\t", "b\tdo\t"), "a.conllu", ["line 5", "number of a word", "'b'"]),
        (CONLLU.replace("\tAUX\t", "\t_\t"), "a.conllu", ["line 5", "has no upos (_)"]),
        (CONLLU.replace("\tAUX\t", "\t\t"), "a.conllu", ["line 5: the tag is empty"]),
    ],
)
def test_mistakes(file, content, name, parts):
    refused(read_tagged, file(content, name), *parts)


@pytest.mark.skipif(not SHARED.is_dir(), reason="the task files are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "sentences", "tokens", "tags"),
    [
        ("ner-conll2003/dev.conll", 3250, 51_362, 6),
        ("pos-ewt/dev.conllu", 2001, 25_147, 17),
        ("zh-ner-msra/dev.conll", 2000, 79_221, 7),
        ("zh-ner-resume/train.conll", 3821, 124_099, 28),
        ("zh-ner-weibo/train.conll", 1350, 73_778, 17),
    ],
)
def test_shared_files(name, sentences, tokens, tags):
    examples = read_tagged(SHARED / name)
    assert len(examples) == sentences
    assert sum(len(example.tokens) for example in examples) == tokens
    assert len({tag for example in examples for tag in example.tags}) == tags
    if "weibo" in name:
        assert examples[0].tokens[:5] == ("科", "技", "全", "方", "位")
