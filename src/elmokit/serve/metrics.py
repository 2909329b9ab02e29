"""The server's metrics for Prometheus; each server has its own registry, so that a process can have several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from elmokit.elmo import Elmo

SECONDS = tuple(0.0005 * 2**power for power in range(17))
"""0.5 ms to 33 s."""
SIZES = tuple(float(2**power) for power in range(18))
"""1 to 131,072."""


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            "elmokit_requests", "Requests that were answered.", ["route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "elmokit_request_seconds", "Time from the headers of a request to the end of its response.",
            ["route"], buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.texts = Counter("elmokit_texts", "Texts that were computed.", registry=registry)
        self.tokens = Counter("elmokit_tokens", "Tokens that were computed, without boundaries.", registry=registry)
        self.rejected = Counter(
            "elmokit_rejected", "Requests that were refused by a limit.", ["reason"], registry=registry
        )
        self.dropped = Counter("elmokit_dropped", "Requests whose client disconnected.", registry=registry)
        self.failed = Counter("elmokit_failed_batches", "Batches whose computation failed.", registry=registry)
        self.queue_seconds = Histogram(
            "elmokit_queue_seconds", "Time of a request in the queue, until its first text is computed.",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.compute_seconds = Histogram(
            "elmokit_compute_seconds", "Time to compute a batch.", buckets=SECONDS, registry=registry
        )
        self.batch_texts = Histogram("elmokit_batch_texts", "Texts per batch.", buckets=SIZES, registry=registry)
        self.batch_tokens = Histogram(
            "elmokit_batch_tokens", "Tokens per batch, boundaries counted.", buckets=SIZES, registry=registry
        )
        self.queue_tokens = Gauge(
            "elmokit_queue_tokens", "Tokens in the queue or being computed, boundaries counted.", registry=registry
        )
        self.memory = Gauge("elmokit_reserved_bytes", "Memory reserved by open requests.", registry=registry)
        self.ready = Gauge("elmokit_ready", "1 if the server accepts requests.", registry=registry)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def describe(self, elmo: Elmo, model: str, version: str) -> None:
        """Add the metrics that need the loaded model."""
        info = Gauge(
            "elmokit_build_info", "Version, model and dtype.", ["version", "model", "dtype"], registry=self.registry
        )
        info.labels(version, model, elmo.dtype).set(1)
        self.registry.register(_TypeCacheCollector(elmo))

    def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics as text, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class _TypeCacheCollector(Collector):
    """Reads the counters of the model's word cache when the metrics are requested."""

    def __init__(self, elmo: Elmo) -> None:
        self._cache = elmo.type_cache

    def collect(self) -> Iterator[Metric]:
        """The two counters of the cache."""
        hits, misses = self._cache.hits, self._cache.misses
        yield CounterMetricFamily("elmokit_type_cache_hits", "Words whose vector was cached.", value=hits)
        yield CounterMetricFamily("elmokit_type_cache_misses", "Words whose vector was computed.", value=misses)
