"""`Elmo`, the main class of the package. Its code shows the flow through all parts:

text → tokens → ids → token encoder → context encoder → layers → mix
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, SupportsIndex, overload

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.config import OneLayer
from elmokit.encode import ElmoOutput, Layers, arrays, check_batch_tokens, encode_stream
from elmokit.errors import ElmoError
from elmokit.formats.bundled import DEFAULT, name_of
from elmokit.formats.checkpoint import Checkpoint, Fingerprint
from elmokit.formats.load import read_checkpoint
from elmokit.formats.registry import DEFAULT_FORMAT
from elmokit.formats.save import SoftmaxDtype, StoredDtype, write_checkpoint
from elmokit.layers import Layer, Pool, Vectors, check_layer
from elmokit.model.compiling import is_exporting, outside_graphs
from elmokit.model.context import State
from elmokit.model.language_model import LanguageModel, LogProbs, Perplexity, head_shell, score
from elmokit.model.placement import choose_device, choose_dtype, choose_int8_device, fill, moved
from elmokit.model.scalar_mix import LayerNorm, ScalarMix, saved_mixes
from elmokit.model.type_cache import CachedWords, TypeCache
from elmokit.options import check_value
from elmokit.text.policy import PolicyName, Sentence, TextPolicy, rows_of_tokens
from elmokit.text.tokens import SegmenterName, Token
from elmokit.text.vocab import UnknownTokens

log = logging.getLogger(__name__)
Word = str | SupportsIndex
"""A word of a sentence, by its text or by its position among the tokens."""


def word_position(tokens: Sequence[str], word: Word) -> int:
    """The position of a word in a sentence, from 0; a word that is missing or occurs more than once is refused."""
    if isinstance(word, str):
        positions = [position for position, token in enumerate(tokens) if token == word]
        if len(positions) == 1:
            return positions[0]
        rule = f"one of them at the positions {', '.join(map(str, positions))}" if positions else "one of the tokens"
        raise ElmoError(
            f"words must name {rule} of {' '.join(map(repr, tokens)) or 'no tokens'}, got {word!r}", "words"
        )
    try:
        position = operator.index(word)
    except TypeError:
        raise ElmoError(f"words must be texts of tokens or their positions, got {word!r}", "words") from None
    if not -len(tokens) <= position < len(tokens):
        raise ElmoError(f"words must be positions below {len(tokens)}, the number of tokens, got {word!r}", "words")
    return position % len(tokens)


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
        segment: SegmenterName | None = None,
        state: Literal["zero", "carry"] = "zero",
        boundaries: bool = False,
        mixes: int | None = None,
        layer_norm: LayerNorm | None = None,
        trainable: bool = False,
        dropout: float = 0.0,
        type_cache_mb: float = 64,
    ) -> None:
        """Build the network from a checkpoint; `Elmo.load` reads one and documents the arguments."""
        super().__init__()
        check_value("state", state, Literal["zero", "carry"])
        check_value("trainable", trainable, bool)
        check_value("dropout", dropout, float, {"least": 0, "below": 1})
        if mixes is not None:
            check_value("mixes", mixes, int, {"least": 1})
        self.config = checkpoint.config
        self.vocab = checkpoint.vocab
        self.symbols = checkpoint.symbols
        self.kind, self.where = checkpoint.kind, checkpoint.where
        self.notes, self.about = checkpoint.notes, checkpoint.about
        self.text, self.text_policy = TextPolicy.of_model(checkpoint.text, segment, self.where)
        self.state, self.boundaries = state, boundaries
        self.indexer = checkpoint.indexer()
        self.character_pieces = checkpoint.character_pieces(self.text)
        self.type_cache = TypeCache(type_cache_mb)
        self._fingerprint = Fingerprint(checkpoint.config, checkpoint.vocab, checkpoint.symbols)
        self._carried: State | None = None
        self.bilm = checkpoint.network(trainable=trainable)
        if self.state == "carry" and not self.bilm.context.carries_state:
            kind = checkpoint.config.context.kind
            raise ElmoError(f"state='carry' needs an LSTM, and this model has the context encoder {kind}: leave it out")
        self.head = head_shell(checkpoint.head) if checkpoint.head else None
        if self.head is not None:
            fill(self.head, checkpoint.head, trainable=trainable)
        self.mixes = nn.ModuleList(saved_mixes(checkpoint.mixes, checkpoint.config.n_outputs, mixes, layer_norm))
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
        segment: SegmenterName | None = None,
    ) -> Self:
        """Load a model of any supported format, which is detected from its files.

        `path` is a folder or file, the name of a bundled model, or `owner/name` on the Hugging Face Hub.

        - `options`, `vocab`, `token_embeddings`: paths of files that are not next to the weights.
        - `device`: "cpu", "cuda", …; by default a GPU if there is one.
        - `dtype`: "float32", "float64", "float16", "bfloat16" or, on the CPU, "int8", which needs a quarter of the
          memory and is the fastest. By default int8 for a model that was saved in int8, on the CPU; float32 otherwise.
        - `mixes`: the number of weighted sums of the layers; by default those that were saved with the model, or 1.
        - `trainable`: whether the network's weights take gradients; the weights of the mixes always do.
        - `dropout`: the dropout rate of the mixes in training mode.
        - `layer_norm`: normalisation before a mix, see `ScalarMix`; by default as it was saved.
        - `state`: "zero" starts every sentence from zero; "carry" starts each row of a batch from the last state of
          that row in the previous call, as the original systems do.
        - `boundaries`: also return the vectors of the beginning and the end of the sentence.
        - `type_cache_mb`: megabytes for `type_cache`, the vectors of words without context; 0 switches it off.
        - `segment`: how strings become tokens: "english", "jieba", "chars" or "whitespace"; by default as the model's
          training text was tokenised. For a model that does not say, the choice is saved with the model.
        """
        chosen_dtype = None if dtype is None else choose_dtype(dtype)
        int8 = chosen_dtype == torch.int8
        chosen_device = choose_int8_device(device) if int8 else choose_device(device)
        checkpoint = read_checkpoint(path, options=options, vocab=vocab, token_embeddings=token_embeddings, int8=int8)
        if checkpoint.int8 and not int8 and (chosen_dtype is not None or chosen_device.type != "cpu"):
            log.info("dtype %s: the int8 of %s is for the CPU", chosen_dtype or torch.float32, checkpoint.where)
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
            segment=segment,
        )
        floats = torch.float32 if checkpoint.int8 or chosen_dtype is None else chosen_dtype
        return elmo.to(device=chosen_device, dtype=floats)

    def __repr__(self) -> str:
        size = f"{self.config.n_outputs} layers x {self.config.vector_size}"
        return f"Elmo({name_of(self.where)!r}, {size}, {self.dtype}, {self.device}, segment={self.segment!r})"

    @property
    def segment(self) -> PolicyName:
        """How strings become tokens: english, jieba, chars or whitespace."""
        return self.text_policy.name

    @property
    def default_layer(self) -> OneLayer:
        """The layer that `encode` returns by default: the mix of an LSTM's layers, the last block of a Transformer."""
        return self.config.context.default_layer

    def tokenize(self, text: str, *, segment: SegmenterName | None = None) -> list[Token]:
        """The tokens of a string with their character offsets: exactly what `encode` sees.

        >>> Elmo.load().tokenize("A bank.")  # doctest: +SKIP
        [Token(text='A', start=0, end=1), Token(text='bank', start=2, end=6), Token(text='.', start=6, end=7)]
        """
        if not isinstance(text, str):
            raise ElmoError(f"tokenize takes a string, got {type(text).__name__}")
        return self.text_policy.override(segment).tokenize(text)

    def unknown_tokens(self) -> UnknownTokens:
        """A new counter of the tokens that the model reads as `<UNK>`, for a model with a word table."""
        return UnknownTokens(self.vocab if self.config.characters is None else None, self.character_pieces)

    @property
    def device(self) -> torch.device:
        """The device of the network's weights."""
        return self.bilm.device

    @property
    def dtype(self) -> str:
        """The dtype in which the network computes, by the name that `load` takes."""
        if self.bilm.int8:
            return "int8"
        return str(next(self.bilm.parameters()).dtype).removeprefix("torch.")

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """As in torch; an int8 network cannot be trained."""
        self.bilm.requires_grad_(requires_grad)  # torch changes the parameters without asking the modules in between
        return super().requires_grad_(requires_grad)

    def explain(self, sentences: int = 1, tokens: int = 20) -> str:
        """The kernel that would compute a batch of this size on this machine, and the reason for the choice."""
        dtype = next(self.bilm.parameters()).dtype
        x = torch.empty(sentences, tokens, self.config.token_size, device=self.device, dtype=dtype)
        path, _, why = self.bilm.context.explain(x).partition(": ")
        return f"{path} on {self.device} in {self.dtype}: {why}"

    @outside_graphs
    def forward(
        self,
        sentences: Sentence | Iterable[Sentence] | None = None,
        *,
        tokens: Sequence[Sequence[str]] | None = None,
        sequence_len: Sequence[int] | Tensor | None = None,
        segment: SegmenterName | None = None,
    ) -> ElmoOutput:
        """Sentences → padded tensors by TF-Hub's names, differentiable; strings and tokens as in `encode`.

        `word_emb` [B, T, P], `lstm_outputs1` … [B, T, D], `elmo` [B, T, D], `default` [B, D] (the mean over tokens),
        `sequence_len` [B]; and `layers` [L+1, B, T, D], `mask` [B, T], `mixes` (a list of [B, T, D]). With `tokens`,
        T is the length of the longest row, padding included, as in TF-Hub.
        """
        if is_exporting():
            raise ElmoError("torch.export records tensors, and an Elmo reads strings: export its network, elmo.bilm")
        if tokens is not None and sentences is None:
            if segment is not None:
                raise ElmoError("segment is for sentences, not for tokens")
            rows, width = rows_of_tokens(tokens, sequence_len), max(map(len, tokens), default=0)
        elif sentences is None or tokens is not None:
            raise ElmoError("Elmo takes either sentences or tokens, got " + ("neither" if tokens is None else "both"))
        elif sequence_len is not None:
            raise ElmoError("sequence_len is for tokens, not for sentences")
        else:
            rows, width = self.text_policy.override(segment).sentences_of(sentences), 0
        layers = self.layers_of(rows)
        layers = layers if self.boundaries else layers.without_boundaries()
        layers = layers.widened(width + 2 * self.boundaries)
        outer = ([self.indexer.begin], [self.indexer.end]) if self.boundaries else ([], [])
        shown = [[*outer[0], *row, *outer[1]] for row in rows]
        return ElmoOutput.of(layers, self.mixes, self.dropout, self.config.token_size, shown)

    if TYPE_CHECKING:  # torch's own says Any
        __call__ = forward

    @overload
    def encode(
        self,
        sentences: Sentence | Iterable[Sentence],
        *,
        output: Literal["tokens", "layers"] = "tokens",
        layer: Layer | None = None,
        pool: None = None,
        batch_tokens: int | None = None,
        segment: SegmenterName | None = None,
    ) -> list[Vectors]: ...

    @overload
    def encode(
        self,
        sentences: Sentence | Iterable[Sentence],
        *,
        output: Literal["sentence"],
        layer: Layer | None = None,
        pool: Pool | None = None,
        batch_tokens: int | None = None,
        segment: SegmenterName | None = None,
    ) -> Vectors: ...

    @outside_graphs
    def encode(
        self,
        sentences: Sentence | Iterable[Sentence],
        *,
        output: Literal["tokens", "layers", "sentence"] = "tokens",
        layer: Layer | None = None,
        pool: Pool | None = None,
        batch_tokens: int | None = None,
        segment: SegmenterName | None = None,
    ) -> list[Vectors] | Vectors:
        """Sentences → a list of float32 arrays [T, D]; a string is tokenised, a list is taken as tokens.

        Strings are tokenised as the model's training text was (`tokenize` shows it), or by `segment`. A model of
        characters reads a token of several characters one by one and gives the mean of their vectors.
        `output="layers"` gives [L+1, T, D] for each sentence, `output="sentence"` one array [N, D]. `layer` is "mix",
        "top", "all" or a number from 0, by default `default_layer`. `pool` is "mean" (the default), "max", "first" or
        "last".
        """
        check_value("output", output, Literal["tokens", "layers", "sentence"])
        if pool is not None and output != "sentence":
            raise ElmoError(f"pool needs output='sentence', got output={output!r}")
        layer = ("all" if output == "layers" else self.default_layer) if layer is None else layer
        check_layer(layer, self.config.n_outputs)
        if output == "layers" and layer != "all":
            raise ElmoError(f"output='layers' returns all layers, got layer={layer!r}: use output='tokens' for one")
        rows = self.text_policy.override(segment).sentences_of(sentences)
        if output != "sentence":
            return list(self.stream(rows, layer=layer, batch_tokens=batch_tokens))
        found = list(self.stream(rows, layer=layer, pool=pool or "mean", batch_tokens=batch_tokens))
        layers = (self.config.n_outputs,) if layer == "all" else ()
        return np.stack(found) if found else np.zeros((0, *layers, self.config.vector_size), np.float32)

    def similarity(
        self,
        a: Sentence | Iterable[Sentence],
        b: Sentence | Iterable[Sentence] | None = None,
        *,
        words: Word | tuple[Word | Sequence[Word], Word | Sequence[Word]] | None = None,
        layer: Layer | None = None,
        segment: SegmenterName | None = None,
    ) -> Vectors:
        """Cosine similarities of sentences, or of words in them: [A, B]; a single string has no axis of its own.

        Without `b` the sentences of `a` are compared with each other. `words` is one word for every sentence, given by
        its text or by its position from 0; or a pair for `a` and for `b`, each of them one word, or a list with one
        word per sentence. `layer` is as in `encode`, but not "all"; by default the mix of an LSTM's layers, or a
        Transformer's top layer, which separates senses best.

        >>> elmo.similarity("He sat on the bank.", "The bank lends.", words="bank")  # doctest: +SKIP
        array(0.59, dtype=float32)
        """
        layer = self.config.context.similarity_layer if layer is None else layer
        check_layer(layer, self.config.n_outputs, single=True)
        pair = words if isinstance(words, tuple) else (words, words)
        if len(pair) != 2:
            raise ElmoError(f"words must be one word or a pair of them, got {words!r}", "words")
        second = a if b is None else b
        units_a = self._unit_vectors(a, pair[0], layer, segment)
        units_b = units_a if b is None else self._unit_vectors(second, pair[1], layer, segment)
        shape = [len(units) for given, units in ((a, units_a), (second, units_b)) if not isinstance(given, str)]
        cosines: Vectors = np.clip(units_a @ units_b.T, -1, 1).reshape(shape)  # rounding can go beyond 1
        return cosines

    def _unit_vectors(
        self,
        sentences: Sentence | Iterable[Sentence],
        words: Word | Sequence[Word] | None,
        layer: Layer | None,
        segment: SegmenterName | None,
    ) -> Vectors:
        """The vectors of sentences, or of one word in each, scaled to length 1, [N, D]; zeros for an empty sentence."""
        rows = self.text_policy.override(segment).sentences_of(sentences)
        if words is None:
            vectors = self.encode(rows, output="sentence", layer=layer)
        else:
            several = isinstance(words, Sequence | np.ndarray) and not isinstance(words, str)
            each: list[Word] = list(words) if several else [words] * len(rows)  # type: ignore[arg-type, list-item]
            if len(each) != len(rows):
                raise ElmoError(f"words must have one word per sentence, got {len(each)} for {len(rows)}", "words")
            positions = [word_position(row, word) + self.boundaries for row, word in zip(rows, each, strict=True)]
            encoded = self.stream(rows, layer=layer)
            chosen = [vectors[position] for vectors, position in zip(encoded, positions, strict=True)]
            vectors = np.array(chosen, np.float32).reshape(-1, self.config.vector_size)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        scaled: Vectors = vectors / np.maximum(lengths, np.float32(1e-30))
        return scaled

    def stream(
        self,
        sentences: Iterable[Sentence],
        *,
        layer: Layer | None = None,
        pool: Pool | None = None,
        batch_tokens: int | None = None,
        segment: SegmenterName | None = None,
    ) -> Iterator[Vectors]:
        """Any number of sentences → their arrays one by one, in order, with bounded memory.

        `batch_tokens` bounds the tokens of a batch; the default depends on the device. The other arguments are those
        of `encode`. An array is [T, D] or, for `layer="all"`, [L+1, T, D]; with `pool` it is [D] or [L+1, D]. With
        carried state, all sentences are one batch, as in one call of the original systems.
        """
        layer = self.default_layer if layer is None else layer
        check_layer(layer, self.config.n_outputs)
        if pool is not None:
            check_value("pool", pool, Pool)
        budget = check_batch_tokens(batch_tokens, self.device)
        if isinstance(sentences, str | bytes) or not isinstance(sentences, Iterable):
            raise ElmoError(f"stream takes an iterable of sentences, got {type(sentences).__name__}")
        policy = self.text_policy.override(segment)
        rows = (policy.tokens_of(sentence) for sentence in sentences)

        def run(batch: Sequence[Sequence[str]]) -> Iterable[Vectors]:
            mix = self.mixes[0]
            assert isinstance(mix, ScalarMix)
            with torch.no_grad():
                return arrays(self.layers_of(batch, layer), mix, layer, pool, boundaries=self.boundaries)

        if self.state == "carry":
            return iter(run(list(rows)))
        return encode_stream(rows, run, budget, size=self._size)

    def layers_of(self, sentences: Sequence[Sequence[str]], layer: Layer = "all") -> Layers:
        """Lists of tokens → all layers including the boundaries, one vector per token.

        In a model of characters the vector of a token is the mean of the vectors of its characters. If only one
        `layer` is needed, the result may contain only that layer.
        """
        pieces, counts = self._pieces(sentences)
        layers = self._network_layers(pieces, layer=layer)
        return layers if counts is None else layers.means(counts)

    def _network_layers(self, sentences: Sequence[Sequence[str]], *, layer: Layer) -> Layers:
        """Network tokens (words or characters) → all layers or only the one needed, including the boundaries."""
        if self.bilm.context.reads_flat:
            flat_tokens, lengths = self._flat_token_vectors(sentences)
            only = None if layer in ("all", "mix") else -1 if layer == "top" else int(layer)
            return Layers(None, lengths, self.bilm.flat_layers(flat_tokens, lengths, only=only))
        tokens, lengths = self._token_vectors(sentences)
        values, last = self.bilm.contextualise(tokens, lengths, self._state_before(tokens))
        self._carry(last)
        return Layers(values, lengths)

    def _token_vectors(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Network tokens → their vectors including the boundaries [B, T, P], and lengths [B].

        Each distinct word is encoded once.
        """
        counts = np.fromiter(map(len, sentences), np.int64, len(sentences))
        cached = self._cached_words(sentences)
        begin, end = cached.rows[:1], cached.rows[1:2]
        if len(counts) == 1:
            rows = np.concatenate([begin, cached.rows[2:], end])[None]
        else:
            rows = np.full((len(counts), counts.max(initial=0) + 2), begin)
            rows[:, 1:-1][np.arange(rows.shape[1] - 2) < counts[:, None]] = cached.rows[2:]
            rows[np.arange(len(counts)), counts + 1] = end
        vectors = nn.functional.embedding(moved(torch.from_numpy(rows), self.device), cached.table)  # [B, T, P]
        return vectors, torch.from_numpy(counts + 2)

    def _flat_token_vectors(self, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """As `_token_vectors` without padding: vectors [N, P] of the sentences one after the other, and lengths [B]."""
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences)) + 2
        cached = self._cached_words(sentences)
        stops = np.cumsum(lengths)
        rows = np.empty(int(lengths.sum()), np.int64)
        inside = np.ones(len(rows), bool)
        for positions, boundary in ((stops - lengths, cached.rows[0]), (stops - 1, cached.rows[1])):
            rows[positions], inside[positions] = boundary, False
        rows[inside] = cached.rows[2:]
        return cached.vectors(rows), torch.from_numpy(lengths)

    def _cached_words(self, sentences: Sequence[Sequence[str]]) -> CachedWords:
        """The words of sentences, after the two boundaries."""
        words = [self.indexer.begin, self.indexer.end, *chain.from_iterable(sentences)]
        return self.type_cache.look_up(words, self.encode_types, self.bilm.token_encoder)

    def _state_before(self, tokens: Tensor) -> State | None:
        return None if self._carried is None else self._carried.resized(len(tokens)).like(tokens)

    def _carry(self, last: State | None) -> None:
        if self.state == "carry" and last is not None:
            # The state of rows that a smaller batch did not use does not change.
            self._carried = last.detach() if self._carried is None else last.detach().with_rows_of(self._carried)

    def _pieces(self, sentences: Sequence[Sequence[str]]) -> tuple[Sequence[Sequence[str]], list[list[int]] | None]:
        """The network tokens of each sentence, and how many each token is split into (None: no token is split)."""
        return (sentences, None) if self.character_pieces is None else self.character_pieces.split(sentences)

    def _size(self, tokens: Sequence[str]) -> int:
        """The number of network tokens of a sentence, without its boundaries."""
        return len(tokens) if self.character_pieces is None else self.character_pieces.count(tokens)

    def encode_types(self, words: Sequence[str]) -> Tensor:
        """Distinct words → their vectors without context, [U, P]; a Transformer normalises them to get layer 0."""
        if self.character_pieces is not None and self.character_pieces.count(words) > len(words):
            pieces, counts = self.character_pieces.split([words])
            inner = [self.indexer.begin, *pieces[0], self.indexer.end]
            alone = Layers(self.encode_types(inner)[None, None], torch.tensor([len(inner)]))
            return alone.means(counts).values[0, 0, 1:-1]
        ids = self.indexer(words)
        return self.bilm.encode_types(
            None if ids.characters is None else torch.from_numpy(ids.characters),
            None if ids.words is None else torch.from_numpy(ids.words),
        )

    def reset_state(self) -> None:
        """Forget the state that `state="carry"` stored: the next call starts from zero."""
        self._carried = None

    def log_probs(
        self, sentences: Sentence | Iterable[Sentence], *, segment: SegmenterName | None = None
    ) -> list[LogProbs]:
        """Log-probabilities of each token in both directions, by the full softmax; strings and tokens as in `encode`.

        In a model of characters the log-probability of a token is the sum over its characters.
        """
        model = LanguageModel(self.head, self.vocab)

        @torch.no_grad()
        def run(batch: Sequence[Sequence[str]]) -> list[LogProbs]:
            pieces, counts = self._pieces(batch)
            tokens, lengths = self._token_vectors(pieces)
            before = self._state_before(tokens)
            scores = score(self.bilm, model.head.losses, tokens, lengths, model.words(pieces), before)
            self._carry(scores.state)
            found = model.log_probs(scores)
            return found if counts is None else [each.sums(n) for each, n in zip(found, counts, strict=True)]

        rows = self.text_policy.override(segment).sentences_of(sentences)
        return run(rows) if self.state == "carry" else list(encode_stream(rows, run, size=self._size))

    def perplexity(
        self, sentences: Sentence | Iterable[Sentence], *, segment: SegmenterName | None = None
    ) -> Perplexity:
        """exp of the mean negative log-probability; a float that also has `forward`, `backward` and `tokens`.

        The mean is over the tokens and the sentence ends. In a model of characters, tokens of several characters give
        a perplexity per word, which is higher than the perplexity per character that strings give.
        """
        return Perplexity.of(self.log_probs(sentences, segment=segment))

    @torch.no_grad()
    def substitutes(
        self, tokens: Sentence, index: int, k: int = 10, *, segment: SegmenterName | None = None
    ) -> list[tuple[str, float]]:
        """The k words that the text on both sides makes most likely in place of token `index`, with probabilities.

        A transformer reads both sides in one pass, with the token masked. An LSTM has one prediction from each side;
        their product is divided by the word's frequency, which both contain. The frequency follows from the word's rank
        in a vocabulary sorted by counts, otherwise from the softmax's bias.
        """
        words = self.text_policy.override(segment).tokens_of(tokens)
        if not isinstance(index, SupportsIndex) or not -len(words) <= index < len(words):
            raise ElmoError(f"index must name one of the {len(words)} tokens, got {index!r}")
        if not isinstance(k, SupportsIndex) or k < 1:
            raise ElmoError(f"k must be a whole number of at least 1, got {k!r}")
        position = index % len(words)
        if self.character_pieces is not None:
            characters = self.character_pieces.of(words[position])
            if len(characters) > 1:
                raise ElmoError(
                    f"this model predicts single characters, and {words[position]!r} has {len(characters)}: give each "
                    "character as a token"
                )
            position = self.character_pieces.count(words[:position])
            ((words,), _) = self.character_pieces.split([words])
        model, (vectors, lengths) = LanguageModel(self.head, self.vocab), self._token_vectors([words])
        if self.bilm.context.predicts_masked:
            masked = torch.arange(int(lengths)).unsqueeze(0) == position + 1
            return model.best(model.head(self.bilm.predict_masked(vectors, lengths, masked))[0], k)
        return model.best(model.fitting(position, self.bilm.predict(vectors, lengths, self._state_before(vectors))), k)

    def save(
        self,
        folder: str | Path,
        *,
        format: str = DEFAULT_FORMAT,
        dtype: StoredDtype | None = None,
        softmax: SoftmaxDtype | None = None,
    ) -> None:
        """Write the model as an elmokit folder, or in another format such as "bilm", which the older systems read.

        An elmokit folder stores the tensors in their own dtypes, or in `dtype`: float32, float16 or int8. `softmax` is
        the dtype of the softmax, or "none" to leave it out; by default a float softmax follows `dtype`, and an int8
        softmax stays int8.
        """
        if not str(folder):
            raise ElmoError("the folder to save to must not be empty")
        write_checkpoint(self.checkpoint(), Path(folder), format, dtype=dtype, softmax=softmax)

    def checkpoint(self) -> Checkpoint:
        """The model as a `Checkpoint`, which every format can write."""
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
        )

    def fingerprint(self, *, mixes: bool = False) -> str:
        """A digest of everything that determines the vectors of the layers, the same in every process.

        With `mixes`, the digest also covers the weights of the mixes, which determine `layer="mix"`.
        """
        tensors = self.bilm.state_dict() | (self.mixes.state_dict(prefix="mixes.") if mixes else {})
        norms = [mix.layer_norm for mix in self.mixes] if mixes else None
        return self._fingerprint(tensors, boundaries=self.boundaries, layer_norm=norms)
