"""A stream of sentences → vectors in the same order: batches by token budget, layers, one array per sentence.

Batching does not change the vectors: the network gives each sentence the same vectors in any batch.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from html import escape
from itertools import chain, islice
from operator import index
from typing import Literal, SupportsIndex, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.layers import Layer, Pool, Vectors, batches, pool_tokens
from elmokit.model.context import padded
from elmokit.model.placement import moved
from elmokit.model.scalar_mix import ScalarMix

log = logging.getLogger(__name__)

BATCH_TOKENS = 2048
"""Tokens in a batch, including the sentence boundaries."""
GPU_BATCH_TOKENS = 8192
"""Tokens in a batch on a GPU, which is faster with larger batches."""
WINDOW_BATCHES = 8
"""The sentences of this number of batches are sorted by length together."""
AHEAD = 2
"""Batches that are started before the results of the first are read, so that a GPU is never idle."""

FEW_NUMBERS = 65_536
"""Arrays of up to this size are mixed by numpy, whose calls have less overhead than torch's."""

Result = TypeVar("Result")
Tokens = Sequence[str]


def check_batch_tokens(batch_tokens: int | None, device: torch.device) -> int:
    """The given token budget, or the default of the device."""
    if batch_tokens is None:
        return BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS
    if not isinstance(batch_tokens, SupportsIndex) or index(batch_tokens) < 1:
        raise ElmoError(f"batch_tokens must be at least 1, got {batch_tokens!r}", "batch_tokens")
    return batch_tokens


# Batches


def encode_stream(
    sentences: Iterable[Tokens],
    run: Callable[[Sequence[Tokens]], Iterable[Result]],
    batch_tokens: int = BATCH_TOKENS,
    *,
    size: Callable[[Tokens], int] = len,
) -> Iterator[Result]:
    """Yield one result per sentence, in order, reading ahead no more than a window and a few batches.

    `run` takes the sentences of a batch and returns a result for each: a list, or an iterable that is read after the
    next batches have been started. When memory runs out, `run` is called again with half a batch. `size` returns the
    number of tokens that the network reads of a sentence, without its boundaries.
    """
    stream = iter(sentences)
    results: dict[int, Result] = {}  # by sentence number, until the sentences before it have been yielded
    started: deque[tuple[list[int], Iterable[Result]]] = deque()
    read = yielded = 0

    def finish() -> Iterator[Result]:
        nonlocal yielded
        numbers, found = started.popleft()
        results.update(zip(numbers, found, strict=True))
        while yielded in results:
            yielded += 1
            yield results.pop(yielded - 1)  # removed, so that only the caller refers to it

    while window := _window(stream, batch_tokens * WINDOW_BATCHES, size):
        for batch in batches([length for _, length in window], batch_tokens):
            found = run_halving([window[i][0] for i in batch], run)
            started.append(([read + i for i in batch], found))
            if len(started) > AHEAD or isinstance(found, list):  # a list needs no waiting
                yield from finish()
        read += len(window)
    while started:
        yield from finish()


def _window(stream: Iterator[Tokens], tokens: int, size: Callable[[Tokens], int]) -> list[tuple[Tokens, int]]:
    """The next sentences, each with its size including the boundaries."""
    window: list[tuple[Tokens, int]] = []
    total = 0
    for sentence in islice(stream, tokens):
        window.append((sentence, size(sentence) + 2))
        total += window[-1][1]
        if total >= tokens:
            break
    return window


def run_halving(batch: Sequence[Tokens], run: Callable[[Sequence[Tokens]], Iterable[Result]]) -> Iterable[Result]:
    """Run a batch, or its halves if memory runs out, down to single sentences."""
    try:
        return run(batch)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if len(batch) == 1 or not out_of_memory(error):
            raise
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    half = len(batch) // 2
    log.warning("memory ran out with %d sentences in a batch; continuing with %d", len(batch), half)
    return chain(run_halving(batch[:half], run), run_halving(batch[half:], run))


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out; on the CPU only torch's message says so."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = str(error).lower()
    return "can't allocate memory" in words or "not enough memory" in words or "out of memory" in words


