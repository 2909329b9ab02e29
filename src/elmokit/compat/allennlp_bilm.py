"""AllenNLP's `_ElmoCharacterEncoder` and `_ElmoBiLm`: character ids → token vectors → all layers.

Each distinct word of a batch is encoded once; state is carried from call to call, one slot per row of the batch. A
saved `state_dict` has AllenNLP's names, which are relative to the module that owns a parameter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elmokit.compat.load import local_paths
from elmokit.config import ElmoConfig, LstmConfig
from elmokit.errors import ElmoError
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.load import read_checkpoint
from elmokit.model.bilm import BiLM, lengths_of
from elmokit.model.compiling import outside_graphs
from elmokit.model.context import State
from elmokit.model.placement import shells
from elmokit.model.token_encoder import TokenEncoder
from elmokit.text.chars import PADDING, SENTENCE_BEGIN, SENTENCE_END, WORD_END, ByteIndexer, word_of_byte_ids

log = logging.getLogger(__name__)

WIDTH = 50
"""Character ids per word for all models, because `batch_to_ids` does not know the model."""
_CACHE_BLOCK = 512
"""Words of `vocab_to_cache` that are encoded together."""


class ConfigurationError(ElmoError):
    """A model, an option or an input that cannot be used; the text is also in `message`."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def read_model(options_file: str | Path | None, weight_file: str | Path | None) -> Checkpoint:
    """A model of any format, from paths, names or URLs; the forget bias is added to the bias, as in AllenNLP."""
    if weight_file is None:
        raise ConfigurationError("weight_file must be a path, a name or an https address of a model, got None")
    try:
        with local_paths(options_file, weight_file) as (options, weights):
            checkpoint = read_checkpoint(weights, options=options).in_floats()
    except ElmoError as error:
        raise ConfigurationError(str(error)) from error
    context = checkpoint.config.context
    if isinstance(context, LstmConfig):
        for name, value in checkpoint.weights.items():
            if "_lstm." in name and name.endswith(".bias"):
                value[context.cell_size : 2 * context.cell_size] += context.forget_bias
        checkpoint.config = replace(checkpoint.config, context=replace(context, forget_bias=0.0))
    return checkpoint


@dataclass(frozen=True)
class Words:
    """The words of a batch: rows 0 and 1 of the table are the sentence boundaries, then the distinct words follow."""

    table: Tensor  # [2 + U, P]
    real: Tensor  # [B, T], true where there is a word
    index: Tensor  # [N], the row of each word in the table after the first two rows, in the order of `real`

    def surrounded(self) -> tuple[Tensor, Tensor, Tensor]:
        """Token vectors including the boundaries [B, T + 2, P], their mask, and their lengths [B]."""
        lengths = lengths_of(self.real) + 2
        device = self.real.device
        rows = self.index.new_zeros(len(self.real), self.real.shape[1] + 2)
        rows[:, 1:-1][self.real] = self.index + 2
        rows[torch.arange(len(rows), device=device), lengths.to(device) - 1] = 1
        mask = torch.arange(rows.shape[1], device=device) < lengths.to(device).unsqueeze(1)
        return nn.functional.embedding(rows, self.table) * mask.unsqueeze(-1), mask, lengths


