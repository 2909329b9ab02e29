"""The network of a model as an ONNX graph, written node by node from the equations in `elmokit.ops.reference`.

Inputs, all int32: `characters` [U, M] and/or `words` [U] of the distinct tokens, `places` [B, T] with the row of each
token among them, `lengths` [B]. Output: `layers` [L+1, B, T, D]; the values after a sentence's end have no meaning.

All arithmetic is float32. float16 weights are cast, and int8 weights multiplied by their scales, in nodes that depend
on no input: ONNX Runtime computes these nodes once, when it opens the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

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
"""Versions of 2022, which all current ONNX readers support."""
_FEW = 1024
"""Smaller weight arrays are stored in float32."""
_GROUP, _LARGEST = 32, 127
"""The number of neighbouring inputs of an int8 matrix that share a scale, and the largest int8 value."""
_NEVER = -1e4
"""The input of a gate that is then exactly 0, and a score that softmax turns into 0."""


class _Graph:
    """The nodes and weights of a graph; most methods add nodes and return the name of their result."""

    def __init__(self, dtype: Dtype, float16_parts: int = 0, *, outer: _Graph | None = None) -> None:
        """`outer`: the graph around the body of a loop; it owns the weights, so that a cast is computed only once."""
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._dtype, self._float16_parts = dtype, float16_parts
        self._outer = outer or self
        self._constants: dict[tuple[object, ...], str] = {}
        self._count = 0
        self._part = 0

    def body(self) -> _Graph:
        """A graph for the body of a loop."""
        return _Graph(self._dtype, outer=self)

    def next_part(self) -> None:
        """Begin the next part of the network, after the tokens, a layer or a block."""
        self._part += 1

    def name(self, hint: str) -> str:
        """A new name, unique in the whole file."""
        self._outer._count += 1
        return f"{hint.lower()}_{self._outer._count}"

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> Any:  # noqa: ANN401 - a name, or several
        """Add an operation, and return the names of its outputs."""
        names = [self.name(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def store(self, values: Array) -> str:
        """Store an array in its own dtype."""
        name = self.name("weight")
        self._outer.weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def constant(self, value: float | Sequence[int], kind: type[np.generic] = np.float32) -> str:
        """A small constant, stored once."""
        known = self._outer._constants
        key = (kind, value if isinstance(value, float | int) else tuple(value))
        if key not in known:
            known[key] = self.store(np.array(value, kind))
        return known[key]

    def weight(self, values: Array, axis: int | None = None) -> str:
        """Store floats in the dtype of the file; int8 needs the axis along which neighbours share a scale."""
        outer = self._outer
        dtype = "float16" if outer._dtype == "int8" and outer._part < outer._float16_parts else outer._dtype
        if dtype == "float32" or values.size < _FEW or (dtype == "int8" and axis is None):
            return self.store(values.astype(np.float32))
        if dtype == "float16":
            most = np.finfo(np.float16).max
            return str(outer.add("Cast", self.store(values.clip(-most, most).astype(np.float16)), to=TensorProto.FLOAT))
        assert axis is not None
        size = values.shape[axis]
        group = _GROUP if size % _GROUP == 0 else size
        grouped = values.reshape(*values.shape[:axis], size // group, group, *values.shape[axis + 1 :])
        largest = np.abs(grouped).max(axis=axis + 1, keepdims=True)
        scales = np.maximum(largest / _LARGEST, np.finfo(np.float32).tiny)
        small = outer.add("Cast", self.store(np.round(grouped / scales).astype(np.int8)), to=TensorProto.FLOAT)
        floats = outer.add("Mul", small, self.store(scales.astype(np.float32)))
        return str(outer.add("Reshape", floats, self.constant(values.shape, np.int64)))

    def linear(self, x: str, matrix: Array, bias: Array | None = None) -> str:
        """x [..., K] times matrix [O, K], plus bias [O]."""
        product = self.add("MatMul", x, self.weight(matrix.T, axis=0))
        return product if bias is None else str(self.add("Add", product, self.store(bias)))

    def split(self, x: str, *sizes: int, axis: int = -1) -> list[str]:
        """Split x along an axis into parts of these sizes."""
        return list(self.add("Split", x, self.constant(sizes, np.int64), outputs=len(sizes), axis=axis))

    def unsqueeze(self, x: str, *axes: int) -> str:
        """Insert axes of size 1 into x."""
        return str(self.add("Unsqueeze", x, self.constant(axes, np.int64)))

    def norm(self, x: str, size: int) -> str:
        """Normalise x to mean 0 and variance 1 over the last axis, which has this size."""
        ones = self.add("Expand", self.constant(1.0), self.constant([size], np.int64))
        return str(self.add("LayerNormalization", x, ones, axis=-1, epsilon=1e-5))

    def positions(self, like: str, axis: int) -> str:
        """0, 1, 2 … along an axis, int32."""
        count = self.add("Gather", self.add("Shape", like), self.constant(axis, np.int64))
        numbers = self.add("Range", self.constant(0, np.int64), count, self.constant(1, np.int64))
        return str(self.add("Cast", numbers, to=TensorProto.INT32))

    def stack(self, parts: Sequence[str]) -> str:
        """Stack parts of the same shape along a new first axis."""
        return str(self.add("Concat", *(self.unsqueeze(part, 0) for part in parts), axis=0))


def network_model(bilm: BiLM, dtype: Dtype, float16_parts: int = 0) -> onnx.ModelProto:
    """The whole network as an ONNX model without metadata; `bilm` is in float32 on the CPU.

    In an int8 file, the first `float16_parts` of the network (tokens, layers or blocks, the prediction) are float16,
    because their rounding errors pass through all later parts.
    """
    config, graph = bilm.config, _Graph(dtype, float16_parts)
    inputs = [("places", ["sentences", "tokens"]), ("lengths", ["sentences"])]
    if config.words is not None:
        inputs.insert(0, ("words", ["distinct"]))
    if config.characters is not None:
        inputs.insert(0, ("characters", ["distinct", "characters"]))
    table = _token_table(graph, bilm)
    graph.next_part()
    if isinstance(bilm.context, LstmEncoder):
        layers = _lstm_layers(graph, bilm.context, table)
    elif isinstance(bilm.context, TransformerEncoder):
        layers = _transformer_layers(graph, bilm.context, table)
    else:
        raise ElmoError(f"the ONNX export supports lstm and transformer, got the context encoder {config.context.kind}")
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
        parts.append(graph.add("Gather", graph.weight(_array(encoder.words.weight), axis=1), "words"))
    if encoder.char_cnn is not None:
        parts.append(_characters(graph, encoder.char_cnn))
    token = parts[0] if len(parts) == 1 else graph.add("Concat", *parts, axis=-1)
    if encoder.projection is None:
        return str(token)
    return graph.linear(str(token), _array(encoder.projection.weight), _array(encoder.projection.bias))


def _characters(graph: _Graph, cnn: CharCnn) -> str:
    """characters [U, M] → [U, F]."""
    letters = graph.add("Gather", graph.weight(_array(cnn.embedding.weight)), "characters")
    letters = graph.add("Transpose", letters, perm=[0, 2, 1])  # [U, c, M]
    found = []
    for conv in cnn.convolutions:
        products = graph.add("Conv", letters, graph.weight(_array(conv.weight)), graph.store(_array(conv.bias)))
        found.append(graph.add("ReduceMax", products, axes=[2], keepdims=0))
    x = graph.add("Relu" if cnn.config.activation == "relu" else "Tanh", graph.add("Concat", *found, axis=1))
    for highway in cnn.highways:
        assert isinstance(highway, Highway)
        change, gate = (graph.linear(x, _array(matrix), _array(bias)) for matrix, bias in highway.matrices())
        moved = graph.add("Sub", graph.add("Relu", change), x)
        x = graph.add("Add", x, graph.add("Mul", graph.add("Sigmoid", gate), moved))
    return str(x)


# LSTM


def _lstm_layers(graph: _Graph, encoder: LstmEncoder, table: str) -> str:
    """All layers [L+1, B, T, D]; inside this function time is the first axis."""
    config = encoder.config
    steps = graph.add("Transpose", "places", perm=[1, 0])  # [T, B]
    tokens = graph.add("Gather", table, steps)  # [T, B, P]
    inside = graph.add("Less", graph.unsqueeze(graph.positions(steps, 0), 1), "lengths")  # [T, B]
    inside = graph.unsqueeze(inside, 2)
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
        graph.next_part()
    return str(graph.add("Transpose", graph.stack(layers), perm=[0, 2, 1, 3]))


def _lstm(
    graph: _Graph, x: str, weights: LstmWeights, config: LstmConfig, inside: str, batch: str, *, reverse: bool
) -> str:
    """One layer in one direction, [T, B, P] → [T, B, P]; ONNX's own LSTM has neither projection nor clips."""
    cells, size = config.cell_size, config.output_size
    bias = _array(weights.bias).copy()
    bias[cells : 2 * cells] += weights.forget_bias
    gates = graph.linear(x, _array(weights.input), bias)  # for all tokens at once
    if reverse:  # padding comes first: with closed gates the state stays 0 until the sentence begins
        gates = graph.add("Where", inside, gates, graph.constant(_NEVER))
    states = [
        graph.add("Expand", graph.constant(0.0), graph.add("Concat", batch, graph.constant([width], np.int64), axis=0))
        for width in (size, cells)
    ]
    step, (h, c, gate) = graph.body(), (graph.name(name) for name in ("h", "c", "gates"))
    z = step.add("Add", gate, step.linear(h, _array(weights.recurrent)))
    i, f, g, o = step.split(z, *[cells] * 4)
    remembered = step.add("Mul", step.add("Sigmoid", f), c)
    new = step.add("Mul", step.add("Sigmoid", i), step.add("Tanh", g))
    new_c = _clipped(step, step.add("Add", remembered, new), weights.cell_clip)
    new_h = step.add("Mul", step.add("Sigmoid", o), step.add("Tanh", new_c))
    if weights.projection is not None:
        new_h = _clipped(step, step.linear(new_h, _array(weights.projection)), weights.projection_clip)
    y = step.add("Identity", new_h)
    inputs, outputs = ((h, size), (c, cells), (gate, 4 * cells)), ((new_h, size), (new_c, cells), (y, size))
    tensors = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["sentences", width]) for name, width in each]
        for each in (inputs, outputs)
    ]
    *_, found = graph.add(
        "Scan",
        *states,
        gates,
        outputs=3,
        body=helper.make_graph(step.nodes, "step", *tensors),
        num_scan_inputs=1,
        scan_input_directions=[int(reverse)],
        scan_output_directions=[int(reverse)],
    )
    return str(found)


