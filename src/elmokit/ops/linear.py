"""A matrix product whose rows do not depend on their neighbours.

CPU libraries sum in a different order for one row than for thirty, or for the last rows of a batch. So the vectors of a
word could differ slightly from batch to batch, and an LSTM over a long sentence makes such differences grow. If the
number of rows is a multiple of 4 and there are at least 16 columns, every row is computed in the same way: the result
is the same, bit for bit, alone and in any batch. `docs/determinism.md` says where this was measured.
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
"""The number of rows is padded to a multiple of this."""
LEAST_COLUMNS = 16
"""In narrower products, CPU libraries treat the rows of one tile differently."""
GATE_COLUMNS = 32
"""The number of columns for the gates of heads is padded to a multiple of this."""
LEAST_NUMBERS = 10_000
"""The size of the smallest matrix for which another copy saves time."""
_dense_matrices: WeakKeyDictionary[Int8Matrix, tuple[object, Tensor]] = WeakKeyDictionary()
_float16_matrices: WeakIdKeyDictionary = WeakIdKeyDictionary()
_reordered_matrices: WeakIdKeyDictionary = WeakIdKeyDictionary()
_float16_stacks: WeakIdKeyDictionary = WeakIdKeyDictionary()
_linear_dynamic_fp16 = torch.ops.quantized.linear_dynamic_fp16.default


def filled(rows: int) -> int:
    """The number of rows, including the padding that `linear` adds."""
    return -(-rows // ROWS) * ROWS


def linear(x: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None = None) -> Tensor:
    """x [N, K] · weightᵀ [K, O] + bias [O] → [N, O], each row independent of the others."""
    if can_be_compiled(x, weight, bias):
        return _compiled(x, weight, bias)
    if isinstance(weight, Int8Matrix):
        weight = dense(weight)
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    if (packed := _float16_matrix(x, weight)) is not None:
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, packed)
        return y if bias is None else y + bias
    rows, columns = x.shape[0], weight.shape[0]
    if rows % ROWS:
        x = F.pad(x, (0, 0, 0, filled(rows) - rows))
    if columns < LEAST_COLUMNS:
        weight = F.pad(weight, (0, 0, 0, LEAST_COLUMNS - columns))
        y = F.linear(x, weight)[:rows, :columns]
        return y if bias is None else y + bias
    return F.linear(x, weight, bias)[:rows]


def linear_with_copy(x: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None = None) -> Tensor:
    """`linear` for a matrix that is used often: oneDNN gets a copy of it in the order in which it reads the numbers.

    That makes a product about a fifth faster, and takes the memory of a second matrix.
    """
    if bias is not None or x.device.type != "cpu" or can_be_compiled(x, weight):
        return linear(x, weight, bias)
    if isinstance(weight, Int8Matrix):
        weight = dense(weight)
    if (
        not _is_plain_product(x, weight)
        or _float16_matrix(x, weight) is not None
        or (reordered := _cached(_reordered_matrices, weight, _reordered)) is None
    ):
        return linear(x, weight)
    rows = len(x)
    if rows % ROWS:
        x = F.pad(x, (0, 0, 0, filled(rows) - rows))
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, reordered, None, "none", [], "")
    return y[:rows]


class Float16Block(NamedTuple):
    """The matrices of a block, packed for torch's float16 products, which compute every row separately.

    The two numbers of a query or key that are rotated together, E / 2 apart in a block's weights, are neighbours here.
    """

    qkv_gates: object  # [3P + G, P]: queries, keys and values, then the gates of the heads with their bias
    out: object  # [P, P]
    up: object  # [2I, P]
    down: object  # [P, I]


def float16_product(x: Tensor, packed: object) -> Tensor:
    """x [N, K] · weightᵀ [K, O] → [N, O] with a matrix of a `Float16Block`; rows are not padded."""
    y: Tensor = _linear_dynamic_fp16(x, packed)
    return y


def float16_blocks(stack: BlockStack) -> Sequence[Float16Block] | None:
    """A stack's matrices for `float16_product`, packed again only if they have changed; None if one does not fit."""
    tensors = stack.tensors
    state = (*map(id, tensors), *map(_state, tensors))
    known = _float16_stacks.get(tensors[0])  # type: ignore[no-untyped-call]
    if known is None or known[0] != state:
        blocks = [_packed_block(weights) for weights in stack]
        known = _float16_stacks[tensors[0]] = state, None if any(each is None for each in blocks) else blocks
    found: Sequence[Float16Block] | None = known[1]
    return found


