"""The harness that fills the table of quality: on tiny data, with what is missing, killed and gone on."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

QUALITY = Path(__file__).resolve().parents[1] / "benchmarks" / "quality"
sys.path.insert(0, str(QUALITY))
import cells  # noqa: E402
import heads  # noqa: E402
import results  # noqa: E402
import rows  # noqa: E402
import run  # noqa: E402
import sources  # noqa: E402
import two_senses  # noqa: E402

sys.path.remove(str(QUALITY))

from elmokit import Elmo, ElmoError  # noqa: E402
from elmokit.analyse.probes.pos import LinearOptions  # noqa: E402
from support.tiny_models import tiny_checkpoint  # noqa: E402

WORDS = ["the", "bank", "river", "money", "of", "a"]


@pytest.fixture(autouse=True)
def _few_updates(monkeypatch):
    monkeypatch.setattr("elmokit.analyse.probes.pos.LinearOptions", partial(LinearOptions, least_updates=20))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    Elmo(tiny_checkpoint()).save(folder)
    return folder


@pytest.fixture
def data(tmp_path):
    """A little of every task that the tests measure."""
    random = np.random.default_rng(0)
    folder = tmp_path / "tasks"

    def write(name, text):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    def sentence():
        return [str(word) for word in random.choice(WORDS, random.integers(2, 6))]

    for split, count in (("train", 12), ("dev", 4)):
        sentences = [sentence() for _ in range(count)]
        tagged = [
            "".join(f"{i}\t{w}\t_\t{w.upper()}" + "\t_" * 6 + "\n" for i, w in enumerate(s, 1)) for s in sentences
        ]
        write(f"pos-ewt/{split}.conllu", "\n".join(tagged) + "\n")
        labelled = "".join(f"{number % 2}\t{' '.join(s)}\n" for number, s in enumerate(sentences))
        write(f"sst-binary/{split}.tsv", "label\ttext\n" + labelled)
        pairs = [f"{'TF'[n % 2]}\tx\tN\t0-1\t{' '.join(s)}\t{' '.join(s)}\n" for n, s in enumerate(sentences)]
        write(f"wic/{split}.tsv", "label\tword\tpos\tindices\tsentence1\tsentence2\n" + "".join(pairs))
    return folder


@pytest.fixture
def quick(tmp_path):
    """The table's rows with small heads."""
    text = rows.TABLE.read_text(encoding="utf-8")
    path = tmp_path / "quick.toml"
    path.write_text(text.replace("[sst2]", "[sst2]\noptions = { hidden = 4, epochs = 1, static_size = 3 }"))
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_one_command_fills_the_table(tmp_path, model, data, quick, capsys):
    output = tmp_path / "quality.md"
    given = [model, "--data", data, "--config", quick, "--tasks", "pos,sst2,wic,sst5,zh-toutiao"]
    given = [str(item) for item in (*given, "--seeds", 2, "--device", "cpu", "--output", output)]
    run.main(given)
    table = output.read_text(encoding="utf-8")
    assert capsys.readouterr().out.strip() == table.strip()
    upper = table.split("## ")[0].splitlines()
    rows_shown = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in upper if "|" in line}
    for title, seeds in (("POS, UD English EWT", "2"), ("sentiment, SST-2", "2"), ("word in context, WiC", "1")):
        shown = rows_shown[title]
        assert shown[2] == seeds
        assert all(cell[0].isdigit() for cell in shown[3:6]), title
        assert ("±" in shown[3]) == (seeds == "2")
    assert "sentiment, SST-5: " in table
    assert "sst-fine/train.tsv does not exist" in table
    assert "Chinese headlines, Toutiao: " in table
    assert f"{model} --data" in table, "the command is in it"
    known = lines(output.with_suffix(".jsonl"))
    kinds = {(line["task"], line["input"], line["seed"]) for line in known}
    names = [("pos", 1), ("pos", 2), ("sst2", 1), ("sst2", 2), ("wic", 1)]
    assert kinds == {(task, name, seed) for task, seed in names for name in ("elmo", "layer0", "static")}
    assert len(known) == len(kinds)