# Layers


class Layers:
    """All layers of a batch of sentences, or only the one that is needed, with padding or flat."""

    def __init__(self, values: Tensor | None, lengths: Tensor, flat: Tensor | None = None) -> None:
        self.lengths = lengths  # [B], on the CPU
        self.flat = flat  # [L+1, N, D], sentences one after the other
        self._values = values

    @property
    def values(self) -> Tensor:
        """[L+1, B, T, D]."""
        if self._values is None:
            assert self.flat is not None
            self._values = padded(self.flat, self.lengths)
        return self._values

    @property
    def mask(self) -> Tensor:
        """True where there is a token, [B, T]."""
        columns = torch.arange(self.values.shape[2]) < self.lengths.unsqueeze(1)
        return columns.to(self.values.device)

    def without_boundaries(self) -> Layers:
        """The layers without the two boundary positions of each sentence."""
        lengths = self.lengths - 2
        inner = Layers(self.values[:, :, 1:-1], lengths)
        return Layers(inner.values * inner.mask.unsqueeze(-1), lengths)

    def means(self, counts: Sequence[Sequence[int]]) -> Layers:
        """The mean vector of each group of tokens; the two boundaries stay as they are.

        `counts`: for each sentence, the number of tokens in each group.
        """
        if all(count == 1 for row in counts for count in row):
            return self
        lengths = np.fromiter(map(len, counts), np.int64, len(counts)) + 2
        sizes = np.zeros((len(counts), lengths.max(initial=2)), np.int64)  # [B, G], 0 at padding
        sizes[np.arange(sizes.shape[1]) < lengths[:, None]] = [n for row in counts for n in (1, *row, 1)]
        starts = np.cumsum(sizes, axis=1) - sizes + np.arange(len(counts))[:, None] * self.values.shape[2]
        sizes, starts = sizes.ravel(), np.where(sizes > 0, starts, 0).ravel()
        device, values = self.values.device, self.values.flatten(1, 2)  # [L+1, B·T, D]
        sums = values[:, torch.from_numpy(starts).to(device)]
        # One token of each group at a time, so that a sum does not depend on the rest of the batch.
        for offset in range(1, sizes.max()):
            longer = np.flatnonzero(sizes > offset)
            groups = torch.from_numpy(longer).to(device)
            sums[:, groups] += values[:, torch.from_numpy(starts[longer] + offset).to(device)]
        divisors = torch.from_numpy(sizes).to(device).unsqueeze(1)
        means = (sums / divisors.clamp(min=1).to(sums.dtype)).masked_fill(divisors == 0, 0)
        return Layers(means.reshape(len(values), len(counts), -1, means.shape[-1]), torch.from_numpy(lengths))

    def select(self, layer: Layer, mix: ScalarMix) -> Tensor:
        """One layer, or the mix of all, [B, T, D]: the values of `arrays`, padded, with gradients.

        `layer` must not be "all". If only one layer was computed, `values` contains only that one.
        """
        if layer != "mix":
            return self.values[-1 if layer == "top" or len(self.values) == 1 else int(layer)]
        if not mix.layer_norm:
            mixed: Tensor = mix(self.values)
            return mixed * self.mask.unsqueeze(-1)
        # A layer norm is applied sentence by sentence, so that no sentence depends on the others.
        alone = [mix(self.values[:, row : row + 1, :length]) for row, length in enumerate(self.lengths.tolist())]
        return torch.cat([nn.functional.pad(each, (0, 0, 0, self.values.shape[2] - each.shape[1])) for each in alone])

    def widened(self, width: int) -> Layers:
        """The layers, padded with zeros to at least `width` positions."""
        missing = width - self.values.shape[2]
        return self if missing <= 0 else Layers(nn.functional.pad(self.values, (0, 0, 0, missing)), self.lengths)


