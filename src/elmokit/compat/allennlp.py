"""AllenNLP's ELMo classes, for existing code: only the import changes.

    from elmokit.compat.allennlp import Elmo, batch_to_ids   # was: from allennlp.modules.elmo import ...

Arguments, outputs, values and `state_dict` names are the same, for every model that elmokit loads.
As in AllenNLP, LSTM state is carried from call to call; `stateful=False` switches that off.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, cast

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from elmokit.compat.allennlp_bilm import WIDTH, ConfigurationError, Words, _ElmoBiLm, _ElmoCharacterEncoder
from elmokit.model.placement import choose_device
from elmokit.output.writers.hdf5 import create_hdf5
from elmokit.storage.atomic import atomic_file
from elmokit.text import chars, vocab

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
_ORIGINAL = (
    "https://allennlp.s3.amazonaws.com/models/elmo/2x4096_512_2048cnn_2xhighway/elmo_2x4096_512_2048cnn_2xhighway_"
)
DEFAULT_OPTIONS_FILE = f"{_ORIGINAL}options.json"
DEFAULT_WEIGHT_FILE = f"{_ORIGINAL}weights.hdf5"
DEFAULT_BATCH_SIZE = 64

Vectors = NDArray[np.float32]


def batch_to_ids(batch: Iterable[Sequence[str]], *, max_characters: int = WIDTH) -> Tensor:
    """Sentences as lists of words → character ids [B, T, 50], with zeros after a sentence's end.

    `max_characters` replaces 50 for models that read longer words.

    >>> batch_to_ids([["a", "river", "bank"], ["yes"]]).shape
    torch.Size([2, 3, 50])
    """
    rows, words = distinct(batch)
    ids = chars.ByteIndexer(max_characters)(words).characters
    assert ids is not None
    table = torch.cat([torch.zeros(1, max_characters, dtype=torch.long), torch.from_numpy(ids)])
    longest = max(map(len, rows), default=0)
    indices = [[index + 1 for index in row] + [0] * (longest - len(row)) for row in rows]
    return table[torch.tensor(indices, dtype=torch.long).reshape(len(rows), longest)]


def distinct(batch: Iterable[Sequence[str]]) -> tuple[list[list[int]], list[str]]:
    """Sentences → rows of indices into the list of their distinct words, and this list."""
    indices: dict[str, int] = {}
    rows = [[indices.setdefault(_word(word), len(indices)) for word in sentence] for sentence in batch]
    return rows, list(indices)


def _word(word: object) -> str:
    if not isinstance(word, str):
        raise ConfigurationError(f"a sentence must be a list of strings, got the word {word!r}")
    return word


class ELMoCharacterMapper:
    """Words → 50 character ids; `tokens_to_add` gives each of the user's own words one raw character."""

    max_word_length = WIDTH
    beginning_of_sentence_character = chars.SENTENCE_BEGIN
    end_of_sentence_character = chars.SENTENCE_END
    beginning_of_word_character = chars.WORD_BEGIN
    end_of_word_character = chars.WORD_END
    padding_character = chars.PADDING
    bos_token, eos_token = vocab.BEGIN, vocab.END

    def __init__(self, tokens_to_add: Mapping[str, int] | None = None) -> None:
        self.tokens_to_add = dict(tokens_to_add or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ELMoCharacterMapper) and self.tokens_to_add == other.tokens_to_add

    __hash__ = None  # type: ignore[assignment]

    def convert_word_to_char_ids(self, word: str) -> list[int]:
        """The ids of one word."""
        ids = chars.byte_ids(word, WIDTH)
        if word in self.tokens_to_add:
            ids = chars.byte_ids("", WIDTH)[:-1]
            ids.insert(1, self.tokens_to_add[word] + 1)
        return ids


