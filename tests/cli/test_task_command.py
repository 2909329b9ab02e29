"""`elmo task train`, `eval` and `predict` as a person meets them: what they print and write, and how they say no."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elmokit import Elmo
from elmokit.cli import main
from elmokit.tasks import load, read_pairs, read_tagged, read_texts
from support.task_samples import IOB1, NONE, pairs, sentences, texts, write_samples
from support.tiny_models import tiny_checkpoint

SMALL = ["--hidden", 8, "--learning-rate", 0.02, "--batch-size", 8, "--dropout", 0]


def train_models(folder):
    """A model of each kind, without the pictures of its report, which take their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("elmokit.tasks.report._pictures", lambda *_: ())
        for kind, name, more in [
            ("classify", "classify.tsv", []),
            ("tag", "tag.conll", ["--epochs", 8]),
            ("pair", "pair.tsv", []),
            ("pair", "score.tsv", ["--target", "score"]),
            ("tag", "pos.conll", []),
        ]:
            output = folder / f"{Path(name).stem}-model"
            arguments = ["task", "train", kind, folder / name, "--model", folder / "elmo", "--output", output]
            with pytest.raises(SystemExit) as stop:
                main([str(argument) for argument in (*arguments, "--epochs", 1, *SMALL, *more)])
            assert stop.value.code == 0


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny ELMo, data of each kind, and a trained model of each kind."""
    folder = tmp_path_factory.mktemp("tasks")
    Elmo(tiny_checkpoint(head=True, scale=1.0)).save(folder / "elmo")
    for name, examples in {
        "classify.tsv": texts(40),
        "classify-dev.tsv": texts(12, seed=1),
        "tag.conll": sentences(40, IOB1),
        "tag-dev.conll": sentences(8, IOB1, seed=1),
        "pos.conll": sentences(16, NONE),
        "pair.tsv": pairs(24),
        "pair-dev.tsv": pairs(8, seed=1),
        "score.tsv": pairs(24, scores=True),
    }.items():
        write_samples(folder / name, examples)
    saved = os.environ.get("ELMOKIT_CACHE")
    os.environ["ELMOKIT_CACHE"] = str(folder / "cache")
    train_models(folder)
    yield folder
    os.environ.pop("ELMOKIT_CACHE")
    if saved is not None:
        os.environ["ELMOKIT_CACHE"] = saved


@pytest.fixture
def call(capsys, place):
    """call("train", "tag", …): the exit status, stdout and stderr of `elmo task`."""
    capsys.readouterr()

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["task", *map(str, arguments)])
        captured = capsys.readouterr()
        return stop.value.code, captured.out, captured.err

    return run


@pytest.fixture
def train(call, place, tmp_path, monkeypatch):
    """train("tag", "file", …) with the tiny ELMo, into tmp_path/model; without pictures unless they are asked for."""

    def run(kind, file, *more, pictures=False):
        if not pictures:
            monkeypatch.setattr("elmokit.tasks.report._pictures", lambda *_: ())
        output = [] if "--output" in more else ["--output", tmp_path / "model"]
        return call("train", kind, place / file, "--model", place / "elmo", *output, "--epochs", 1, *SMALL, *more)

    return run


@pytest.mark.parametrize("arguments", [["task"], ["task", "--help"], ["task", "train", "--help"]])
def test_help_does_not_wait_for_torch(arguments):
    code = f"""
import sys
import elmokit.cli
try:
    elmokit.cli.main({arguments!r})
except SystemExit as stop:
    assert stop.code == 0, stop.code