class ElmoOutput(dict[str, Tensor | list[Tensor]]):
    """The result of `elmo(...)`: tensors by TF-Hub's names, and three more keys.

    | key | |
    | --- | --- |
    | `word_emb` | [B, T, P]: layer 0, the tokens without context |
    | `lstm_outputs1` … | [B, T, D]: the layers above it |
    | `elmo` | [B, T, D]: the first mix of the layers |
    | `default` | [B, D]: the mean of `elmo` over the tokens |
    | `sequence_len` | [B]: the number of tokens |
    | `layers` | [L+1, B, T, D]: all layers |
    | `mask` | [B, T]: True where there is a token |
    | `mixes` | a list of [B, T, D]: all mixes |

    A notebook shows how similar the tokens of each sentence are to each other, without and with context.
    """

    tokens: Sequence[Tokens]
    """The tokens of each sentence, boundaries included if the model gives their vectors."""

    @overload
    def __getitem__(self, key: Literal["mixes"], /) -> list[Tensor]: ...  # type: ignore[overload-overlap]
    @overload
    def __getitem__(self, key: str, /) -> Tensor: ...
    def __getitem__(self, key: str, /) -> Tensor | list[Tensor]:
        return super().__getitem__(key)

    @classmethod
    def of(
        cls,
        layers: Layers,
        mixes: Iterable[nn.Module],
        dropout: nn.Module,
        token_size: int,
        tokens: Sequence[Tokens],
    ) -> ElmoOutput:
        """The outputs of a batch: `token_size` is P."""
        values, mask = layers.values, layers.mask
        inside = mask.unsqueeze(-1)
        # A layer norm shifts padded positions as well; they are 0 in every output.
        mixed = [dropout(mix(values, mask) * inside) for mix in mixes]
        lengths = layers.lengths.to(values.device)
        found = cls(
            word_emb=values[0, :, :, :token_size],
            **{f"lstm_outputs{number}": layer for number, layer in enumerate(values[1:], start=1)},
            elmo=mixed[0],
            default=mixed[0].sum(dim=1) / lengths.clamp(min=1).unsqueeze(1),
            sequence_len=lengths,
            layers=values,
            mask=mask,
            mixes=mixed,
        )
        found.tokens = tokens
        return found

    def _repr_html_(self) -> str:
        layers = self["layers"].detach().float().cpu().numpy()
        return heat_maps(self.tokens, [layers[:, row, : len(each)] for row, each in enumerate(self.tokens)])


# From layers to arrays


def arrays(layers: Layers, mix: ScalarMix, layer: Layer, pool: Pool | None, *, boundaries: bool) -> Iterable[Vectors]:
    """One array per sentence; from a GPU they are copied in the background, and reading them waits for the copy."""
    lengths = layers.lengths.numpy() - (0 if boundaries else 2)
    first, around = (0, 0) if boundaries else (1, 2)
    if layers.flat is not None and layers.flat.is_cpu and not (layer == "mix" and mix.layer_norm):
        # There is no padding, and the slices of the sentences leave the boundaries out.
        flat = _chosen(layers.flat, lengths, layer, mix).float().numpy()
        starts = (np.cumsum(lengths + around) - lengths - around + first).tolist()
        slices = (flat[..., start : start + n, :] for start, n in zip(starts, lengths.tolist(), strict=True))
        return [(part if pool is None else pool_tokens(part, pool)).copy() for part in slices]
    device = layers.values.device
    if len(lengths) == 1:
        values = layers.values[:, 0, first : first + int(lengths[0])]
    else:
        columns = np.arange(layers.values.shape[2])
        inside = (columns >= first) & (columns < first + lengths[:, None])
        values = layers.values.flatten(1, 2)[:, moved(torch.from_numpy(np.flatnonzero(inside)), device)]
    chosen = _on_host(_chosen(values, lengths, layer, mix))  # [N, D] or [L+1, N, D]: no padding

    def parts() -> Iterator[Vectors]:
        packed, stop = chosen(), 0
        for length in lengths.tolist():
            start, stop = stop, stop + length
            part = packed[..., start:stop, :]
            # A copy: a view would refer to the memory of the whole batch.
            yield (part if pool is None else pool_tokens(part, pool)).copy()

    return list(parts()) if device.type == "cpu" else _in_background(parts())


