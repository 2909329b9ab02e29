"""A matrix product whose rows do not depend on their neighbours.

CPU libraries choose another order of summation for one row than for thirty, or for the last rows of a batch, so the
same word could get different last digits in different company, and an LSTM over a long sentence makes last digits
grow. Rows filled up to a multiple of 4 and at least 16 columns keep every row on the same path: the result is the
same, bit for bit, alone and in any batch. `docs/determinism.md` says where this was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

from elmokit.ops import native
from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.weights import BlockStack, BlockWeights

ROWS = 4
"""Rows come in multiples of this many."""
LEAST_COLUMNS = 16
"""Narrower products treat the rows of one tile differently."""
GATE_COLUMNS = 32
"""Gates of heads come in multiples of this many, the rest is filling."""
LEAST_NUMBERS = 10_000
"""Smaller matrices are not worth another copy."""
_dense_matrices: WeakKeyDictionary[Int8Matrix, tuple[object, Tensor]] = WeakKeyDictionary()
_half_matrices: WeakIdKeyDictionary = WeakIdKeyDictionary()
_reordered_matrices: WeakIdKeyDictionary = WeakIdKeyDictionary()
_half_stacks: WeakIdKeyDictionary = WeakIdKeyDictionary()
_half_product = torch.ops.quantized.linear_dynamic_fp16.default


def filled(rows: int) -> int:
    """The number of rows that `rows` rows are computed as."""
    return -(-rows // ROWS) * ROWS


def linear(x: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None = None) -> Tensor:
    """x [N, K] · weightᵀ [K, O] + bias [O] → [N, O], each row independent of the others."""
    if can_be_compiled(x, weight, bias):
        return _compiled(x, weight, bias)
    if isinstance(weight, Int8Matrix):
        weight = dense(weight)
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    if (halves := _halves(x, weight)) is not None:
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, halves)
        return y if bias is None else y + bias
    rows, columns = x.shape[0], weight.shape[0]
    if rows % ROWS:
        x = F.pad(x, (0, 0, 0, filled(rows) - rows))
    if columns < LEAST_COLUMNS:
        weight = F.pad(weight, (0, 0, 0, LEAST_COLUMNS - columns))
        y = F.linear(x, weight)[:rows, :columns]
        return y if bias is None else y + bias
    return F.linear(x, weight, bias)[:rows]


def linear_again(x: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None = None) -> Tensor:
    """`linear` with a matrix that is used again and again: torch's products get a copy in the order they read it in.

    They are about a fifth faster with it, for as much memory again.
    """
    if bias is not None or x.device.type != "cpu" or can_be_compiled(x, weight):
        return linear(x, weight, bias)
    if isinstance(weight, Int8Matrix):
        weight = dense(weight)
    if (
        not _is_plain_product(x, weight)
        or _halves(x, weight) is not None
        or (reordered := _cached(_reordered_matrices, weight, _reordered)) is None
    ):
        return linear(x, weight)
    rows = len(x)
    if rows % ROWS:
        x = F.pad(x, (0, 0, 0, filled(rows) - rows))
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, reordered, None, "none", [], "")
    return y[:rows]


class HalfBlock(NamedTuple):
    """The matrices of a block, packed as torch's float16 products read them: those treat every row by itself.

    Numbers of a query or key that are turned together, E / 2 apart in a block's weights, are neighbours here.
    """

    qkv_gates: object  # [3P + G, P]: queries, keys and values, then the gates of the heads with their bias
    out: object  # [P, P]
    up: object  # [2I, P]
    down: object  # [P, I]


def half_product(x: Tensor, packed: object) -> Tensor:
    """x [N, K] · weightᵀ [K, O] → [N, O] with a matrix of a `HalfBlock`; no row has to be filled up."""
    y: Tensor = _half_product(x, packed)
    return y


def half_blocks(stack: BlockStack) -> Sequence[HalfBlock] | None:
    """A stack's matrices for `half_product`, packed again only where they have changed; None where they do not fit."""
    tensors = stack.tensors
    state = (*map(id, tensors), *map(_state, tensors))
    known = _half_stacks.get(tensors[0])  # type: ignore[no-untyped-call]
    if known is None or known[0] != state:
        blocks = [_half_block(weights) for weights in stack]
        known = _half_stacks[tensors[0]] = state, None if any(each is None for each in blocks) else blocks
    found: Sequence[HalfBlock] | None = known[1]
    return found


