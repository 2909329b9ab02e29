"""Elmo as a layer in a module that is compiled or exported: the numbers and gradients of eager mode."""

import subprocess
import sys
import warnings
from contextlib import nullcontext
from itertools import product

import pytest
import torch
from torch import nn
from torch.export import Dim

from elmokit import BiLM, Elmo, ElmoError
from elmokit.compat.allennlp import Elmo as AllenNlpElmo
from elmokit.compat.allennlp import batch_to_ids
from elmokit.config import LstmConfig, TransformerConfig
from elmokit.ops.paths import forced
from elmokit.ops.reference import lstm_reference, transformer_reference
from elmokit.ops.traceable import _rotated, lstm_scan, transformer_dense
from elmokit.ops.weights import LstmWeights
from support.doc_pages import run_page
from support.tiny_models import WORDS, tiny_checkpoint, tiny_config, transformer_config, word_config

SENTENCES = ["the river bank", "a bank"]
OTHERS = [["a"], ["the money of a bank .", "", "money"]]
CONFIGS = {"lstm": tiny_config, "transformer": transformer_config, "words": word_config}

# The compiler warns of its own deprecations.
pytestmark = pytest.mark.filterwarnings("default")


class Classifier(nn.Module):
    """A user's module: ELMo, a layer and a pool; the parts after ELMo are what is compiled."""

    def __init__(self, elmo: Elmo) -> None:
        super().__init__()
        self.elmo = elmo
        torch.manual_seed(0)
        self.output = nn.Linear(elmo.config.vector_size, 3)

    def forward(self, sentences):
        out = self.elmo(sentences)
        return (torch.tanh(self.output(out["elmo"])) * out["mask"].unsqueeze(-1)).sum(dim=1)


@pytest.fixture(autouse=True)
def _fresh_compiler(monkeypatch):
    torch.compiler.reset()
    # C++ would take seconds for each graph and is torch's own affair; which code is traced does not depend on it.
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *args, **named: plain(*args, **{"backend": "aot_eager"} | named))


def gradients(output, module):
    used = {name: value for name, value in module.named_parameters() if value.requires_grad}
    found = torch.autograd.grad(output.square().sum(), list(used.values()), allow_unused=True)
    return dict(zip(used, found, strict=True))


SOME = {("lstm", False, "native"), ("lstm", True, "packed"), ("transformer", True, "native")}
"""One of each; the other combinations are slow tests."""


@pytest.mark.parametrize(
    ("kind", "trainable", "path"),
    [
        pytest.param(*case, marks=() if case in SOME else pytest.mark.slow)
        for case in product(CONFIGS, (False, True), ("native", "packed"))
    ],
)
def test_a_compiled_module_gives_the_same_numbers_and_gradients(kind, trainable, path):
    module = Classifier(Elmo(tiny_checkpoint(CONFIGS[kind]()), trainable=trainable))
    compiled = torch.compile(module)
    for sentences in (SENTENCES, *OTHERS):
        with forced("packed") if path == "packed" else nullcontext():
            expected, found = module(sentences), compiled(sentences)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        wanted = gradients(expected, module)
        for name, value in gradients(found, module).items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_default_compiler_gives_the_same_numbers():
    module = Classifier(Elmo(tiny_checkpoint(), trainable=True))
    found, expected = torch.compile(module, backend="inductor")(SENTENCES), module(SENTENCES)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    wanted = gradients(expected, module)
    for name, value in gradients(found, module).items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-4)


def test_only_what_is_around_elmo_is_compiled():
    graphs = []

    def backend(graph, _):
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph.forward

    module = Classifier(Elmo(tiny_checkpoint()))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.compile(module, backend=backend)(SENTENCES)
    assert not [each for each in caught if "Dynamo does not know" in str(each.message)]
    assert len(graphs) == 1
    assert any("tanh" in target for target in graphs[0])