class _ElmoCharacterEncoder(nn.Module):
    """Character ids → token vectors without context, including the sentence boundaries."""

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        requires_grad: bool = False,
        *,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        super().__init__()
        checkpoint = checkpoint or read_model(options_file, weight_file)
        with shells():
            self.token_encoder = TokenEncoder(checkpoint.config)
        _fill(self.token_encoder, checkpoint.weights, "token_encoder.", requires_grad=requires_grad)
        self.indexer = checkpoint.indexer()
        self.output_dim = checkpoint.config.token_size
        self.rows = encoder_rows(checkpoint.config)
        use_their_names(self)

    def get_output_dim(self) -> int:
        """P, the size of a token vector."""
        return self.output_dim

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        """inputs [B, T, 50] → `token_embedding` [B, T + 2, P] and `mask` [B, T + 2]; padded positions are 0."""
        vectors, mask, _ = self.look_up(inputs).surrounded()
        return {"mask": mask, "token_embedding": vectors}

    def look_up(self, inputs: Tensor) -> Words:
        """inputs [B, T, 50] → the words of the batch."""
        if inputs.dim() != 3 or inputs.is_floating_point() or inputs.dtype == torch.bool:
            raise ConfigurationError(
                f"character ids must be whole numbers in the shape [B, T, {WIDTH}], got {inputs.dtype} in the shape "
                f"{list(inputs.shape)}"
            )
        ids = inputs.long().to(self._device)
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) <= PADDING + 1:
            raise ConfigurationError(
                f"character ids must be between 0 and {PADDING + 1}, got {int(ids.min())} to {int(ids.max())}"
            )
        real = (ids != 0).any(dim=-1)
        rows = ids[real]
        if len(rows):
            rows, index = torch.unique(rows, dim=0, return_inverse=True)
        else:
            index = rows.new_zeros(0)
        if isinstance(self.indexer, ByteIndexer):
            ends = self.indexer([self.indexer.begin, self.indexer.end]).characters
            fitting = _fit(rows, self.indexer.max_characters)
            return Words(self.token_encoder(torch.cat([torch.from_numpy(ends).to(rows), fitting]), None), real, index)
        return Words(
            self.encode_words([_word_of(row, self.indexer.begin, self.indexer.end) for row in rows.tolist()]),
            real,
            index,
        )

    def encode_words(self, words: Sequence[str]) -> Tensor:
        """Words → their vectors after those of the two boundaries, [2 + U, P]."""
        ids = self.indexer([self.indexer.begin, self.indexer.end, *words])
        characters, rows = (
            None if part is None else torch.from_numpy(part).to(self._device) for part in (ids.characters, ids.words)
        )
        vectors: Tensor = self.token_encoder(characters, rows)
        return vectors

    @property
    def _device(self) -> torch.device:
        return self.token_encoder.device


class _ElmoLstm(nn.Module):
    """The two LSTM stacks, or another context encoder, and the state that is carried from call to call.

    `_states` is None, or hidden [L, N, 2P] and memory [L, N, 2H] with the forward half first. N is the largest batch so
    far, and row r of a batch continues from slot r. `stateful = False` starts every sentence from zero.
    """

    def __init__(self, checkpoint: Checkpoint, *, requires_grad: bool, stateful: bool) -> None:
        super().__init__()
        self.bilm = BiLM.shell(checkpoint.config)
        del self.bilm.token_encoder  # it is in `_ElmoCharacterEncoder`; the stacks do not need it
        own = {name: value for name, value in checkpoint.weights.items() if not name.startswith("token_encoder.")}
        _fill(self.bilm, own, "", requires_grad=requires_grad)
        self.stateful = stateful
        context = checkpoint.config.context
        self.input_size = self.hidden_size = context.token_size
        self.cell_size = context.cell_size if isinstance(context, LstmConfig) else context.token_size
        self.num_layers = context.n_layers
        self._states: tuple[Tensor, Tensor] | None = None
        self.rows = lstm_rows(checkpoint.config)
        use_their_names(self)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """tokens [B, T, P], lengths [B] → layers [L+1, B, T, D]."""
        layers, last = self.bilm.contextualise(tokens, lengths, self._initial(tokens))
        if self.stateful and last is not None:
            self._store(last.detach())
        return layers

    def reset_states(self, mask: Tensor | None = None) -> None:
        """Forget all state or, with mask [N], the state of the slots where the mask is true."""
        if mask is None or self._states is None:
            self._states = None
            return
        slots = self._states[0].shape[1]
        if mask.shape != (slots,):
            raise ConfigurationError(
                f"the mask must have one value for each of the {slots} slots, got the shape {list(mask.shape)}"
            )
        hidden, memory = self._states
        gone = mask.bool().to(hidden.device)[None, :, None]
        self._states = hidden.masked_fill(gone, 0), memory.masked_fill(gone, 0)

    def _initial(self, tokens: Tensor) -> State | None:
        if not self.stateful or self._states is None:
            return None
        h, c = (torch.stack(s.to(tokens).chunk(self.bilm.config.n_directions, dim=-1)) for s in self._states)
        return State(h, c).resized(len(tokens))

    def _store(self, last: State) -> None:
        hidden, memory = (torch.cat(list(s), dim=-1) for s in (last.h, last.c))
        if self._states is not None:
            # Slots that a smaller batch did not use stay as they are.
            hidden, memory = (
                torch.cat([new, old[:, new.shape[1] :].to(new)], dim=1)
                for new, old in zip((hidden, memory), self._states, strict=True)
            )
        self._states = hidden, memory