def _half_block(weights: BlockWeights) -> HalfBlock | None:
    qkv, out, up, down = weights[:4]
    if isinstance(qkv, Int8Matrix) or any(isinstance(matrix, Int8Matrix) for matrix in (out, up, down)):
        return None
    missing, size = -weights.n_heads % GATE_COLUMNS, qkv.shape[1]
    qk = qkv[: 2 * size].detach().reshape(2 * weights.n_heads, 2, -1, size).transpose(1, 2).reshape(2 * size, size)
    gates = F.pad(weights.gate_weight.detach().to(qkv.dtype), (0, 0, 0, missing))
    together = torch.cat([qk, qkv[2 * size :].detach(), gates])
    bias = F.pad(weights.gate_bias.detach().float(), (len(qkv), missing))
    matrices = ((together, bias), (out, None), (up, None), (down, None))
    packed = [_packed_halves(matrix, bias) for matrix, bias in matrices if isinstance(matrix, Tensor)]
    return None if any(each is None for each in packed) else HalfBlock(*packed)


def can_be_compiled(x: Tensor, *weights: Tensor | Int8Matrix | None) -> bool:
    """Whether the compiled kernels can take a product of x, which has rows, with these."""
    if x.device.type != "cpu" or not len(x):
        return False
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (x, *weights)):
        return False
    return native.reason_against(x.dtype, int8=any(isinstance(weight, Int8Matrix) for weight in weights)) is None


def _compiled(x: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None) -> Tensor:
    """The compiled product; for int8, x in two parts.

    A word's characters make a few large numbers and many small ones, of which one part alone leaves too little: the
    worst cosine of a token to float32 was 0.990 with it, and is 0.996 with two.
    """
    from elmokit.ops.native.linear import linear_native

    return linear_native(x, weight, bias, twice=True)


def _halves(x: Tensor, weight: Tensor) -> object | None:
    """The weight as torch's float16 products read it; None where they would change the numbers or do not exist.

    They read half as much memory, widen each number to float32 on its way and treat every row by itself. Models are
    mostly stored in float16, so that no number changes.
    """
    return _cached(_half_matrices, weight, _packed_halves) if _is_plain_product(x, weight) else None


def _is_plain_product(x: Tensor, weight: Tensor) -> bool:
    """Whether a product is one of float32 and without gradients, of rows with a matrix that is worth another copy."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or not len(x) or weight.numel() < LEAST_NUMBERS:
        return False
    return not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))


def _cached(
    known_matrices: WeakIdKeyDictionary, weight: Tensor, make: Callable[[Tensor], object | None]
) -> object | None:
    """What `make` makes of a weight, made again only when it has changed."""
    state = _state(weight)
    known = known_matrices.get(weight)  # type: ignore[no-untyped-call]
    if known is None or known[0] != state:
        known = known_matrices[weight] = state, make(weight.detach())
    made: object | None = known[1]
    return made


def _reordered(weight: Tensor) -> object | None:
    """The weight in the order in which oneDNN reads it; None where this build of torch has no such products."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        found: object = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 32)
        torch.ops.mkldnn._linear_pointwise(weight.new_zeros(ROWS, weight.shape[1]), found, None, "none", [], "")
    except (RuntimeError, AttributeError):
        return None
    return found


def _packed_halves(weight: Tensor, bias: Tensor | None = None) -> object | None:
    weight = weight.detach()
    if weight.dtype != torch.float32 or not torch.equal(weight.half().float(), weight):
        return None
    try:
        found: object = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
    except RuntimeError:  # this build of torch has no such products
        return None
    return found


def dense(matrix: Int8Matrix) -> Tensor:
    """The matrix in float32, cached as long as it is the same: without compiled kernels int8 saves no time."""
    found, state = _dense_matrices.get(matrix), tuple(map(_state, matrix.tensors()))
    if found is None or found[0] != state:
        found = _dense_matrices[matrix] = state, matrix.dense()
    return found[1]


def _state(tensor: Tensor) -> tuple[int, int | None]:
    """What changes with the numbers of a tensor, as far as torch counts changes."""
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version