def test_a_killed_run_goes_on(tmp_path, model, data, quick, monkeypatch):
    output = tmp_path / "quality.md"
    given = [model, "--data", data, "--config", quick, "--tasks", "wic,sst2", "--inputs", "elmo,static"]
    given = [str(item) for item in (*given, "--seeds", 1, "--device", "cpu", "--output", output)]
    whole, done = cells.run_unit, []

    def killed(unit, setting):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(unit)
        return whole(unit, setting)

    monkeypatch.setattr(run, "run_unit", killed)
    with pytest.raises(KeyboardInterrupt):
        run.main(given)
    journal = output.with_suffix(".jsonl")
    before = lines(journal)
    assert len(before) == 2
    assert "word in context" in output.read_text()
    with journal.open("a") as file:
        file.write('{"task": "sst2", "inp')  # the kill came in the midst of a line
    left = []
    monkeypatch.setattr(run, "run_unit", lambda unit, setting: left.append(unit) or whole(unit, setting))
    run.main([*given, "--resume"])
    assert {unit.task for unit in left} == {"sst2"}
    assert lines(journal)[:2] == before
    assert len(lines(journal)) == 4
    left.clear()
    run.main([*given, "--resume", "--limit", "8"])
    assert len(left) == 4, "scores of other settings are not taken for these"
    run.main(given)
    assert len(lines(journal)) == 4, "without --resume it begins again"


def test_cells_run_in_processes(tmp_path, model, data, quick, monkeypatch):
    monkeypatch.syspath_prepend(QUALITY)  # as for a script, whose folder the processes know
    output = tmp_path / "quality.md"
    given = [model, "--data", data, "--config", quick, "--tasks", "wic", "--inputs", "elmo", "--jobs", 2]
    run.main([str(item) for item in (*given, "--device", "cpu", "--output", output)])
    [line] = lines(output.with_suffix(".jsonl"))
    assert line["task"] == "wic"


def test_a_cell_that_fails_leaves_the_others(tmp_path, model, data, quick, monkeypatch):
    (data / "wic" / "dev.tsv").write_text("label\n")
    output = tmp_path / "quality.md"
    given = [model, "--data", data, "--config", quick, "--tasks", "wic,pos", "--inputs", "elmo", "--seeds", 1]
    run.main([str(item) for item in (*given, "--device", "cpu", "--output", output)])
    assert [line["task"] for line in lines(output.with_suffix(".jsonl"))] == ["pos"]
    assert "lacks indices" in output.read_text()


def test_the_test_set_is_measured_where_there_is_one(tmp_path, model, data, quick):
    output = tmp_path / "quality.md"
    given = [str(model), "--data", str(data), "--config", str(quick), "--tasks", "pos,sst2", "--inputs", "elmo"]
    given += ["--split", "test", "--seeds", "1", "--device", "cpu", "--output", str(output)]
    run.main(given)
    assert not lines(output.with_suffix(".jsonl"))
    assert "pos-ewt has no test file" in output.read_text()
    (data / "pos-ewt" / "dev.conllu").rename(data / "pos-ewt" / "test.conllu")
    (data / "sst-binary" / "test.tsv").write_text("label\ttext\n0\tthe bank\n")
    run.main(given)
    pos, sst = lines(output.with_suffix(".jsonl"))
    assert pos["task"] == "pos"
    assert sst["value"] in (0, 1), "one test sentence, right or wrong"


def test_figures_of_the_table():
    row = rows.Row("x", "a task", "classify", "accuracy", "x/train.tsv", "x/dev.tsv")
    scores = [
        results.Score("x", name, seed, value, 1.0, {})
        for name, values in {"elmo": (0.9, 0.92), "layer0": (0.8, 0.84), "static": (0.86,)}.items()
        for seed, value in enumerate(values, start=1)
    ]
    table = results.render([row], scores, {}, ["elmo", "layer0", "static"], [])
    assert "| a task | accuracy | 2 | 91.00 ± 1.41 | 82.00 ± 2.83 | 86.00 | 50.0 % | 35.7 % |" in table


