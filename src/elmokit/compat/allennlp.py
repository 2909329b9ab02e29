"""AllenNLP's ELMo, for code that was written for it: only the import changes.

    from elmokit.compat.allennlp import Elmo, batch_to_ids   # was: from allennlp.modules.elmo import ...

The same arguments, outputs, numbers and `state_dict` names, over elmokit's network, for every model that elmokit loads.
As in AllenNLP, LSTM state is carried from call to call; `stateful=False` switches that off.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from elmokit.compat.allennlp_bilm import _ElmoBiLm, _ElmoCharacterEncoder
from elmokit.compat.allennlp_embedder import DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE, ElmoEmbedder, default_files
from elmokit.compat.allennlp_errors import ConfigurationError
from elmokit.compat.allennlp_ids import (
    ELMoCharacterMapper,
    add_sentence_boundary_token_ids,
    batch_to_ids,
    remove_sentence_boundaries,
)

__all__ = [
    "DEFAULT_OPTIONS_FILE",
    "DEFAULT_WEIGHT_FILE",
    "ConfigurationError",
    "ELMoCharacterMapper",
    "Elmo",
    "ElmoEmbedder",
    "ElmoTokenEmbedder",
    "ScalarMix",
    "_ElmoBiLm",
    "_ElmoCharacterEncoder",
    "add_sentence_boundary_token_ids",
    "batch_to_ids",
    "remove_sentence_boundaries",
]

log = logging.getLogger(__name__)


class ScalarMix(nn.Module):
    """gamma · Σ softmax(w)_k · tensor_k.

    With `do_layer_norm` each tensor is first normalised by one mean and one variance over all unmasked positions.
    """

    def __init__(
        self,
        mixture_size: int,
        do_layer_norm: bool = False,
        initial_scalar_parameters: Sequence[float] | None = None,
        trainable: bool = True,
    ) -> None:
        super().__init__()
        initial = [0.0] * mixture_size if initial_scalar_parameters is None else list(initial_scalar_parameters)
        if len(initial) != mixture_size:
            raise ConfigurationError(f"a mix of {mixture_size} layers needs {mixture_size} weights, got {initial}")
        self.mixture_size = mixture_size
        self.do_layer_norm = do_layer_norm
        self.scalar_parameters = nn.ParameterList(
            nn.Parameter(torch.tensor([float(value)]), requires_grad=trainable) for value in initial
        )
        self.gamma = nn.Parameter(torch.ones(1), requires_grad=trainable)

    def forward(self, tensors: Sequence[Tensor] | Tensor, mask: Tensor | None = None) -> Tensor:
        """`mixture_size` tensors [B, T, D] and, for the layer norm, mask [B, T] → [B, T, D]."""
        if len(tensors) != self.mixture_size:
            raise ConfigurationError(f"this mix has weights for {self.mixture_size} tensors, got {len(tensors)}")
        weights = torch.softmax(torch.cat(list(self.scalar_parameters)), dim=0)
        layers = [_normalised(tensor, mask) for tensor in tensors] if self.do_layer_norm else list(tensors)
        mixed = sum((w * layer for w, layer in zip(weights, layers, strict=True)), torch.zeros_like(layers[0]))
        return self.gamma * mixed


def _normalised(tensor: Tensor, mask: Tensor | None) -> Tensor:
    kept = torch.ones_like(tensor) if mask is None else mask.to(tensor.dtype).unsqueeze(-1).expand_as(tensor)
    count = kept.sum().clamp(min=1)
    mean = (tensor * kept).sum() / count
    variance = ((tensor - mean) * kept).square().sum() / count
    return (tensor - mean) / torch.sqrt(variance + (1e-13 if torch.finfo(tensor.dtype).bits >= 32 else 1e-4))


class Elmo(nn.Module):
    """Character ids → weighted sums of the biLM's layers.

    `options_file` and `weight_file` are paths or http(s) addresses; for a model whose options are next to its weights,
    or in another format than AllenNLP's, `options_file` may be None. Starts in training mode, with dropout: call
    `.eval()` for vectors. `stateful=False` makes a sentence's vectors independent of earlier calls.

    >>> elmo = Elmo("options.json", "weights.hdf5", 1, dropout=0)  # doctest: +SKIP
    >>> elmo(batch_to_ids([["a", "river", "bank"]]))["elmo_representations"][0].shape  # doctest: +SKIP
    torch.Size([1, 3, 1024])
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        num_output_representations: int,
        requires_grad: bool = False,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        vocab_to_cache: Sequence[str] | None = None,
        keep_sentence_boundaries: bool = False,
        scalar_mix_parameters: Sequence[float] | None = None,
        module: nn.Module | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        if num_output_representations < 1:
            raise ConfigurationError(f"num_output_representations must be at least 1, got {num_output_representations}")
        if module is not None and (options_file is not None or weight_file is not None):
            raise ConfigurationError("Elmo takes options_file and weight_file or module, got both")
        self._elmo_lstm: Any = module
        if module is None:
            self._elmo_lstm = _ElmoBiLm(options_file, weight_file, requires_grad, vocab_to_cache, stateful=stateful)
        self._has_cached_vocab = bool(vocab_to_cache)
        self._keep_sentence_boundaries = keep_sentence_boundaries
        self._dropout = nn.Dropout(dropout)
        self._num_mixes = num_output_representations
        for number in range(num_output_representations):
            mix = ScalarMix(
                cast("int", self._elmo_lstm.num_layers),
                do_layer_norm,
                initial_scalar_parameters=scalar_mix_parameters,
                trainable=scalar_mix_parameters is None,
            )
            self.add_module(f"scalar_mix_{number}", mix)

    def get_output_dim(self) -> int:
        """D, numbers in a vector."""
        size: int = self._elmo_lstm.get_output_dim()
        return size

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """inputs [B, T, 50], word_inputs [B, T] → `elmo_representations`, a list of [B, T, D], and `mask` [B, T].

        T grows by the two boundaries where they are kept. More dimensions in front are allowed: [..., T, 50].
        """
        if inputs.dim() < 3:
            raise ConfigurationError(f"character ids must have the shape [B, T, 50], got {list(inputs.shape)}")
        if word_inputs is not None and not self._has_cached_vocab:
            log.warning("word_inputs are ignored: this Elmo was made without vocab_to_cache")
            word_inputs = None
        words = None if word_inputs is None else word_inputs.flatten(0, -2)
        output = self._elmo_lstm(inputs.flatten(0, -3), words)
        activations, mask = output["activations"], output["mask"].bool()
        outer = inputs.shape[:-2]
        representations = []
        for mix in self._scalar_mixes:
            mixed = mix(activations, mask)
            if self._keep_sentence_boundaries:
                mixed, inner = mixed.masked_fill(~mask.unsqueeze(-1), 0), mask
            else:
                mixed, inner = remove_sentence_boundaries(mixed, mask)
            representations.append(self._dropout(mixed.reshape(*outer, *mixed.shape[1:])))
        return {"elmo_representations": representations, "mask": inner.reshape(*outer, inner.shape[1])}

    def reset_states(self) -> None:
        """Forget the carried state: the next call starts from zero."""
        self._elmo_lstm.reset_states()

    @property
    def _scalar_mixes(self) -> list[nn.Module]:
        return [self.get_submodule(f"scalar_mix_{number}") for number in range(self._num_mixes)]


