"""The LSTM layers alone with random weights, and the computation of each system on a batch of token vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from peers.plain import loop
from torch import Tensor

from elmokit import BiLM, ElmoConfig
from elmokit.ops.bilstm import Stacks, bilstm
from elmokit.ops.paths import forced
from elmokit.ops.weights import LstmWeights
from speed.cudnn import CudnnStacks
from speed.models import random_weights


@dataclass(frozen=True)
class Network:
    """The weights of all layers in one dtype."""

    config: ElmoConfig
    stacks: Stacks
    device: torch.device

    @classmethod
    def random(cls, config: ElmoConfig, seed: int, device: torch.device) -> Network:
        """Random weights in float32."""
        bilm = BiLM.shell(config)
        bilm.load_state_dict(random_weights(config, seed), assign=True)
        return cls(config, bilm.requires_grad_(False).to(device).context.stacks(), device)

    def to(self, dtype: torch.dtype) -> Network:
        """The network in another dtype."""
        return self._each(
            lambda w: replace(
                w, **{n: getattr(w, n).detach().to(dtype) for n in ("input", "recurrent", "bias", "projection")}
            )
        )

    def without_clips(self) -> Network:
        """The network without clips, which cuDNN can compute."""
        return self._each(lambda w: replace(w, cell_clip=None, projection_clip=None))

    def _each(self, change: Callable[[LstmWeights], LstmWeights]) -> Network:
        stacks = [[change(w) for w in layers if isinstance(w, LstmWeights)] for layers in self.stacks]
        return replace(self, stacks=stacks)

    def zeros(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Zero states [D, L, B, P] and [D, L, B, H]."""
        lstm = self.config.lstm
        shape = (self.config.n_directions, lstm.n_layers, len(x))
        return x.new_zeros(*shape, lstm.output_size), x.new_zeros(*shape, lstm.cell_size)

    def systems(self) -> list[str]:
        """The systems that can run on the device."""
        return ["loop", "packed", "ours", *(["cudnn"] if self.device.type == "cuda" else [])]

    def tops(self, x: Tensor, lengths: Tensor, name: str) -> Tensor:
        """The top layer [B, T, 2P] of a system."""
        return self.runs(x, lengths)[name]()[-1] if name != "cudnn" else CudnnStacks(self.stacks).top(x, lengths)

    def runs(self, x: Tensor, lengths: Tensor) -> dict[str, Callable[[], list[Tensor]]]:
        """The computation of each system but cuDNN on a batch."""
        skip = {"skip_connections": self.config.lstm.skip_connections}
        h, c = self.zeros(x)

        def ours() -> list[Tensor]:
            return bilstm(x, lengths, self.stacks, h, c, **skip).layers

        def packed() -> list[Tensor]:
            with forced("packed"):
                return ours()

        return {"loop": partial(loop, x, lengths, self.stacks, **skip), "packed": packed, "ours": ours}


def batch_of(lengths: Tensor, network: Network, dtype: torch.dtype) -> Tensor:
    """Random token vectors [B, T, P] with the scale of a token encoder's outputs, 0 after the end of a sentence."""
    generator = torch.Generator().manual_seed(int(lengths.sum()))
    x = torch.randn(len(lengths), int(lengths.max()), network.config.lstm.output_size, generator=generator)
    x *= (torch.arange(x.shape[1]) < lengths.unsqueeze(1)).unsqueeze(-1)
    return x.to(network.device, dtype)
