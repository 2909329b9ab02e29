"""The bare network: ids in, all layers out, state in and out on request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from elmokit.config import ElmoConfig
from elmokit.errors import ElmoError
from elmokit.model.int8 import VALUES
from elmokit.model.lstm import LstmStack
from elmokit.model.shell import shells
from elmokit.model.token_encoder import TokenEncoder
from elmokit.ops.bilstm import bilstm, zero_states
from elmokit.ops.weights import AnyLstmWeights

TYPES = 1024
"""Tokens that go through the character convolutions together."""
TRAINING_TYPES = 8192
"""The same in training, where they fill a GPU and all are kept for the gradients anyway."""


@dataclass(frozen=True, eq=False)
class State:
    """Where the LSTMs stand after a batch; direction 0 is forward, 1 backward."""

    h: Tensor  # [directions, L, B, P]
    c: Tensor  # [directions, L, B, H]

    def detach(self) -> State:
        """The same numbers, cut off from the gradients of the batch."""
        return State(self.h.detach(), self.c.detach())

    def like(self, values: Tensor) -> State:
        """The same numbers on the device and in the number type of a tensor."""
        return State(self.h.to(values), self.c.to(values))

    def resized(self, batch: int) -> State:
        """The first `batch` slots; slots that were not there start from zero."""
        slots = self.h.shape[2]
        if batch <= slots:
            return State(self.h[:, :, :batch], self.c[:, :, :batch])
        return State(
            *(torch.cat([s, s.new_zeros(*s.shape[:2], batch - slots, s.shape[3])], dim=2) for s in (self.h, self.c))
        )

    def over(self, older: State) -> State:
        """These slots, followed by the older state's slots beyond them."""
        slots = self.h.shape[2]
        older = older.like(self.h)
        return State(
            torch.cat([self.h, older.h[:, :, slots:]], dim=2), torch.cat([self.c, older.c[:, :, slots:]], dim=2)
        )


class BiLM(nn.Module):
    """Character CNN or word table, and an LSTM stack per direction; with `int8`, its matrices are in 8 bits.

    >>> from elmokit import BiLM, ElmoConfig
    >>> from elmokit.config import CharacterConfig, LstmConfig
    >>> config = ElmoConfig(LstmConfig(cell_size=32, output_size=8), CharacterConfig(filters=((1, 4), (2, 8))))
    >>> BiLM(config)(torch.randint(1, 262, (2, 5, 50))).shape
    torch.Size([3, 2, 5, 16])
    """

    def __init__(self, config: ElmoConfig, *, dropout: float = 0.0, int8: bool = False) -> None:
        super().__init__()
        self.config = config
        self.dropout = dropout
        self.int8 = int8
        self.token_encoder = TokenEncoder(config, int8=int8)
        self.forward_lstm = LstmStack(config.lstm, int8=int8)
        self.backward_lstm = LstmStack(config.lstm, int8=int8) if config.bidirectional else None

    @classmethod
    def shell(cls, config: ElmoConfig, *, int8: bool = False) -> Self:
        """The network without memory or numbers; `load_state_dict(…, assign=True)` gives it some."""
        with shells():
            return cls(config, int8=int8)

    def forward(
        self,
        ids: Tensor | None = None,
        words: Tensor | None = None,
        *,
        lengths: Tensor | None = None,
        state: State | None = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, State]:
        """ids [B, T, M] and/or words [B, T], sentence boundaries included → layers [L+1, B, T, D].

        A two-dimensional `ids` is taken as words. Without `lengths` [B], padded tokens are those whose ids are all 0.
        """
        if ids is not None and ids.dim() == 2:
            ids, words = None, ids
        given = ids if ids is not None else words
        if given is None:
            raise ElmoError("BiLM needs ids [B, T, M] or words [B, T], got neither")
        batch, time = given.shape[:2]
        if lengths is None:
            lengths = lengths_of((given != 0).any(dim=-1) if given.dim() == 3 else given != 0)
        tokens = self.encode_types(
            None if ids is None else ids.reshape(batch * time, -1), None if words is None else words.reshape(-1)
        )
        layers, last = self.contextualise(tokens.reshape(batch, time, -1), lengths, state)
        return (layers, last) if return_state else layers

    @property
    def device(self) -> torch.device:
        """Where the weights lie; asked of a weight by name, since the copies of DataParallel list no parameters."""
        bias = self.forward_lstm.layers[0].bias
        assert isinstance(bias, Tensor)
        return bias.device

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """As torch's, for a network that can be trained."""
        if requires_grad and self.int8:
            raise ElmoError("weights in 8 bits cannot be trained: load the model with dtype='float32'")
        return super().requires_grad_(requires_grad)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """What `to`, `half`, `cuda` and their like call, with what they do to a tensor."""
        if self.int8:
            moved = fn(torch.zeros(1))
            if moved.dtype != torch.float32 or moved.device.type not in ("cpu", "meta"):
                raise ElmoError(
                    f"weights in 8 bits are for products in float32 on the CPU, got {moved.dtype} on {moved.device}: "
                    "load the model with another dtype"
                )
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call, no-any-return]

    def encode_types(self, ids: Tensor | None, words: Tensor | None) -> Tensor:
        """ids [U, M] and/or words [U] → token vectors [U, P], which know no context.

        So many at a time, to bound the memory of the convolutions however many different words a text has.
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

    def contextualise(self, tokens: Tensor, lengths: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """tokens [B, T, P], lengths [B] → layers [L+1, B, T, D] and the state after each sentence's last token."""
        lengths = lengths.cpu()
        time = tokens.shape[1]
        mask = (torch.arange(time) < lengths.unsqueeze(1)).to(tokens.device)
        tokens = tokens * mask.unsqueeze(-1)
        found = bilstm(
            tokens,
            lengths,
            self.stacks(),
            None if state is None else state.h,
            None if state is None else state.c,
            skip_connections=self.config.lstm.skip_connections,
            dropout=self.dropout if self.training else 0.0,
        )
        doubled = torch.cat([tokens] * self.config.n_directions, dim=-1)
        if found.room is None or doubled.shape != found.room.shape[1:]:
            layers = torch.stack([doubled, *found.layers])
        else:
            layers = found.room
            layers[0] = doubled
        return layers, State(found.h, found.c)

    def stacks(self) -> list[list[AnyLstmWeights]]:
        """The LSTM weights, by direction and layer."""
        directions = [self.forward_lstm] if self.backward_lstm is None else [self.forward_lstm, self.backward_lstm]
        return [list(stack.weights()) for stack in directions]

    def zero_state(self, batch: int) -> State:
        """The state that every sentence starts from unless one is given."""
        return State(*zero_states(self.stacks(), batch))


def lengths_of(mask: Tensor) -> Tensor:
    """mask [B, T] → lengths [B]; padding must come after the tokens."""
    lengths = mask.sum(dim=1).cpu()
    expected = torch.arange(mask.shape[1]) < lengths.unsqueeze(1)
    if not torch.equal(mask.cpu(), expected):
        raise ElmoError("padded tokens must come after the last token of a sentence, got one between two tokens")
    return lengths


def moved(part: Tensor, device: torch.device) -> Tensor:
    """The same on a device; from the CPU to a GPU without waiting for the work that the GPU still has."""
    if device.type == "cuda" and part.device.type == "cpu":
        return part.pin_memory().to(device, non_blocking=True)
    return part.to(device)


def int8_names(config: ElmoConfig) -> set[str]:
    """The weights of a network that are in 8 bits where it is."""
    return {name.removesuffix(VALUES) for name in BiLM.shell(config, int8=True).state_dict() if name.endswith(VALUES)}