def test_the_rows_of_the_table_are_whole():
    known = rows.read_rows()
    assert len(known) == 14
    for row in known.values():
        assert row.metric in ("accuracy", "entity F1", "Pearson", "F1")
        cells.TaskOptions(**row.options)
    assert [name for name, row in known.items() if row.language == "zh"] == [
        "zh-toutiao", "zh-thucnews", "zh-ner-resume", "zh-ner-weibo", "zh-ner-msra",
    ]  # fmt: skip
    with pytest.raises(ElmoError, match="--tasks must name rows"):
        run.main(["model", "--tasks", "squad"])


def test_the_share_of_nearest_uses_in_the_same_sense():
    labels = ["one", "one", "other", "other"]
    apart = np.array([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], np.float32)
    assert two_senses.share_right(apart, labels) == 1
    assert two_senses.share_right(apart[[0, 2, 1, 3]], labels) == 0
    assert two_senses.share_right(np.ones((4, 2), np.float32), labels) == pytest.approx(1 / 3)  # chance


def test_the_senses_of_words_in_the_bundled_model_come_apart(capsys):
    two_senses.main([])
    for printed, words, chance in zip(capsys.readouterr().out.split("\n\n"), (12, 60), ({43}, {25, 40}), strict=False):
        table = [line.strip("| ").split(" | ") for line in printed.splitlines()]
        assert table[0] == ["word", *(f"layer {number}" for number in range(len(table[0]) - 1))]
        shares = {row[0]: [int(cell.removesuffix(" %")) for cell in row[1:]] for row in table[2:]}
        *of_words, everything = shares.values()
        assert len(of_words) == words
        assert {row[0] for row in of_words} == chance, "by the spelling alone there is nothing but chance"
        assert everything[-1] > everything[0] + 30


def test_a_chinese_word_is_the_mean_of_its_characters_and_equal_without_context(capsys):
    two_senses.main(["--language", "zh"])
    for printed, words in zip(capsys.readouterr().out.split("\n\n"), (25, 40), strict=True):
        table = [line.strip("| ").split(" | ") for line in printed.splitlines()]
        shares = {row[0]: [int(cell.removesuffix(" %")) for cell in row[1:]] for row in table[2:]}
        assert len(shares) == words + 1
        assert {row[0] for row in shares.values()} == {40}, "by the spelling alone there is nothing but chance"
        assert shares["all"][-1] > 70


def test_a_word_is_found_by_its_token_or_by_its_characters():
    tokens = [two_senses.Token("batter", 0, 6), two_senses.Token("bat", 7, 10)]
    assert two_senses.span_of("bat", "batter bat", tokens) == slice(1, 2)
    tokens = [two_senses.Token(character, place, place + 1) for place, character in enumerate("买苹果吃")]
    assert two_senses.span_of("苹果", "买苹果吃", tokens) == slice(1, 3)
    assert two_senses.span_of("苹果", "买苹果吃", [two_senses.Token("买苹果吃", 0, 4)]) == slice(0, 1)


@pytest.mark.parametrize(
    ("language", "number", "senses", "sentences"),
    [("en", 0, (2, 2), 4), ("en", 1, (2, 3), 3), ("zh", 0, (2, 2), 3), ("zh", 1, (2, 2), 3)],
)
def test_every_sentence_has_its_word_once(language, number, senses, sentences):
    for word, by_sense in two_senses.read_lists(language)[number].items():
        assert senses[0] <= len(by_sense) <= senses[1], word
        assert {len(texts) for texts in by_sense.values()} == {sentences}, word
        for text in (text for texts in by_sense.values() for text in texts):
            assert (text.split().count(word) if language == "en" else text.count(word)) == 1, text


