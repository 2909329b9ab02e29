"""One vector from all layers: gamma times the sum of the layers, weighted by a softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.errors import ElmoError

LayerNorm = bool | Literal["batch", "sentence"]


class ScalarMix(nn.Module):
    """A weighted sum of the layers for one task: gamma · Σ softmax(w)_l · layer_l, with w starting at 0 and gamma at 1.

    `layer_norm=True` (or "batch") normalises each layer first, with one mean and variance over all unmasked positions
    of the batch, as the original systems did. Then a sentence's vectors depend on its batch; "sentence" uses the mean
    and variance of each sentence alone.
    """

    def __init__(self, n_layers: int, *, layer_norm: LayerNorm = False, weights: Sequence[float] | None = None) -> None:
        super().__init__()
        if weights is not None and len(weights) != n_layers:
            raise ElmoError(f"a mix of {n_layers} layers needs {n_layers} weights, got {len(weights)}")
        if layer_norm not in (False, True, "batch", "sentence"):
            raise ElmoError(f"layer_norm must be False, True, 'batch' or 'sentence', got {layer_norm!r}")
        self.n_layers = n_layers
        self.layer_norm = layer_norm
        self.weights = nn.Parameter(
            torch.zeros(n_layers) if weights is None else torch.tensor(list(map(float, weights)))
        )
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor, mask: Tensor | None = None) -> Tensor:
        """layers [L+1, B, T, D], mask [B, T] → [B, T, D]."""
        if len(layers) != self.n_layers:
            raise ElmoError(f"this mix has weights for {self.n_layers} layers, got {len(layers)}")
        if self.layer_norm:
            layers = self._normalise(layers, mask)
        weights = torch.softmax(self.weights, dim=0).to(layers.dtype)
        # Layer by layer: a single product over all layers would round differently by position in the batch.
        mixed = sum(
            (weight * layer for weight, layer in zip(weights, layers, strict=True)), torch.zeros_like(layers[0])
        )
        return self.gamma.to(layers.dtype) * mixed

    def of_array(self, layers: NDArray[np.float32]) -> NDArray[np.float32]:
        """`forward` for the layers [L+1, N, D] of few tokens, without layer norm: the same result in less time."""
        if len(layers) != self.n_layers:
            raise ElmoError(f"this mix has weights for {self.n_layers} layers, got {len(layers)}")
        weights: NDArray[np.float32] = torch.softmax(self.weights.detach(), dim=0).float().numpy()
        mixed: NDArray[np.float32] = np.add.reduce(layers * weights[:, None, None], axis=0, initial=np.float32(0))
        mixed *= np.float32(self.gamma.item())
        return mixed

    def penalty(self) -> Tensor:
        """Sum of the squared raw weights, for a λ·‖w‖² term in the task's loss."""
        return self.weights.square().sum()

    def _normalise(self, layers: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            mask = torch.ones(layers.shape[1:3], dtype=torch.bool, device=layers.device)
        dims = (2, 3) if self.layer_norm == "sentence" else (1, 2, 3)
        # float16 can represent neither 65,536 nor 1e-12.
        values = layers if layers.dtype == torch.float64 else layers.float()
        inside = mask.to(values.dtype)[None, :, :, None]
        count = (inside.sum(dim=dims, keepdim=True) * values.shape[-1]).clamp(min=1)
        mean = (values * inside).sum(dim=dims, keepdim=True) / count
        variance = ((values - mean) * inside).square().sum(dim=dims, keepdim=True) / count
        return ((values - mean) / torch.sqrt(variance + 1e-12)).to(layers.dtype)


def saved_mixes(
    saved: Sequence[Mapping[str, Any]], n_layers: int, count: int | None, layer_norm: LayerNorm | None
) -> list[ScalarMix]:
    """The mixes that a model file stores (`weights`, `gamma`, `layer_norm`), and new ones if `count` is higher.

    `count` is the number of mixes; None means all saved ones, at least 1. `layer_norm` replaces the saved value; None
    means the saved one.
    """
    mixes = []
    for number in range(count or len(saved) or 1):
        known: Mapping[str, Any] = saved[number] if number < len(saved) else {"layer_norm": False}
        mix = ScalarMix(n_layers, layer_norm=known["layer_norm"] if layer_norm is None else layer_norm)
        if "weights" in known:
            with torch.no_grad():
                mix.weights.copy_(known["weights"])
                mix.gamma.copy_(known["gamma"].reshape(()))
        mixes.append(mix)
    return mixes