def _packed_block(weights: BlockWeights) -> Float16Block | None:
    qkv, out, up, down = weights[:4]
    if isinstance(qkv, Int8Matrix) or any(isinstance(matrix, Int8Matrix) for matrix in (out, up, down)):
        return None
    missing, size = -weights.n_heads % GATE_COLUMNS, qkv.shape[1]
    qk = qkv[: 2 * size].detach().reshape(2 * weights.n_heads, 2, -1, size).transpose(1, 2).reshape(2 * size, size)
    gates = F.pad(weights.gate_weight.detach().to(qkv.dtype), (0, 0, 0, missing))
    together = torch.cat([qk, qkv[2 * size :].detach(), gates])
    bias = F.pad(weights.gate_bias.detach().float(), (len(qkv), missing))
    matrices = ((together, bias), (out, None), (up, None), (down, None))
    packed = [_packed_float16(matrix, bias) for matrix, bias in matrices if isinstance(matrix, Tensor)]
    return None if any(each is None for each in packed) else Float16Block(*packed)


def can_be_compiled(x: Tensor, *weights: Tensor | Int8Matrix | None) -> bool:
    """Whether the compiled kernels can compute a product of x with these weights."""
    if x.device.type != "cpu" or not len(x):
        return False
    if torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in (x, *weights)):
        return False
    return native.reason_against(x.dtype, int8=any(isinstance(weight, Int8Matrix) for weight in weights)) is None


def _compiled(x: Tensor, weight: Tensor | Int8Matrix, bias: Tensor | None) -> Tensor:
    """The compiled product; for int8, x is rounded twice.

    The characters of a word give a few large numbers and many small ones, which are lost if x is rounded once: then the
    worst cosine of a token to float32 is 0.990. If the rounding error is also rounded and added, it is 0.996.
    """
    from elmokit.ops.native.linear import linear_native

    return linear_native(x, weight, bias, twice=True)


def _float16_matrix(x: Tensor, weight: Tensor) -> object | None:
    """The weight packed for torch's float16 products; None if they would change the numbers or do not exist.

    Those products read half as much memory, convert each number to float32 and compute every row separately. Most
    models are stored in float16, so their weights do not change.
    """
    return _cached(_float16_matrices, weight, _packed_float16) if _is_plain_product(x, weight) else None


def _is_plain_product(x: Tensor, weight: Tensor) -> bool:
    """Whether a product is float32, without gradients, and with a matrix so large that another copy saves time."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32 or not len(x) or weight.numel() < LEAST_NUMBERS:
        return False
    return not (torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad))


def _cached(
    known_matrices: WeakIdKeyDictionary, weight: Tensor, make: Callable[[Tensor], object | None]
) -> object | None:
    """The result of `make` for a weight, computed again only if the weight has changed."""
    state = _state(weight)
    known = known_matrices.get(weight)  # type: ignore[no-untyped-call]
    if known is None or known[0] != state:
        known = known_matrices[weight] = state, make(weight.detach())
    made: object | None = known[1]
    return made


def _reordered(weight: Tensor) -> object | None:
    """The weight in the order in which oneDNN reads it; None if this build of torch has no such products."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        found: object = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 32)
        torch.ops.mkldnn._linear_pointwise(weight.new_zeros(ROWS, weight.shape[1]), found, None, "none", [], "")
    except (RuntimeError, AttributeError):
        return None
    return found


def _packed_float16(weight: Tensor, bias: Tensor | None = None) -> object | None:
    weight = weight.detach()
    if weight.dtype != torch.float32 or not torch.equal(weight.half().float(), weight):
        return None
    try:
        found: object = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
    except RuntimeError:  # this build of torch has no such products
        return None
    return found


def dense(matrix: Int8Matrix) -> Tensor:
    """The matrix in float32, cached until it changes: without compiled kernels, int8 products save no time."""
    found, state = _dense_matrices.get(matrix), tuple(map(_state, matrix.tensors()))
    if found is None or found[0] != state:
        found = _dense_matrices[matrix] = state, matrix.dense()
    return found[1]


def _state(tensor: Tensor) -> tuple[int, int | None]:
    """A value that changes when a tensor changes, as far as torch counts changes."""
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version