class _ElmoBiLm(nn.Module):
    """Character ids → all layers, boundaries included.

    `vocab_to_cache` lists words whose token vectors are computed once; `word_inputs` are then indices into this list,
    whose first entry is the padding. `stateful=False` starts every sentence from zero, so that a sentence always has
    the same vectors.
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path | None,
        requires_grad: bool = False,
        vocab_to_cache: Sequence[str] | None = None,
        *,
        stateful: bool = True,
    ) -> None:
        super().__init__()
        checkpoint = read_model(options_file, weight_file)
        self._requires_grad = requires_grad
        self._token_embedder = _ElmoCharacterEncoder(None, None, requires_grad, checkpoint=checkpoint)
        self._elmo_lstm = _ElmoLstm(checkpoint, requires_grad=requires_grad, stateful=stateful)
        self._word_embedding: nn.Embedding | None = None
        self.num_layers = checkpoint.config.n_outputs
        self._output_dim = checkpoint.config.vector_size
        if vocab_to_cache:
            self.create_cached_cnn_embeddings(vocab_to_cache)

    def get_output_dim(self) -> int:
        """D, the size of a vector."""
        return self._output_dim

    @outside_graphs
    def forward(self, inputs: Tensor | None, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """inputs [B, T, 50], word_inputs [B, T] → `activations`, L+1 of [B, T+2, D], and `mask` [B, T+2].

        Word ids are used instead of the characters if there is a cache that contains all of them.
        """
        words = None if word_inputs is None or self._word_embedding is None else self._cached(word_inputs)
        if words is None:
            if inputs is None:
                raise ConfigurationError(
                    "a batch without character ids needs word_inputs from vocab_to_cache, got others or none"
                )
            words = self._token_embedder.look_up(inputs)
        return self.contextualise(words)

    def contextualise(self, words: Words) -> dict[str, Any]:
        """The output of `forward` for the words of a batch."""
        vectors, mask, lengths = words.surrounded()
        return {"activations": list(self._elmo_lstm(vectors, lengths)), "mask": mask}

    def create_cached_cnn_embeddings(self, tokens: Sequence[str]) -> None:
        """Compute the token vectors of a vocabulary once; the vector of its first entry, the padding, becomes zero."""
        words = list(tokens)
        with torch.no_grad():
            blocks = [
                self._token_embedder.encode_words(words[start : start + _CACHE_BLOCK])[2:]
                for start in range(0, len(words), _CACHE_BLOCK)
            ]
            rows = torch.cat(blocks)
            rows[0] = 0
        if self._requires_grad:
            log.warning("the cached word vectors are trained separately from the character network")
        self._word_embedding = nn.Embedding(len(rows), rows.shape[1], padding_idx=0, _weight=rows)
        self._word_embedding.requires_grad_(self._requires_grad)

    def reset_states(self) -> None:
        """Forget the carried state."""
        self._elmo_lstm.reset_states()

    def _cached(self, word_inputs: Tensor) -> Words | None:
        table = self._word_embedding
        assert table is not None
        ids = word_inputs.to(table.weight.device)
        if ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
            raise ConfigurationError(
                f"word ids must be whole numbers in the shape [B, T], got {ids.dtype} in the shape {list(ids.shape)}"
            )
        real = ids != 0
        distinct, index = torch.unique(ids[real].long(), return_inverse=True)
        if len(distinct) and not 0 < int(distinct[0]) <= int(distinct[-1]) < table.num_embeddings:
            log.warning("a word id is not in vocab_to_cache; the characters of this batch are used instead")
            return None
        return Words(torch.cat([self._token_embedder.encode_words([]), table(distinct)]), real, index)


def _fill(module: nn.Module, weights: Mapping[str, Tensor], prefix: str, *, requires_grad: bool) -> None:
    own = {name.removeprefix(prefix): value.float() for name, value in weights.items() if name.startswith(prefix)}
    module.load_state_dict(own, assign=True)
    module.requires_grad_(requires_grad)


def _fit(rows: Tensor, max_characters: int) -> Tensor:
    """Byte ids [U, W] cut or padded to the width of the model."""
    width = rows.shape[1]
    if width == max_characters:
        return rows
    if width != WIDTH:
        allowed = " or ".join(map(str, sorted({WIDTH, max_characters})))
        raise ConfigurationError(f"a word must have {allowed} character ids, got {width}")
    if width < max_characters:
        return nn.functional.pad(rows, (0, max_characters - width), value=PADDING + 1)
    cut = rows[:, :max_characters].clone()
    last = cut[:, -1]
    last[(last > 0) & (last <= WORD_END)] = WORD_END + 1  # the end marker of a longer word was cut off
    return cut


def _word_of(row: list[int], begin: str, end: str) -> str:
    """The word of a row of byte ids, for a model with its own alphabet or vocabulary."""
    if SENTENCE_BEGIN + 1 in row:
        return begin
    if SENTENCE_END + 1 in row:
        return end
    return word_of_byte_ids(row)


# AllenNLP's names of the parameters

Rows = dict[str, tuple[str, ...]]
"""AllenNLP's name → our parameter, or our two parameters for a highway.