print([name for name in ("torch", "numpy", "h5py", "matplotlib") if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "train" in result.stdout
    assert result.stdout.strip().endswith("[]")


def test_help_shows_each_option_with_its_default(call):
    _, out, _ = call("train", "--help")
    shown = " ".join(out.split())
    for text in (
        "--elmo mix|0|none",
        "--no-crf",
        "--compare",
        "Dropout on the ELMo vectors. [default: 0.2]",
        "--seed N",
    ):
        assert text in shown


@pytest.mark.parametrize(
    ("kind", "file", "more", "score"),
    [
        ("classify", "classify.tsv", ["--pooling", "max"], "accuracy"),
        ("tag", "tag.conll", ["--no-crf", "--elmo-output"], "entity F1"),
        ("pair", "pair.tsv", ["--no-alignment", "--elmo", "0"], "accuracy"),
        ("pair", "score.tsv", ["--target", "score"], "Pearson"),
    ],
)
def test_train_prints_scores_and_writes_a_folder(train, place, tmp_path, kind, file, more, score):
    status, out, err = train(kind, file, "--dev", place / file, *more, pictures=True)
    assert status == 0, err
    assert [line for line in out.splitlines() if line.startswith(score)]
    lines = err.splitlines()
    assert lines[0].startswith(f"{place / file}: ")
    assert lines[-2].startswith("epoch 1: loss "), lines
    assert f"dev {score} " in lines[-2]
    assert lines[-1].startswith(f"model: {tmp_path / 'model'}, with the weights of epoch 1")
    names = {path.relative_to(tmp_path / "model").as_posix() for path in (tmp_path / "model").rglob("*.*")}
    pictures = {f"report/{name}.png" for name in ("confusion", "mix", "curve")}
    pictures -= {"report/confusion.png"} if score == "Pearson" else set()
    pictures -= {"report/mix.png"} if "0" in more else set()
    files = {"task.json", "network.safetensors", "words.txt", "report/report.md", "report/scores.json"}
    elmo = {f"elmo/{name}" for name in ("config.json", "model.safetensors", "vocab.txt", "README.md")}
    assert names == files | pictures | elmo
    stored = json.loads((tmp_path / "model" / "report" / "scores.json").read_text())
    assert stored["scores"]["main"]["name"] == score
    assert stored["facts"]["command"].startswith(f"elmo task train {kind} ")
    model = load(tmp_path / "model")
    assert model.options.hidden == 8
    assert not list(tmp_path.glob(".*"))


def test_compare_prints_a_row_for_each_model(train, place, tmp_path):
    pytest.importorskip("sklearn", reason="needs the extra tasks")
    status, out, err = train("classify", "classify.tsv", "--dev", place / "classify-dev.tsv", "--compare")
    assert status == 0, err
    table = out.split("\n\n")[1].splitlines()
    assert table[0].startswith("model")
    names = [line.split("  ")[0] for line in table[1:]]
    assert names[:3] == ["ELMo + static vectors", "layer 0 alone + static vectors", "static vectors, no ELMo"]
    assert names[3:] == ["TF-IDF + logistic regression"]
    assert float(table[4].split()[4]) > 0.9, "one word decides, which TF-IDF sees"
    for name in names[:3]:
        assert f"{name}: epoch 1: loss" in err
    stored = json.loads((tmp_path / "model" / "report" / "scores.json").read_text())
    assert [row["name"] for row in stored["comparison"]] == names
    assert load(tmp_path / "model").options.elmo == "mix"


def test_compare_without_scikit_learn(train, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)  # as good as not installed
    status, out, err = train("classify", "classify.tsv", "--compare")
    assert status == 0, err
    assert len(out.split("\n\n")[1].splitlines()) == 4
    assert "pip install 'elmokit[tasks]'" in err


def test_what_is_compared_does_not_change_what_is_saved(train, place, tmp_path):
    """The other trainings may fine-tune too; the model that is written is the one whose scores were shown."""
    more = ["--dev", place / "classify-dev.tsv", "--fine-tune", "--elmo-learning-rate", 0.05]
    status, _, err = train("classify", "classify.tsv", *more, "--compare")
    assert status == 0, err
    assert train("classify", "classify.tsv", *more, "--output", tmp_path / "alone")[0] == 0
    text = "a good film"
    assert load(tmp_path / "model").predict(text) == load(tmp_path / "alone").predict(text)


def test_without_dev_data_some_is_held_out(train, place):
    status, _, err = train("classify", "classify.tsv")
    assert status == 0
    assert "no dev data: 4 of the 40 examples are held out to score on" in err.splitlines()


def test_texts_are_split_as_the_models_training_text_was(call, place, tmp_path):
    elmo = Elmo.load(place / "elmo")
    elmo.text = {"segment": "english"}
    elmo.save(tmp_path / "elmo")
    arguments = ["--model", tmp_path / "elmo", "--epochs", 1, *SMALL]
    assert call("train", "classify", place / "classify.tsv", "--output", tmp_path / "a", *arguments)[0] == 0
    assert load(tmp_path / "a").tokens("good.") == ("good", ".")
    arguments += ["--segment", "none"]
    assert call("train", "classify", place / "classify.tsv", "--output", tmp_path / "b", *arguments)[0] == 0
    assert load(tmp_path / "b").tokens("good.") == ("good.",)


def test_a_label_that_training_never_saw_is_reported(train, place, tmp_path):
    (tmp_path / "dev.tsv").write_text("label\ttext\npos\tgood\nmeh\tthe film\n")
    status, out, err = train("classify", "classify.tsv", "--dev", tmp_path / "dev.tsv")
    assert status == 0
    assert f"{tmp_path / 'dev.tsv'}, line 3: the training data does not have the label 'meh'" in err
    assert "the scores do not cover 'neg'" in err
    assert [line for line in out.splitlines() if line.startswith("meh")]


def test_eval(call, place, tmp_path):
    for kind in ("classify", "pair", "tag"):
        name = f"{kind}-dev.conll" if kind == "tag" else f"{kind}-dev.tsv"
        status, out, err = call("eval", place / f"{kind}-model", place / name)
        assert (status, err) == (0, "")
        assert "F1" in out.splitlines()[0]
    status, out, err = call("eval", place / "score-model", place / "score.tsv", "--report", tmp_path / "report")
    assert status == 0
    assert out.startswith("Pearson")
    assert err == f"report: {tmp_path / 'report' / 'report.md'}\n"
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.md", "scores.json"}


def test_predict_on_the_screen(call, place):
    status, out, err = call("predict", place / "classify-model", "a good film", "", "bad\x1b[2J 😀")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 3
    assert lines[0].split()[0] in ("pos", "neg")
    assert lines[0].endswith("  a good film")
    assert lines[2].endswith("bad\ufffd[2J 😀")
    assert call("predict", place / "tag-model", "film Ann Smith was Paris Rome", "film", "")[:2] == (
        0,
        "film [Ann Smith]PER was [Paris]LOC [Rome]LOC\nfilm\n\n",
    )
    words = call("predict", place / "pos-model", "film Ann")[1].split()
    assert [word.split("/")[0] for word in words] == ["film", "Ann"]
    assert (
        call("predict", place / "pair-model", "it", "good", "a", "bad film")[1]
        .splitlines()[1]
        .endswith("  a | bad film")
    )
    assert 1 <= float(call("predict", place / "score-model", "it", "good")[1].split()[0]) <= 5


def test_predict_prints_json(call, place, tmp_path):
    text = "film  Ann Smith was\tParis Rome"
    (tmp_path / "raw.txt").write_text(f"{text}\n")
    for arguments in ([text, "--json"], [text, "--output", "-"], ["--input", tmp_path / "raw.txt", "--json"]):
        status, out, err = call("predict", place / "tag-model", *arguments)
        assert (status, err) == (0, "")
        (line,) = out.splitlines()
        found = json.loads(line)
        assert found["text"] == text
        assert found["tokens"] == text.split()
        assert len(found["tags"]) == len(found["probabilities"]) == 6
        for entity in found["entities"]:
            assert text[entity["start_char"] : entity["end_char"]] == entity["text"]
        assert [(entity["type"], entity["text"]) for entity in found["entities"]] == [
            ("PER", "Ann Smith"),
            ("LOC", "Paris"),
            ("LOC", "Rome"),
        ]
    shown = call("predict", place / "tag-model", text)[1]
    assert shown == "film  [Ann Smith]PER was\ufffd[Paris]LOC [Rome]LOC\n"
    assert json.loads(call("predict", place / "tag-model", "a\x9b2J", "--json")[1])["text"] == "a\x9b2J"
    assert "\x9b" not in call("predict", place / "tag-model", "a\x9b2J", "--json")[1]
    (line,) = call("predict", place / "classify-model", "a  good film", "--json")[1].splitlines()
    found = json.loads(line)
    assert (found["text"], set(found["probabilities"])) == ("a  good film", {"neg", "pos"})
    (line,) = call("predict", place / "pair-model", "it", "good", "--json")[1].splitlines()
    assert {"first", "second", "label", "probability"} <= set(json.loads(line))
    status, _, err = call("predict", place / "tag-model", "a", "--json", "--output", tmp_path / "a.tsv")
    assert status == 2
    assert "--json" in err


def test_spreadsheets_compute_no_prediction(call, place, tmp_path):
    text = '=HYPERLINK("http://x") good'
    status, _, err = call("predict", place / "classify-model", text, "--output", tmp_path / "a.tsv")
    assert (status, err) == (0, "")
    assert (tmp_path / "a.tsv").read_text().splitlines()[1].split("\t")[-1] == "'" + text
    assert read_texts(tmp_path / "a.tsv")[0].tokens == tuple(text.split())
    for suffix, first in (("tsv", "'=A1"), ("conll", "=A1")):
        path = tmp_path / f"b.{suffix}"
        assert call("predict", place / "tag-model", "=A1 Ann", "--output", path)[0] == 0
        assert path.read_text().split("\t")[0] == first
        assert read_tagged(path)[0].tokens == ("=A1", "Ann")


def test_predictions_never_replace_the_file_that_is_read(call, place, tmp_path):
    examples = tmp_path / "a.tsv"
    examples.write_bytes((place / "classify-dev.tsv").read_bytes())
    (tmp_path / "b.tsv").symlink_to(examples)
    for output in ("a.tsv", "b.tsv"):
        status, out, err = call("predict", place / "classify-model", "--input", examples, "--output", tmp_path / output)
        assert (status, out) == (2, "")
        assert f"got {tmp_path / output}" in err
    assert examples.read_bytes() == (place / "classify-dev.tsv").read_bytes()


def predicted(call, place, model, file, output):
    status, out, err = call("predict", place / model, "--input", place / file, "--output", output)
    assert (status, out, err) == (0, "", "")
    return output


def test_predictions_of_classes_can_be_read_again(call, place, tmp_path):
    model, examples = load(place / "classify-model"), read_texts(place / "classify-dev.tsv")
    expected = list(model.stream(examples))
    for suffix in ("jsonl", "tsv"):
        output = predicted(call, place, "classify-model", "classify-dev.tsv", tmp_path / f"answers.{suffix}")
        found = read_texts(output)
        assert [example.tokens for example in found] == [example.tokens for example in examples]
        assert [example.label for example in found] == [answer.label for answer in expected]
        assert "accuracy   1.0000" in call("eval", place / "classify-model", output)[1]
    stored = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [line["probabilities"] for line in stored] == [answer.probabilities for answer in expected]
    assert not list(tmp_path.glob(".*"))


def test_predictions_of_pairs_can_be_read_again(call, place, tmp_path):
    examples = read_pairs(place / "pair-dev.tsv")
    for model in ("pair-model", "score-model"):
        for suffix in ("jsonl", "tsv"):
            output = predicted(call, place, model, "pair-dev.tsv", tmp_path / f"{model}.{suffix}")
            found = read_pairs(output)
            assert [(e.first, e.second) for e in found] == [(e.first, e.second) for e in examples]
            assert call("eval", place / model, output)[0] == 0


def test_predictions_of_tags_can_be_read_again(call, place, tmp_path):
    examples = read_tagged(place / "tag-dev.conll")
    expected = list(load(place / "tag-model").stream(examples))
    for suffix in ("conll", "tsv"):
        output = predicted(call, place, "tag-model", "tag-dev.conll", tmp_path / f"answers.{suffix}")
        found = read_tagged(output)
        assert [(e.tokens, e.tags) for e in found] == [(answer.tokens, answer.tags) for answer in expected]
    assert "entity F1          1.0000" in call("eval", place / "tag-model", tmp_path / "answers.conll")[1]
    output = predicted(call, place, "tag-model", "tag-dev.conll", tmp_path / "answers.jsonl")
    stored = [json.loads(line) for line in output.read_text().splitlines()]
    assert [tuple(line["tags"]) for line in stored] == [answer.tags for answer in expected]
    (tmp_path / "raw.txt").write_text("film Ann Smith was Paris\n\nRome\n")
    status, out, _ = call("predict", place / "tag-model", "--input", tmp_path / "raw.txt")
    assert (status, len(out.splitlines())) == (0, 2)


def test_texts_that_are_cut_are_reported(call, place, tmp_path):
    (tmp_path / "a.tsv").write_text(f"label\ttext\npos\t{'good ' * 500}\nneg\tbad\n")
    _, _, err = call("eval", place / "classify-model", tmp_path / "a.tsv")
    assert err == f"1 of 2 texts of {tmp_path / 'a.tsv'} is longer than 400 tokens (max_tokens) and is cut\n"
    status, out, err = call("predict", place / "classify-model", "--input", tmp_path / "a.tsv")
    assert (status, len(out.splitlines())) == (0, 2)
    assert err == "1 text longer than 400 tokens (max_tokens) was cut\n"


def test_a_mistake_late_in_a_file_leaves_no_half_of_the_answers(call, place, tmp_path):
    (tmp_path / "a.tsv").write_text("label\ttext\n" + "pos\tgood\n" * 600 + "pos\n")
    status, _, err = call(
        "predict", place / "classify-model", "--input", tmp_path / "a.tsv", "--output", tmp_path / "a.jsonl"
    )
    assert status == 2
    assert err.startswith(f"elmo: {tmp_path / 'a.tsv'}, line 602: each row must have the 2 columns")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tsv"]


def test_text_that_utf_8_cannot_hold(call, place, tmp_path):
    status, _, err = call("predict", place / "tag-model", "bad \udcff byte", "--output", tmp_path / "a.conll")
    assert status == 0, err
    assert "\ufffd\t" in (tmp_path / "a.conll").read_text(encoding="utf-8")


FILES = {
    "one.tsv": "label\ttext\npos\tgood\npos\tfine\n",
    "ragged.tsv": "label\ttext\npos\tgood\nneg\tbad\textra\n",
    "unlabelled.tsv": "label\ttext\npos\tgood\n\tbad\n",
    "bytes.tsv": b"label\ttext\npos\tgood\nneg\tb\xff\n",
    "empty.tsv": "",
    "header.tsv": "label\ttext\n",
    "columns.tsv": "label\tbody 1\tbody 2\npos\ta\tb\nneg\tc\td\n",
    "names.tsv": "".join(f"{n}\tthe film\n" for n in range(20)),
    "ragged.conll": "Ann\tB-PER\nwas\tO\textra\n",
    "letters.conll": "Ann\tB-PER\nwas\tO\n\nBob\tQ-PER\nsaw\tB-LOC\n\nCarl\tB-PER\nran\tO\n",
    "outside.conll": "Ann\tO\nwas\tO\n\nBob\tO\n",
    "words.tsv": "label\tfirst\tsecond\n1\ta\tb\n2\ta\tb\nhigh\tc\td\n",
}


@pytest.mark.parametrize(
    ("kind", "file", "more", "message"),
    [
        (
            "classify",
            "one.tsv",
            [],
            "there must be at least two classes, got only 'pos', 2 times, in {}",
        ),
        ("classify", "ragged.tsv", [], "{}, line 3: each row must have the 2 columns of line 1, got 3"),
        ("classify", "unlabelled.tsv", [], "{}, line 3: the label is empty"),
        ("classify", "bytes.tsv", [], "{}, line 3: a file must be UTF-8, got byte 0xff"),
        ("classify", "empty.tsv", [], "{} is empty"),
        ("classify", "header.tsv", [], "{} has a header and no examples"),
        ("classify", "columns.tsv", [], "{} has no column with a usual name for the text"),
        ("classify", "names.tsv", ["--label", 1, "--text", 2], "{} has 20 classes in 20 examples"),
        ("classify", "one.tsv", ["--label", "class"], "{} has no column named 'class' for the label"),
        ("classify", "one.tsv", ["--text", 9], "{} has no column 9 for --text"),
        ("classify", "missing.tsv", [], "{} does not exist: check the name"),
        ("classify", "letters.conll", [], "the format of a file is detected from its suffix: .tsv, .csv"),
        ("tag", "ragged.conll", [], "{}, line 2: a line must have 2 columns, like those before it, got 3"),
        ("tag", "letters.conll", [], "{}, line 4: the tags are BIO, which has no 'Q-PER'"),
        ("tag", "outside.conll", [], "there must be at least two classes, got only 'O', 3 times, in {}"),
        ("tag", "letters.conll", ["--tag-column", 3], "{}: --tag-column must be a number from 1 to 2, got 3"),
        ("pair", "one.tsv", [], "{} has no column with a usual name for one sentence of each pair"),
        ("pair", "words.tsv", ["--target", "score"], "{}, line 4: a score must be a number, got 'high'"),
    ],
)
def test_wrong_data_is_reported_in_a_sentence(train, tmp_path, kind, file, more, message):
    if file in FILES:
        content = FILES[file]
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    status, out, err = train(kind, tmp_path / file, *more)
    assert (status, out) == (2, "")
    said = [line for line in err.splitlines() if line.startswith("elmo: ")]
    assert len(said) == 1
    assert err.splitlines()[-1] == said[0]
    assert said[0].startswith("elmo: " + message.format(tmp_path / file))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--dropout", 1.5], "dropout must be at least 0 and below 1, got 1.5"),
        (["--dropout", "nan"], "dropout must be a finite number, got nan"),
        (["--pooling", "first"], "pooling must be one of attention, max, mean, got 'first'"),
        (["--elmo", "top"], "elmo must be one of mix, 0, none, got 'top'"),
        (["--hidden", "many"], "'--hidden'"),
        (["--epochs", 0], "epochs must be at least 1, got 0"),
        (["--seed", 10**30], "seed must be at least 0 and below"),
        (["--elmo", "none", "--static", "none"], "leave no input"),
        (["--elmo", "none", "--elmo-dropout", 0.3], " is for ELMo vectors, and "),
        (["--elmo", "0", "--mix-penalty", 1], " is for a mix of the layers"),
        (["--elmo-learning-rate", 0.1], " is for an ELMo model that is trained too"),
        (["--static", "none", "--static-size", 3], " is for vectors trained from scratch"),
        (["--static-frozen"], " is for vectors of a file"),
        (["--no-crf"], "crf is for tag: it has no effect"),
        (["--no-alignment"], "alignment is for pair"),
        (["--static", "missing.txt"], "missing.txt does not exist"),
        (["--static", ""], "--static must not be empty"),
        (["--dev", "missing.tsv"], "missing.tsv does not exist"),
        (["--model", "nowhere"], "nowhere does not exist"),
        (["--device", "abacus"], "abacus"),
        (["--output", ""], "--output must not be empty"),
        (["--output", "{place}"], "is not empty: choose a new folder"),
        (["--output", "{place}/classify.tsv"], "is not empty"),
        (["--output", "{place}/classify.tsv/x"], "cannot be written"),
        (["--cache", "{place}/classify.tsv"], "cannot be written (Not a directory)"),
    ],
)
def test_wrong_options_are_reported_in_a_sentence(train, place, tmp_path, more, message):
    before = sorted(place.iterdir())
    status, out, err = train("classify", "classify.tsv", *(str(part).format(place=place) for part in more))
    assert (status, out) == (2, "")
    assert message in err.splitlines()[-1]
    assert err.count("elmo: ") == 1
    assert not list(tmp_path.iterdir())
    assert sorted(place.iterdir()) == before


