"""Counts and times for Prometheus; TEI's names where they mean the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import MissingPackageError
from sluice.retrieval.serving.work.lane import Ran

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    from prometheus_client import (
        CONTENT_TYPE_LATEST as CONTENT_TYPE,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        generate_latest,
    )
except ImportError:
    raise MissingPackageError("prometheus-client", "serve", "serving") from None

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144)


class Metrics:
    """The numbers of one service, in a registry of its own; counters end in ``_total``."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self._requests = Counter("te_request_count", "Requests", ["path"], registry=own)
        self._success = Counter("te_request_success", "Requests answered", ["path"], registry=own)
        self._failure = Counter("te_request_failure", "Requests refused", ["err"], registry=own)
        self._duration = Histogram(
            "te_request_duration", "Seconds of a request", ["path"], buckets=SECONDS, registry=own
        )
        self._waits = Histogram(
            "te_request_queue_duration", "Seconds in the queue", ["lane"], buckets=SECONDS,
            registry=own,
        )  # fmt: skip
        self._runs = Histogram(
            "te_request_inference_duration", "Seconds of a batch", ["lane"], buckets=SECONDS,
            registry=own,
        )  # fmt: skip
        self._sizes = Histogram(
            "te_batch_next_size", "Inputs of a batch", ["lane"], buckets=SIZES, registry=own
        )
        self._tokens = Histogram(
            "te_batch_next_tokens", "Tokens of a batch", ["lane"], buckets=TOKENS, registry=own
        )
        self._inputs = Histogram(
            "te_request_input_length", "Tokens of a request", buckets=TOKENS, registry=own
        )
        self._failed = Counter("sluice_batch_failure", "Batches that failed", registry=own)
        self._queue = Gauge("te_queue_size", "Requests that wait", registry=own)
        self._queued = Gauge("sluice_queue_tokens", "Tokens accepted and not done", registry=own)
        self._state = Gauge("sluice_state", "The state of the documents", registry=own)

    def watch(
        self, waiting: Callable[[], int], used: Callable[[], int], state: Callable[[], int]
    ) -> None:
        """Take three numbers when they are asked for."""
        self._queue.set_function(waiting)
        self._queued.set_function(used)
        self._state.set_function(state)

    def saw_input(self, tokens: int) -> None:
        """Note the tokens of an accepted request."""
        self._inputs.observe(tokens)

    def saw_batch(self, ran: Ran) -> None:
        """Note a batch that ran."""
        self._runs.labels(ran.lane).observe(ran.seconds)
        self._sizes.labels(ran.lane).observe(ran.units)
        self._tokens.labels(ran.lane).observe(ran.tokens)
        for wait in ran.waits:
            self._waits.labels(ran.lane).observe(wait)
        if ran.error:
            self._failed.inc()

    def saw_request(self, path: str, seconds: float, refused: str | None) -> None:
        """Note an answer, or the kind of its refusal."""
        self._requests.labels(path).inc()
        self._duration.labels(path).observe(seconds)
        if refused is None:
            self._success.labels(path).inc()
        else:
            self._failure.labels(refused).inc()

    def text(self) -> bytes:
        """Return all numbers in Prometheus' text format."""
        return bytes(generate_latest(self.registry))


__all__ = ["CONTENT_TYPE", "Metrics"]
