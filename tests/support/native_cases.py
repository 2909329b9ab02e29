"""Weights, inputs and expectations for the tests of the compiled kernels."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from elmokit.ops.int8 import Int8Matrix
from elmokit.ops.native import bilstm as native_bilstm
from elmokit.ops.native import characters as native_characters
from elmokit.ops.native import linear as native_linear
from elmokit.ops.native.binding import SWITCH, Library
from elmokit.ops.native.build import FLAGS, BuildError, find_compiler, load
from elmokit.ops.outputs import BiLstmOutput
from elmokit.ops.weights import Int8LstmWeights, LstmWeights


def compiles(command: Sequence[str], flags: Sequence[str]) -> bool:
    """Whether a compiler makes a library of an empty source with these flags."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.c"
        source.touch()
        whole = [*command, *FLAGS, *flags, "-o", f"{folder}/empty.so", str(source), "-lm"]
        return subprocess.run(whole, capture_output=True, check=False).returncode == 0


def reason_against_compiling() -> str | None:
    """Why this machine has no kernels, apart from their own source: an error in that has to fail a test."""
    if os.name == "nt":
        return "the kernels are not made for Windows"
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH} is 0"
    try:
        command = find_compiler()
    except BuildError as error:
        return str(error)
    return None if compiles(command, ()) else f"{command[0]} does not compile an empty source"


missing = reason_against_compiling()
needs_kernels = pytest.mark.skipif(missing is not None, reason=str(missing))


def library_with(flags: str) -> Library:
    """The kernels compiled with these flags; the test is skipped where the compiler does not know them."""
    command = find_compiler()
    if not compiles(command, flags.split()):
        pytest.skip(f"{command[0]} does not know {flags}")
    return Library(load(command, [flags.split()]))


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def make_weights(
    cell: int, output: int, *, seed: int, projection: bool = True, clips: tuple[float | None, float | None] = (3.0, 3.0)
) -> LstmWeights:
    return LstmWeights(
        draw(4 * cell, output, seed=seed) / output**0.5,
        draw(4 * cell, output, seed=seed + 1) / output**0.5,
        draw(4 * cell, seed=seed + 2),
        draw(output, cell, seed=seed + 3) / cell**0.5 if projection else None,
        forget_bias=0.7,
        cell_clip=clips[0],
        projection_clip=clips[1],
    )


def make_stacks(cell: int, output: int, *, directions: int = 2, layers: int = 2, **rest) -> list[list[LstmWeights]]:
    return [
        [make_weights(cell, output, seed=100 * d + 10 * n, **rest) for n in range(layers)] for d in range(directions)
    ]


def as_int8(stacks: list[list[LstmWeights]]) -> list[list[Int8LstmWeights]]:
    return [
        [
            Int8LstmWeights(
                Int8Matrix.of(w.input),
                Int8Matrix.of(w.recurrent),
                w.bias,
                None if w.projection is None else Int8Matrix.of(w.projection),
                w.forget_bias,
                w.cell_clip,
                w.projection_clip,
            )
            for w in layers
        ]
        for layers in stacks
    ]


def make_inputs(batch: int, time: int, output: int, cell: int, *, directions: int = 2, layers: int = 2, zero=False):
    x = 3 * draw(batch, time, output, seed=batch)
    lengths = torch.randint(0, time + 1, (batch,), generator=torch.Generator().manual_seed(time))
    lengths[batch // 2] = time
    h, c = draw(directions, layers, batch, output, seed=7), draw(directions, layers, batch, cell, seed=8)
    return (x, lengths, torch.zeros_like(h), torch.zeros_like(c)) if zero else (x, lengths, h, c)


def assert_near(found: BiLstmOutput, expected: BiLstmOutput, tolerance: float) -> None:
    for ours, plain in zip((*found.layers, found.h, found.c), (*expected.layers, expected.h, expected.c), strict=True):
        torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance)


def assert_equal(found: BiLstmOutput, expected: BiLstmOutput) -> None:
    for ours, other in zip((*found.layers, found.h, found.c), (*expected.layers, expected.h, expected.c), strict=True):
        assert torch.equal(ours, other)


def quantised_rows(values: torch.Tensor) -> torch.Tensor:
    """Activations as the 8-bit kernels see them."""
    largest = values.abs().amax(dim=-1, keepdim=True)
    return (values * (127 / largest.clamp(min=1e-30))).round() * largest / 127


def quantised_twice(values: torch.Tensor) -> torch.Tensor:
    """What the projection sees: the numbers in 8 bits, and in 8 bits once more what that leaves over."""
    first = quantised_rows(values)
    return first + quantised_rows(values - first)


def use_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function that makes so many threads share even the smallest work, more than this machine may have."""
    monkeypatch.setattr(native_bilstm, "LEAST_PRODUCTS", 1)
    monkeypatch.setattr(native_bilstm, "LEAST_STEP_PRODUCTS", 1)
    monkeypatch.setattr(native_linear, "LEAST_PRODUCTS", 1)
    monkeypatch.setattr(native_characters, "LEAST_PRODUCTS", 1)

    def use(count: int) -> None:
        for module in (native_bilstm, native_characters, native_linear):
            monkeypatch.setattr(module, "most_threads", lambda: count)

    return use