def test_a_kind_that_there_is_not(call, place):
    status, _, err = call("train", "clasify", place / "classify.tsv", "--output", "x")
    assert status == 2
    assert "a task is one of classify, tag, pair, got 'clasify'" in err
    assert call("train", "classify")[0] == 2
    status, _, err = call(
        "train", "classify", place / "classify.tsv", "--model", place / "classify.tsv", "--output", "x"
    )
    assert status == 2
    assert "is not part of a model that elmokit knows" in err


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("classify-model", [], "give either texts as arguments or a file with --input FILE, got neither"),
        ("classify-model", ["a", "--input", "{place}/pair.tsv"], "got both"),
        ("classify-model", ["-"], "got - (standard input)"),
        ("classify-model", ["--input", "missing.tsv"], "missing.tsv does not exist"),
        ("classify-model", ["a", "--output", "{here}/a.xml"], "output must end in .jsonl, .tsv for a classify model"),
        ("classify-model", ["a", "--output", "{here}/a.conll"], "output must end in .jsonl, .tsv for a classify model"),
        ("classify-model", ["a", "--output", "{here}/no/a.tsv"], "a folder that exists"),
        ("classify-model", ["--input", "{place}/tag.conll"], "the format of a file is detected from its suffix"),
        ("classify-model", ["--input", "{place}/pair.tsv"], "no column with a usual name for the text"),
        ("pair-model", ["one text"], "are given as FIRST SECOND FIRST SECOND …, got 1"),
        (
            "pair-model",
            ["--input", "{place}/classify.tsv"],
            "no column with a usual name for one sentence of each pair",
        ),
        ("elmo", ["a"], "is not a task model: it has no task.json"),
        ("missing", ["a"], "is not a task model"),
    ],
)
def test_wrong_predictions_are_reported_in_a_sentence(call, place, tmp_path, model, more, message):
    arguments = [part.format(place=place, here=tmp_path) for part in more]
    status, out, err = call("predict", place / model, *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("elmo: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("model", "file", "message"),
    [
        ("classify-model", "missing.tsv", "missing.tsv does not exist"),
        ("classify-model", "pair.tsv", "no column with a usual name for the text"),
        ("tag-model", "pos.conll", "pos.conll, line 1: the tags are IOB1, which has no 'X'"),
        ("score-model", "pair.tsv", "pair.tsv, line 2: a score must be a number, got 'same'"),
        ("missing", "pair.tsv", "is not a task model"),
    ],
)
def test_wrong_files_to_score_are_reported_in_a_sentence(call, place, model, file, message):
    status, out, err = call("eval", place / model, place / file)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_ctrl_c_leaves_nothing(place, tmp_path):
    command = [sys.executable, "-m", "elmokit", "task", "train", "classify", place / "classify.tsv"]
    command += ["--model", place / "elmo", "--output", tmp_path / "new" / "model", "--epochs", 100000, "--patience", 0]
    process = subprocess.Popen([str(part) for part in (*command, *SMALL)], stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("epoch 2"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stderr.read().splitlines()
    process.stderr.close()
    assert process.wait() == 130, lines
    assert rest[-1] == "elmo: interrupted"
    assert all(line.startswith("epoch") for line in rest[:-1])
    assert not list(tmp_path.iterdir())


def test_long_work_logs_lines_without_a_terminal(call, train, place, tmp_path, monkeypatch):
    monkeypatch.setattr("elmokit.progress._FIRST_SECONDS", 0)
    monkeypatch.setattr("elmokit.progress._LOG_SECONDS", 0)
    _, _, err = call(
        "predict", place / "classify-model", "--input", place / "classify-dev.tsv", "--output", tmp_path / "a.tsv"
    )
    shown = [line.split(",")[0] for line in err.splitlines()]
    assert shown[-12:] == ["predicting: 1 example", *(f"predicting: {n} examples" for n in range(2, 13))]
    _, _, err = train("classify", "classify.tsv", "--dev", place / "classify-dev.tsv", "--cache", tmp_path / "cache")
    lines = err.splitlines()
    assert any(line.startswith("ELMo vectors: ") for line in lines)
    assert any(line.startswith("epoch 1: 100 %, 5 of 5 batches, ") for line in lines)
