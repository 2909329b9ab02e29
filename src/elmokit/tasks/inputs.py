"""What a task network reads: a batch of sentences as ELMo layers and rows of a word table, made into [x; ELMo(x)]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.model.scalar_mix import LayerNorm, ScalarMix
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.static import StaticVectors


@dataclass(frozen=True, eq=False)
class SentenceBatch:
    """B sentences of at most T words, padded; one of `layers` and `words` may be missing."""

    layers: Tensor | None
    """[L+1, B, T, D]: the biLM's layers; layer 0 alone, [1, B, T, D], will do where only that is used."""
    words: Tensor | None
    """[B, T]: rows of the static word table."""
    lengths: Tensor
    """[B]: words in each sentence; on the CPU, where packing wants them."""

    @property
    def width(self) -> int:
        """T."""
        return self._given.shape[-2] if self.layers is not None else self._given.shape[-1]

    @property
    def mask(self) -> Tensor:
        """True where there is a word, [B, T], on the device of the batch."""
        return (torch.arange(self.width) < self.lengths.unsqueeze(1)).to(self._given.device)

    @property
    def _given(self) -> Tensor:
        given = self.layers if self.layers is not None else self.words
        if given is None:
            raise ElmoError("a batch of sentences needs ELMo layers, word ids or both, got neither")
        return given

    def to(self, device: torch.device | str) -> SentenceBatch:
        """The same on a device; the lengths stay on the CPU."""
        return SentenceBatch(
            None if self.layers is None else self.layers.to(device),
            None if self.words is None else self.words.to(device),
            self.lengths.cpu(),
        )


class ElmoVectors(nn.Module):
    """What a task takes from the layers: a learned mix of its own, or layer 0 as it is; dropout on either."""

    def __init__(self, options: TaskOptions, n_layers: int, dropout: float) -> None:
        super().__init__()
        # Over a sentence, not a batch: vectors must not depend on what else is in the batch.
        norm: LayerNorm = "sentence" if options.mix_layer_norm else False
        self.mix = ScalarMix(n_layers, layer_norm=norm) if options.elmo == "mix" else None
        self.dropout = nn.Dropout(dropout)

    def forward(self, layers: Tensor, mask: Tensor) -> Tensor:
        """layers [L+1, B, T, D], mask [B, T] → [B, T, D]."""
        vectors: Tensor = self.dropout(layers[0] if self.mix is None else self.mix(layers, mask))
        return vectors


class InputEncoder(nn.Module):
    """[x; ELMo(x)] for each word: x from a static table, ELMo(x) from the layers, either of which may be missing.

    ELMo has `elmo_dropout`, the static vectors have `dropout`. With `elmo_output` there is a second mix, for the
    output of the task's LSTM, which shares the dropout that comes after it; with `compares` layer 0 stands there too,
    since two sentences are also compared word by word.
    """

    def __init__(
        self,
        options: TaskOptions,
        *,
        elmo_layers: int,
        elmo_size: int,
        static: StaticVectors | None = None,
        compares: bool = False,
    ) -> None:
        super().__init__()
        uses_elmo = options.elmo != "none"
        if not uses_elmo and static is None:
            raise ElmoError("a task network needs ELMo layers, static vectors or both, got neither")
        self.static = static
        self.static_dropout = nn.Dropout(options.dropout)
        self.elmo = ElmoVectors(options, elmo_layers, options.elmo_dropout) if uses_elmo else None
        again = uses_elmo and (options.elmo_output or compares)
        self.elmo_again = ElmoVectors(options, elmo_layers, 0.0) if again else None
        self.layer_0_again = again and compares and options.elmo == "mix"
        self.input_size = (static.size if static is not None else 0) + (elmo_size if uses_elmo else 0)
        self.extra_size = elmo_size * (again + self.layer_0_again)

    @property
    def mixes(self) -> dict[str, ScalarMix]:
        """The learned mixes by where they are used: "input" and "output"."""
        places = {"input": self.elmo, "output": self.elmo_again}
        return {place: part.mix for place, part in places.items() if part is not None and part.mix is not None}

    def forward(self, batch: SentenceBatch) -> Tensor:
        """What the task's LSTM reads, [B, T, input_size]."""
        parts = []
        if self.static is not None:
            if batch.words is None:
                raise ElmoError("this task model reads static vectors: the batch needs the rows of its words")
            parts.append(self.static_dropout(self.static(batch.words)))
        if self.elmo is not None:
            parts.append(self.elmo(_layers(batch), batch.mask))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def beside(self, outputs: Tensor, batch: SentenceBatch) -> Tensor:
        """The LSTM's outputs [B, T, H], followed by ELMo again where that was asked for."""
        if self.elmo_again is None:
            return outputs
        layers = _layers(batch)
        words = [layers[0]] if self.layer_0_again else []
        return torch.cat([outputs, self.elmo_again(layers, batch.mask), *words], dim=2)


def _layers(batch: SentenceBatch) -> Tensor:
    if batch.layers is None:
        raise ElmoError("this task model reads ELMo vectors: the batch needs the biLM's layers")
    return batch.layers
