"""The names and layouts of bilm-tf's weights, in weights.hdf5 and in a TensorFlow checkpoint, as one table.

A row says where a dataset of theirs lies, what shape it must have, and how it becomes our parameters and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elmokit.config import ElmoConfig

Array = NDArray[np.float32]
Family = Literal["hdf5", "tensorflow"]

# {d} direction, {l} layer. The second form of each pair is what a one-layer model has.
_CELLS: dict[tuple[Family, bool], tuple[str, str]] = {
    ("hdf5", True): ("RNN_{d}/RNN/MultiRNNCell/Cell{l}/LSTMCell/", "RNN_{d}/RNN/LSTMCell/"),
    ("hdf5", False): ("rnn/MultiRNNCell/Cell{l}/LSTMCell/", "rnn/LSTMCell/"),
    ("tensorflow", True): ("lm/RNN_{d}/rnn/multi_rnn_cell/cell_{l}/lstm_cell/", "lm/RNN_{d}/rnn/lstm_cell/"),
    ("tensorflow", False): ("lm/rnn/multi_rnn_cell/cell_{l}/lstm_cell/", "lm/rnn/lstm_cell/"),
}
_LEAVES = {("hdf5", True): ("W_0", "B", "W_P_0")}
_TENSORFLOW_LEAVES = ("kernel", "bias", "projection/kernel")


@dataclass(frozen=True)
class Row:
    """One dataset of theirs."""

    theirs: tuple[str, ...]
    """Its name; where older tools disagree, all of its names."""
    shape: tuple[int, ...]
    ours: tuple[str, ...]
    """The parameters of BiLM that it holds."""
    read: Callable[[Array], tuple[Array, ...]]
    write: Callable[[tuple[Array, ...]], Array]


def cell_names(
    family: Family, *, bidirectional: bool, direction: int, layer: int, n_layers: int
) -> list[tuple[str, str, str]]:
    """The names of a cell's kernel, bias and projection, each with its alternatives."""
    leaves = _LEAVES.get((family, bidirectional), _TENSORFLOW_LEAVES)
    forms = _CELLS[family, bidirectional]
    prefixes = [forms[1], forms[0]] if n_layers == 1 else [forms[0]]
    return [tuple(prefix.format(d=direction, l=layer) + leaf for leaf in leaves) for prefix in prefixes]  # type: ignore[misc]


def rows(config: ElmoConfig, family: Family) -> Iterator[Row]:
    """Every dataset of a model of this shape, the softmax left out."""
    scope = "lm/" if family == "tensorflow" else ""
    if config.words is not None:
        shape = (config.words.n_words, config.words.embedding_size)
        yield _row(f"{scope}embedding", shape, "token_encoder.words.weight", _add_padding_row, _drop_padding_row)
    if config.characters is not None:
        yield from _character_rows(config, scope)
    if config.characters is not None and config.token_projection:
        yield from _linear(
            f"{scope}CNN_proj/", "proj", "token_encoder.projection", config.parts_size, config.lstm.output_size
        )
    for direction in range(config.n_directions):
        for layer in range(config.lstm.n_layers):
            yield from _cell_rows(config, family, direction, layer)


def _character_rows(config: ElmoConfig, scope: str) -> Iterator[Row]:
    characters = config.characters
    assert characters is not None
    shape = (characters.n_characters - 1, characters.embedding_size)
    cnn = "token_encoder.char_cnn."
    yield _row(f"{scope}char_embed", shape, cnn + "embedding.weight", _add_padding_row, _drop_padding_row)
    for number, (width, count) in enumerate(characters.filters):
        shape4 = (1, width, characters.embedding_size, count)
        ours = f"{cnn}convolutions.{number}"
        yield _row(f"{scope}CNN/W_cnn_{number}", shape4, ours + ".weight", _read_convolution, _write_convolution)
        yield _row(f"{scope}CNN/b_cnn_{number}", (count,), ours + ".bias", _same, _same)
    size = characters.n_filters
    for number in range(characters.n_highway):
        yield from _linear(f"{scope}CNN_high_{number}/", "carry", f"{cnn}highways.{number}.gate", size, size)
        yield from _linear(f"{scope}CNN_high_{number}/", "transform", f"{cnn}highways.{number}.transform", size, size)


def _cell_rows(config: ElmoConfig, family: Family, direction: int, layer: int) -> Iterator[Row]:
    lstm = config.lstm
    names = cell_names(
        family, bidirectional=config.bidirectional, direction=direction, layer=layer, n_layers=lstm.n_layers
    )
    kernel, bias, projection = zip(*names, strict=True)
    ours = f"{('forward', 'backward')[direction]}_lstm.layers.{layer}."
    size = lstm.output_size
    yield Row(
        kernel,
        (2 * size, 4 * lstm.cell_size),
        (ours + "input_weight", ours + "recurrent_weight"),
        lambda w: (_from_ijfo(w[:size]).T.copy(), _from_ijfo(w[size:]).T.copy()),
        lambda parts: _to_ijfo(np.concatenate([parts[0].T, parts[1].T])),
    )
    yield Row(
        bias,
        (4 * lstm.cell_size,),
        (ours + "bias",),
        lambda b: (_from_ijfo(b),),
        lambda parts: _to_ijfo(parts[0]),
    )
    if lstm.projection:
        yield Row(
            projection, (lstm.cell_size, size), (ours + "projection_weight",), lambda w: (w.T.copy(),), lambda p: p[0].T
        )


def _row(
    theirs: str, shape: tuple[int, ...], ours: str, read: Callable[[Array], Array], write: Callable[[Array], Array]
) -> Row:
    return Row((theirs,), shape, (ours,), lambda value: (read(value),), lambda parts: write(parts[0]))


def _linear(scope: str, leaf: str, ours: str, size_in: int, size_out: int) -> Iterator[Row]:
    yield _row(f"{scope}W_{leaf}", (size_in, size_out), ours + ".weight", _transpose, _transpose)
    yield _row(f"{scope}b_{leaf}", (size_out,), ours + ".bias", _same, _same)


def _same(value: Array) -> Array:
    return value


def _transpose(value: Array) -> Array:
    return np.ascontiguousarray(value.T)


def _add_padding_row(value: Array) -> Array:
    return np.concatenate([np.zeros_like(value[:1]), value])


def _drop_padding_row(value: Array) -> Array:
    return value[1:]


def _read_convolution(value: Array) -> Array:
    return np.ascontiguousarray(value[0].transpose(2, 1, 0))


def _write_convolution(value: Array) -> Array:
    return np.ascontiguousarray(value.transpose(2, 1, 0)[None])


def _from_ijfo(value: Array) -> Array:
    """Gates along the last axis: their input, candidate, forget, output → our input, forget, candidate, output."""
    i, j, f, o = np.split(value, 4, axis=-1)
    return np.concatenate([i, f, j, o], axis=-1)


# Swapping the middle two is its own inverse.
_to_ijfo = _from_ijfo
