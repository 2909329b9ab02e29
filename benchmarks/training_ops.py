"""The hot spots of pre-training, forward and backward, against plain PyTorch, and one whole training step.

    python benchmarks/training_ops.py [--device cuda] [--sizes small medium original] [--batch 1024] [--time 20]

Every operation is first compared with its reference on this device; a speed is printed only if they agree. The step
has the character part once per distinct word, two layers of both directions, the full softmax and a fused AdamW. Its
words are drawn by Zipf's law, so that frequent words repeat as in text.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elmokit import BiLM, ElmoConfig
from elmokit.config import CharacterConfig, LstmConfig
from elmokit.model.language_model import LmHead
from elmokit.ops.bilstm import lstm
from elmokit.ops.reference import lstm_windows_reference
from elmokit.ops.softmax_loss import softmax_loss
from elmokit.ops.weights import LstmWeights
from elmokit.ops.windows import lstm_windows

FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
TYPES = 200_000
"""Number of distinct words from which the words of a step are drawn."""


@dataclass(frozen=True)
class Size:
    """A model of the benchmark."""

    cell: int
    output: int
    filters: tuple[tuple[int, int], ...]
    highways: int
    words: int

    def config(self) -> ElmoConfig:
        """The configuration of the whole model."""
        return ElmoConfig(LstmConfig(self.cell, self.output), CharacterConfig(self.filters, n_highway=self.highways))


SIZES = {
    "tiny": Size(512, 128, FILTERS[:4], 1, 10_000),
    "small": Size(1024, 128, FILTERS[:5], 1, 50_000),
    "medium": Size(2048, 256, FILTERS, 1, 50_000),
    "original": Size(4096, 512, FILTERS, 2, 50_000),
}


def milliseconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """On a CPU the shortest time of a call, since other programs only add time; on a GPU the median of many calls."""
    for _ in range(3):
        run()
    if device.type != "cuda":
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return 1000 * min(times)
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(one.elapsed_time(other) for one, other in pairwise(events))


def relative(found: Tensor, exact: Tensor) -> float:
    return float(
        (found.detach().double().cpu() - exact.detach().double().cpu()).norm() / exact.detach().double().norm()
    )


def layer_case(size: Size, batch: int, steps: int, device: torch.device, dtype: torch.dtype) -> tuple:
    def draw(*shape: int, by: float = 1.0) -> Tensor:
        return (by * torch.randn(*shape)).to(device).requires_grad_()

    weights = [
        LstmWeights(
            draw(4 * size.cell, size.output, by=size.output**-0.5),
            draw(4 * size.cell, size.output, by=size.output**-0.5),
            draw(4 * size.cell),
            draw(size.output, size.cell, by=size.cell**-0.5),
            cell_clip=3.0,
            projection_clip=3.0,
        )
        for _ in range(2)
    ]
    x = torch.randn(2, steps, batch, size.output).to(device, dtype).requires_grad_()
    keep = (torch.rand(steps, batch) < 0.95).to(device, torch.float32)
    h, c = torch.randn(2, batch, size.output).to(device, dtype), torch.randn(2, batch, size.cell).to(device)
    return x, keep, weights, h, c


def check_layer(device: torch.device, dtype: torch.dtype) -> float:
    """The largest relative error of the outputs and of all gradients against the reference in float64."""
    x, keep, weights, h, c = layer_case(Size(208, 56, (), 0, 0), 37, 11, device, dtype)
    exact = [
        LstmWeights(*(t.detach().double().cpu().requires_grad_() for t in (w.input, w.recurrent, w.bias, w.projection)),
                    cell_clip=3.0, projection_clip=3.0)
        for w in weights
    ]  # fmt: skip
    exact_x = x.detach().double().cpu().requires_grad_()
    found = []
    for run, (inputs, flags, given, *state) in (
        (lstm_windows, (x, keep, weights, h, c)),
        (lstm_windows_reference, (exact_x, keep.cpu(), exact, h.double().cpu(), c.double().cpu())),
    ):
        y = run(inputs, flags, given, *state)[0]
        leaves = [inputs, *(t for w in given for t in (w.input, w.recurrent, w.bias, w.projection))]
        towards = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).cos().to(y)
        found.append([y, *torch.autograd.grad((y * towards).sum(), leaves)])
    return max(relative(ours, plain) for ours, plain in zip(*found, strict=True))


def check_softmax(device: torch.device, dtype: torch.dtype) -> float:
    """The largest relative error of the loss and its gradients against cross entropy in float64."""
    top = torch.randn(601, 72).to(device, dtype).requires_grad_()
    weight, bias = (t.to(device).requires_grad_() for t in (torch.randn(5003, 72), torch.randn(5003)))
    targets = torch.randint(-500, 5003, (601,)).clamp(min=-1).to(device)
    total, _ = softmax_loss(top, weight, bias, targets, row_weight=0.01)
    found = [total, *torch.autograd.grad(total, [top, weight, bias])]
    doubles = [t.detach().double().cpu().requires_grad_() for t in (top, weight, bias)]
    logits = doubles[0] @ doubles[1].T + doubles[2]
    exact = 0.01 * F.cross_entropy(logits, targets.cpu(), reduction="sum", ignore_index=-1)
    return max(relative(*pair) for pair in zip(found, [exact, *torch.autograd.grad(exact, doubles)], strict=True))


def time_layer(size: Size, batch: int, steps: int, device: torch.device, dtype: torch.dtype, repeats: int) -> dict:
    x, keep, weights, h, c = layer_case(size, batch, steps, device, dtype)
    leaves = [x, *(t for w in weights for t in (w.input, w.recurrent, w.bias, w.projection) if t is not None)]
    towards = torch.randn(2, steps, batch, size.output, device=device).to(dtype)

    def ours() -> None:
        torch.autograd.grad(lstm_windows(x, keep, weights, h, c)[0], leaves, towards)

    found = {"lstm_windows": milliseconds(ours, device, repeats)}
    if device.type == "cuda":
        cudnn = nn.LSTM(size.output, size.cell, proj_size=size.output, bidirectional=True, device=device, dtype=dtype)
        cudnn.flatten_parameters()
        inputs = x[0].detach().clone().requires_grad_()
        both = torch.cat([towards[0], towards[1]], dim=-1)

        def peer() -> None:
            torch.autograd.grad(cudnn(inputs)[0], [inputs, *cudnn.parameters()], both)

        found["nn.LSTM, no clips"] = milliseconds(peer, device, repeats)
    lengths = torch.full((batch,), steps)
    casts = [
        LstmWeights(*(t.detach().to(dtype).requires_grad_() for t in (w.input, w.recurrent, w.bias, w.projection)),
                    cell_clip=3.0, projection_clip=3.0)
        for w in weights
    ]  # fmt: skip
    plain_leaves = [x, *(t for w in casts for t in (w.input, w.recurrent, w.bias, w.projection) if t is not None)]

    def plain() -> None:
        outputs = [lstm(x[d].transpose(0, 1), lengths, w, h[d], c[d].to(dtype))[0] for d, w in enumerate(casts)]
        torch.autograd.grad(torch.stack(outputs), plain_leaves, towards.transpose(1, 2))

    found["plain autograd"] = milliseconds(plain, device, max(repeats // 2, 3))
    return found


def time_softmax(size: Size, rows: int, device: torch.device, dtype: torch.dtype, repeats: int) -> dict:
    top = torch.randn(rows, size.output, device=device).to(dtype).requires_grad_()
    weight = (torch.randn(size.words, size.output, device=device) * size.output**-0.5).requires_grad_()
    bias = torch.zeros(size.words, device=device, requires_grad=True)
    targets = torch.randint(0, size.words, (rows,), device=device)

    def ours() -> None:
        total, _ = softmax_loss(top, weight, bias, targets, row_weight=1 / rows)
        torch.autograd.grad(total, [top, weight, bias])

    def plain() -> None:
        logits = F.linear(top, weight.to(dtype), bias.to(dtype))
        torch.autograd.grad(F.cross_entropy(logits.float(), targets), [top, weight, bias])

    return {
        "softmax_loss": milliseconds(ours, device, repeats),
        "cross_entropy": milliseconds(plain, device, max(repeats // 2, 3)),
    }


class Step:
    """One training step, and its parts by name."""

    def __init__(self, size: Size, batch: int, steps: int, device: torch.device, dtype: torch.dtype) -> None:
        self.size, self.device, self.dtype, self.shape = size, device, dtype, (2, steps, batch)
        self.bilm = BiLM(size.config()).to(device).train()
        self.head = LmHead(size.words, size.output).to(device)
        parameters = [*self.bilm.parameters(), *self.head.parameters()]
        self.optimiser = torch.optim.AdamW(parameters, lr=1e-3, fused=True)
        generator = torch.Generator().manual_seed(0)
        chances = (torch.arange(TYPES) + 2.7) ** -1.15
        drawn = torch.multinomial(chances, batch * steps, replacement=True, generator=generator)
        forward, backward = drawn.view(steps, batch), drawn.view(steps, batch).flip(0)
        types, rows = torch.stack([forward, backward]).unique(return_inverse=True)
        self.rows, self.distinct = rows.to(device), len(types)
        lengths = (
            2 + 10 * torch.rand(len(types), generator=generator) ** 1.5 * (1 + torch.rand(len(types)))
        ).long() + 2
        self.ids = torch.randint(1, 257, (len(types), 50), generator=generator)
        self.ids[torch.arange(50) >= lengths.unsqueeze(1)] = 261
        self.targets = (drawn % size.words).repeat(2).to(device)
        self.keep = (torch.rand(steps, batch, generator=generator) < 0.96).float().to(device)
        self.states = [
            (
                torch.zeros(2, batch, size.output, device=device, dtype=dtype),
                torch.zeros(2, batch, size.cell, device=device),
            )
            for _ in range(2)
        ]

    def characters(self) -> Tensor:
        """Distinct words → their vectors [U, P]."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype == torch.bfloat16):
            return self.bilm.encode_types(self.ids, None).to(self.dtype)

    def spread(self, table: Tensor) -> Tensor:
        """table [U, P] → the vectors of the words in both directions [D, T, B, P]."""
        return F.embedding(self.rows, table)

    def layers(self, x: Tensor) -> Tensor:
        """x [D, T, B, P] → the top layer's outputs [D, T, B, P]."""
        stacks = (self.bilm.context.forward_lstm, self.bilm.context.backward_lstm)
        for number, (h, c) in enumerate(self.states):
            y, *state = lstm_windows(x, self.keep, [stack.layers[number].weights() for stack in stacks], h, c)
            self.states[number] = tuple(state)
            x = y + x if number else y
        return x

    def loss(self, x: Tensor) -> Tensor:
        """x [D, T, B, P] → the mean loss."""
        rows = x.flatten(0, 2)
        return softmax_loss(rows, self.head.weight, self.head.bias, self.targets, row_weight=1 / len(rows))[0]

    def __call__(self) -> None:
        """Forward, backward, clip, update."""
        self.optimiser.zero_grad(set_to_none=True)
        self.loss(self.layers(self.spread(self.characters()))).backward()
        self.update()

    def update(self) -> None:
        """Clip the gradients and take a step."""
        nn.utils.clip_grad_norm_(self.bilm.parameters(), 10.0)
        self.optimiser.step()

    def parts(self, repeats: int) -> dict[str, float]:
        """Milliseconds of each part, forward and backward."""
        self()
        table = self.characters().detach().requires_grad_()
        x = self.spread(table).detach().requires_grad_()
        top = torch.randn_like(x).requires_grad_()

        def back(run: Callable[[Tensor], Tensor], given: Tensor) -> Callable[[], None]:
            def call() -> None:
                y = run(given)
                y.backward(torch.ones_like(y))

            return call

        runs = {
            "characters": lambda: self.characters().sum().backward(),
            "tokens from types": back(self.spread, table),
            "layers": back(self.layers, x),
            "softmax": back(self.loss, top),
            "clip and optimiser": lambda: (
                nn.utils.clip_grad_norm_(self.bilm.parameters(), 10.0),
                self.optimiser.step(),
            ),
        }
        return {name: milliseconds(run, self.device, repeats) for name, run in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", nargs="+", choices=SIZES)
    parser.add_argument("--batch", type=int, nargs="+")
    parser.add_argument("--time", type=int, default=20)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2, help="on the CPU")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--no-peers", action="store_true", help="measure only the whole step and its parts")
    arguments = parser.parse_args()
    device, cuda = torch.device(arguments.device), arguments.device.startswith("cuda")
    dtype = getattr(torch, arguments.dtype or ("bfloat16" if cuda else "float32"))
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    where = torch.cuda.get_device_name() if cuda else f"{platform.machine()}, {torch.get_num_threads()} threads"
    print(f"{where}; torch {torch.__version__}, Python {platform.python_version()}, {dtype}")
    # bfloat16 has a mantissa of 8 bits: its products agree to about 1e-2; float32 to about 1e-5.
    for name, error in (("lstm_windows", check_layer(device, dtype)), ("softmax_loss", check_softmax(device, dtype))):
        print(f"{name}: relative error {error:.1e}")
        if not error < (3e-2 if dtype == torch.bfloat16 else 1e-4):
            raise SystemExit(f"{name} does not agree with its reference: no speeds")
    for name in arguments.sizes or (["small", "medium", "original"] if cuda else ["tiny"]):
        for batch in arguments.batch or ([1024] if cuda else [32]):
            size, tokens = SIZES[name], batch * arguments.time
            print(f"\n{name} {size.cell}/{size.output}, {size.words} words, batch {batch} × {arguments.time}")
            if not arguments.no_peers:
                for times in (
                    time_layer(size, batch, arguments.time, device, dtype, arguments.repeats),
                    time_softmax(size, min(2 * tokens, 8192), device, dtype, arguments.repeats),
                ):
                    ours = next(iter(times.values()))
                    for what, took in times.items():
                        print(f"  {what:24} {took:9.3f} ms   {took / ours:5.2f} ×")
            step = Step(size, batch, arguments.time, device, dtype)
            for what, took in step.parts(arguments.repeats).items():
                print(f"    {what:22} {took:9.3f} ms")
            took = milliseconds(step, device, arguments.repeats)
            if cuda:
                torch.cuda.synchronize()
                start = time.perf_counter()
                step()
                print(f"    host time of a step    {1000 * (time.perf_counter() - start):9.3f} ms")
                print(f"    memory                 {torch.cuda.max_memory_allocated() / 2**30:9.1f} GiB")
            speed = f"{1000 * tokens / took:10,.0f} tokens/s, {step.distinct} types"
            print(f"  step                     {took:9.3f} ms   {speed}")
            del step


if __name__ == "__main__":
    main()
