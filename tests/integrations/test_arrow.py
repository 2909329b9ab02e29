"""EmbedBatch: the vectors of `Elmo.encode` in columns of an Arrow table."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from elmokit import Elmo
from elmokit.errors import ElmoError
from elmokit.integrations.arrow import EmbedBatch

TEXTS = ["the bank of the river .", "", None, "a bank raised money"]


@pytest.fixture
def table() -> pa.Table:
    return pa.table({"id": [7, 8, 9, 10], "text": TEXTS})


def embed_batch(model_folder, **options) -> EmbedBatch:
    """As another process gets it."""
    return pickle.loads(pickle.dumps(EmbedBatch(model=model_folder, device="cpu", **options)))


@pytest.mark.parametrize("pool", [None, "mean", "last"])
@pytest.mark.parametrize("layer", [None, "all", 1])
def test_vectors_are_those_of_encode(model_folder, table, layer, pool):
    embed = embed_batch(model_folder, layer=layer, pool=pool)
    found = embed(table)
    found.validate(full=True)
    assert found.schema == embed.schema(table.schema)
    assert found.select(["id", "text"]).equals(table)
    elmo = Elmo.load(model_folder, device="cpu")
    names = ["layer_0", "layer_1", "layer_2"] if layer == "all" else ["vectors"]
    assert found.column_names == ["id", "text", *([] if pool else ["tokens"]), *names]
    vector = pa.list_(pa.float32(), 12)
    for number, name in enumerate(names):
        assert found.schema.field(name).type == (vector if pool else pa.large_list(vector))
        rows = found[name].to_pylist()
        for text, row in zip(TEXTS, rows, strict=True):
            if text is None:
                assert row is None
                continue
            (expected,) = elmo.stream([text], layer=layer, pool=pool)
            expected = expected[number] if layer == "all" else expected
            np.testing.assert_array_equal(np.array(row, np.float32).reshape(expected.shape), expected)
    if pool is None:
        assert found["tokens"].to_pylist() == [None if text is None else text.split() for text in TEXTS]


def test_record_batches_parts_and_tokens(model_folder, table):
    embed = embed_batch(model_folder)
    whole = embed(table)
    parts = [embed(batch) for batch in table.to_batches(max_chunksize=1)]
    assert pa.Table.from_batches(parts).combine_chunks().equals(whole.combine_chunks())
    tokens = pa.array([None if text is None else text.split() for text in TEXTS], pa.list_(pa.string()))
    assert embed(pa.table({"text": tokens}))["vectors"].equals(whole["vectors"])
    assert embed(table.slice(0, 0)).num_rows == 0


def test_lists_that_spark_reads(model_folder, table):
    """Its converter knows list and string, and neither large nor fixed-size lists."""
    for pool, kind in ((None, pa.list_(pa.list_(pa.float32()))), ("max", pa.list_(pa.float32()))):
        found = embed_batch(model_folder, pool=pool, plain_lists=True)(table)
        assert found.schema.field("vectors").type == kind
        assert found["vectors"].to_pylist() == embed_batch(model_folder, pool=pool)(table)["vectors"].to_pylist()
        if pool is None:
            assert found.schema.field("tokens").type == pa.list_(pa.string())


def test_the_model_is_loaded_once_and_never_sent(model_folder, table, monkeypatch):
    embed, calls, plain = EmbedBatch(model=model_folder, device="cpu"), [], Elmo.load
    monkeypatch.setattr(Elmo, "load", lambda *a, **named: calls.append(a) or plain(*a, **named))
    for _ in range(3):
        pickle.loads(pickle.dumps(embed))(table)
    assert len(calls) == 1
    assert len(pickle.dumps(embed)) < 1000


def test_the_model_may_be_named_by_a_path_from_here(model_folder, monkeypatch, tmp_path):
    monkeypatch.chdir(model_folder.parent)
    embed = EmbedBatch(model=model_folder.name, device="cpu")
    monkeypatch.chdir("/")
    assert embed(pa.table({"text": ["a"]})).num_rows == 1


def test_types_of_texts(model_folder):
    texts = ["a bank", None, "a bank"]
    expected = embed_batch(model_folder)(pa.table({"text": texts})).column("vectors")
    repeated = pa.array(texts).dictionary_encode()
    assert embed_batch(model_folder)(pa.table({"text": repeated})).column("vectors") == expected
    missing = embed_batch(model_folder)(pa.table({"text": pa.nulls(2)}))
    assert missing.column("vectors").to_pylist() == [None, None]
    assert missing.schema.field("vectors").type == expected.type


def test_mistakes(model_folder, table):
    embed = EmbedBatch(model=model_folder, device="cpu", column="body")
    with pytest.raises(ElmoError, match="one of id, text, got 'body'"):
        embed(table)
    with pytest.raises(ElmoError, match="must have texts or lists of tokens, got int64"):
        EmbedBatch(model=model_folder, device="cpu", column="id")(table)
    with pytest.raises(ElmoError, match="vectors"):
        EmbedBatch(model=model_folder, device="cpu")(table.append_column("vectors", table["id"]))
    with pytest.raises(ElmoError, match="layer must be"):
        EmbedBatch(model=model_folder, device="cpu", layer=3)(table)
    with pytest.raises(ElmoError, match="pool must be one of"):
        EmbedBatch(pool="sum")
    with pytest.raises(ElmoError, match="threads must be at least 1, got 0"):
        EmbedBatch(threads=0)
    with pytest.raises(ElmoError, match="path or a name"):
        EmbedBatch(model=Elmo.load(model_folder))
