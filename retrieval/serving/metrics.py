"""Counts and times for Prometheus; TEI's names where they mean the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import needed_package
from sluice.retrieval.serving.work.lane import Ran

if TYPE_CHECKING:
    from collections.abc import Callable

with needed_package("prometheus-client", "serve", "serving"):
    from prometheus_client import (
        CONTENT_TYPE_LATEST as CONTENT_TYPE,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        generate_latest,
        values,
    )
    from prometheus_client.multiprocess import MultiProcessCollector

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144)


SHARED = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus-client keeps numbers of several processes


def count_as_worker(folder: Path, number: int) -> None:
    """Keep the numbers of this process in a folder, to be added to those of other workers.

    They are named by the worker's number: one that takes the place of another counts on.
    """
    os.environ[SHARED] = str(folder)
    values.ValueClass = values.MultiProcessValue(process_identifier=lambda: number)


class Metrics:
    """The numbers of one service, in a registry of its own; counters end in ``_total``.

    Those of workers are added up, except for the state, which each has with ``pid``, its number.
    """

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self._folder = os.environ.get(SHARED)
        self._now: tuple[Callable[[], int], ...] = ()
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
        self._unserved = Counter(
            "sluice_write_not_served", "Changes on disk that were not served at once", registry=own
        )
        self._gauges = (
            Gauge(
                "te_queue_size", "Requests that wait", registry=own, multiprocess_mode="livesum"
            ),
            Gauge(
                "sluice_queue_tokens", "Tokens accepted and not done", registry=own,
                multiprocess_mode="livesum",
            ),
            Gauge(
                "sluice_state", "The state of the documents", registry=own,
                multiprocess_mode="liveall",
            ),
        )  # fmt: skip

    def watch(
        self, waiting: Callable[[], int], used: Callable[[], int], state: Callable[[], int]
    ) -> None:
        """Take three numbers, which change by themselves."""
        self._now = (waiting, used, state)
        self._look()

    def _look(self) -> None:
        for gauge, now in zip(self._gauges, self._now, strict=False):
            gauge.set(now())

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

    def saw_unserved_write(self) -> None:
        """Note a change that is on disk, and not served yet."""
        self._unserved.inc()

    def saw_request(self, path: str, seconds: float, refused: str | None) -> None:
        """Note an answer, or the kind of its refusal."""
        self._requests.labels(path).inc()
        self._duration.labels(path).observe(seconds)
        if refused is None:
            self._success.labels(path).inc()
        else:
            self._failure.labels(refused).inc()
        if self._folder is not None:  # another worker may be asked for them
            self._look()

    def text(self) -> bytes:
        """Return all numbers in Prometheus' text format."""
        self._look()
        if self._folder is None:
            return bytes(generate_latest(self.registry))
        together = CollectorRegistry()
        MultiProcessCollector(together, self._folder)
        return bytes(generate_latest(together))


__all__ = ["CONTENT_TYPE", "Metrics", "count_as_worker"]