def test_static_vectors_are_looked_up_in_lower_case_too():
    source = sources.StaticSource(["a", "b"], np.array([[1, 2], [3, 4]], np.float32))
    [layers] = source.stream([("A", "b", "c")])
    np.testing.assert_array_equal(layers, [[[1, 2], [3, 4], [0, 0]]])
    with pytest.raises(ElmoError, match="one row per word"):
        sources.StaticSource(["a", "b"], np.ones((1, 2), np.float32))


@pytest.fixture
def seen(monkeypatch):
    """The options that reach a head, in order."""
    import elmokit.tasks

    options = []
    fit = elmokit.tasks.fit

    def watched(kind, train, dev, given, **others):
        options.append(given)
        return fit(kind, train, dev, given, **others)

    monkeypatch.setattr(elmokit.tasks, "fit", watched)
    return options


def test_settings_of_a_head_are_tried_and_sorted(tmp_path, model, data, seen, capsys):
    grid, output = tmp_path / "grid.toml", tmp_path / "heads.jsonl"
    small = "hidden = 4, epochs = 1, static_size = 3"
    grid.write_text(f"[classify]\nlow = {{ {small}, dropout = 0.25 }}\ntuned = {{ {small}, fine_tune = true }}\n")
    given = [str(item) for item in (model, "--data", data, "--tasks", "sst2", "--grid", grid, "--device", "cpu")]
    given += ["--seeds", "2", "--output", str(output)]
    heads.main(given)
    assert [(o.fine_tune, o.dropout, o.hidden, o.seed) for o in seen] == [
        (True, 0.5, 4, 1), (False, 0.25, 4, 1), (True, 0.5, 4, 2), (False, 0.25, 4, 2),
    ], "the longest first, seed by seed"  # fmt: skip
    shown = [
        line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith(("| low", "| tuned"))
    ]
    assert len(shown) == 2
    assert float(shown[0][1].split()[0]) >= float(shown[1][1].split()[0])
    assert len(lines(output)) == 4
    output.write_text("".join(output.read_text().splitlines(keepends=True)[:-1]) + '{"task": "ss')
    seen.clear()
    heads.main([*given, "--resume"])
    assert len(seen) == 1, "only what is missing"
    seen.clear()
    heads.main([*given, "--resume", "--limit", "8"])
    assert len(seen) == 4, "scores of other examples do not count"


def test_the_vectors_of_a_frozen_model_are_computed_once_for_all_settings(tmp_path, model, data, monkeypatch):
    from elmokit.tasks import inputs

    computed, block = [], inputs._compute_block
    monkeypatch.setattr(inputs, "_compute_block", lambda *given: computed.append(len(given[4])) or block(*given))
    grid = tmp_path / "grid.toml"
    small = "hidden = 4, epochs = 1, static_size = 3"
    grid.write_text("[classify]\n" + "".join(f"s{n} = {{ {small}, dropout = 0.{n} }}\n" for n in range(1, 4)))
    given = (model, "--data", data, "--tasks", "sst2", "--grid", grid, "--device", "cpu")
    heads.main([str(item) for item in (*given, "--output", tmp_path / "heads.jsonl")])
    assert 0 < sum(computed) <= 16, "12 sentences to train on and 4 to score on"


def test_the_settings_to_try_are_options_of_the_heads():
    grid = heads.read_grid(heads.GRID)
    assert set(grid) == {"classify", "tag"}
    for settings in grid.values():
        rates = {options["elmo_learning_rate"] for options in settings.values() if options.get("fine_tune")}
        assert {3e-5, 1e-4, 3e-4} <= rates
    assert heads.read_set("dropout=0.4,fine_tune=true,pooling=max") == {
        "dropout": 0.4, "fine_tune": True, "pooling": "max",
    }  # fmt: skip
    with pytest.raises(ElmoError, match="momentum"):
        heads.read_set("momentum=0.9")
    with pytest.raises(ElmoError, match="--tasks must name heads"):
        heads.main(["model", "--tasks", "wsd"])