def _clipped(graph: _Graph, x: str, bound: float | None) -> str:
    return x if bound is None else str(graph.add("Clip", x, graph.constant(-bound), graph.constant(bound)))


# Transformer


def _transformer_layers(graph: _Graph, encoder: TransformerEncoder, table: str) -> str:
    """All layers [L+1, B, T, P]; a mask limits the attention of a token to its window."""
    config = encoder.config
    x = graph.norm(graph.add("Gather", table, "places"), config.size)
    mask, angles = _seen(graph, config), _angles(graph, config)
    found, y = [x], graph.norm(x, config.size)
    for number, weights in enumerate(encoder.block_weights(), start=1):
        x = _block(graph, x, y, weights, config, mask, angles)
        y = graph.norm(x, config.size)
        if number % config.every == 0:
            found.append(y)
        graph.next_part()
    if config.prediction_layer:
        head = cast(nn.Linear, encoder.heads["this"])
        read = graph.norm(_gelu(graph, graph.linear(y, _array(head.weight), _array(head.bias))), config.softmax_size)
        scaled = graph.add("Mul", read, graph.constant(float((config.size / config.softmax_size) ** 0.5)))
        more = [0, 0, 0, 0, 0, config.size - config.softmax_size]
        found.append(graph.add("Pad", scaled, graph.constant(more, np.int64)))
    return graph.stack(found)