def add_sentence_boundary_token_ids(
    tensor: Tensor, mask: Tensor, sentence_begin_token: int | Tensor, sentence_end_token: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Add a token before and after each sentence: [B, T] or [B, T, d] and mask [B, T] → both with T + 2."""
    if tensor.dim() not in (2, 3):
        raise ConfigurationError(f"the tensor must have the shape [B, T] or [B, T, d], got {list(tensor.shape)}")
    lengths = mask.long().sum(dim=1)
    longer = tensor.new_zeros(tensor.shape[0], tensor.shape[1] + 2, *tensor.shape[2:])
    longer[:, 1:-1] = tensor
    longer[:, 0] = sentence_begin_token
    longer[torch.arange(len(tensor), device=tensor.device), lengths + 1] = torch.as_tensor(
        sentence_end_token, dtype=tensor.dtype, device=tensor.device
    )
    return longer, _first(lengths + 2, longer.shape[1])


def remove_sentence_boundaries(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Remove each sentence's first and last token: [B, T, d] and mask [B, T] → both with T - 2, padded with 0."""
    if tensor.dim() != 3 or tensor.shape[1] < 2:
        raise ConfigurationError(
            f"the tensor must have the shape [B, T, d] with T at least 2, got {list(tensor.shape)}"
        )
    inner = _first(mask.long().sum(dim=1) - 2, tensor.shape[1] - 2)
    return tensor[:, 1:-1].masked_fill(~inner.unsqueeze(-1), 0), inner


def _first(lengths: Tensor, size: int) -> Tensor:
    """lengths [B] → mask [B, size]."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)


class ScalarMix(nn.Module):
    """gamma · Σ softmax(w)_k · tensor_k.

    With `do_layer_norm` each tensor is first normalised with one mean and one variance over all unmasked positions.
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
    inside = torch.ones_like(tensor) if mask is None else mask.to(tensor.dtype).unsqueeze(-1).expand_as(tensor)
    count = inside.sum().clamp(min=1)
    mean = (tensor * inside).sum() / count
    variance = ((tensor - mean) * inside).square().sum() / count
    return (tensor - mean) / torch.sqrt(variance + (1e-13 if torch.finfo(tensor.dtype).bits >= 32 else 1e-4))


class Elmo(nn.Module):
    """Character ids → weighted sums of the biLM's layers.

    `options_file` and `weight_file` are paths or URLs. `options_file` may be None if the options are next to the
    weights, or if the model has another format than AllenNLP's. The module starts in training mode, with dropout: call
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
            raise ConfigurationError("Elmo takes either options_file and weight_file, or module, got both")
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
        """D, the size of a vector."""
        return cast("int", self._elmo_lstm.get_output_dim())

    def forward(self, inputs: Tensor, word_inputs: Tensor | None = None) -> dict[str, Any]:
        """inputs [B, T, 50], word_inputs [B, T] → `elmo_representations`, a list of [B, T, D], and `mask` [B, T].

        With `keep_sentence_boundaries`, T grows by 2. More dimensions in front are allowed: [..., T, 50].
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
    """One weighted sum of the layers, with `projection_dim` followed by a linear layer; the arguments are `Elmo`'s."""

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
        """The size of a vector."""
        return self.output_dim

    def forward(
        self, elmo_tokens: Tensor | None = None, word_inputs: Tensor | None = None, *, inputs: Tensor | None = None
    ) -> Tensor:
        """elmo_tokens [..., T, 50] (called `inputs` in AllenNLP 0.9) and word_inputs [..., T] → [..., T, D]."""
        elmo_tokens = inputs if elmo_tokens is None else elmo_tokens
        if elmo_tokens is None:
            raise ConfigurationError("ElmoTokenEmbedder takes character ids [B, T, 50], got none")
        vectors: Tensor = self._elmo(elmo_tokens, word_inputs)["elmo_representations"][0]
        return vectors if self._projection is None else self._projection(vectors)

    def reset_states(self) -> None:
        """Forget the carried state: the next call starts from zero."""
        self._elmo.reset_states()


def default_files(
    options_file: str | Path | None, weight_file: str | Path | None
) -> tuple[str | Path | None, str | Path | None]:
    """The given files, or the files of the original English model if no file is given."""
    if options_file is None and weight_file is None:
        return DEFAULT_OPTIONS_FILE, DEFAULT_WEIGHT_FILE
    return options_file, weight_file


class ElmoEmbedder:
    """All layers of sentences that are lists of words.

    State is carried from call to call, as in AllenNLP; `stateful=False` gives a sentence the same vectors every time.
    """

    def __init__(
        self,
        options_file: str | Path | None = None,
        weight_file: str | Path | None = None,
        cuda_device: int = -1,
        *,
        stateful: bool = True,
    ) -> None:
        """Without any file the original English model is downloaded; `cuda_device` -1 is the CPU."""
        self.elmo_bilm = _ElmoBiLm(*default_files(options_file, weight_file), stateful=stateful)
        self.cuda_device = cuda_device
        if cuda_device >= 0:
            self.elmo_bilm = self.elmo_bilm.to(choose_device(f"cuda:{cuda_device}"))

    def reset_states(self) -> None:
        """Forget the carried state: the next call starts from zero."""
        self.elmo_bilm.reset_states()

    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Sentences → layers [B, L+1, T, D] and mask [B, T]."""
        rows, words = distinct(batch)
        table = self.elmo_bilm._token_embedder.encode_words(words)
        lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
        real = torch.arange(max(map(len, rows), default=0)) < lengths.unsqueeze(1)
        index = torch.tensor([number for row in rows for number in row], dtype=torch.long)
        output = self.elmo_bilm.contextualise(Words(table, real.to(table.device), index.to(table.device)))
        pairs = [remove_sentence_boundaries(layer, output["mask"]) for layer in output["activations"]]
        return torch.stack([layer for layer, _ in pairs], dim=1), pairs[0][1]

    def embed_sentence(self, sentence: Sequence[str]) -> Vectors:
        """A sentence of T words → [L+1, T, D]."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Vectors]:
        """Sentences → an array [L+1, T, D] each, computed as one batch."""
        sentences = [list(sentence) for sentence in batch]
        if not any(sentences):
            empty = (self.elmo_bilm.num_layers, 0, self.elmo_bilm.get_output_dim())
            return [np.zeros(empty, np.float32) for _ in sentences]
        with torch.no_grad():
            layers = self.batch_to_embeddings(sentences)[0].float().cpu().numpy()
        return [row[:, : len(sentence)].copy() for row, sentence in zip(layers, sentences, strict=True)]

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[Vectors]:
        """A stream of sentences → their arrays [L+1, T, D], in the same order; `batch_size` sentences per batch."""
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be at least 1, got {batch_size}")
        stream = iter(sentences)
        batches = iter(lambda: list(islice(stream, batch_size)), [])
        return (vectors for batch in batches for vectors in self.embed_batch(batch))

    def embed_file(
        self,
        input_file: IO[str],
        output_file_path: str | Path,
        output_format: Literal["all", "top", "average"] = "all",
        batch_size: int = DEFAULT_BATCH_SIZE,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Embed an open text file, one sentence per line with spaces between words, into an HDF5 file.

        The file has one dataset per line, named by the line's number from 0 (`use_sentence_keys`: by the line itself):
        [L+1, T, D], or [T, D] for the "top" layer and the "average" of all. Without sentence keys, and unless
        `forget_sentences`, it also has `sentence_to_index`: JSON {line: "number"}. The file appears whole or not at
        all, and the input is closed at the end.
        """
        if output_format not in ("all", "top", "average"):
            raise ConfigurationError(f"output_format must be all, top or average, got {output_format!r}")
        with input_file:
            lines = [line.strip() for line in input_file]
        _check_lines(lines, unique=use_sentence_keys)
        vectors = self.embed_sentences((line.split() for line in lines), batch_size)
        bar = tqdm(zip(lines, vectors, strict=True), total=len(lines), unit=" sentences", disable=None)
        with atomic_file(Path(output_file_path)) as temporary, create_hdf5(temporary) as (file, check):
            for number, (line, layers) in enumerate(bar):
                chosen = {"all": layers, "top": layers[-1], "average": layers.mean(axis=0)}[output_format]
                _store(file, line if use_sentence_keys else str(number), chosen)
                check()
            if not (forget_sentences or use_sentence_keys):
                listing = json.dumps({line: str(number) for number, line in enumerate(lines)})
                file.create_dataset("sentence_to_index", shape=(1,), dtype=h5py.string_dtype("utf-8"))[0] = listing


def _check_lines(lines: list[str], *, unique: bool) -> None:
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line:
            raise ConfigurationError(f"every line must be a sentence, got the blank line {number}: remove it")
        if unique and line in seen:
            raise ConfigurationError(
                f"lines that are keys must differ, but line {number} repeats line {seen[line]}: leave out "
                "use_sentence_keys"
            )
        seen[line] = number


def _store(file: h5py.File, key: str, values: Vectors) -> None:
    try:
        if "\0" in key:
            raise ValueError("a key ends at NUL")
        file.create_dataset(key, data=values)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ConfigurationError(f"HDF5 cannot have the key {key!r} ({error}): leave out use_sentence_keys") from error
