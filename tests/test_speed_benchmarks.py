"""The harness that fills the tables of speed: on tiny models, with systems that are missing or wrong."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import speed_cpu  # noqa: E402
import speed_gpu  # noqa: E402
import speed_gpu_contexts  # noqa: E402
import speed_plot  # noqa: E402
import speed_text  # noqa: E402
import speed_training  # noqa: E402
from peers import environments, minilm, plain, stand_ins, talk  # noqa: E402
from peers.ours import Ours  # noqa: E402
from speed import floors, machine, models, parity, sentences, turns  # noqa: E402
from speed.cudnn import CudnnStacks, reversed_sentences  # noqa: E402
from speed.network import Network, batch_of  # noqa: E402
from speed.table import Row, Table, shown  # noqa: E402

sys.path.remove(str(BENCHMARKS))

from elmokit import ElmoError  # noqa: E402
from elmokit.errors import MissingExtraError  # noqa: E402

PEAKS = machine.Peaks({"float32": 1e11, "tf32": 2e11, "bfloat16": 4e11, "int8": 4e11}, 3e10)


@pytest.fixture(autouse=True)
def _no_peaks(monkeypatch):
    """What the machine can do is not what these tests are about."""
    monkeypatch.setattr(machine, "cpu_peaks", lambda: PEAKS)
    monkeypatch.setattr(speed_gpu, "LONGEST_RUN", 5.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return models.write("tiny", 3, tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(" ".join(line) + "\n" for line in sentences.made(60, 1, types=300)))
    return path


def refuse(environment, folder=None):
    raise ElmoError("there is no network")


def some(count):
    return [line[:9] for line in sentences.made(count, 5, types=200)]


def test_every_system_of_ours_is_the_same_function(folders):
    batch = some(5)
    exact = plain.Plain(str(folders.elmokit), structure="reference").encode(batch)
    loop = plain.Plain(str(folders.elmokit), structure="loop")
    assert parity.compare(loop.encode(batch), exact).relative < 1e-5
    assert parity.compare(loop.encode_all(batch), exact).relative < 1e-5
    for path in (None, "packed"):
        ours = Ours(str(folders.elmokit), "float32", path=path)
        assert parity.compare(ours.encode(batch), exact).relative < 1e-5
        assert parity.compare(ours.encode_all(batch), exact).relative < 1e-5


def test_a_fresh_system_knows_no_words(folders):
    ours = Ours(str(folders.elmokit), "float32")
    ours.encode(some(2))
    assert len(ours.elmo.type_cache)
    ours.fresh()
    assert not len(ours.elmo.type_cache)


def test_parity_fails_when_a_path_is_wrong(folders):
    batch = some(3)
    exact = plain.Plain(str(folders.elmokit), structure="reference").encode(batch)
    assert not parity.TOLERANCES["float32"].allows(parity.compare([array + 0.01 for array in exact], exact))
    for change in (
        lambda arrays: [array[::-1] for array in arrays],
        lambda arrays: [array * np.nan for array in arrays],
        lambda arrays: [array[:-1] for array in arrays],
    ):
        found = parity.compare(change(exact), exact)
        assert not any(tolerance.allows(found) for tolerance in parity.TOLERANCES.values())
    assert parity.TOLERANCES["float32"].allows(parity.compare(exact, exact))
    nearly = [array * 1.0005 for array in exact]
    assert not parity.TOLERANCES["float32"].allows(parity.compare(nearly, exact))
    assert parity.TOLERANCES["int8"].allows(parity.compare(nearly, exact))


def test_a_child_answers_and_counts_its_memory(folders, tmp_path):
    batch = some(3)
    with talk.Child("float32", folders.elmokit) as child:
        assert child.load_seconds > 0
        assert child.facts["path"]
        vectors = child.vectors(batch, tmp_path)
        assert child.seconds(batch, fresh=True) > 0
        assert child.seconds(batch, own_batches=True) > 0
        assert child.megabytes() > 50
    assert child.process.returncode == 0
    exact = plain.Plain(str(folders.elmokit), structure="reference").encode(batch)
    assert parity.compare(vectors, exact).relative < 1e-5


def test_a_child_that_cannot_load_says_why(tmp_path):
    with pytest.raises(talk.NoSystemError, match=r"ElmoError: .*nothing-here"):
        talk.Child("float32", tmp_path / "nothing-here")


def test_the_cpu_table_is_made_whole_with_a_peer_that_cannot_be_installed(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environments.Environment, "make", refuse)
    output = tmp_path / "speed.md"
    given = ["--models", "tiny", "--sentences", str(text), "--count", "8", "--alone", "2", "--tokens", "5"]
    speed_cpu.main([*given, "--threads", "1", "--systems", "allennlp,float32,reference", "--output", str(output)])
    words = output.read_text()
    assert "a loop of AllenNLP's structure" in words
    assert "AllenNLP 2.10.1 was not measured: there is no network" in words.replace(
        "allennlp was", "AllenNLP 2.10.1 was"
    )
    table = json.loads(output.with_suffix(".json").read_text())["tables"][0]
    alone = next(row for row in table["rows"] if row["key"] == "alone")
    assert set(alone["values"]) == {"loop", "float32", "reference", "floor float32", "floor int8"}
    assert {"batches of 32", "one call", "load", "memory"} <= {row["key"] for row in table["rows"]}
    assert words in capsys.readouterr().out


def test_the_table_of_a_transformer_names_the_peers_that_are_missing(text, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(environments.Environment, "make", refuse)
    output = tmp_path / "speed.md"
    given = ["--models", "tiny-transformer", "--sentences", str(text), "--count", "8", "--alone", "2", "--tokens", "5"]
    systems = "minilm-onnx,allennlp,loop,float32,packed,reference"
    speed_cpu.main([*given, "--threads", "1", "--turns", "1", "--systems", systems, "--output", str(output)])
    words = output.read_text()
    assert "tiny-transformer, 2 × 24" in words
    assert "MiniLM, onnxruntime float32 was not measured: there is no network" in words
    table = json.loads(output.with_suffix(".json").read_text())["tables"][0]
    assert {"float32", "packed", "reference"} < table["columns"].keys()
    assert table["absent"].keys() == {speed_cpu.TITLES[name] for name in ("minilm-onnx", "allennlp", "loop")}
    capsys.readouterr()


def test_the_parts_of_a_transformer_are_the_same_function(tmp_path):
    folders = models.write("tiny-transformer", 3, tmp_path)
    assert folders.bilm is None
    assert folders.int8 is not None
    exact = plain.Plain(str(folders.elmokit), structure="reference").encode(some(5))
    found = Ours(str(folders.elmokit), "float32").encode(some(5))
    assert parity.compare(found, exact).relative < 1e-5


class FakeChild:
    """A peer or a system of ours whose times are a rule."""

    def __init__(self, rule):
        self.rule = rule
        self.load_seconds = 1.0
        self.facts = {}

    def seconds(self, batch, *, fresh=False, own_batches=False, size=64):
        return self.rule(sum(map(len, batch)), fresh, size if own_batches else len(batch))

    def repeated(self, batch, times):
        return [self.seconds(batch)] * times

    def megabytes(self):
        return 100.0

    def vectors(self, batch, folder):
        return [np.full((len(line), 4), 1.0, np.float32) + np.arange(4) for line in batch]


def test_peers_take_turns_and_get_their_best_batches(tmp_path):
    children = {
        "minilm-onnx": FakeChild(lambda tokens, fresh, size: tokens * (2 + abs(size - 16)) / 1000),
        "minilm-onnx-int8": FakeChild(lambda tokens, fresh, size: tokens / 1000),
        "float32": FakeChild(lambda tokens, fresh, size: tokens * (1.5 if fresh else 0.5) / 1000),
        "int8": FakeChild(lambda tokens, fresh, size: tokens / 4000),
    }
    assert speed_cpu.disagreeing(children, some(2), tmp_path)[0] == {}
    limits = turns.Limits(models.config_of("tiny-transformer"), PEAKS, 1e6)
    plan = turns.Plan([["a"] * 10] * 3, [["b"] * 10] * 40, turns=2)
    rows = turns.rows(children, dict.fromkeys(children, 0.5), plan, limits, lambda what: None)
    found = {row.key: row.values for row in rows}
    assert found["one call"]["minilm-onnx"] == found["one call, words known"]["minilm-onnx"] == pytest.approx(500)
    assert children["minilm-onnx"].facts["best batches"].startswith("16 ")
    assert (found["one call"]["float32"], found["one call, words known"]["float32"]) == pytest.approx(
        (1000 / 1.5, 2000)
    )
    assert found["alone"]["float32"] == pytest.approx(15)
    assert found["alone, words known"]["float32"] == found["alone, best"]["float32"] == pytest.approx(5)
    columns = {name: speed_cpu.TITLES[name] for name in children}
    table = Table("t", columns, rows, "minilm-onnx", against={"int8": "minilm-onnx-int8"}).markdown()
    assert "| all in one call, tokens/s | 500 | 1,000 (2.0 ×) | 667 (1.33 ×) | 4,000 (4.0 ×) |" in table
    assert "int8 to MiniLM, onnxruntime int8" in table


def test_the_vector_of_a_word_is_the_mean_of_its_pieces():
    pieces = np.arange(14, dtype=np.float32).reshape(7, 2)
    means = minilm.word_means(pieces, [None, 0, 0, 2, 3, 3, None], 5)
    np.testing.assert_allclose(means, [[3, 4], [0, 0], [6, 7], [9, 10], [0, 0]])
    np.testing.assert_array_equal(minilm.word_means(pieces[:4], [None, 0, 1, None], 2), pieces[1:3])
    np.testing.assert_array_equal(minilm.word_means(pieces[:4], [None, 0, 2, None], 3)[1], [0, 0])
    np.testing.assert_array_equal(minilm.word_means(pieces[:2], [None, None], 1), [[0, 0]])


def test_minilm_reads_padded_pieces_and_counts_them():
    class Encoding:
        def __init__(self, words):
            self.word_ids = [None, *(number for number, word in enumerate(words) for _ in word), None]
            self.ids = [1, *(ord(letter) for word in words for letter in word), 2]

    class Letters(minilm._MiniLm):
        """Every letter is a piece; its vector is its code and the number of pieces in its sentence."""

        def __init__(self):
            self.facts = {}

        def split(self, batch):
            return [Encoding(words) for words in batch]

        def last_layer(self, ids, mask):
            counts = mask.sum(1, keepdims=True) * mask
            return np.stack([ids, counts], axis=-1).astype(np.float32)

    system = Letters()
    batch = [["ab", "c"], ["d"]]
    for found in (system.encode(batch), system.encode_all(batch, 1)):
        np.testing.assert_allclose(found[0], [[97.5, 5], [99, 5]])
        np.testing.assert_allclose(found[1], [[100, 3]])
    assert system.facts["pieces per word"] == "1.33"


def test_a_wrong_system_is_not_timed(folders, tmp_path):
    class Wrong:
        def __init__(self, add):
            self.add = add

        def vectors(self, batch, folder):
            return [np.ones((len(line), 4), np.float32) + self.add * np.arange(4) for line in batch]

    children = {"reference": Wrong(0), "float32": Wrong(0.1), "packed": Wrong(0), "int8": Wrong(0.01)}
    wrong, said = speed_cpu.disagreeing(children, some(2), tmp_path)
    assert list(wrong) == ["float32"]
    assert "not the same function" in wrong["float32"]
    assert len(said) == 3


@pytest.mark.parametrize("kind", ["equal", "ragged"])
def test_the_gpu_table_runs_on_what_there_is(text, tmp_path, kind, capsys):
    output = tmp_path / "gpu.md"
    given = ["--device", "cpu", "--size", "tiny", "--modes", "float32", "--batches", "1", "3", "--sentences", str(text)]
    speed_gpu.main([*given, "--lengths", kind, "--output", str(output)])
    table = json.loads(output.with_suffix(".json").read_text())["tables"][0]
    assert {row["key"] for row in table["rows"]} == {"1 ms", "1 tokens/s", "1 wall", "3 ms", "3 tokens/s"}
    assert all(row["values"].keys() >= {"loop", "packed", "ours"} for row in table["rows"])
    assert output.read_text() in capsys.readouterr().out


@pytest.mark.parametrize("lengths", [[], ["--ragged"]], ids=["equal", "ragged"])
def test_the_table_of_context_encoders_runs_on_what_there_is(text, tmp_path, monkeypatch, lengths):
    monkeypatch.setattr(speed_gpu_contexts, "REPEATS", 1)
    monkeypatch.setattr(speed_gpu_contexts, "PACKED_SENTENCES", 1)
    output = tmp_path / "contexts.md"
    given = ["--device", "cpu", "--shape", "tiny", "--modes", "float32", "--batches", "1", "3"]
    speed_gpu_contexts.main([*given, *lengths, "--sentences", str(text), "--output", str(output)])
    rows = {row["key"]: row for row in json.loads(output.with_suffix(".json").read_text())["tables"][0]["rows"]}
    kinds = ("network ms", "network tokens/s", "network wall", "encode ms", "encode tokens/s")
    assert rows.keys() == {f"{count} {kind}" for count in (1, 3) for kind in kinds}
    assert rows["1 encode ms"]["values"].keys() == {"lstm", "packed", "transformer"}
    assert rows["3 encode ms"]["values"].keys() == {"lstm", "transformer"}


def test_the_gpu_table_refuses_a_path_that_is_wrong(text, monkeypatch, capsys):
    plain_bilstm = speed_gpu.Network.runs

    def runs(self, x, lengths):
        return plain_bilstm(self, x, lengths) | {"ours": lambda: [x.repeat(1, 1, 2)]}

    monkeypatch.setattr(speed_gpu.Network, "runs", runs)
    given = ["--device", "cpu", "--size", "tiny", "--modes", "float32", "--batches", "2", "--sentences", str(text)]
    with pytest.raises(ElmoError, match="the tables say why"):
        speed_gpu.main([*given, "--lengths", "equal"])
    assert "elmokit was not measured: it is not the same function" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # on the CPU torch says that it does it in another way
def test_cudnn_is_the_reference_without_clips_and_skips():
    network = Network.random(models.config_of("tiny"), 0, torch.device("cpu")).without_clips()
    lengths = torch.tensor([4, 1, 7])
    x = batch_of(lengths, network, torch.float32)
    exact = plain.reference(x, lengths, network.stacks, skip_connections=False)[-1]
    with torch.no_grad():
        found = CudnnStacks(network.stacks).top(x, lengths)
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-5)
    assert reversed_sentences(reversed_sentences(x, lengths), lengths).equal(x)


def test_the_training_and_text_tables_run(text, tmp_path, capsys):
    output = tmp_path / "training.md"
    small = ["--device", "cpu", "--size", "tiny", "--dtype", "float32", "--output", str(output)]
    speed_training.main([*small, "--batch", "3", "--time", "4", "--repeats", "2"])
    assert "there is no cuDNN on a CPU" in output.read_text()
    speed_text.main([*small, "--sentences", str(text), "--count", "20"])
    rows = json.loads(output.with_suffix(".json").read_text())["tables"][0]["rows"]
    assert rows[1]["values"].keys() == {"loop", "ours", "floor"}
    capsys.readouterr()


def test_a_table_shows_ratios_and_reasons():
    rows = [
        Row("one", "ms", "less", {"peer": 400.0, "ours": 50.0, "floor": 4.0}),
        Row("many", "tokens/s", "more", {"peer": 150.0, "ours": 12345.0}),
        Row("known", "ms", "less", {"ours": 0.05}),
    ]
    table = Table("t", {"peer": "Peer", "ours": "Ours", "floor": "floor"}, rows, "peer", ["n"], {"gone": "no reason"})
    lines = table.markdown().splitlines()
    assert "| one, ms | 400 | 50.0 (8.0 ×) | 4.00 |" in lines
    assert "| many, tokens/s | 150 | 12,345 (82 ×) | — |" in lines
    assert "| known, ms | — | 0.0500 | — |" in lines
    assert "- gone was not measured: no reason" in lines
    assert shown(1234567.8) == "1,234,568"


def test_floors_are_the_arithmetic_and_the_memory_of_the_original():
    config = models.config_of("original")
    assert floors.lstm_operations(config) == 150_994_944
    assert 30e6 < floors.word_operations(config, 5) < floors.word_operations(config, 40) < 60e6
    many, one = [["a"] * 20] * 64, [["a"] * 20]
    assert floors.floor_seconds(config, many, PEAKS, "float32") == pytest.approx(64 * 22 * 150_994_944 / 1e11, rel=0.01)
    once = floors.floor_seconds(config, one, PEAKS, "float32", cache_bytes=1e9)
    again = floors.floor_seconds(config, one, PEAKS, "float32", cache_bytes=0)
    assert again > 3 * once


def test_floors_of_a_transformer_are_its_products_and_its_weights():
    config = models.config_of("transformer")
    assert floors.block_weights(config.context) == 13_584_384
    assert floors.attention_operations(config.context, 3) == 4 * 8 * 384 * 9
    assert floors.attention_operations(config.context, 500) < 4 * 8 * 384 * 500 * 129
    one = floors.floor_seconds(config, [["a"] * 20], PEAKS, "float32", characters=False)
    assert one == pytest.approx(22 * 2 * 13_584_384 / 1e11, rel=0.02)
    assert floors.floor_seconds(config, [["a"]], PEAKS, "float32", characters=False) == 4 * 13_584_384 / 3e10


def test_sentences_are_drawn_by_seed_and_length(text):
    found = sentences.read(text)
    assert found.drawn(10, 1) == found.drawn(10, 1) != found.drawn(10, 2)
    assert {len(s) for s in found.of_length(5, 20, 0)} == {5}
    with pytest.raises(ElmoError, match="60"):
        found.drawn(61, 0)


def test_text_comes_from_a_corpus_next_to_the_checkout_or_is_made(tmp_path, monkeypatch):
    import lzma

    monkeypatch.setattr(sentences, "CHECKOUT", tmp_path / "checkout")
    monkeypatch.setattr(sentences, "made", lambda count, seed: [["made"]])
    assert sentences.read(None).sentences == [["made"]]
    (tmp_path / "shared" / "corpora").mkdir(parents=True)
    with lzma.open(tmp_path / "shared" / "corpora" / "enwiki-a-0.txt.xz", "wt") as file:
        file.write("The bank raised rates. It rained.\n\nA river.\n")
    expected = [["The", "bank", "raised", "rates", "."], ["It", "rained", "."], ["A", "river", "."]]
    assert sentences.read(None).sentences == expected


def test_a_users_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(ElmoError, match="--systems must name"):
        speed_cpu.arguments(["--systems", "float32,tensorflow"])
    with pytest.raises(ElmoError, match="at least 1"):
        speed_cpu.arguments(["--turns", "0"])
    with pytest.raises(ElmoError, match="at least 1"):
        speed_cpu.arguments(["--threads", "0"])
    (tmp_path / "no.json").write_text("[]")
    with pytest.raises(ElmoError, match="must be the JSON"):
        speed_plot.tables_of(tmp_path / "no.json")


def test_the_picture_is_drawn_from_the_figures(tmp_path):
    values = {"allennlp": 400.0, "float32": 90.0, "int8": 20.0, "floor int8": 3.0}
    rows = [{"key": key, "values": values} for key in ("alone", "batches of 32")]
    cpu = {"title": "original, 4096/512", "columns": {name: name for name in values}, "rows": rows}
    lines = [{"key": f"{n} tokens/s", "values": {"loop": 500.0 * n, "ours": 20000.0 * n}} for n in (1, 32)]
    gpu = {"title": "biLSTM, bfloat16", "columns": {"loop": "loop", "ours": "ours", "floor": "floor"}, "rows": lines}
    for number, table in enumerate((cpu, gpu)):
        (tmp_path / f"{number}.json").write_text(json.dumps({"tables": [table]}))
    try:
        speed_plot.main([str(tmp_path / "0.json"), str(tmp_path / "1.json"), "--output", str(tmp_path / "speed.png")])
    except MissingExtraError:
        pytest.skip("matplotlib is not installed")
    assert (tmp_path / "speed.png").stat().st_size > 10_000
    with pytest.raises(ElmoError, match="neither"):
        speed_plot.draw([{"title": "", "rows": [], "columns": {}}], tmp_path / "speed.png")


def test_stand_ins_come_after_what_is_installed():
    finder = stand_ins._Finder()
    assert finder.find_spec("numpy") is None
    assert finder.find_spec("torch.nn") is None
    module = finder.create_module(finder.find_spec("cached_path"))
    assert module.cached_path("a/b", cache_dir=None) == "a/b"
    assert list(module.Anything.deeper) == []
    with pytest.raises(AttributeError):
        _ = module.__path_to_nowhere__


def test_an_environment_that_cannot_be_made_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(environments.sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(ElmoError, match=r"AllenNLP.*no-python"):
        environments.ALLENNLP.make(tmp_path / "environment")
