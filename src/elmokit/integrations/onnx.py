"""Vectors from a model in one ONNX file, without torch: numpy and ONNX Runtime compute them.

    from elmokit.integrations.onnx import OnnxElmo
    vectors = OnnxElmo("elmo.onnx").encode(["The bank raised rates."])

`elmo export onnx` writes the file. Tokens, characters and batches are the same as in `Elmo`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from elmokit.config import ElmoConfig, OneLayer, TransformerConfig
from elmokit.errors import DamagedFileError, ElmoError, MissingExtraError
from elmokit.layers import Layer, Pool, Vectors, batches, check_layer, pool_tokens
from elmokit.options import check_value
from elmokit.text.chars import SymbolTable, indexer_of, pieces_of
from elmokit.text.policy import Sentence, TextPolicy
from elmokit.text.tokens import SegmenterName, Token
from elmokit.text.vocab import Vocabulary

try:
    import onnxruntime
except ImportError as error:
    raise MissingExtraError("onnxruntime", "onnx", "OnnxElmo") from error

METADATA, VERSION = "elmokit", 1
"""The key in the file's metadata, and the version of its value."""
_BATCH_TOKENS = 2048


class OnnxElmo:
    """A model from `elmo export onnx`, with the methods `encode` and `tokenize` of `Elmo`.

    >>> OnnxElmo("elmo.onnx").encode(["A river bank."])[0].shape  # doctest: +SKIP
    (4, 384)
    """

    def __init__(self, path: str | Path, *, threads: int | None = None, segment: SegmenterName | None = None) -> None:
        """Open a file; `threads` is the number of CPU threads, by default one per core.

        `segment` overrides how strings become tokens, as in `Elmo.load`.
        """
        if threads is not None:
            check_value("threads", threads, int, {"least": 1})
        self.path = Path(path)
        if not self.path.is_file():
            raise ElmoError(f"there is no file {self.path}: write one with elmo export onnx MODEL --output {self.path}")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self._session = onnxruntime.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's errors have no common base class
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise DamagedFileError(f"{self.path} is not an ONNX file that ONNX Runtime can open: {first}") from error
        self.about = self._metadata()
        self.config = ElmoConfig.from_dict(self.about["model"])
        words, symbols = self.about.get("words"), self.about.get("symbols")
        vocab = None if words is None else Vocabulary(words, specials=tuple(self.about["specials"]))
        self._indexer = indexer_of(self.config, vocab, symbols and SymbolTable(symbols), str(self.path))
        text, self.text_policy = TextPolicy.of_model(self.about["text"], segment, str(self.path))
        self._pieces = pieces_of(text.get("segment"), self._indexer, vocab)
        self._reach = 0
        if isinstance(context := self.config.context, TransformerConfig):
            self._reach = context.window * context.n_blocks

    def _metadata(self) -> dict[str, Any]:
        stored = self._session.get_modelmeta().custom_metadata_map.get(METADATA)
        if stored is None:
            raise ElmoError(f"{self.path} was not written by elmo export onnx: it has no metadata named {METADATA}")
        about: dict[str, Any] = json.loads(stored)
        if about.get("version") != VERSION:
            raise ElmoError(
                f"{self.path} has version {about.get('version')!r}, and this elmokit reads {VERSION}: export it again"
            )
        return about

    def __repr__(self) -> str:
        return f"OnnxElmo({str(self.path)!r}, {self.config.n_outputs} layers x {self.config.vector_size})"

    @property
    def default_layer(self) -> OneLayer:
        """The layer that `encode` returns by default."""
        return self.config.context.default_layer

    def tokenize(self, text: str, *, segment: SegmenterName | None = None) -> list[Token]:
        """The tokens of a string with their character offsets: exactly what `encode` sees."""
        return self.text_policy.override(segment).tokenize(text)

    @overload
    def encode(
        self,
        sentences: Sentence | Iterable[Sentence],
        *,
        output: Literal["tokens", "layers"] = "tokens",
        layer: Layer | None = None,
        pool: None = None,
        batch_tokens: int = _BATCH_TOKENS,
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
        batch_tokens: int = _BATCH_TOKENS,
        segment: SegmenterName | None = None,
    ) -> Vectors: ...

    def encode(
        self,
        sentences: Sentence | Iterable[Sentence],
        *,
        output: Literal["tokens", "layers", "sentence"] = "tokens",
        layer: Layer | None = None,
        pool: Pool | None = None,
        batch_tokens: int = _BATCH_TOKENS,
        segment: SegmenterName | None = None,
    ) -> list[Vectors] | Vectors:
        """Sentences → a list of float32 arrays [T, D]; a string is tokenised, a list is taken as tokens.

        `output="layers"` gives [L+1, T, D] for each sentence, `output="sentence"` one array [N, D]. `layer` is "mix",
        "top", "all" or a number from 0; `pool` is "mean" (the default), "max", "first" or "last".
        """
        check_value("output", output, Literal["tokens", "layers", "sentence"])
        if pool is not None and output != "sentence":
            raise ElmoError(f"pool needs output='sentence', got output={output!r}")
        check_value("pool", pool or "mean", Pool)
        check_value("batch_tokens", batch_tokens, int, {"least": 1})
        layer = ("all" if output == "layers" else self.default_layer) if layer is None else layer
        check_layer(layer, self.config.n_outputs)
        if output == "layers" and layer != "all":
            raise ElmoError(f"output='layers' returns all layers, got layer={layer!r}: use output='tokens' for one")
        rows = self.text_policy.override(segment).sentences_of(sentences)
        chosen = [self._chosen(each, layer) for each in self._layers(rows, batch_tokens)]
        if output != "sentence":
            return chosen
        if not chosen:
            layers = (self.config.n_outputs,) if layer == "all" else ()
            return np.zeros((0, *layers, self.config.vector_size), np.float32)
        return np.stack([pool_tokens(vectors, pool or "mean") for vectors in chosen])

    def _layers(self, rows: Sequence[Sequence[str]], batch_tokens: int) -> list[Vectors]:
        """All layers of each sentence without its boundaries, [L+1, T, D]."""
        counts = None
        if self._pieces is not None:
            rows, counts = self._pieces.split(rows)
        begin, end = self._indexer.begin, self._indexer.end
        whole = [[begin, *row, end] for row in rows]
        # A long text is cut into parts that overlap by the reach of a token, so its vectors do not change.
        most = 4 * self._reach or max(map(len, whole), default=0)
        cuts = [_pieces_of(len(row), most, self._reach) for row in whole]
        parts = [(number, cut) for number, each in enumerate(cuts) for cut in each]
        found: dict[tuple[int, int], Vectors] = {}
        for batch in batches([cut[1] - cut[0] for _, cut in parts], batch_tokens):
            values = self._run([whole[parts[i][0]][slice(*parts[i][1][:2])] for i in batch])
            for i, layers in zip(batch, values, strict=True):
                number, (start, _, first, last) = parts[i]
                found[number, first] = layers[:, first - start : last - start].copy()
        joined = (
            found[number, each[0][2]] if len(each) == 1 else np.concatenate([found[number, c[2]] for c in each], axis=1)
            for number, each in enumerate(cuts)
        )
        inner = [layers[:, 1:-1] for layers in joined]
        if counts is None:
            return inner
        return [_means(layers, sizes) for layers, sizes in zip(inner, counts, strict=True)]

    def _run(self, rows: Sequence[Sequence[str]]) -> Iterable[Vectors]:
        """Tokens with their boundaries → all layers of each row, [L+1, T, D]."""
        types = {token: place for place, token in enumerate(dict.fromkeys(chain.from_iterable(rows)))}
        lengths = np.array([*map(len, rows)], np.int32)
        places = np.zeros((len(rows), int(lengths.max())), np.int32)
        places[np.arange(places.shape[1]) < lengths[:, None]] = [types[token] for row in rows for token in row]
        ids = self._indexer([*types])
        given = {"places": places, "lengths": lengths}
        if ids.words is not None:
            given["words"] = ids.words.astype(np.int32)
        if ids.characters is not None:
            given["characters"] = self._trimmed(ids.characters).astype(np.int32)
        [layers] = self._session.run(["layers"], given)
        return (layers[:, row, :length] for row, length in enumerate(lengths.tolist()))

    def _trimmed(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Character ids without most of the padding: every filter needs only one window of padding."""
        characters = self.config.characters
        assert characters is not None
        used = (ids != characters.padding_character).any(axis=0).nonzero()[0]
        longest = int(used[-1]) + 1 if len(used) else 0
        return ids[:, : min(characters.max_characters, longest + characters.widest_filter)]

    def _chosen(self, layers: Vectors, layer: Layer) -> Vectors:
        """All layers [L+1, T, D] → the chosen layer, their mix, or all of them."""
        if layer == "all":
            return np.ascontiguousarray(layers)
        if layer != "mix":
            return np.ascontiguousarray(layers[-1 if layer == "top" else layer])
        mix = self.about["mix"]
        if mix["layer_norm"] and layers.shape[1]:
            mean = layers.mean(axis=(1, 2), keepdims=True)
            layers = (layers - mean) / np.sqrt(np.square(layers - mean).mean(axis=(1, 2), keepdims=True) + 1e-12)
        weights = np.exp(np.array(mix["weights"], np.float32) - np.float32(max(mix["weights"])))
        weights /= weights.sum()
        mixed: Vectors = np.float32(mix["gamma"]) * np.einsum("l,ltd->td", weights, layers)
        return mixed


Cut = tuple[int, int, int, int]
"""(start, stop, first, last): tokens start to stop are read, and the vectors first to last are used."""


def _pieces_of(length: int, most: int, reach: int) -> list[Cut]:
    """The parts of a text of `length` tokens: at most `most` tokens, of which `reach` on each side are unused."""
    if length <= most:
        return [(0, length, 0, length)]
    used = most - 2 * reach
    return [
        (max(0, start - reach), min(length, start + used + reach), start, min(length, start + used))
        for start in range(0, length, used)
    ]


def _means(layers: Vectors, sizes: Sequence[int]) -> Vectors:
    """The mean vectors of the characters of each token: [L+1, N, D] → [L+1, T, D]."""
    if not sizes:
        return layers
    starts = np.cumsum([0, *sizes[:-1]])
    sums: Vectors = np.add.reduceat(layers, starts, axis=1)
    sums /= np.array(sizes, np.float32)[:, None]
    return sums