AllenNLP's highway is one matrix: first the transform, then the carry gate, which is our gate with the opposite sign,
because σ(−z) = 1 − σ(z).
"""

_LSTM_LEAVES = {
    "input_linearity.weight": "input_weight",
    "state_linearity.weight": "recurrent_weight",
    "state_linearity.bias": "bias",
    "state_projection.weight": "projection_weight",
}


def encoder_rows(config: ElmoConfig) -> Rows:
    """The parameters that `_ElmoCharacterEncoder` saves."""
    rows: Rows = {}
    for part in ("weight", "bias"):
        if config.characters is not None:
            cnn = "token_encoder.char_cnn"
            rows["_char_embedding_weights"] = (f"{cnn}.embedding.weight",)
            for number in range(len(config.characters.filters)):
                rows[f"char_conv_{number}.{part}"] = (f"{cnn}.convolutions.{number}.{part}",)
            for number in range(config.characters.n_highway):
                ours = f"{cnn}.highways.{number}"
                rows[f"_highways._layers.{number}.{part}"] = (f"{ours}.transform.{part}", f"{ours}.gate.{part}")
        if config.token_projection:
            rows[f"_projection.{part}"] = (f"token_encoder.projection.{part}",)
    return rows


def lstm_rows(config: ElmoConfig) -> Rows:
    """The parameters that `_ElmoLstm` saves."""
    if not isinstance(config.context, LstmConfig):
        return {}  # AllenNLP has no names for another context encoder
    leaves = {
        theirs: ours for theirs, ours in _LSTM_LEAVES.items() if config.lstm.projection or "projection" not in ours
    }
    return {
        f"{direction}_layer_{layer}.{theirs}": (f"bilm.{direction}_lstm.layers.{layer}.{ours}",)
        for layer in range(config.lstm.n_layers)
        for direction in ("forward", "backward")[: config.n_directions]
        for theirs, ours in leaves.items()
    }


def use_their_names(module: nn.Module) -> None:
    """Make a module with `rows` save and load its parameters under AllenNLP's names."""
    module.register_state_dict_post_hook(_rename_on_save)  # type: ignore[no-untyped-call]
    module.register_load_state_dict_pre_hook(_rename_on_load)  # type: ignore[no-untyped-call]


def _rename_on_save(
    module: _ElmoCharacterEncoder | _ElmoLstm, state: dict[str, Tensor], prefix: str, _metadata: object
) -> None:
    """A hook that renames our parameters in a `state_dict` to AllenNLP's names."""
    for theirs, ours in module.rows.items():
        first, *gates = (state.pop(prefix + name) for name in ours)
        state[prefix + theirs] = torch.cat([first, *(-gate for gate in gates)]) if gates else first


def _rename_on_load(
    module: _ElmoCharacterEncoder | _ElmoLstm, state: dict[str, Tensor], prefix: str, *_: object
) -> None:
    """A hook that renames AllenNLP's parameters in a `state_dict` to our names."""
    for theirs, ours in module.rows.items():
        if prefix + theirs not in state:
            continue
        value = state.pop(prefix + theirs)
        if len(ours) == 1:
            state[prefix + ours[0]] = value
        else:
            transform, carry = value.chunk(2)
            state[prefix + ours[0]], state[prefix + ours[1]] = transform.clone(), -carry
