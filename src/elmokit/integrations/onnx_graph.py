"""The network of a model as an ONNX graph, written node by node from the equations in `elmokit.ops.reference`.

Inputs, all int32: `characters` [U, M] and/or `words` [U] of the distinct tokens, `places` [B, T] with the row of each
token among them, `lengths` [B]. Output: `layers` [L+1, B, T, D]; what is past a sentence's end has no meaning.

float16 matrices are cast, and int8 ones multiplied by their scales, in nodes without inputs: ONNX Runtime computes
those once, when it opens the file. int8 products round each token by itself, so that it does not depend on its batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from elmokit.config import LstmConfig, TransformerConfig
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.model.bilm import BiLM
from elmokit.model.lstm import LstmEncoder
from elmokit.model.token_encoder import CharCnn, Highway
from elmokit.model.transformer import TransformerEncoder
from elmokit.ops.weights import BlockWeights, LstmWeights

try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    raise MissingExtraError("onnx", "onnx", "the ONNX export") from error

Dtype = Literal["float32", "float16", "int8"]
Array = NDArray[Any]

OPSET, IR = 17, 8
"""Old enough for the ONNX Runtime of 2023."""
_FEW = 1024
"""Weights of fewer numbers are stored in float32."""
_STEPS = 127
_NEVER = -1e4
"""A gate that is closed to the last bit, and a score that softmax turns into 0."""


class _Graph:
    """Nodes and weights of a graph; each method adds some and returns the name of their result."""

    def __init__(self, dtype: Dtype, prefix: str = "") -> None:
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._constants: dict[tuple[object, ...], str] = {}
        self._prefix = prefix
        self._count = 0

    def name(self, hint: str) -> str:
        """A new name."""
        self._count += 1
        return f"{self._prefix}{hint.lower()}_{self._count}"

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> Any:  # noqa: ANN401 - a name, or several
        """One operation."""
        names = [self.name(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def store(self, values: Array, hint: str = "weight") -> str:
        """An array in the file as it is."""
        name = self.name(hint)
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def constant(self, value: float | Sequence[int], kind: type[np.generic] = np.float32) -> str:
        """A small constant, stored once."""
        key = (kind, value if isinstance(value, float | int) else tuple(value))
        if key not in self._constants:
            self._constants[key] = self.store(np.array(value, kind), "constant")
        return self._constants[key]

    def weight(self, values: Array) -> str:
        """Floats, stored as float16 if that is the dtype of the file."""
        if self.dtype == "float16" and values.size >= _FEW:
            return str(self.add("Cast", self.store(values.astype(np.float16)), to=TensorProto.FLOAT))
        return self.store(values.astype(np.float32))

    def linear(self, x: str, matrix: Array, bias: Array | None = None) -> str:
        """x [..., K] times matrix [O, K], plus bias [O]."""
        if self.dtype == "int8" and matrix.size >= _FEW:
            product = self._int8_product(x, matrix)
        else:
            product = self.add("MatMul", x, self.weight(matrix.T))
        return product if bias is None else str(self.add("Add", product, self.store(bias.astype(np.float32))))

    def _int8_product(self, x: str, matrix: Array) -> str:
        scales = np.maximum(np.abs(matrix).max(axis=1), np.finfo(np.float32).tiny) / _STEPS  # [O]
        values = np.round(matrix / scales[:, None]).astype(np.int8)
        if MODE == "weights":
            floats = self.add("Cast", self.store(values.T), to=TensorProto.FLOAT)
            return str(self.add("MatMul", x, self.add("Mul", floats, self.store(scales.astype(np.float32)))))
        most = self.add("ReduceMax", self.add("Abs", x), axes=[-1], keepdims=1)
        unit = self.add("Mul", self.add("Max", most, self.constant(1e-30)), self.constant(1 / LEVELS))
        shifted = self.add("Add", self.add("Div", x, unit), self.constant(float(LEVELS + 1) + 0.5))
        rounded = self.add("Cast", shifted, to=TensorProto.UINT8)
        product = self.add("MatMulInteger", rounded, self.store(values.T), self.constant(LEVELS + 1, np.uint8))
        unscaled = self.add("Mul", self.add("Cast", product, to=TensorProto.FLOAT), unit)
        return str(self.add("Mul", unscaled, self.store(scales.astype(np.float32))))

    def norm(self, x: str, size: int, factors: Array | None = None) -> str:
        """Mean 0 and variance 1 over the last axis of `size` numbers, times factors [size]."""
        scale = self.store(np.ones(size, np.float32) if factors is None else factors.astype(np.float32))
        return str(self.add("LayerNormalization", x, scale, axis=-1, epsilon=1e-5))


MODE = "integer"
LEVELS = 63


def network_model(bilm: BiLM, dtype: Dtype) -> onnx.ModelProto:
    """The whole network as an ONNX model without metadata; `bilm` is in float32 on the CPU."""
    config, graph = bilm.config, _Graph(dtype)
    inputs = [("places", ["sentences", "tokens"]), ("lengths", ["sentences"])]
    if config.words is not None:
        inputs.insert(0, ("words", ["distinct"]))
    if config.characters is not None:
        inputs.insert(0, ("characters", ["distinct", "characters"]))
    table = _token_table(graph, bilm)
    if isinstance(bilm.context, LstmEncoder):
        layers = _lstm_layers(graph, bilm.context, table)
    elif isinstance(bilm.context, TransformerEncoder):
        layers = _transformer_layers(graph, bilm.context, table)
    else:
        raise ElmoError(f"the ONNX export knows lstm and transformer, got the context encoder {config.context.kind}")
    graph.nodes.append(helper.make_node("Identity", [layers], ["layers"]))
    shape = [config.n_outputs, "sentences", "tokens", config.vector_size]
    made = helper.make_graph(
        graph.nodes,
        "elmo",
        [helper.make_tensor_value_info(name, TensorProto.INT32, axes) for name, axes in inputs],
        [helper.make_tensor_value_info("layers", TensorProto.FLOAT, shape)],
        graph.weights,
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)


# Tokens


def _array(value: object) -> Array:
    return cast(Tensor, value).detach().float().numpy()


def _token_table(graph: _Graph, bilm: BiLM) -> str:
    """The distinct tokens without context, [U, P]."""
    encoder, parts = bilm.token_encoder, []
    if encoder.words is not None:
        parts.append(graph.add("Gather", _rows(graph, _array(encoder.words.weight)), "words"))
    if encoder.char_cnn is not None:
        parts.append(_characters(graph, encoder.char_cnn))
    token = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=-1)
    if encoder.projection is None:
        return str(token)
    return graph.linear(str(token), _array(encoder.projection.weight), _array(encoder.projection.bias))


def _rows(graph: _Graph, table: Array) -> str:
    """A table whose rows are read; int8 has a scale per row."""
    if graph.dtype != "int8" or table.size < _FEW:
        return graph.weight(table)
    scales = np.maximum(np.abs(table).max(axis=1, keepdims=True), np.finfo(np.float32).tiny) / _STEPS
    values = graph.add("Cast", graph.store(np.round(table / scales).astype(np.int8)), to=TensorProto.FLOAT)
    return str(graph.add("Mul", values, graph.store(scales.astype(np.float32))))


def _characters(graph: _Graph, cnn: CharCnn) -> str:
    """characters [U, M] → [U, F]."""
    letters = graph.add("Gather", graph.weight(_array(cnn.embedding.weight)), "characters")
    letters = graph.add("Transpose", letters, perm=[0, 2, 1])  # [U, c, M]
    found = []
    for conv in cnn.convolutions:
        weight, bias = _array(conv.weight), graph.store(_array(conv.bias))
        found.append(graph.add("ReduceMax", graph.add("Conv", letters, graph.weight(weight), bias), axes=[2], keepdims=0))
    x = graph.add("Relu" if cnn.config.activation == "relu" else "Tanh", graph.add("Concat", *found, axis=1))
    for highway in cnn.highways:
        assert isinstance(highway, Highway)
        (transform, bias), (gate, gate_bias) = highway.matrices()
        size = len(_array(bias))
        both = graph.linear(
            x, np.concatenate([_array(transform), _array(gate)]), np.concatenate([_array(bias), _array(gate_bias)])
        )
        change, open_ = graph.add("Split", both, graph.constant([size, size], np.int64), outputs=2, axis=-1)
        open_ = graph.add("Sigmoid", open_)
        moved = graph.add("Sub", graph.add("Relu", change), x)
        x = graph.add("Add", x, graph.add("Mul", open_, moved))
    return str(x)


# LSTM


def _lstm_layers(graph: _Graph, encoder: LstmEncoder, table: str) -> str:
    """All layers [L+1, B, T, D]; time comes first inside."""
    config = encoder.config
    steps = graph.add("Transpose", "places", perm=[1, 0])  # [T, B]
    tokens = graph.add("Gather", table, steps)  # [T, B, P]
    time = graph.add("Gather", graph.add("Shape", steps), graph.constant(0, np.int64))
    numbers = graph.add("Range", graph.constant(0, np.int32), graph.add("Cast", time, to=TensorProto.INT32), graph.constant(1, np.int32))
    inside = graph.add("Less", graph.add("Unsqueeze", numbers, graph.constant([1], np.int64)), "lengths")  # [T, B]
    inside = graph.add("Unsqueeze", inside, graph.constant([2], np.int64))
    batch = graph.add("Shape", "lengths")
    directions = [cast(list[LstmWeights], stack) for stack in encoder.stacks()]
    x = [tokens] * len(directions)
    layers = [tokens if len(x) == 1 else graph.add("Concat", *x, axis=-1)]
    for number in range(config.n_layers):
        for direction, weights in enumerate(directions):
            before = x[direction]
            found = _lstm(graph, before, weights[number], config, inside, batch, reverse=direction == 1)
            skip = config.skip_connections and number > 0
            x[direction] = graph.add("Add", found, before) if skip else found
        layers.append(x[0] if len(x) == 1 else graph.add("Concat", *x, axis=-1))
    stacked = [graph.add("Unsqueeze", layer, graph.constant([0], np.int64)) for layer in layers]
    return str(graph.add("Transpose", graph.add("Concat", *stacked, axis=0), perm=[0, 2, 1, 3]))


def _lstm(graph: _Graph, x: str, weights: LstmWeights, config: LstmConfig, inside: str, batch: str, *, reverse: bool) -> str:
    """One layer in one direction, [T, B, P] → [T, B, P]."""
    bias = _array(weights.bias).copy()
    cells, size = config.cell_size, config.output_size
    bias[cells : 2 * cells] += weights.forget_bias
    gates = graph.linear(x, _array(weights.input), bias)  # for all tokens at once
    if reverse:  # padding comes first: with closed gates the state stays 0 until the sentence begins
        gates = graph.add("Where", inside, gates, graph.constant(_NEVER))
    states = [
        graph.add("Expand", graph.constant(0.0), graph.add("Concat", batch, graph.constant([width], np.int64), axis=0))
        for width in (size, cells)
    ]
    body = _Graph(graph.dtype, prefix=graph.name("step") + "_")
    z = body.add("Add", "gates", body.linear("h", _array(weights.recurrent)))
    i, f, g, o = body.add("Split", z, body.constant([cells] * 4, np.int64), outputs=4, axis=-1)
    c = body.add("Mul", body.add("Sigmoid", f), "c")
    c = body.add("Add", c, body.add("Mul", body.add("Sigmoid", i), body.add("Tanh", g)))
    c = _clipped(body, c, weights.cell_clip)
    h = body.add("Mul", body.add("Sigmoid", o), body.add("Tanh", c))
    if weights.projection is not None:
        h = _clipped(body, body.linear(h, _array(weights.projection)), weights.projection_clip)
    names = {"h": "h", "c": "c", "gates": "gates"}
    body.nodes += [helper.make_node("Identity", [h], [f"{body._prefix}{out}"]) for out in ("h", "y")]
    body.nodes.append(helper.make_node("Identity", [c], [f"{body._prefix}c"]))
    widths = {"h": size, "c": cells, "y": size, "gates": 4 * cells}
    scan = helper.make_graph(
        body.nodes,
        "lstm_step",
        [helper.make_tensor_value_info(names[n], TensorProto.FLOAT, ["sentences", widths[n]]) for n in names],
        [
            helper.make_tensor_value_info(f"{body._prefix}{n}", TensorProto.FLOAT, ["sentences", widths[n]])
            for n in ("h", "c", "y")
        ],
    )
    graph.weights += body.weights  # outside, where a cast is computed once
    casts = [node for node in scan.node if node.op_type == "Cast" and node.input[0] in {w.name for w in body.weights}]
    for node in casts:
        graph.nodes.append(node)
        scan.node.remove(node)
    _, _, outputs = graph.add(
        "Scan",
        *states,
        gates,
        outputs=3,
        body=scan,
        num_scan_inputs=1,
        scan_input_directions=[int(reverse)],
        scan_output_directions=[int(reverse)],
    )
    return str(outputs)


def _clipped(graph: _Graph, x: str, bound: float | None) -> str:
    return x if bound is None else str(graph.add("Clip", x, graph.constant(-bound), graph.constant(bound)))


# Transformer


def _transformer_layers(graph: _Graph, encoder: TransformerEncoder, table: str) -> str:
    """All layers [L+1, B, T, P]; a token sees those of its window by a mask."""
    config = cast(TransformerConfig, encoder.config)
    x = graph.norm(graph.add("Gather", table, "places"), config.size)
    mask, angles = _seen(graph, config), _angles(graph, config)
    found, y = [x], graph.norm(x, config.size)
    for number, weights in enumerate(encoder.block_weights(), start=1):
        x = _block(graph, x, y, weights, config, mask, angles)
        y = graph.norm(x, config.size)
        if number % config.every == 0:
            found.append(y)
    stacked = [graph.add("Unsqueeze", layer, graph.constant([0], np.int64)) for layer in found]
    return str(graph.add("Concat", *stacked, axis=0))


def _positions(graph: _Graph, kind: int) -> str:
    time = graph.add("Gather", graph.add("Shape", "places"), graph.constant(1, np.int64))
    numbers = graph.add("Range", graph.constant(0, np.int64), time, graph.constant(1, np.int64))
    return str(graph.add("Cast", numbers, to=kind))


def _seen(graph: _Graph, config: TransformerConfig) -> str:
    """What is added to the scores: 0 for tokens of the sentence inside the window, [B, 1, T, T]."""
    numbers = _positions(graph, TensorProto.INT32)
    apart = graph.add("Sub", graph.add("Unsqueeze", numbers, graph.constant([1], np.int64)), numbers)
    near = graph.add("LessOrEqual", graph.add("Abs", apart), graph.constant(config.window, np.int32))  # [T, T]
    inside = graph.add("Less", numbers, graph.add("Unsqueeze", "lengths", graph.constant([1], np.int64)))  # [B, T]
    inside = graph.add("Unsqueeze", inside, graph.constant([1, 2], np.int64))
    return str(graph.add("Where", graph.add("And", inside, near), graph.constant(0.0), graph.constant(_NEVER)))


def _angles(graph: _Graph, config: TransformerConfig) -> tuple[str, str]:
    """Cosines and sines [T, 1, E/2] of the rotary positions, times E^(1/4): that is the scale of the scores."""
    size = config.size // config.n_heads
    rates = 10_000.0 ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    numbers = graph.add("Unsqueeze", _positions(graph, TensorProto.FLOAT), graph.constant([1, 2], np.int64))
    angles = graph.add("Mul", numbers, graph.store(rates.astype(np.float32)))
    factor = graph.constant(float(size**0.25))
    return graph.add("Mul", graph.add("Cos", angles), factor), graph.add("Mul", graph.add("Sin", angles), factor)


def _block(
    graph: _Graph,
    x: str,
    y: str,
    weights: BlockWeights,
    config: TransformerConfig,
    mask: str,
    angles: tuple[str, str],
) -> str:
    """One block: x [B, T, P] and y, the same normed → [B, T, P]."""
    size, heads = config.size, config.n_heads
    width, inner = size // heads, config.inner_size
    qkv, out, up, down, gate_weight, gate_bias = map(_array, weights)
    qk, v = graph.add("Split", graph.linear(y, qkv), graph.constant([2 * size, size], np.int64), outputs=2, axis=-1)
    qk = graph.add("Reshape", qk, graph.constant([0, 0, 2 * heads, width], np.int64))
    lengths = graph.add("ReduceSumSquare", qk, axes=[-1], keepdims=1)
    eps = float(width * np.finfo(np.float32).eps)
    qk = graph.add("Div", qk, graph.add("Sqrt", graph.add("Add", lengths, graph.constant(eps))))
    a, b = graph.add("Split", qk, graph.constant([width // 2] * 2, np.int64), outputs=2, axis=-1)
    cos, sin = angles
    first = graph.add("Sub", graph.add("Mul", a, cos), graph.add("Mul", b, sin))
    second = graph.add("Add", graph.add("Mul", b, cos), graph.add("Mul", a, sin))
    q, k = graph.add(
        "Split", graph.add("Concat", first, second, axis=-1), graph.constant([heads] * 2, np.int64), outputs=2, axis=2
    )
    v = graph.add("Reshape", v, graph.constant([0, 0, heads, width], np.int64))
    scores = graph.add(
        "MatMul", graph.add("Transpose", q, perm=[0, 2, 1, 3]), graph.add("Transpose", k, perm=[0, 2, 3, 1])
    )
    shares = graph.add("Softmax", graph.add("Add", scores, mask), axis=-1)
    mixed = graph.add("MatMul", shares, graph.add("Transpose", v, perm=[0, 2, 1, 3]))
    mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])  # [B, T, H, E]
    gates = graph.add("MatMul", y, graph.store(gate_weight.T))
    gates = graph.add("Sigmoid", graph.add("Add", gates, graph.store(gate_bias)))
    mixed = graph.add("Mul", mixed, graph.add("Unsqueeze", gates, graph.constant([3], np.int64)))
    mixed = graph.add("Reshape", mixed, graph.constant([0, 0, size], np.int64))
    x = graph.add("Add", x, _normed_linear(graph, mixed, out))
    values, gates = graph.add(
        "Split", _normed_linear(graph, x, up), graph.constant([inner] * 2, np.int64), outputs=2, axis=-1
    )
    erf = graph.add("Erf", graph.add("Div", gates, graph.constant(float(2**0.5))))
    gelu = graph.add("Mul", graph.add("Mul", gates, graph.add("Add", erf, graph.constant(1.0))), graph.constant(0.5))
    return str(graph.add("Add", x, _normed_linear(graph, graph.add("Mul", values, gelu), down)))


def _normed_linear(graph: _Graph, x: str, matrix: Array) -> str:
    """matrix [O, K] times the normed x; for int8 the sizes of its columns become factors of the norm."""
    if graph.dtype != "int8":
        return graph.linear(graph.norm(x, matrix.shape[1]), matrix)
    from elmokit.ops.int8 import column_sizes
    import torch

    factors = column_sizes(torch.from_numpy(matrix)).numpy()
    return graph.linear(graph.norm(x, matrix.shape[1], factors), matrix / factors)
