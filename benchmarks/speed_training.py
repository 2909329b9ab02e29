"""The biLSTM of pre-training on a GPU, forward and backward: elmokit's windows with clips against cuDNN without clips.

    python benchmarks/speed_training.py --output speed-training.md
    python benchmarks/speed_training.py --batch 1024 --time 20 --size original

Two layers of both directions over windows of packed text, with the gradients of the inputs and of all weights. elmokit
has clips, skip connections and sentences that begin inside a window; cuDNN has none of them. A loop of AllenNLP's
structure represents the older systems. Outputs and all gradients are first compared with the reference in float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
from peers.plain import loop
from speed import machine, models
from speed.cudnn import CudnnStacks
from speed.floors import lstm_operations
from speed.network import Network
from speed.table import Row, Table, output_argument, publish, run_script
from torch import Tensor
from training_ops import check_layer, milliseconds

from elmokit.errors import ElmoError
from elmokit.ops.weights import LstmWeights
from elmokit.ops.windows import lstm_windows

COLUMNS = {
    "cudnn": "cuDNN, no clips",
    "ours": "elmokit",
    "loop": "a loop of AllenNLP's structure",
    "floor": "floor",
}
LARGEST_ERROR = {"bfloat16": 3e-2, "float32": 1e-4}
"""Relative error of outputs and gradients: from a mantissa of 8 bits, and from the order of summation."""
BACKWARD = 3
"""Ratio of the arithmetic of forward and backward to the arithmetic of forward alone."""


def runs(network: Network, batch: int, steps: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Forward and backward of each system over windows of the same size."""
    device, output = network.device, network.config.lstm.output_size
    x = torch.randn(batch, steps, output, device=device, dtype=dtype).requires_grad_()
    towards = torch.randn(batch, steps, 2 * output, device=device, dtype=dtype)
    leaves = [t for layers in network.stacks for w in layers if isinstance(w, LstmWeights) for t in _tensors(w)]
    casts = network.to(dtype)
    cast_leaves = [t for layers in casts.stacks for w in layers if isinstance(w, LstmWeights) for t in _tensors(w)]
    both = torch.stack([x, x.flip(1)]).transpose(1, 2).detach().contiguous().requires_grad_()  # [D, T, B, P]
    keep = (torch.rand(steps, batch, device=device) < 0.96).float()
    h, c = network.zeros(x)
    lstm = network.config.lstm

    def ours() -> None:
        values = both
        for number in range(lstm.n_layers):
            weights = [layers[number] for layers in network.stacks]
            y, _, _ = lstm_windows(values, keep, weights, h[:, number].to(dtype), c[:, number].float())  # type: ignore[arg-type]
            values = y + values if number and lstm.skip_connections else y
        torch.autograd.grad(values, [both, *leaves], towards.unflatten(2, (2, output)).permute(2, 1, 0, 3))

    def plain() -> None:
        top = loop(x, torch.full((batch,), steps), casts.stacks, skip_connections=lstm.skip_connections)[-1]
        torch.autograd.grad(top, [x, *cast_leaves], towards)

    found: dict[str, Callable[[], object]] = {"ours": ours, "loop": plain}
    if device.type == "cuda":
        cudnn = CudnnStacks(casts.stacks)
        given = [values.detach().requires_grad_() for values in cudnn.prepare(x, torch.full((batch,), steps))]  # type: ignore[union-attr]
        ends = [part.transpose(0, 1).contiguous() for part in towards.split(output, dim=2)]

        def peer() -> None:
            torch.autograd.grad(cudnn(given), [*given, *cudnn.parameters()], ends)  # type: ignore[arg-type]

        found = {"cudnn": peer, **found}
    return found


def _tensors(weights: LstmWeights) -> list[Tensor]:
    given = (weights.input, weights.recurrent, weights.bias, weights.projection)
    return [tensor.requires_grad_() for tensor in given if tensor is not None]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", choices=[*models.SIZES, "tiny"], default="original")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--time", type=int, default=20)
    parser.add_argument("--dtype", choices=LARGEST_ERROR, default="bfloat16")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    output_argument(parser)
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    torch.manual_seed(options.seed)
    error = check_layer(device, dtype)
    if not error < LARGEST_ERROR[options.dtype]:
        raise ElmoError(f"lstm_windows is off by {error:.1e} from the reference, so nothing is timed")
    config = models.config_of(options.size)
    network = Network.random(config, options.seed, device)
    tokens = options.batch * options.time
    took = {
        name: milliseconds(call, device, options.repeats if name != "loop" else 3)
        for name, call in runs(network, options.batch, options.time, dtype).items()
    }
    peaks = machine.peaks(options.device)
    took["floor"] = 1000 * BACKWARD * tokens * lstm_operations(config) / peaks.operations[options.dtype]
    speeds = {name: 1000 * tokens / value for name, value in took.items()}
    rows = [
        Row("forward and backward", "ms", "less", took, "ms"),
        Row("the same", "tokens/s", "more", speeds, "tokens/s"),
    ]
    size = f"{config.lstm.cell_size}/{config.lstm.output_size}"
    title = f"training, {size}, {options.batch:,} × {options.time}, {options.dtype}"
    peer = "cudnn" if "cudnn" in took else "loop"
    absent = {} if "cudnn" in took else {"cudnn": "there is no cuDNN on a CPU"}
    tables = [Table(title, COLUMNS, rows, peer, absent=absent)]
    facts = machine.facts(options.device)
    comparisons = [f"outputs and gradients of lstm_windows off by {error:.1e}"]
    found = {"facts": facts, "peaks": peaks.summary(), "agreement": comparisons}
    publish("speed_training.py", given, options.output, tables, **found)


if __name__ == "__main__":
    run_script(main)
