"""The compiled kernels in use: weights that change or go, threads, forks, and what does not fit."""

import gc
import mmap
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from elmokit.errors import ElmoError
from elmokit.ops.bilstm import bilstm_packed
from elmokit.ops.native import bilstm as native_bilstm
from elmokit.ops.native import cores
from elmokit.ops.native import packed as native_packed
from elmokit.ops.native.bilstm import bilstm_native
from elmokit.ops.native.cores import most_threads
from elmokit.ops.native.linear import linear_native
from support.native_cases import (
    as_int8,
    assert_equal,
    draw,
    make_inputs,
    make_stacks,
    make_weights,
    needs_kernels,
    use_threads,
)

pytestmark = needs_kernels


@pytest.fixture
def every_thread(monkeypatch):
    return use_threads(monkeypatch)


def test_weights_changed_in_place_are_seen():
    stacks = make_stacks(21, 10)
    given = make_inputs(2, 5, 10, 21)

    def same() -> bool:
        x, lengths, h, c = given
        found = bilstm_native(x, lengths, stacks, h, c, skip_connections=True)
        expected = bilstm_packed(x, lengths, stacks, h, c, skip_connections=True)
        return torch.allclose(found.layers[1], expected.layers[1], atol=1e-5)

    assert same()
    weights = stacks[0][1]
    weights.recurrent.mul_(0.5)
    assert same()
    assert weights.projection is not None
    weights.projection.data.add_(0.1)  # torch does not count this one
    assert same()
    weights.input.data = weights.input.data * 2
    assert same()
    weights.bias.add_(1)
    assert same()
    [[small]] = as_int8([[weights]])
    x, lengths, h, c = given[0], given[1], given[2][:1, :1], given[3][:1, :1]
    before = bilstm_native(x, lengths, [[small]], h, c, skip_connections=True)
    small.recurrent.scales.mul_(2)
    assert not torch.equal(bilstm_native(x, lengths, [[small]], h, c, skip_connections=True).h, before.h)
    with torch.inference_mode():
        stacks[0][0] = make_weights(21, 10, seed=900)
        assert same()
        stacks[0][0].input.neg_()
        assert same()


def test_packed_copies_are_released_with_their_tensors():
    gc.collect()
    before = len(native_packed._packed_matrices)
    stacks = make_stacks(21, 10)
    x, lengths, h, c = make_inputs(2, 5, 10, 21)
    bilstm_native(x, lengths, stacks, h, c, skip_connections=True)
    bilstm_native(x, lengths, stacks, h, c, skip_connections=True)
    assert len(native_packed._packed_matrices) == before + 12
    del stacks
    gc.collect()
    assert len(native_packed._packed_matrices) == before