def test_compiled_training_steps_are_those_of_eager_mode():
    losses = []
    for compiled in (False, True):
        module = Classifier(Elmo(tiny_checkpoint(scale=1.0), trainable=True))
        run = torch.compile(module) if compiled else module
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        losses.append([])
        for _ in range(4):
            loss = nn.functional.cross_entropy(run(SENTENCES), torch.tensor([0, 2]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_other_entries_work_inside_compiled_functions(tmp_path):
    elmo = Elmo(tiny_checkpoint())
    elmo.save(tmp_path, format="bilm")
    theirs = AllenNlpElmo(tmp_path / "options.json", tmp_path / "weights.hdf5", 1, dropout=0, stateful=False)
    ids = batch_to_ids([["the", "river"], ["bank"]])

    def entries():
        vectors = torch.from_numpy(elmo.encode(SENTENCES, output="sentence")) * 2
        return vectors, elmo.bilm(ids) * 2, theirs(ids)["elmo_representations"][0] * 2, elmo(SENTENCES)["default"]

    for found, expected in zip(torch.compile(entries)(), entries(), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.compile(elmo)(SENTENCES)["elmo"], elmo(SENTENCES)["elmo"])


def test_a_graph_without_a_break_is_refused_with_the_reason():
    module = Classifier(Elmo(tiny_checkpoint()))
    for _ in ("the first time", "and later"):
        with pytest.raises(Exception, match="leave fullgraph=True out"):
            torch.compile(module, fullgraph=True)(SENTENCES)
        module(SENTENCES)


def test_without_a_compiler_none_is_imported(tmp_path):
    Elmo(tiny_checkpoint()).save(tmp_path)
    code = f"""
import sys
from elmokit import Elmo
Elmo.load({str(tmp_path)!r})(["the river bank"])
print("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# torch.export


def some_ids(config, batch: int, time: int) -> torch.Tensor:
    """Ids of sentences of different lengths."""
    generator = torch.Generator().manual_seed(batch)
    shape, most = ((batch, time), len(WORDS)) if config.words else ((batch, time, 50), 262)
    ids = torch.randint(1, most, shape, generator=generator)
    ids[-1, time // 2 :] = 0
    return ids


def exported(bilm, ids):
    shapes = {"ids": {0: Dim("sentences"), 1: Dim("tokens")}}
    return torch.export.export(bilm, (ids,), dynamic_shapes=shapes).module()


def check_export(config, *, trainable=True):
    bilm = Elmo(tiny_checkpoint(config, scale=1.0), trainable=trainable).bilm
    program = exported(bilm, some_ids(config, 2, 5))
    for ids in (some_ids(config, 2, 5), some_ids(config, 3, 8)):
        expected, found = bilm(ids), program(ids)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    wanted = gradients(expected, bilm) if trainable else {}
    for name, value in (gradients(found, program) if trainable else {}).items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=1e-4)


def test_an_exported_transformer_has_the_same_layers_and_gradients_for_other_shapes():
    check_export(
        transformer_config(
            context=TransformerConfig(12, 2, n_heads=3, inner_size=10, window=2, softmax_size=6, prediction_layer=True)
        )
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_an_exported_transformer_in_half_precision_has_exact_angles(dtype):
    """In a long sentence: bfloat16 has no whole numbers between 256 and 258."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 500, 64, generator=generator)
    found = _rotated(x.to(dtype)).double()
    assert (found - _rotated(x.to(dtype).double())).abs().max() < 8 * torch.finfo(dtype).eps


def test_an_export_takes_ids_of_another_device_than_the_weights():
    config = transformer_config()
    bilm = BiLM(config).to("meta")
    assert exported(bilm, some_ids(config, 2, 5))(some_ids(config, 3, 8)).device.type == "meta"


def test_an_exported_lstm_has_the_same_layers_for_other_shapes():
    check_export(word_config(context=LstmConfig(cell_size=13, output_size=6, n_layers=1)), trainable=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_kind_of_model_is_exported(kind):
    check_export(CONFIGS[kind]())


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("projected", [False, True])
def test_the_scan_is_the_reference(reverse, projected):
    generator = torch.Generator().manual_seed(0)
    size, cells = (6, 13) if projected else (6, 6)
    shapes = (4 * cells, size), (4 * cells, size), (4 * cells,), (size, cells)
    numbers = [torch.randn(shape, generator=generator) for shape in shapes]
    weights = LstmWeights(*numbers[:3], numbers[3] if projected else None, 1.0, 1.0, 0.5 if projected else None)
    x, lengths = torch.randn(3, 5, size, generator=generator), torch.tensor([5, 2, 3])
    expected, *_ = lstm_reference(x, lengths, weights, x.new_zeros(3, size), x.new_zeros(3, cells), reverse=reverse)
    found = lstm_scan(x, torch.arange(5) < lengths.unsqueeze(1), weights, reverse=reverse)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_dense_transformer_is_the_reference():
    bilm = Elmo(tiny_checkpoint(transformer_config(), scale=1.0)).bilm
    x, lengths = torch.randn(2, 9, 12), torch.tensor([9, 4])
    blocks = bilm.context.block_weights()
    layers = torch.stack(
        transformer_dense(x, torch.arange(9) < lengths.unsqueeze(1), blocks, window=4, every=bilm.context.config.every)
    )
    outputs = range(0, 5, bilm.context.config.every)
    for row, length in enumerate(lengths.tolist()):
        expected = transformer_reference(x[row, :length], blocks, window=4, outputs=outputs)
        torch.testing.assert_close(layers[:, row, :length], expected, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_exported_is_said_in_one_sentence():
    elmo = Elmo(tiny_checkpoint())
    ids = some_ids(elmo.config, 1, 3)

    class Wrapper(nn.Module):
        def forward(self, ids):
            return elmo(["a bank"])["default"] + ids.sum()

    class Stateful(nn.Module):
        def forward(self, ids):
            return elmo.bilm(ids, return_state=True)[0]

    for module, sentence in (
        (Wrapper(), "elmo.bilm"),
        (Stateful(), "without state"),
        (BiLM.shell(elmo.config, int8=True), "dtype='float32'"),
    ):
        with pytest.raises(ElmoError, match=sentence):
            torch.export.export(module, (ids,))


@pytest.mark.slow
def test_the_page_runs_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("pytorch.md")
    # As the page says, the program needs torch alone.
    code = """
import sys, torch
sys.modules["elmokit"] = None
program = torch.export.load("elmo.pt2").module()
print(tuple(program(torch.ones(1, 3, 50, dtype=torch.int64)).shape))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(10, 1, 3, 384)\n"
