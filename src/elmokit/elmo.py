"""The user's class, where the flow of the whole package can be read.

text → tokens → ids → token encoder → two LSTM stacks → layers → mix
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import index
from pathlib import Path
from typing import Any, Literal, Self, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.encode import BATCH_TOKENS, GPU_BATCH_TOKENS, encode_stream
from elmokit.errors import ElmoError
from elmokit.fingerprint import Fingerprint
from elmokit.formats.bilm_write import write_bilm
from elmokit.formats.bundled import DEFAULT
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.load import read_checkpoint
from elmokit.formats.native import write_native
from elmokit.formats.stored import Numbers, SoftmaxNumbers, stored_in
from elmokit.language_model import LanguageModel, LogProbs, Perplexity
from elmokit.layers import Layers, aside, on_host, places
from elmokit.model.bilm import BiLM, State, moved
from elmokit.model.lm_head import head_shell
from elmokit.model.scalar_mix import LayerNorm, ScalarMix
from elmokit.model.type_cache import TypeCache
from elmokit.ops.bilstm import choose
from elmokit.placement import choose_device, choose_dtype, choose_int8_device
from elmokit.pooling import Pool, check_pool, pool_tokens
from elmokit.text.sentences import Sentence, Splitter, many, padded, splitter_of, tokens_of

log = logging.getLogger(__name__)

Vectors = NDArray[np.float32]
Layer = Literal["mix", "top", "all"] | int


class Elmo(nn.Module):
    """A biLM with its vocabulary and its mixes: words in context to vectors.

    >>> elmo = Elmo.load("my-model")  # doctest: +SKIP
    >>> elmo.encode(["The bank raised interest rates"])[0].shape  # doctest: +SKIP
    (5, 1024)
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        mixes: int | None = None,
        trainable: bool = False,
        dropout: float = 0.0,
        layer_norm: LayerNorm | None = None,
        state: Literal["zero", "carry"] = "zero",
        boundaries: bool = False,
        type_cache_mb: float = 64,
    ) -> None:
        """Build the network from a checkpoint; `Elmo.load` does so from a file.

        `mixes`: how many weighted sums of the layers (saved ones, or 1). `trainable`: whether the biLM's weights take
        gradients; the mixes always do. `dropout`: on the mixes, in training mode. `layer_norm`: see `ScalarMix`.
        `state`: "zero" starts every sentence afresh, "carry" goes on where the last call left each batch slot.
        `boundaries`: keep the vectors of the sentence's begin and end. `type_cache_mb`: the size of `type_cache`, which
        keeps vectors of words without context from batch to batch; 0 is off.
        """
        super().__init__()
        if state not in ("zero", "carry"):
            raise ElmoError(f"state must be zero or carry, got {state!r}")
        if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise ElmoError(f"dropout must be at least 0 and below 1, got {dropout!r}")
        self.config = checkpoint.config
        self.vocab = checkpoint.vocab
        self.symbols = checkpoint.symbols
        self.kind, self.where = checkpoint.kind, checkpoint.where
        self.notes, self.text, self.about = checkpoint.notes, checkpoint.text, checkpoint.about
        self.state, self.boundaries = state, boundaries
        self.indexer = checkpoint.indexer()
        self.type_cache = TypeCache(type_cache_mb)
        self._fingerprint = Fingerprint(checkpoint.config, checkpoint.vocab, checkpoint.symbols)
        self._carried: State | None = None
        self.bilm = BiLM.shell(checkpoint.config, int8=checkpoint.int8)
        self.head = head_shell(checkpoint.head) if checkpoint.head else None
        _fill(self.bilm, checkpoint.weights, trainable=trainable)
        if self.head is not None:
            _fill(self.head, checkpoint.head, trainable=trainable)
        self.mixes = nn.ModuleList(_mixes(checkpoint, mixes, layer_norm))
        self.dropout = nn.Dropout(dropout)
        self.eval()

    @classmethod
    def load(
        cls,
        path: str | Path = DEFAULT,
        *,
        options: str | Path | None = None,
        vocab: str | Path | None = None,
        token_embeddings: str | Path | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        mixes: int | None = None,
        trainable: bool = False,
        dropout: float = 0.0,
        layer_norm: LayerNorm | None = None,
        state: Literal["zero", "carry"] = "zero",
        boundaries: bool = False,
        type_cache_mb: float = 64,
    ) -> Self:
        """Load a model of any format in docs/formats.md, detected from its files.

        Where nothing lies at the path, it may be the name of a bundled model or `owner/name` on the Hugging Face Hub;
        without one it is the bundled English model. `options`, `vocab` and `token_embeddings` name files that do not
        lie beside the weights. Without `device`, a GPU is used where there is one. `dtype` is float32, float64,
        float16, bfloat16 or, on the CPU, int8: matrices in 8 bits, a quarter of the memory and the quickest; without
        it, a model saved in 8 bits stays so on the CPU, and others compute in float32. The other arguments are the
        constructor's.
        """
        chosen_dtype = None if dtype is None else choose_dtype(dtype)
        int8 = chosen_dtype == torch.int8
        chosen_device = choose_int8_device(device) if int8 else choose_device(device)
        checkpoint = read_checkpoint(path, options=options, vocab=vocab, token_embeddings=token_embeddings, int8=int8)
        if checkpoint.int8 and not int8 and (chosen_dtype is not None or chosen_device.type != "cpu"):
            log.info("dtype %s: the 8 bits of %s are for the CPU", chosen_dtype or torch.float32, checkpoint.where)
            checkpoint = checkpoint.in_floats(softmax=False)
        elmo = cls(
            checkpoint,
            mixes=mixes,
            trainable=trainable,
            dropout=dropout,
            layer_norm=layer_norm,
            state=state,
            boundaries=boundaries,
            type_cache_mb=type_cache_mb,
        )
        floats = torch.float32 if checkpoint.int8 or chosen_dtype is None else chosen_dtype
        return elmo.to(device=chosen_device, dtype=floats)

    @property
    def _split(self) -> Splitter:
        return splitter_of(self.text.get("segment"))

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return self.bilm.device

    @property
    def dtype(self) -> str:
        """What the network computes with, by the name that `load` takes."""
        if self.bilm.int8:
            return "int8"
        return str(self.bilm.zero_state(0).h.dtype).removeprefix("torch.")

    def explain(self, sentences: int = 1, tokens: int = 20) -> str:
        """How a batch of so many sentences would go through the LSTMs here, and why so."""
        x = torch.empty(sentences, tokens, self.config.lstm.output_size, device=self.device)
        choice = choose(x.to(self.bilm.zero_state(0).h.dtype), self.bilm.stacks(), gradient=False)
        return f"{choice.path} on {self.device} in {self.dtype}: {choice.why}"

    def forward(
        self,
        sentences: Sentence | Iterable[Sentence] | None = None,
        *,
        tokens: Sequence[Sequence[str]] | None = None,
        sequence_len: Sequence[int] | Tensor | None = None,
    ) -> dict[str, Any]:
        """Sentences → padded tensors by TF-Hub's names, differentiable.

        `word_emb` [B, T, P], `lstm_outputs1` … [B, T, D], `elmo` [B, T, D], `default` [B, D] (the mean over tokens),
        `sequence_len` [B]; and `layers` [L+1, B, T, D], `mask` [B, T], `mixes` (a list of [B, T, D]).
        """
        if (sentences is None) == (tokens is None):
            raise ElmoError("Elmo takes sentences or tokens=, one of the two")
        if tokens is not None:
            rows = many(tokens) if sequence_len is None else padded(tokens, sequence_len)
        elif sequence_len is not None:
            raise ElmoError("sequence_len goes with tokens=, not with sentences")
        else:
            assert sentences is not None
            rows = many(sentences, self._split)
        layers = self.layers_of(rows)
        if not self.boundaries:
            layers = layers.without_boundaries()
        if tokens is not None:  # as wide as the rows came, as in TF-Hub
            layers = layers.widened(max((len(row) for row in tokens), default=0) + 2 * self.boundaries)
        mask = layers.mask
        kept = mask.unsqueeze(-1)
        # A layer norm shifts padded positions as well; they are 0 in every output.
        mixes = [self.dropout(mix(layers.values, mask) * kept) for mix in self.mixes]
        lengths = layers.lengths.to(self.device)
        outputs = {f"lstm_outputs{number}": layer for number, layer in enumerate(layers.values[1:], start=1)}
        return {
            "word_emb": layers.values[0, :, :, : self.config.lstm.output_size],
            **outputs,
            "elmo": mixes[0],
            "default": mixes[0].sum(dim=1) / lengths.clamp(min=1).unsqueeze(1),
            "sequence_len": lengths,
            "layers": layers.values,
            "mask": mask,
            "mixes": mixes,
        }

    def encode(
        self,
        sentences: Sentence | Iterable[Sentence],
        *,
        output: Literal["tokens", "layers", "sentence"] = "tokens",
        layer: Layer = "mix",
        pool: Pool | None = None,
        batch_tokens: int | None = None,
    ) -> Any:  # noqa: ANN401 - a list of arrays, or one array for output="sentence"
        """Sentences → a list of float32 arrays [T, D]; a string is split on white space, a list is taken as tokens.

        The strings of a model that was trained on characters or on jieba's words are split as its text was.
        `output="layers"` gives [L+1, T, D] each, `output="sentence"` one array [N, D]. `layer` is "mix", "top", "all"
        or a number from 0; `pool` ("mean", the default, "max", "first", "last") never counts padding.
        """
        if output not in ("tokens", "layers", "sentence"):
            raise ElmoError(f"output must be tokens, layers or sentence, got {output!r}")
        if pool is not None and output != "sentence":
            raise ElmoError(f"pool goes with output='sentence', got output={output!r}")
        self._check_layer(layer)
        rows = many(sentences, self._split)
        pooling = (pool or "mean") if output == "sentence" else None
        stream = self.stream(
            rows, layer="all" if output == "layers" else layer, pool=pooling, batch_tokens=batch_tokens
        )
        arrays = list(stream)
        if output != "sentence":
            return arrays
        empty = (0, self.config.n_outputs, self.config.vector_size) if layer == "all" else (0, self.config.vector_size)
        return np.stack(arrays) if arrays else np.zeros(empty, np.float32)

    def stream(
        self,
        sentences: Iterable[Sentence],
        *,
        layer: Layer = "mix",
        pool: Pool | None = None,
        batch_tokens: int | None = None,
    ) -> Iterator[Vectors]:
        """Any number of sentences → their arrays one by one, in order, with bounded memory.

        `batch_tokens` bounds the tokens of a batch; without it the device's own number is taken. Otherwise as
        `encode`: [T, D] or, for `layer="all"`, [L+1, T, D]; with `pool` [D] or [L+1, D]. With carried state, all
        the sentences are one batch, as in one call of the original systems.
        """
        self._check_layer(layer)
        check_pool(pool)
        if batch_tokens is None:
            batch_tokens = BATCH_TOKENS if self.device.type == "cpu" else GPU_BATCH_TOKENS
        if not isinstance(batch_tokens, SupportsIndex) or index(batch_tokens) < 1:
            raise ElmoError(f"batch_tokens must be at least 1, got {batch_tokens!r}")
        if isinstance(sentences, str) or not isinstance(sentences, Iterable):
            raise ElmoError(f"stream takes an iterable of sentences, got {type(sentences).__name__}")
        rows = (tokens_of(sentence, self._split) for sentence in sentences)

        @torch.no_grad()
        def run(batch: Sequence[Sequence[str]]) -> Iterable[Vectors]:
            return self._arrays(self.layers_of(batch), layer, pool)

        if self.state == "carry":
            return iter(run(list(rows)))
        return encode_stream(rows, run, batch_tokens)

    def layers_of(self, sentences: Sequence[Sequence[str]], *, keep_state: bool = True) -> Layers:
        """Lists of tokens → all layers with the boundaries in, each distinct word encoded once."""
        counts = np.fromiter(map(len, sentences), np.int64, len(sentences))
        words = [self.indexer.begin, self.indexer.end, *chain.from_iterable(sentences)]
        looked = self.type_cache.look_up(words, self.encode_types, self.bilm.token_encoder)
        begin, end = looked.rows[:2]
        places = np.full((len(counts), counts.max(initial=0) + 2), begin)
        places[:, 1:-1][np.arange(places.shape[1] - 2) < counts[:, None]] = looked.rows[2:]
        places[np.arange(len(counts)), counts + 1] = end
        tokens_in = nn.functional.embedding(moved(torch.from_numpy(places), self.device), looked.table)  # [B, T, P]
        lengths = torch.from_numpy(counts + 2)
        before = None if self._carried is None else self._carried.resized(len(counts)).like(tokens_in)
        values, last = self.bilm.contextualise(tokens_in, lengths, before)
        if self.state == "carry" and keep_state:
            # Slots that a smaller batch did not use keep the state they have.
            self._carried = last.detach() if self._carried is None else last.detach().over(self._carried)
        return Layers(values, lengths)

    def encode_types(self, words: Sequence[str]) -> Tensor:
        """Distinct words → their vectors without context, [U, P]."""
        ids = self.indexer(words)
        return self.bilm.encode_types(
            None if ids.characters is None else torch.from_numpy(ids.characters),
            None if ids.words is None else torch.from_numpy(ids.words),
        )

    def reset_state(self) -> None:
        """Forget what `state="carry"` has carried: the next call starts from zero."""
        self._carried = None

    def log_probs(self, sentences: Sentence | Iterable[Sentence]) -> list[LogProbs]:
        """Log-probabilities of each token in both directions, full softmax."""
        model = self._language_model()

        @torch.no_grad()
        def run(batch: Sequence[Sequence[str]]) -> list[LogProbs]:
            layers = self.layers_of(batch)
            return [
                model.log_probs(tokens, layers.values[-1, row, : len(tokens) + 2]) for row, tokens in enumerate(batch)
            ]

        rows = many(sentences, self._split)
        return run(rows) if self.state == "carry" else list(encode_stream(rows, run))

    def perplexity(self, sentences: Sentence | Iterable[Sentence]) -> Perplexity:
        """exp of the mean negative log-probability; a float that also has `forward`, `backward` and `tokens`."""
        return Perplexity.of(self.log_probs(sentences))

    @torch.no_grad()
    def substitutes(self, tokens: Sentence, index: int, k: int = 10) -> list[tuple[str, float]]:
        """The k words that both directions expect most in place of token `index`, with probabilities.

        How frequent a word is counts once, by its place in the vocabulary (words by falling counts), or by the
        softmax's bias where the vocabulary is in another order.
        """
        words = tokens_of(tokens, self._split)
        if not isinstance(index, SupportsIndex) or not -len(words) <= index < len(words):
            raise ElmoError(f"index must name one of the {len(words)} tokens, got {index!r}")
        if not isinstance(k, SupportsIndex) or k < 1:
            raise ElmoError(f"k must be a whole number of at least 1, got {k!r}")
        return self._language_model().substitutes(
            index % len(words), self.layers_of([words], keep_state=False).values[-1, 0], k
        )

    def save(
        self,
        folder: str | Path,
        *,
        format: Literal["elmokit", "bilm"] = "elmokit",
        dtype: Numbers | None = None,
        softmax: SoftmaxNumbers | None = None,
    ) -> None:
        """Write the model: our own folder, or options.json and weights.hdf5 that the older systems read.

        Our own folder holds the numbers as they are, or in `dtype`: float32, float16 or int8. `softmax` is the same for
        the softmax, or "none" to leave it out; without it one in floats follows `dtype`, and one in 8 bits stays so.
        """
        if format not in ("elmokit", "bilm"):
            raise ElmoError(f"format must be elmokit or bilm, got {format!r}")
        if not str(folder):
            raise ElmoError("the folder to save to must not be empty")
        for name, value in (("dtype", dtype), ("softmax", softmax)):
            if format == "bilm" and value in ("float16", "int8"):
                raise ElmoError(f"the format bilm holds float32, got {name}={value!r}: leave that out")
        checkpoint = stored_in(self.checkpoint(), dtype, softmax)
        if format == "elmokit":
            write_native(checkpoint, Path(folder))
            return
        fresh = ScalarMix(self.config.n_outputs).state_dict()
        if any(not torch.equal(v.float().cpu(), fresh[k]) for mix in self.mixes for k, v in mix.state_dict().items()):
            log.warning("the bilm format holds no mixes: the trained ones of this model are not in %s", folder)
        write_bilm(checkpoint, Path(folder))

    def checkpoint(self) -> Checkpoint:
        """The model as the formats take it."""
        return Checkpoint(
            self.config,
            {name: value.detach() for name, value in self.bilm.state_dict().items()},
            kind=self.kind,
            where=f"the model in memory (from {self.where})",
            vocab=self.vocab,
            symbols=self.symbols,
            head={} if self.head is None else {name: value.detach() for name, value in self.head.state_dict().items()},
            mixes=[
                {"weights": mix.weights.detach(), "gamma": mix.gamma.detach(), "layer_norm": mix.layer_norm}
                for mix in self.mixes
                if isinstance(mix, ScalarMix)
            ],
            notes=self.notes,
            text=self.text,
            about=self.about,
            int8=self.bilm.int8,
        )

    def fingerprint(self, *, mixes: bool = False) -> str:
        """A digest of everything that decides the vectors of the layers, the same in every process.

        With `mixes`, also of what decides their sums, which `layer="mix"` gives.
        """
        tensors = self.bilm.state_dict() | (self.mixes.state_dict(prefix="mixes.") if mixes else {})
        norms = [mix.layer_norm for mix in self.mixes] if mixes else None
        return self._fingerprint(tensors, boundaries=self.boundaries, layer_norm=norms)

    def _arrays(self, layers: Layers, layer: Layer, pool: Pool | None) -> Iterable[Vectors]:
        """A sentence's vectors each; from a GPU they are on their way, and waited for when they are asked for."""
        lengths = layers.lengths.numpy() - (0 if self.boundaries else 2)
        if len(lengths) == 1:
            first = 0 if self.boundaries else 1
            values = layers.values[:, 0, first : first + int(lengths[0])]
        else:
            kept = moved(places(layers, lengths, boundaries=self.boundaries), self.device)
            values = layers.values.flatten(1, 2)[:, kept]
        chosen = on_host(self._chosen(values, lengths, layer))  # [N, D] or [L+1, N, D]: no padding

        def parts() -> Iterator[Vectors]:
            packed, stop = chosen(), 0
            for length in lengths.tolist():
                start, stop = stop, stop + length
                part = packed[..., start:stop, :]
                yield (part if pool is None else pool_tokens(part, pool)).copy()  # nothing may keep the batch alive

        return list(parts()) if self.device.type == "cpu" else aside(parts())

    def _chosen(self, values: Tensor, lengths: NDArray[np.int64], layer: Layer) -> Tensor:
        """values [L+1, N, D] of sentences one after the other → [N, D], or all of them."""
        if layer == "all":
            return values
        if layer != "mix":
            return values[-1 if layer == "top" else layer]
        mix = self.mixes[0]
        assert isinstance(mix, ScalarMix)
        # With a layer norm sentence by sentence, so that the normalisation sees no neighbours.
        alone = torch.split(values, lengths.tolist(), dim=1) if mix.layer_norm and len(lengths) else [values]
        return torch.cat([mix(part.unsqueeze(1))[0] for part in alone])

    def _check_layer(self, layer: Layer) -> None:
        if layer in ("mix", "top", "all"):
            return
        if (
            isinstance(layer, bool | str)
            or not isinstance(layer, SupportsIndex)
            or not 0 <= layer < self.config.n_outputs
        ):
            raise ElmoError(f"layer must be mix, top, all or 0 to {self.config.n_outputs - 1}, got {layer!r}")

    def _language_model(self) -> LanguageModel:
        return LanguageModel(self.head, self.vocab, bidirectional=self.config.bidirectional)


def _fill(module: nn.Module, weights: dict[str, Tensor], *, trainable: bool) -> None:
    # Half precision is a way to store; double stays, so that what was saved in it comes back exactly.
    kept = (torch.float64, torch.int8)
    full = {name: value if value.dtype in kept else value.float() for name, value in weights.items()}
    module.load_state_dict(full, assign=True)
    module.requires_grad_(trainable)


def _mixes(checkpoint: Checkpoint, count: int | None, layer_norm: LayerNorm | None) -> list[ScalarMix]:
    """Saved mixes, or fresh ones where another number or another layer norm is asked for."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ElmoError(f"mixes must be at least 1, got {count!r}")
    saved = checkpoint.mixes
    wanted = count if count is not None else len(saved) or 1
    mixes = []
    for number in range(wanted):
        known: dict[str, Any] = saved[number] if number < len(saved) else {"layer_norm": False}
        mix = ScalarMix(
            checkpoint.config.n_outputs, layer_norm=known["layer_norm"] if layer_norm is None else layer_norm
        )
        if "weights" in known:
            with torch.no_grad():
                mix.weights.copy_(known["weights"])
                mix.gamma.copy_(known["gamma"].reshape(()))
        mixes.append(mix)
    return mixes
