"""The network: from ids to the vectors of all layers, with or without a recurrent state."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

import elmokit.model.lstm
import elmokit.model.transformer  # noqa: F401 - both register their encoders
from elmokit.config import ElmoConfig
from elmokit.errors import ElmoError
from elmokit.model.compiling import is_exporting, outside_graphs
from elmokit.model.context import ContextOutput, SoftmaxInputs, State, build_context
from elmokit.model.int8 import VALUES, to_int8
from elmokit.model.placement import moved, shells
from elmokit.model.token_encoder import TokenEncoder

TYPES = 1024
"""Distinct tokens whose character convolutions are computed together."""
TRAINING_TYPES = 8192
"""The same in training: so many fill a GPU, and the gradients need the memory of all of them anyway."""
_CONTEXT = "context."
"""The prefix of the context encoder's weights in the network; files do not have it."""


class BiLM(nn.Module):
    """A token encoder (characters, words or both) with a context encoder on top.

    >>> from elmokit import BiLM, ElmoConfig
    >>> from elmokit.config import CharacterConfig, LstmConfig
    >>> config = ElmoConfig(LstmConfig(cell_size=32, output_size=8), CharacterConfig(filters=((1, 4), (2, 8))))
    >>> BiLM(config)(torch.randint(1, 262, (2, 5, 50))).shape
    torch.Size([3, 2, 5, 16])
    """

    def __init__(self, config: ElmoConfig, *, dropout: float = 0.0, file_names: bool = True) -> None:
        """Build it with new weights; without `file_names`, `state_dict` uses the names of the modules, not of files."""
        super().__init__()
        count_fused_updates()
        self.config = config
        self.dropout = dropout
        self.int8 = False
        self.token_encoder = TokenEncoder(config)
        self.context = build_context(config.context, config.n_directions)
        self.token_encoder.int8_factors = self.context.token_factors
        if self.token_encoder.char_cnn is not None:
            self.token_encoder.char_cnn.uses_pool = self.context.uses_pool
        if file_names:
            self.register_state_dict_post_hook(_names_of_files)  # type: ignore[no-untyped-call]
            self.register_load_state_dict_pre_hook(_names_of_modules)  # type: ignore[no-untyped-call]

    @classmethod
    def shell(cls, config: ElmoConfig, *, int8: bool = False, factors: bool = True) -> Self:
        """The network without memory for its weights; `load_state_dict(…, assign=True)` gives it weights."""
        with shells():
            network = cls(config)
            if int8:
                to_int8(network, factors=factors)
                network.int8 = True
            return network

    @outside_graphs
    def forward(
        self,
        ids: Tensor | None = None,
        words: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        state: State | None = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, State | None]:
        """ids [B, T, M] and/or words [B, T], sentence boundaries included → layers [L+1, B, T, D].

        A two-dimensional `ids` is taken as words. Without `lengths` [B], padded tokens are those whose ids are all 0.
        """
        if ids is not None and ids.dim() == 2:
            ids, words = None, ids
        given = ids if ids is not None else words
        if given is None:
            raise ElmoError("BiLM needs ids [B, T, M] or words [B, T], got neither")
        batch, time = given.shape[:2]
        if is_exporting():
            return self._traceable(ids, words, given, lengths, state, return_state=return_state)
        if lengths is None:
            lengths = lengths_of((given != 0).any(dim=-1) if given.dim() == 3 else given != 0)
        elif lengths.shape != (batch,) or not all(0 <= length <= time for length in lengths.tolist()):
            raise ElmoError(f"lengths must be {batch} numbers from 0 to {time}, got {lengths.tolist()}")
        tokens = self.encode_types(
            None if ids is None else ids.flatten(0, 1), None if words is None else words.reshape(-1)
        )
        layers, last = self.contextualise(tokens.reshape(batch, time, tokens.shape[1]), lengths, state)
        return (layers, last) if return_state else layers

    def _traceable(
        self,
        ids: Tensor | None,
        words: Tensor | None,
        given: Tensor,
        lengths: Tensor | None,
        state: State | None,
        *,
        return_state: bool,
    ) -> Tensor:
        """`forward` in operations that torch.export records: no value is read and no kernel is chosen."""
        if self.int8:
            raise ElmoError("torch.export needs a float32 network, got an int8 one: load it with dtype='float32'")
        if state is not None or return_state or (self.training and self.dropout):
            raise ElmoError("torch.export supports a BiLM only without state and without the dropout of pre-training")
        ids, words = (None if part is None else part.to(self.device) for part in (ids, words))
        given = given.to(self.device)
        real = (given != 0).any(dim=-1) if given.dim() == 3 else given != 0  # [B, T]
        if lengths is not None:
            real = torch.arange(given.shape[1], device=given.device) < lengths.to(given.device).unsqueeze(1)
        characters = None if ids is None else ids.flatten(0, 1)
        flat = self.token_encoder(characters, None if words is None else words.flatten(), traceable=True)
        tokens = flat.reshape(*given.shape[:2], -1) * real.unsqueeze(-1)
        return torch.stack(self.context.traceable_layers(tokens, real)) * real[..., None]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.token_encoder.device

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """As in torch; an int8 network cannot be trained."""
        if requires_grad and self.int8:
            raise ElmoError("int8 weights cannot be trained: load the model with dtype='float32'")
        return super().requires_grad_(requires_grad)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """The method behind `to`, `half`, `cuda` and similar ones; `fn` converts a tensor."""
        if self.int8:
            moved = fn(torch.zeros(1))
            if moved.dtype != torch.float32 or moved.device.type not in ("cpu", "meta"):
                raise ElmoError(
                    f"int8 weights are for float32 computation on the CPU, got {moved.dtype} on {moved.device}: "
                    "load the model with another dtype"
                )
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def encode_types(self, ids: Tensor | None, words: Tensor | None) -> Tensor:
        """ids [U, M] and/or words [U] → token vectors [U, P], without context.

        They are computed in blocks, which limits the memory of the convolutions.
        """
        count = len(ids) if ids is not None else len(words) if words is not None else 0
        size = TRAINING_TYPES if self.training and torch.is_grad_enabled() else TYPES
        parts = [
            self._encode(*(None if part is None else part[start : start + size] for part in (ids, words)))
            for start in range(0, max(count, 1), size)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _encode(self, ids: Tensor | None, words: Tensor | None) -> Tensor:
        """ids [U, M] and/or words [U] → token vectors [U, P], on the device of the weights."""
        characters = self.token_encoder.char_cnn
        if ids is not None and characters is not None:
            ids = characters.trim(ids)
        parts = (None if part is None else moved(part, self.device) for part in (ids, words))
        tokens: Tensor = self.token_encoder(*parts)
        return tokens

    def contextualise(self, tokens: Tensor, lengths: Tensor, state: State | None = None) -> ContextOutput:
        """tokens [B, T, P], lengths [B] → layers [L+1, B, T, D] and the state after each sentence's last token."""
        dropout = self.dropout if self.training else 0.0
        output: ContextOutput = self.context(*_without_padding(tokens, lengths), state, dropout=dropout)
        return output

    def flat_layers(self, tokens: Tensor, lengths: Tensor, *, only: int | None = None) -> Tensor:
        """tokens [N, P] without padding → all layers of `contextualise`, or one; for encoders with `reads_flat`."""
        return self.context.flat_layers(tokens, lengths, only=only, dropout=self.dropout if self.training else 0.0)

    def predict(self, tokens: Tensor, lengths: Tensor, state: State | None = None) -> SoftmaxInputs:
        """tokens [B, T, P], lengths [B] → what the softmax reads at each token."""
        return self.context.predict(*_without_padding(tokens, lengths), state)

    def predict_masked(self, tokens: Tensor, lengths: Tensor, masked: Tensor) -> Tensor:
        """tokens [B, T, P], lengths [B], masked [B, T] → what the softmax reads at the masked tokens, in order."""
        return self.context.predict_masked(*_without_padding(tokens, lengths), masked)


def _without_padding(tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """tokens [B, T, P] with zeros past each sentence's end, and the lengths [B] on the CPU."""
    lengths = lengths.cpu()
    if all(length == tokens.shape[1] for length in lengths.tolist()):
        return tokens, lengths
    mask = moved(torch.arange(tokens.shape[1]) < lengths.unsqueeze(1), tokens.device)
    return tokens * mask.unsqueeze(-1), lengths


def lengths_of(mask: Tensor) -> Tensor:
    """mask [B, T] → lengths [B]; padding must come after the tokens."""
    lengths = mask.sum(dim=1).cpu()
    expected = torch.arange(mask.shape[1]) < lengths.unsqueeze(1)
    if not torch.equal(mask.cpu(), expected):
        raise ElmoError("padded tokens must come after the last token of a sentence, got one between two tokens")
    return lengths


def int8_names(config: ElmoConfig, part: str = VALUES) -> set[str]:
    """The names of the weights that become int8; with `COLUMNS`, only those that have factors of their columns."""
    return {name.removesuffix(part) for name in BiLM.shell(config, int8=True).state_dict() if name.endswith(part)}


def file_name(name: str) -> str:
    """The name in files for a parameter of a module whose attribute `bilm` is a BiLM."""
    return name.replace(f"bilm.{_CONTEXT}", "bilm.", 1)


def _names_of_files(_: nn.Module, state: dict[str, Tensor], prefix: str, _metadata: object) -> None:
    """A hook of `state_dict`: turn the names of modules into those of files."""
    for name in [name for name in state if name.startswith(prefix + _CONTEXT)]:
        state[prefix + name.removeprefix(prefix + _CONTEXT)] = state.pop(name)


def _names_of_modules(_: nn.Module, state: dict[str, Tensor], prefix: str, *_more: Any) -> None:  # noqa: ANN401
    """A hook of `load_state_dict`: turn the names of files into those of modules."""
    for name in [name for name in state if name.startswith(prefix)]:
        rest = name.removeprefix(prefix)
        if not rest.startswith(("token_encoder.", _CONTEXT)):
            state[prefix + _CONTEXT + rest] = state.pop(name)


@cache
def count_fused_updates() -> None:
    """From now on, count each step of a fused optimiser as a change of its parameters, which torch does not do.

    `Tensor._version` detects that weights have changed in place, so that packed matrices and CUDA graphs are made
    again.
    """
    register_optimizer_step_post_hook(_count_update)


def _count_update(optimizer: Optimizer, _arguments: Any, _named: Any) -> None:  # noqa: ANN401 - torch's own signature
    with torch.no_grad():
        for group in optimizer.param_groups:
            if group.get("fused"):
                increment_version([parameter for parameter in group["params"] if not parameter.is_inference()])
