"""Context encoders: their interface and their registry.

A context encoder reads the token vectors of sentences, which have no context, and returns layers of vectors in context.
To add one, write a `ContextConfig` and a `ContextEncoder`, and call `register_context`; docs/architecture.md has an
example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from elmokit.config import CONTEXTS, ContextConfig
from elmokit.errors import ElmoError
from elmokit.model.placement import moved


@dataclass(frozen=True, eq=False)
class State:
    """The recurrent state after a batch; direction 0 is forward, 1 backward."""

    h: Tensor  # [directions, L, B, P]
    c: Tensor  # [directions, L, B, H]

    def detach(self) -> State:
        """The same state without gradients."""
        return State(self.h.detach(), self.c.detach())

    def like(self, values: Tensor) -> State:
        """The same state on the device and in the dtype of a tensor."""
        return State(self.h.to(values), self.c.to(values))

    def resized(self, batch: int) -> State:
        """The state for `batch` rows: the first ones of this state, then zeros."""
        rows = self.h.shape[2]
        if batch <= rows:
            return State(self.h[:, :, :batch], self.c[:, :, :batch])
        return State(
            *(torch.cat([s, s.new_zeros(*s.shape[:2], batch - rows, s.shape[3])], dim=2) for s in (self.h, self.c))
        )

    def with_rows_of(self, older: State) -> State:
        """This state's rows, then the remaining rows of an older state of a larger batch."""
        rows = self.h.shape[2]
        older = older.like(self.h)
        return State(torch.cat([self.h, older.h[:, :, rows:]], dim=2), torch.cat([self.c, older.c[:, :, rows:]], dim=2))


class ContextOutput(NamedTuple):
    """The result of a context encoder for a batch of sentences."""

    layers: Tensor
    """[L+1, B, T, D]: the token layer, then the context layers; 0 past a sentence's end."""
    state: State | None
    """The state after each sentence's last token, for encoders that have one."""


class SoftmaxInputs(NamedTuple):
    """The inputs of the softmax to predict the words before and after each token."""

    forward: Tensor
    """[B, T, S]: at each token, to predict the next word."""
    backward: Tensor | None
    """[B, T, S]: at each token, to predict the word before; None for a model with one direction."""
    state: State | None


