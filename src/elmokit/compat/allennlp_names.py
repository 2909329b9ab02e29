"""AllenNLP's names for the network's parameters, so that a saved `state_dict` goes in and out under them.

Names are relative to the module that holds them. Only the highways differ in layout: one matrix, the transform first,
then what keeps the input, which is our gate with the sign turned, since σ(−z) = 1 − σ(z).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from elmokit.config import ElmoConfig

Rows = dict[str, tuple[str, ...]]
"""Their name → our parameter, or our two for a highway."""

_LSTM_LEAVES = {
    "input_linearity.weight": "input_weight",
    "state_linearity.weight": "recurrent_weight",
    "state_linearity.bias": "bias",
    "state_projection.weight": "projection_weight",
}


class Renamed(Protocol):
    """A module whose parameters have AllenNLP's names in its `state_dict`."""

    rows: Rows


def encoder_rows(config: ElmoConfig) -> Rows:
    """What `_ElmoCharacterEncoder` saves."""
    return dict(_encoder_rows(config))


def _encoder_rows(config: ElmoConfig) -> Iterator[tuple[str, tuple[str, ...]]]:
    if config.characters is not None:
        cnn = "token_encoder.char_cnn"
        yield "_char_embedding_weights", (f"{cnn}.embedding.weight",)
        for part in ("weight", "bias"):
            for number in range(len(config.characters.filters)):
                yield f"char_conv_{number}.{part}", (f"{cnn}.convolutions.{number}.{part}",)
            for number in range(config.characters.n_highway):
                ours = f"{cnn}.highways.{number}"
                yield f"_highways._layers.{number}.{part}", (f"{ours}.transform.{part}", f"{ours}.gate.{part}")
    if config.token_projection:
        for part in ("weight", "bias"):
            yield f"_projection.{part}", (f"token_encoder.projection.{part}",)


def lstm_rows(config: ElmoConfig) -> Rows:
    """What `_ElmoLstm` saves."""
    leaves = {
        theirs: ours for theirs, ours in _LSTM_LEAVES.items() if config.lstm.projection or "projection" not in ours
    }
    return {
        f"{direction}_layer_{layer}.{theirs}": (f"bilm.{direction}_lstm.layers.{layer}.{ours}",)
        for layer in range(config.lstm.n_layers)
        for direction in ("forward", "backward")[: config.n_directions]
        for theirs, ours in leaves.items()
    }


def keep_names(module: nn.Module) -> None:
    """Have a module with `rows` saved and loaded under AllenNLP's names."""
    module.register_state_dict_post_hook(_rename_on_save)  # type: ignore[no-untyped-call]
    module.register_load_state_dict_pre_hook(_rename_on_load)  # type: ignore[no-untyped-call]


def _rename_on_save(module: Renamed, state: dict[str, Tensor], prefix: str, _metadata: object) -> None:
    """A hook: our names in a `state_dict` become theirs."""
    for theirs, ours in module.rows.items():
        first, *gates = (state.pop(prefix + name) for name in ours)
        state[prefix + theirs] = torch.cat([first, *(-gate for gate in gates)]) if gates else first


def _rename_on_load(module: Renamed, state: dict[str, Tensor], prefix: str, *_: Any) -> None:  # noqa: ANN401 - unused
    """A hook: their names in a `state_dict` become ours."""
    for theirs, ours in module.rows.items():
        if prefix + theirs not in state:
            continue
        value = state.pop(prefix + theirs)
        if len(ours) == 1:
            state[prefix + ours[0]] = value
        else:
            transform, carry = value.chunk(2)
            state[prefix + ours[0]], state[prefix + ours[1]] = transform.clone(), -carry
