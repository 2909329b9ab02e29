"""A BERT-like model in the benchmarks of quality: its words, and heads on them."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel

QUALITY = Path(__file__).resolve().parents[2] / "benchmarks" / "quality"
sys.path.insert(0, str(QUALITY))
import heads  # noqa: E402
import sources  # noqa: E402

sys.path.remove(str(QUALITY))

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "bank", "##s", "river", "of"]
SENTENCES = [("the", "banks", "of"), (), ("river", "bank", "the", "the")]


@pytest.fixture
def folder(tmp_path):
    """A tiny model with random weights."""
    torch.manual_seed(0)
    shape = {"vocab_size": len(PIECES), "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertModel(BertConfig(**shape, intermediate_size=16)).save_pretrained(tmp_path / "bert")
    pieces = {piece: number for number, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(tmp_path / "bert" / "tokenizer.json"))
    return tmp_path / "bert"


def test_words_are_means_of_their_pieces(folder):
    peer = sources.BertAsElmo(folder, "cpu")
    found = list(peer.stream(SENTENCES, layer="all", batch_tokens=None))
    assert [vectors.shape for vectors in found] == [(3, 3, 8), (3, 0, 8), (3, 4, 8)]
    with torch.no_grad():
        ids = torch.tensor([[2, 4, 5, 6, 8, 3]])  # the bank ##s of
        hidden = torch.stack(peer.source.model(input_ids=ids, output_hidden_states=True).hidden_states)[:, 0].numpy()
    np.testing.assert_allclose(found[0][1:, 1], hidden[1:, 2:4].mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(found[0][1:, 2], hidden[1:, 4], atol=1e-5)
    table = peer.source.model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_allclose(found[0][0, 1], table[5:7].mean(axis=0), atol=1e-6)
    assert np.array_equal(found[2][0, 2], found[2][0, 3])  # without context and positions


def test_a_head_reads_them(folder, tmp_path):
    data = tmp_path / "tasks" / "sst-binary"
    data.mkdir(parents=True)
    for name, count in (("train", 8), ("dev", 4)):
        lines = [f"{number % 2}\t{('the bank', 'river banks of')[number % 2]}\n" for number in range(count)]
        (data / f"{name}.tsv").write_text("label\ttext\n" + "".join(lines))
    output = tmp_path / "heads.jsonl"
    options = [
        "--tasks",
        "sst2",
        "--set",
        "epochs=60,patience=0,learning_rate=0.01,hidden=8,static=none",
        "--device",
        "cpu",
        "--output",
        str(output),
    ]
    heads.main([str(folder), "--data", str(data.parent), *options])
    assert json.loads(output.read_text())["value"] == 1.0
