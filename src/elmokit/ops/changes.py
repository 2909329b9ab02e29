"""Notice weights that change in place: what was made from them (packed matrices, CUDA graphs) must be made again.

torch counts such changes in `Tensor._version`, but its fused optimisers do not count theirs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


@cache
def count_fused_updates() -> None:
    """From now on count a step of any fused optimiser as a change of its parameters."""
    register_optimizer_step_post_hook(_count)


def _count(optimizer: Optimizer, _arguments: Any, _named: Any) -> None:  # noqa: ANN401 - torch's own signature
    with torch.no_grad():
        for group in optimizer.param_groups:
            if group.get("fused"):
                increment_version([parameter for parameter in group["params"] if not parameter.is_inference()])