def _chosen(values: Tensor, lengths: NDArray[np.int64], layer: Layer, mix: ScalarMix) -> Tensor:
    """Flat values [L+1, N, D], or only one layer [1, N, D] → the chosen layer [N, D], or all of them."""
    if layer == "all":
        return values
    if layer != "mix":
        return values[-1 if layer == "top" or len(values) == 1 else layer]
    if values.dtype == torch.float32 and values.is_cpu and not mix.layer_norm and values[0].numel() <= FEW_NUMBERS:
        return torch.from_numpy(mix.of_array(values.numpy()))
    # A layer norm is applied sentence by sentence, so that no sentence depends on the others.
    alone = torch.split(values, lengths.tolist(), dim=1) if mix.layer_norm and len(lengths) else [values]
    return torch.cat([mix(part.unsqueeze(1))[0] for part in alone])


def _on_host(values: Tensor) -> Callable[[], Vectors]:
    """Start the copy to the host as float32; the function that is returned waits for it."""
    values = values.float()
    if values.device.type != "cuda":
        array = values.cpu().numpy()
        return lambda: array
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(values.device))

    def wait() -> Vectors:
        copied.synchronize()
        return host.numpy()

    return wait


def _in_background(parts: Iterator[Vectors]) -> Iterator[Vectors]:
    """The parts, computed in another thread while this one prepares the next batches."""
    future = _collector().submit(list, parts)

    def results() -> Iterator[Vectors]:
        yield from future.result()

    return results()


@cache
def _collector() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="elmokit-collector")


# How a notebook displays the result of `elmo(...)`

SHOWN_SENTENCES, SHOWN_TOKENS = 3, 16


def heat_maps(sentences: Sequence[Sequence[str]], layers: Sequence[NDArray[np.float32]]) -> str:
    """HTML tables of the cosines between the tokens of each sentence, in layer 0 (no context) and in the top layer.

    `layers`: [L+1, T, D] for each sentence.
    """
    parts = [_sentence_html(*each) for each in zip(sentences[:SHOWN_SENTENCES], layers, strict=False)]
    if len(sentences) > SHOWN_SENTENCES:
        parts.append(f"<p>… and {len(sentences) - SHOWN_SENTENCES:,} more</p>")
    return f"<p>ElmoOutput: cosine similarities of tokens</p>{''.join(parts)}"


def _sentence_html(tokens: Sequence[str], layers: NDArray[np.float32]) -> str:
    n_layers, n_tokens, size = layers.shape
    more = f", the first {SHOWN_TOKENS} shown" if n_tokens > SHOWN_TOKENS else ""
    tables = (
        _similarity_table(f"layer {number}", tokens[:SHOWN_TOKENS], layers[number]) for number in (0, n_layers - 1)
    )
    return f"<p>{n_tokens:,} tokens{more}, {n_layers} layers x {size}</p>{''.join(tables)}"


def _similarity_table(title: str, tokens: Sequence[str], vectors: NDArray[np.float32]) -> str:
    vectors = vectors[: len(tokens)]
    scaled = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    names = [f"<th><bdi>{escape(token)}</bdi></th>" for token in tokens]
    cells = ("".join(map(_similarity_cell, row)) for row in (scaled @ scaled.T).tolist())
    rows = "".join(f"<tr>{name}{row}</tr>" for name, row in zip(names, cells, strict=True))
    return f'<table style="display: inline-block"><tr><th>{title}</th>{"".join(names)}</tr>{rows}</table>'


def _similarity_cell(similarity: float) -> str:
    shade = min(max(similarity, 0.0), 1.0)
    return f'<td style="background: rgba(31, 119, 180, {shade:.2f})">{similarity:.2f}</td>'
