"""The compiled library in Python: its structures and its functions."""

from __future__ import annotations

import os
import threading
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int64, c_uint64, c_void_p
from functools import cache
from typing import Any

import torch

from elmokit.ops.native.build import BuildError, CompiledLibrary, load
from elmokit.ops.native.cores import pool_functions

SWITCH = "ELMOKIT_NATIVE"
"""The environment variable that turns the kernels off if its value is 0."""


class Matrix(Structure):
    """`struct matrix` of source/matrix.h."""

    _fields_ = (
        ("panels", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("columns", c_void_p),
        ("repeated", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("gates", c_int64),
        ("float16", c_int64),
        ("parts", c_int64),
        ("repeats", c_int64),
    )


class LayerArguments(Structure):
    """`struct layer` of source/step.h."""

    _fields_ = (
        ("input", Matrix),
        ("recurrent", Matrix),
        ("projection", Matrix),
        ("bias", c_void_p),
        ("forget_bias", c_float),
        ("cell_clip", c_float),
        ("projection_clip", c_float),
    )


class BiLstm(Structure):
    """`struct bilstm` of source/step.h."""

    _fields_ = (
        ("batch", c_int64),
        ("time", c_int64),
        ("directions", c_int64),
        ("layers", c_int64),
        ("cells", c_int64),
        ("outputs", c_int64),
        ("int8", c_int64),
        ("skip_connections", c_int64),
        ("threads", c_int64),
        ("separate_directions", c_int64),
        ("stack", POINTER(LayerArguments)),
        ("x", c_void_p),
        ("x_row", c_int64),
        ("x_token", c_int64),
        ("order", POINTER(c_int64)),
        ("lengths", POINTER(c_int64)),
        ("h", c_void_p),
        ("c", c_void_p),
        ("last_h", c_void_p),
        ("last_c", c_void_p),
        ("layer_outputs", POINTER(c_void_p)),
    )


class Linear(Structure):
    """`struct linear` of source/linear.h."""

    _fields_ = (
        ("weight", Matrix),
        ("bias", c_void_p),
        ("x", c_void_p),
        ("y", c_void_p),
        ("rows", c_int64),
        ("int8", c_int64),
        ("twice", c_int64),
        ("threads", c_int64),
    )


class AffineArguments(Structure):
    """`struct affine` of source/characters.h."""

    _fields_ = (("weight", Matrix), ("bias", c_void_p))


class Filters(Structure):
    """`struct filters` of source/characters.h."""

    _fields_ = (("affine", AffineArguments), ("width", c_int64))


class HighwayArguments(Structure):
    """`struct highway` of source/characters.h."""

    _fields_ = (("transform", AffineArguments), ("gate", AffineArguments))


class Characters(Structure):
    """`struct characters` of source/characters.h."""

    _fields_ = (
        ("ids", c_void_p),
        ("words", c_int64),
        ("longest", c_int64),
        ("table", c_void_p),
        ("symbols", c_int64),
        ("size", c_int64),
        ("padding", c_int64),
        ("filters", POINTER(Filters)),
        ("widths", c_int64),
        ("outputs", c_int64),
        ("tanh", c_int64),
        ("highways", POINTER(HighwayArguments)),
        ("depth", c_int64),
        ("projection", AffineArguments),
        ("int8", c_int64),
        ("y", c_void_p),
        ("threads", c_int64),
        ("shared", c_int64),
        ("pool", c_int64),
    )


class Block(Structure):
    """`struct block` of source/transformer.h."""

    _fields_ = (
        ("qkv", Matrix),
        ("out", Matrix),
        ("up", Matrix),
        ("down", Matrix),
        ("gate_weight", c_void_p),
        ("gate_bias", c_void_p),
    )


class Transformer(Structure):
    """`struct transformer` of source/transformer.h."""

    _fields_ = (
        ("size", c_int64),
        ("inner", c_int64),
        ("heads", c_int64),
        ("window", c_int64),
        ("int8", c_int64),
        ("max_parts", c_int64),
        ("blocks", POINTER(Block)),
        ("n_blocks", c_int64),
        ("x", c_void_p),
        ("starts", POINTER(c_int64)),
        ("directions", POINTER(c_int64)),
        ("segments", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("output_index", POINTER(c_int64)),
        ("y", c_void_p),
        ("head", POINTER(Matrix)),
        ("head_bias", c_void_p),
        ("prediction", c_void_p),
        ("threads", c_int64),
        ("shared", c_int64),
    )


class Library:
    """The functions of the compiled library with their types; other Python threads run during a call."""

    def __init__(self, compiled: CompiledLibrary) -> None:
        self.note = compiled.note
        loaded = compiled.functions
        self.instructions = _typed(loaded.elmokit_instructions, c_char_p)
        self.allocate = _typed(loaded.elmokit_allocate, c_void_p, c_int64)
        self.free = _typed(loaded.elmokit_free, None, c_void_p)
        self.panel_bytes = _typed(loaded.elmokit_panel_bytes, c_int64, POINTER(Matrix), c_int64)
        self.table_items = _typed(loaded.elmokit_table_items, c_int64, POINTER(Matrix))
        self.float16_is_exact = _typed(loaded.elmokit_float16_is_exact, c_int, c_void_p, c_int64)
        self.pack = _typed(loaded.elmokit_pack, None, POINTER(Matrix), c_void_p, c_void_p, c_int64)
        self.sample = _typed(loaded.elmokit_sample, c_uint64, POINTER(c_void_p), POINTER(c_int64), c_int64)
        self.bilstm = _typed(loaded.elmokit_bilstm, c_int, POINTER(BiLstm))
        self.linear = _typed(loaded.elmokit_linear, c_int, POINTER(Linear))
        self.characters = _typed(loaded.elmokit_characters, c_int, POINTER(Characters))
        self.transformer = _typed(loaded.elmokit_transformer, c_int, POINTER(Transformer))
        functions = None if _forked else pool_functions()
        self.uses_pool = functions is not None
        if functions is not None:
            _typed(loaded.elmokit_use_pool, None, c_void_p, c_void_p, c_void_p)(*functions)


def library() -> Library:
    """The compiled library; raises BuildError if there is none."""
    if os.environ.get(SWITCH) == "0":
        raise BuildError(f"{SWITCH} is 0")
    with _lock:
        result = _load_once()
    if isinstance(result, BuildError):
        raise result
    return result


_lock = threading.Lock()
_forked = False


def _after_fork() -> None:
    """Prepare a child process, which would wait forever for the OpenMP threads of its parent.

    In a child, the kernels start their own threads. Torch gets one thread, because it would wait for OpenMP threads
    that the kernels have used before. The lock is new, because another thread of the parent may have held it.
    """
    global _lock, _forked
    _lock, _forked = threading.Lock(), True
    loaded = _load_once() if _load_once.cache_info().currsize else None
    if isinstance(loaded, Library) and loaded.uses_pool:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def _load_once() -> Library | BuildError:
    """The compiled library, or the reason why there is none."""
    try:
        return Library(load())
    except BuildError as error:
        return error


def _typed(function: Any, result: Any, *arguments: Any) -> Any:  # noqa: ANN401
    function.restype, function.argtypes = result, arguments
    return function
