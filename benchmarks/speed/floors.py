"""The least time for a batch on a machine, from the speed of its arithmetic and of its memory.

Letters: B sentences, T tokens with both boundaries, U distinct words, H cell, P output or token vector, L layers,
D directions, I inner size of a Transformer's feed-forward part.
"""

from __future__ import annotations

from collections.abc import Sequence

from elmokit import ElmoConfig
from elmokit.config import TransformerConfig
from speed.machine import Peaks

BYTES = {"float32": 4, "tf32": 4, "bfloat16": 2, "int8": 1}


def lstm_operations(config: ElmoConfig) -> int:
    """Multiplications and additions per token in all layers of all directions."""
    return 2 * (step_weights(config) + input_weights(config))


def step_weights(config: ElmoConfig) -> int:
    """The number of weights that every step needs: recurrent weights and projections."""
    h, p = config.lstm.cell_size, config.lstm.output_size
    projection = h * p if config.lstm.projection else 0
    return config.n_directions * config.lstm.n_layers * (4 * h * p + projection)


def input_weights(config: ElmoConfig) -> int:
    """The number of input weights, whose product is computed for all tokens of a batch at once."""
    return config.n_directions * config.lstm.n_layers * 4 * config.lstm.cell_size * config.lstm.output_size


def block_weights(config: TransformerConfig) -> int:
    """The number of weights in a Transformer's blocks: queries, keys, values, output, head gates, feed-forward part."""
    p, i = config.size, config.inner_size
    return config.n_blocks * (4 * p * p + 3 * p * i + config.n_heads * p)


def attention_operations(config: TransformerConfig, tokens: int) -> int:
    """Multiplications and additions between the tokens of one sentence, in all blocks."""
    pairs = sum(min(t, config.window) + 1 + min(tokens - 1 - t, config.window) for t in range(tokens))
    return 4 * config.n_blocks * config.size * pairs


def word_operations(config: ElmoConfig, length: int) -> int:
    """Multiplications and additions of the character part for a word of `length` bytes, without its padding."""
    part = config.characters
    if part is None:
        return 0
    size = part.embedding_size
    convolutions = sum(width * count * size * max(1, length + 2 - width + 1) for width, count in part.filters)
    projection = part.n_filters * config.token_size if config.token_projection else 0
    return 2 * (convolutions + 2 * part.n_highway * part.n_filters**2 + projection)


def floor_seconds(
    config: ElmoConfig,
    batch: Sequence[Sequence[str]],
    peaks: Peaks,
    dtype: str,
    *,
    cache_bytes: float = 0.0,
    characters: bool = True,
) -> float:
    """The least seconds for a batch: the longer of its arithmetic and of reading the weights.

    In an LSTM, the part of the weights of one layer and direction that does not fit into a cache of `cache_bytes` is
    read again at every step.
    """
    lengths = [len(sentence) + 2 for sentence in batch]
    operations = 0
    if characters:
        distinct = {word for sentence in batch for word in sentence}
        operations = sum(word_operations(config, min(48, len(word.encode()))) for word in distinct)
    if isinstance(config.context, TransformerConfig):
        weights = block_weights(config.context)
        operations += sum(2 * weights * tokens + attention_operations(config.context, tokens) for tokens in lengths)
        return max(operations / peaks.operations[dtype], weights * BYTES[dtype] / peaks.bytes_read)
    operations += sum(lengths) * lstm_operations(config)
    steps = max(len(sentence) for sentence in batch) + 2
    once = (step_weights(config) + input_weights(config)) * BYTES[dtype]
    parts = config.n_directions * config.lstm.n_layers
    again = parts * max(0.0, step_weights(config) * BYTES[dtype] / parts - cache_bytes)
    return max(operations / peaks.operations[dtype], (once + (steps - 1) * again) / peaks.bytes_read)