class ContextEncoder(nn.Module, ABC):
    """Token vectors of sentences → layers of vectors in context."""

    carries_state: ClassVar[bool] = False
    """Whether it can continue from the state of the batch before (`state="carry"`)."""
    predicts_masked: ClassVar[bool] = False
    """Whether it can predict a masked word from the words before and after it at once (`predict_masked`)."""
    uses_pool: ClassVar[bool] = False
    """Whether its compiled kernels run on torch's OpenMP threads; then the character part uses those too."""
    reads_flat: ClassVar[bool] = False
    """Whether it can read sentences without padding (`flat_layers`); then `Elmo` calls that method."""
    joined_matrices: ClassVar[Mapping[str, int]] = {}
    """The number of matrices that a weight joins, by the last part of its name: Muon orthogonalises each separately."""
    token_factors: ClassVar[tuple[str, ...]] = ()
    """The layers of the token encoder whose int8 matrices have factors of their columns."""

    def __init__(self, config: ContextConfig, n_directions: int) -> None:
        super().__init__()
        self.config, self.n_directions = config, n_directions

    @abstractmethod
    def forward(
        self, tokens: Tensor, lengths: Tensor, state: State | None = None, *, dropout: float = 0.0
    ) -> ContextOutput:
        """Read whole sentences: tokens [B, T, P], 0 past a sentence's end, and lengths [B] on the CPU.

        A sentence must have the same vectors in any batch. `dropout` is that of pre-training.
        """

    @abstractmethod
    def reset_parameters(self) -> None:
        """Draw new weights."""

    @abstractmethod
    def explain(self, tokens: Tensor) -> str:
        """How this machine computes tokens of this shape [B, T, P] and dtype, and why."""

    def token_layer(self, tokens: Tensor) -> Tensor:
        """The token layer of the result, [..., P] → [..., D]: one copy for each direction."""
        return torch.cat([tokens] * self.n_directions, dim=-1)

    def flat_layers(self, tokens: Tensor, lengths: Tensor, *, only: int | None = None, dropout: float = 0.0) -> Tensor:
        """The layers of `forward` without padding, for encoders with `reads_flat`: tokens [N, P] → [L+1, N, D].

        The sentences follow each other, lengths [B]. With `only`, the index of a layer (−1 is the last): [1, N, D].
        """
        raise NotImplementedError(f"{type(self).__name__} cannot read sentences without padding")

    def traceable_layers(self, tokens: Tensor, inside: Tensor) -> list[Tensor]:
        """The layers of `forward` in operations that torch.export records, L+1 of [B, T, D].

        tokens [B, T, P]; inside [B, T] is false for padding, whose vectors have no meaning.
        """
        raise ElmoError(f"torch.export cannot record the context encoder {self.config.kind}: write traceable_layers")

    def predict(self, tokens: Tensor, lengths: Tensor, state: State | None = None) -> SoftmaxInputs:
        """The inputs of the softmax at each token; by default the top layer, one half for each direction."""
        layers, after = self(tokens, lengths, state)
        forward, *backward = layers[-1].chunk(self.n_directions, dim=-1)
        return SoftmaxInputs(forward, backward[0] if backward else None, after)

    def predict_masked(self, tokens: Tensor, lengths: Tensor, masked: Tensor) -> Tensor:
        """The inputs of the softmax [M, S] at the tokens in `masked` [B, T], in order; all are masked at the same time.

        Only for encoders with `predicts_masked`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not predict masked words")

    def read_windows(
        self, x: Tensor, keep: Tensor, state: State | None, *, dropout: float = 0.0
    ) -> tuple[Tensor, State | None]:
        """Read windows of running text, in training: x [D, T, B, P] in the reading order of each direction.

        `keep` [T, B] is 0 where a sentence starts from zero. Returns the inputs of the softmax [D, T, B, S]. Only for
        encoders that are trained on windows (`ContextConfig.objective`).
        """
        raise NotImplementedError(f"{type(self).__name__} is not trained on windows of text")

    def zero_state(self, batch: int) -> State | None:
        """The default state before a sentence; None for an encoder without state."""
        return None


def padded(flat: Tensor, lengths: Tensor, time: int | None = None) -> Tensor:
    """flat [L, N, D], sentences in a row, lengths [B] on the CPU → [L, B, T, D], 0 past a sentence's end."""
    if time is None:
        time = max(lengths.tolist(), default=0)
    shape = len(flat), len(lengths), time, flat.shape[2]
    if flat.shape[1] == len(lengths) * time:
        return flat.view(shape)
    inside = (torch.arange(time) < lengths.unsqueeze(1)).flatten().nonzero()[:, 0]
    whole = flat.new_zeros(len(flat), len(lengths) * time, flat.shape[2])
    return whole.index_copy_(1, moved(inside, flat.device), flat).view(shape)


_ENCODERS: dict[type[ContextConfig], type[ContextEncoder]] = {}


def register_context(config: type[ContextConfig], encoder: type[ContextEncoder]) -> None:
    """Add a kind of context encoder: its configuration, whose name is `config.kind`, and its network."""
    if CONTEXTS.setdefault(config.kind, config) is not config:
        raise ElmoError(f"the kind of a context encoder must be new, got {config.kind!r}: choose another kind")
    _ENCODERS[config] = encoder


def unregister_context(kind: str) -> None:
    """Remove a kind of context encoder that `register_context` added."""
    _ENCODERS.pop(CONTEXTS.pop(kind), None)


def build_context(config: ContextConfig, n_directions: int) -> ContextEncoder:
    """A new encoder for a configuration, with new weights."""
    if type(config) not in _ENCODERS:
        raise ElmoError(f"no context encoder is registered for {type(config).__name__}: call register_context first")
    return _ENCODERS[type(config)](config, n_directions)