class ElmoTokenEmbedder(nn.Module):
    """One weighted sum of the layers and, with `projection_dim`, a linear layer after it; arguments as `Elmo`'s."""

    def __init__(
        self,
        options_file: str | Path | None = None,
        weight_file: str | Path | None = None,
        do_layer_norm: bool = False,
        dropout: float = 0.5,
        requires_grad: bool = False,
        projection_dim: int | None = None,
        vocab_to_cache: Sequence[str] | None = None,
        scalar_mix_parameters: Sequence[float] | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        """Without any file the original English model is downloaded."""
        super().__init__()
        self._elmo = Elmo(
            *default_files(options_file, weight_file),
            1,
            requires_grad,
            do_layer_norm,
            dropout,
            vocab_to_cache,
            scalar_mix_parameters=scalar_mix_parameters,
            stateful=stateful,
        )
        self._projection = nn.Linear(self._elmo.get_output_dim(), projection_dim) if projection_dim else None
        self.output_dim = projection_dim or self._elmo.get_output_dim()

    def get_output_dim(self) -> int:
        """Numbers in a vector."""
        return self.output_dim

    def forward(
        self, elmo_tokens: Tensor | None = None, word_inputs: Tensor | None = None, *, inputs: Tensor | None = None
    ) -> Tensor:
        """elmo_tokens [..., T, 50], which AllenNLP 0.9 called `inputs`, and word_inputs [..., T] → [..., T, D]."""
        elmo_tokens = inputs if elmo_tokens is None else elmo_tokens
        if elmo_tokens is None:
            raise ConfigurationError("ElmoTokenEmbedder takes character ids [B, T, 50], got none")
        vectors: Tensor = self._elmo(elmo_tokens, word_inputs)["elmo_representations"][0]
        return vectors if self._projection is None else self._projection(vectors)

    def reset_states(self) -> None:
        """Forget the carried state: the next call starts from zero."""
        self._elmo.reset_states()
