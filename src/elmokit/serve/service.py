"""The served model and its state (loading, ready, draining); texts → tokens → vectors."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from elmokit import __version__
from elmokit.errors import ElmoError
from elmokit.serve.batcher import BOUNDARIES, Batcher, Work
from elmokit.serve.errors import RequestError, not_ready, overloaded
from elmokit.serve.fields import Fields, Text
from elmokit.serve.maps import demo_index
from elmokit.serve.metrics import Metrics
from elmokit.serve.settings import ServeSettings

if TYPE_CHECKING:
    from elmokit.analyse import OccurrenceIndex
    from elmokit.elmo import Elmo
    from elmokit.layers import Layer, Pool, Vectors
    from elmokit.text.tokens import Token

log = logging.getLogger(__name__)

CPU_BATCH_TOKENS, GPU_BATCH_TOKENS = 512, 8192
"""On a CPU the batches are smaller than in `Elmo.encode`: they are as fast, and a new request waits less."""
_CHARACTERS_PER_TOKEN = 250
"""A longer text than this many characters per allowed token is cut before it is tokenised."""
_CHARACTERS_AT_ONCE = 20_000
"""A longer text is tokenised in another thread, so that other requests do not wait."""


@dataclass(frozen=True)
class TokenisedTexts:
    """The texts of a request as lists of tokens."""

    rows: list[list[str]]
    sizes: list[int]
    """Tokens of each text that the network reads, including the boundaries."""
    spans: list[list[Token]] | None
    """The tokens with their offsets, if requested."""
    characters: int
    cut: int
    """Number of texts that were cut."""
    seconds: float

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(map(len, self.rows))


class Service:
    """One model and its queue."""

    def __init__(self, load: Callable[[], Elmo], settings: ServeSettings, name: str) -> None:
        """`load` is called in the background after the server has started."""
        self.settings, self.name = settings, settings.served_name or name
        self.metrics = Metrics()
        self.batcher = Batcher(self.metrics, max_queue_tokens=settings.max_queue_tokens, max_wait=settings.max_wait)
        self.state: Literal["loading", "ready", "draining", "failed"] = "loading"
        self.failure: Exception | None = None
        """Why the model could not be loaded."""
        self.on_failure: Callable[[], None] = lambda: None
        self.created = int(time.time())
        self.accepted = 0
        """Number of accepted requests that are not answered yet."""
        self.indexes: dict[str, OccurrenceIndex] = {}
        self.searching = asyncio.Lock()
        """Allows one search of an index at a time, so that searches leave the processor to the model."""
        self.cached_senses: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        """The last responses of /senses."""
        self._elmo: Elmo | None = None
        self._reserved = 0
        self._load = load
        self._loading: threading.Thread | None = None

    @property
    def elmo(self) -> Elmo:
        """The model, for a request that was accepted."""
        assert self._elmo is not None
        return self._elmo

    @property
    def layers(self) -> int:
        """The number of layers that a request can choose from."""
        return self.elmo.config.n_outputs

    # Start and end

    def start(self) -> None:
        """Load the model in the background; the event loop must run."""
        loop = asyncio.get_running_loop()
        self._loading = threading.Thread(
            target=self._load_in_background, args=(loop,), name="elmokit-load", daemon=True
        )
        self._loading.start()

    def _load_in_background(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            elmo = self._load()
            layer = self._default_layer(elmo)
            indexes = _open_indexes(elmo, self.settings)
            usual = CPU_BATCH_TOKENS if elmo.device.type == "cpu" else GPU_BATCH_TOKENS
            self.batch_tokens = self.settings.max_batch_tokens or usual
            rate = _first_rate(elmo, layer, self.batch_tokens)
        except Exception as error:  # noqa: BLE001 - reported to the event loop, which ends the server
            loop.call_soon_threadsafe(self._failed, error)
        else:
            loop.call_soon_threadsafe(self._loaded, elmo, layer, indexes, loop, rate)

    def _default_layer(self, elmo: Elmo) -> Layer:
        from elmokit.layers import check_layer

        given = self.settings.layer
        layer = elmo.default_layer if given is None else int(given) if given.isdigit() else given
        check_layer(cast("Layer", layer), elmo.config.n_outputs, single=True)
        return cast("Layer", layer)

    def _loaded(
        self,
        elmo: Elmo,
        layer: Layer,
        indexes: dict[str, OccurrenceIndex],
        loop: asyncio.AbstractEventLoop,
        rate: float,
    ) -> None:
        self._elmo, self.layer, self.indexes = elmo, layer, indexes
        self.batcher.start(elmo, loop, self.batch_tokens, rate)
        self.metrics.describe(elmo, self.name, __version__)
        if self.state == "loading":
            self.state = "ready"
            self.metrics.ready.set(1)
            log.info("ready: %r", elmo)

    def _failed(self, error: Exception) -> None:
        self.state, self.failure = "failed", error
        self.on_failure()

    def begin_drain(self) -> None:
        """Refuse new requests from now on; the accepted ones are finished."""
        self.state = "draining"
        self.metrics.ready.set(0)

    @property
    def is_ready(self) -> bool:
        """Whether the server accepts requests, and the last batch did not fail."""
        return self.state == "ready" and self.batcher.healthy

    @property
    def is_busy(self) -> bool:
        """Whether a thread still loads the model or computes vectors."""
        return any(thread is not None and thread.is_alive() for thread in (self._loading, self.batcher.thread))

    # Requests

    @contextmanager
    def accept(self) -> Iterator[None]:
        """Count a request until it is answered; refused while the model is loaded or the server stops."""
        if self.state != "ready":
            raise not_ready("the server is stopping" if self.state == "draining" else "the model is being loaded")
        self.accepted += 1
        try:
            yield
        finally:
            self.accepted -= 1

    @contextmanager
    def reserve(self, size: int, what: str) -> Iterator[None]:
        """Reserve memory for a request or its response; refused above a quarter of the limit, or above it in all."""
        limit = self.settings.memory_bytes
        if size > limit // 4:
            self.metrics.rejected.labels("answer_size").inc()
            raise RequestError(
                422, f"{what} would need {size / 1e6:,.0f} MB, and {limit / 4e6:,.0f} are allowed: send less text"
            )
        if self._reserved + size > limit:
            self.metrics.rejected.labels("memory").inc()
            raise overloaded("too many requests are being answered", 1)
        self._reserved += size
        self.metrics.memory.set(self._reserved)
        try:
            yield
        finally:
            self._reserved -= size
            self.metrics.memory.set(self._reserved)

    async def tokenise(
        self,
        texts: Sequence[Text],
        *,
        truncate: bool,
        left: bool = False,
        most: int | None = None,
        spans: bool = False,
        name: str = "inputs",
    ) -> TokenisedTexts:
        """Texts → tokens; a text over the limit is cut, or refused without `truncate`.

        `left`: cut the beginning of a text, not its end. `most`: a limit on the tokens of a text below the server's.
        `name` is the field of the request that has the texts.
        """
        begin = time.perf_counter()
        elmo, limit = self.elmo, min(most or self.settings.max_input_tokens, self.settings.max_input_tokens)
        rows: list[list[str]] = []
        found: list[list[Token]] = []
        characters, since, cut = 0, 0, 0
        for number, text in enumerate(texts):
            length = len(text) if isinstance(text, str) else sum(map(len, text))
            shorter, is_cut = _shortened(text, length, limit, left)
            if is_cut and not truncate:
                raise _too_long(name, number, limit, f"{length:,} characters")
            tokens: Any  # a list of strings, or with `spans` of tokens with their offsets
            if isinstance(shorter, str):
                split: Callable[[str], list[Any]] = elmo.tokenize if spans else elmo.text_policy.split
                tokens = await asyncio.to_thread(split, shorter) if length > _CHARACTERS_AT_ONCE else split(shorter)
                if spans and left and is_cut:  # offsets in the whole text
                    cut_off = length - len(shorter)
                    tokens = [token._replace(start=token.start + cut_off, end=token.end + cut_off) for token in tokens]
            else:
                tokens = _spans_of(shorter) if spans else shorter
            if len(tokens) > limit:
                if not truncate:
                    raise _too_long(name, number, limit, f"{len(tokens):,} tokens")
                tokens, is_cut = (tokens[-limit:] if left else tokens[:limit]), True
            if spans:
                found.append(tokens)
            rows.append([token.text for token in tokens] if spans else tokens)
            cut += is_cut
            characters, since = characters + length, since + length
            if since > _CHARACTERS_AT_ONCE:
                since = 0
                await asyncio.sleep(0)  # the event loop serves other requests
        pieces = elmo.character_pieces
        sizes = [(len(row) if pieces is None else pieces.count(row)) + BOUNDARIES for row in rows]
        return TokenisedTexts(rows, sizes, found if spans else None, characters, cut, time.perf_counter() - begin)

    async def encode(
        self,
        texts: TokenisedTexts,
        *,
        layer: Layer | None = None,
        pool: Pool | None = None,
        reduce: Callable[[int, Vectors], Any] | None = None,
    ) -> Work:
        """One vector per text, or without `pool` one per token."""
        return await self.batcher.encode(
            texts.rows, texts.sizes, layer=self.layer if layer is None else layer, pool=pool, reduce=reduce
        )

    def layer_of(self, fields: Fields, *, allow_all: bool = False, compared: bool = False) -> Layer:
        """The layer that a request asks for; if vectors are `compared`, the default is that of `Elmo.similarity`."""
        layer = fields.layer(layers=self.layers, allow_all=allow_all)
        if layer is not None:
            return cast("Layer", layer)
        return self.elmo.config.context.similarity_layer if compared and self.settings.layer is None else self.layer

    def pool_of(self, fields: Fields) -> Pool:
        """The pooling that a request asks for."""
        return cast("Pool", fields.choice("pool", self.settings.pool, ("mean", "max", "first", "last")))


def _shortened(text: Text, length: int, limit: int, left: bool) -> tuple[Text, bool]:
    """A string cut to a length that is safe for the token limit, and whether it was cut."""
    if isinstance(text, str):
        most = limit * _CHARACTERS_PER_TOKEN
        if length <= most:
            return text, False
        return (text[-most:] if left else text[:most]), True
    return text, False


def _too_long(name: str, number: int, limit: int, got: str) -> RequestError:
    message = f"a text may have {limit:,} tokens, and text {number} has {got}: set truncate, or split it"
    return RequestError(422, message, param=name, code="context_length_exceeded")


def _spans_of(tokens: Sequence[str]) -> list[Token]:
    """Given tokens with their offsets in the text that results from joining them with spaces."""
    from elmokit.text.tokens import Token

    found, start = [], 0
    for token in tokens:
        found.append(Token(token, start, start + len(token)))
        start += len(token) + 1
    return found


def _first_rate(elmo: Elmo, layer: Layer, batch_tokens: int) -> float:
    """Compute a batch twice: the first time prepares the model, the second gives its tokens per second."""
    rows = [["a"] * (32 - BOUNDARIES)] * max(batch_tokens // 32, 1)
    for _ in range(2):
        begin = time.perf_counter()
        list(elmo.stream(rows, layer=layer, pool="mean", batch_tokens=batch_tokens))
        seconds = time.perf_counter() - begin
    return 32 * len(rows) / seconds


def _open_indexes(elmo: Elmo, settings: ServeSettings) -> dict[str, OccurrenceIndex]:
    """The indexes by the names of their folders, and the index of the demo."""
    if not settings.index and not settings.demo:
        return {}
    from elmokit.analyse.index_cache import find_index

    found: dict[str, OccurrenceIndex] = {}
    for folder in settings.index:
        name = folder.resolve().name
        if name in found:
            raise ElmoError(f"the folders of index must have different names, got {name} twice", "index")
        found[name] = find_index(elmo, None, index=folder)
    if settings.demo:
        found["demo"] = demo_index(elmo)
    return found