def test_mapped_weights_are_the_same_when_their_pages_are_gone(tmp_path):
    weight, x = draw(1024, 512, seed=3), draw(4, 512, seed=4)
    name = tmp_path / "spaces and \u2028 in its name"
    weight.numpy().tofile(name)
    mapped = torch.from_file(str(name), shared=False, size=weight.numel()).view_as(weight)
    start = -(-mapped.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    assert native_packed.is_mapped_file(start, start + mmap.PAGESIZE) == (sys.platform == "linux")
    assert not native_packed.is_mapped_file(weight.data_ptr(), weight.data_ptr() + 1)
    expected = linear_native(x, weight, None)
    assert torch.equal(linear_native(x, mapped, None), expected)
    mapped[1] *= 2
    native_packed.release_pages(mapped)
    name.unlink()
    weight[1] *= 2
    assert torch.equal(mapped, weight)
    assert torch.equal(linear_native(x, mapped, None), linear_native(x, weight, None))


def test_threads_of_python_may_call_at_once(every_thread):
    every_thread(3)
    stacks = make_stacks(70, 33)
    given = [make_inputs(batch, 9, 33, 70) for batch in (1, 4, 17)]
    expected = [bilstm_native(x, n, stacks, h, c, skip_connections=True) for x, n, h, c in given]
    right = []

    def call(number: int) -> None:
        x, lengths, h, c = given[number]
        for _ in range(20):
            assert_equal(bilstm_native(x, lengths, stacks, h, c, skip_connections=True), expected[number])
        right.append(number)

    callers = [threading.Thread(target=call, args=(number % 3,)) for number in range(6)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(right) == len(callers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_can_go_on(every_thread):
    every_thread(2)
    stacks = make_stacks(70, 33)
    x, lengths, h, c = make_inputs(4, 9, 33, 70)
    expected = bilstm_native(x, lengths, stacks, h, c, skip_connections=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert_equal(bilstm_native(x, lengths, stacks, h, c, skip_connections=True), expected)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


AFTER_A_FORK = """
import os, threading
import torch
from elmokit.ops.native.linear import linear_native

torch.set_num_threads(2)
x, weight = torch.ones(512, 300), torch.ones(300, 300)
busy = threading.Event()

def work():
    while not done.is_set():
        assert linear_native(x, weight, None).sum() == x.shape[0] * 300 * 300
        busy.set()

def in_a_child(call):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0

large = torch.ones(2000, 1000)
assert large.add(1).sum() == 4e6  # torch's threads are at work before the library is there
in_a_child(lambda: linear_native(x, weight, None))
done = threading.Event()
callers = [threading.Thread(target=work) for _ in range(3)]
for caller in callers:
    caller.start()
busy.wait()
linear_native(x, weight, None)
for _ in range(3):
    in_a_child(lambda: (linear_native(x, weight, None), large.add(1).sum()))
done.set()
for caller in callers:
    caller.join()
torch.set_num_threads(1)
linear_native(x, weight, None)
torch.set_num_threads(2)
assert linear_native(x, weight, None).sum() == x.shape[0] * 300 * 300
print("went on")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"OMP_THREAD_LIMIT": "1"},
        pytest.param({"OMP_DYNAMIC": "true"}, marks=pytest.mark.slow),
        pytest.param({"OMP_NUM_THREADS": "1"}, marks=pytest.mark.slow),
    ],
)
def test_forks_among_threads_leave_nobody_waiting(setting):
    """Also where torch's threads were at work before; in a process of its own, which may hang."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AFTER_A_FORK],
        env={**os.environ, **setting},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "went on\n"), found.stderr


def test_files_with_odd_names_among_the_mapped_ones(monkeypatch, tmp_path):
    """What the system lists may be in no encoding at all, and have spaces."""
    maps = tmp_path / "maps"
    monkeypatch.setattr(cores, "MAPS", maps)
    assert cores.pool_functions() is None
    real = Path("/proc/self/maps")
    lines = [line for line in real.read_bytes().split(b"\n") if b"libgomp" in line] if real.exists() else []
    if not lines:
        pytest.skip("torch uses no libgomp here")
    path = Path(os.fsdecode(lines[0].split(maxsplit=5)[5]))
    spaced = tmp_path / "a folder" / path.name
    spaced.parent.mkdir()
    spaced.symlink_to(path)
    odd = b"1-2 r--p 0 00:00 7  /caf\xe9 \xe2\x80\xa8/weights of libgomp.safetensors\n"
    maps.write_bytes(odd + b"1-2 r-xp 0 00:00 7  " + os.fsencode(spaced) + b"\n1-2 rw-p 0 00:00 0 \n")
    found = cores.pool_functions()
    assert found is not None
    assert len(found) == 3


def test_threads_are_torchs_but_no_more_than_cores(monkeypatch):
    assert most_threads() == 1  # as conftest.py says
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10_000)
    assert 1 <= most_threads() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("int8", [False, True])
def test_few_rows_and_large_weights_take_the_directions_in_turn(int8, monkeypatch, every_thread):
    """Both ways of sharing the work give the same bits."""
    plain = make_stacks(70, 33)
    stacks = as_int8(plain) if int8 else plain
    x, lengths, h, c = make_inputs(3, 9, 33, 70)
    every_thread(4)
    weights, size = 5 * 70 * 33, 1 if int8 else 4
    assert native_bilstm._threads(20, 9, weights, size, 2) == (4, True)
    apart = bilstm_native(x, lengths, stacks, h, c, skip_connections=True)
    monkeypatch.setattr(native_bilstm, "CACHED_BYTES", 1)
    assert native_bilstm._threads(20, 9, weights, size, 2) == (4, False)
    assert_equal(bilstm_native(x, lengths, stacks, h, c, skip_connections=True), apart)


def test_what_does_not_fit_is_refused_before_memory_is_touched():
    stacks = make_stacks(13, 6)
    x, lengths, h, c = make_inputs(2, 3, 6, 13)

    def refuse(words: str, *, x=x, lengths=lengths, stacks=stacks, h=h, c=c) -> None:
        with pytest.raises(ElmoError, match=words):
            bilstm_native(x, lengths, stacks, h, c, skip_connections=True)

    refuse("take float32 on the CPU, got torch.float64", x=x.double())
    refuse("take float32 on the CPU", h=h.half())
    refuse(r"lengths must be 2 numbers from 0 to 3, got \[4, 1\]", lengths=torch.tensor([1, 4]))
    refuse("from 0 to 3", lengths=torch.tensor([1, -1]))
    refuse("lengths must be 2 numbers", lengths=torch.tensor([1]))
    refuse("do not fit inputs of 5, 6 outputs and 13 cells", x=x[:, :, :5])
    refuse("do not fit", h=h[:1])
    refuse("do not fit", c=c[:, :, :1])
    refuse("do not fit", stacks=[stacks[0], stacks[1][:1]])
    refuse("do not fit", stacks=[stacks[0], as_int8(stacks)[1]])
    refuse("do not fit", stacks=[[replace(w, projection=None) for w in layers] for layers in stacks])
    refuse("weights on the CPU, got some on meta", stacks=[[replace(w, bias=w.bias.to("meta")) for w in stacks[0]]] * 2)
    refuse("got some on meta", stacks=[[replace(w, input=w.input.to("meta")) for w in layers] for layers in stacks])
    refuse("do not fit", stacks=[[replace(w, bias=w.bias[:-1]) for w in layers] for layers in stacks])
    for given, bias in ((x[0, :, :5], None), (x[0], torch.ones(7))):
        with pytest.raises(ElmoError, match=r"a matrix \[8, 6\] does not fit rows of"):
            linear_native(given, torch.ones(8, 6), bias)
    for weight, bias in ((torch.ones(8, 6, device="meta"), None), (torch.ones(8, 6), torch.ones(8, device="meta"))):
        with pytest.raises(ElmoError, match="inputs on the CPU need weights on the CPU, got some on meta"):
            linear_native(x[0], weight, bias)
    with pytest.raises(ElmoError, match="take float32 on the CPU"):
        linear_native(x[0].double(), torch.ones(8, 6), None)


def test_other_number_types_around_it_change_nothing():
    stacks = make_stacks(13, 6)
    x, lengths, h, c = make_inputs(2, 3, 6, 13)
    expected = bilstm_native(x, lengths, stacks, h, c, skip_connections=True)
    doubles = [
        [replace(w, input=w.input.double(), recurrent=w.recurrent.double(), bias=w.bias.double()) for w in layers]
        for layers in stacks
    ]
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert_equal(bilstm_native(x, lengths.int(), doubles, h, c, skip_connections=True), expected)
    finally:
        torch.set_default_dtype(default)