def _seen(graph: _Graph, config: TransformerConfig) -> str:
    """The mask that is added to the scores: 0 for tokens of the sentence inside the window, [B, 1, T, T]."""
    numbers = graph.positions("places", 1)
    apart = graph.add("Abs", graph.add("Sub", graph.unsqueeze(numbers, 1), numbers))
    near = graph.add("LessOrEqual", apart, graph.constant(config.window, np.int32))  # [T, T]
    inside = graph.unsqueeze(graph.add("Less", numbers, graph.unsqueeze("lengths", 1)), 1, 2)  # [B, 1, 1, T]
    return str(graph.add("Where", graph.add("And", inside, near), graph.constant(0.0), graph.constant(_NEVER)))


def _angles(graph: _Graph, config: TransformerConfig) -> tuple[str, str]:
    """Cosines and sines [T, 1, E/2] of the rotary positions, times E^(1/4), which gives the scale of the scores."""
    size = config.size // config.n_heads
    rates = 10_000.0 ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    numbers = graph.add("Cast", graph.positions("places", 1), to=TensorProto.FLOAT)
    angles = graph.add("Mul", graph.unsqueeze(numbers, 1, 2), graph.store(rates.astype(np.float32)))
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
    """One block: x [B, T, P] and y, the normalised x → [B, T, P]."""
    size, heads = config.size, config.n_heads
    width, inner = size // heads, config.inner_size
    qkv, out, up, down, gate_weight, gate_bias = map(_array, weights)
    qk, v = graph.split(graph.linear(y, qkv), 2 * size, size)
    qk = graph.add("Reshape", qk, graph.constant([0, 0, 2 * heads, width], np.int64))
    lengths = graph.add("ReduceSumSquare", qk, axes=[-1], keepdims=1)
    eps = float(width * np.finfo(np.float32).eps)
    qk = graph.add("Div", qk, graph.add("Sqrt", graph.add("Add", lengths, graph.constant(eps))))
    a, b = graph.split(qk, width // 2, width // 2)
    cos, sin = angles
    first = graph.add("Sub", graph.add("Mul", a, cos), graph.add("Mul", b, sin))
    second = graph.add("Add", graph.add("Mul", b, cos), graph.add("Mul", a, sin))
    q, k = graph.split(graph.add("Concat", first, second, axis=-1), heads, heads, axis=2)
    v = graph.add("Reshape", v, graph.constant([0, 0, heads, width], np.int64))
    scores = graph.add(
        "MatMul", graph.add("Transpose", q, perm=[0, 2, 1, 3]), graph.add("Transpose", k, perm=[0, 2, 3, 1])
    )
    shares = graph.add("Softmax", graph.add("Add", scores, mask), axis=-1)
    mixed = graph.add("MatMul", shares, graph.add("Transpose", v, perm=[0, 2, 1, 3]))
    mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])  # [B, T, H, E]
    gates = graph.add("MatMul", y, graph.store(gate_weight.T))
    gates = graph.add("Sigmoid", graph.add("Add", gates, graph.store(gate_bias)))
    mixed = graph.add("Mul", mixed, graph.unsqueeze(gates, 3))
    mixed = graph.add("Reshape", mixed, graph.constant([0, 0, size], np.int64))
    x = graph.add("Add", x, graph.linear(graph.norm(mixed, size), out))
    values, gates = graph.split(graph.linear(graph.norm(x, size), up), inner, inner)
    mixed = graph.add("Mul", values, _gelu(graph, gates))
    return str(graph.add("Add", x, graph.linear(graph.norm(mixed, inner), down)))


def _gelu(graph: _Graph, x: str) -> str:
    erf = graph.add("Erf", graph.add("Div", x, graph.constant(float(2**0.5))))
    return str(graph.add("Mul", graph.add("Mul", x, graph.add("Add", erf, graph.constant(1.0))), graph.constant(0.5)))
