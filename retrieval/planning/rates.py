"""How fast this machine encodes, scores and trains with a model: measured on a few texts.

What is not measured is assumed, and says so.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sluice.encoders.foundation.machine import peak_memory_bytes
from sluice.retrieval.config.components import make_encoder
from sluice.retrieval.datasets.dataset import Dataset
from sluice.training.protocol import BiEncoder, PairEncoder

log = logging.getLogger("sluice")

BACKWARD = 3  # a training step against encoding its texts: forward, and twice that backward
MOMENTS = 4  # copies of the weights in training: weights, gradients, two moments of Adam
CHECKPOINT = 3  # copies of the weights in a checkpoint: weights, two moments of Adam
COUNTED_PER_SECOND = 4_000  # documents that BM25 counts and indexes; assumed
SEARCH_SECONDS = 0.01  # a query against one retriever, encoded and searched; assumed
TRIAL = 32  # texts of a trial
FLOAT = 4  # bytes of a weight


class Rate(NamedTuple):
    """Seconds of encoding one document, or of scoring one pair, and the model's size."""

    seconds: float
    parameters: int

    def training_step(self, texts: float) -> float:
        """Return the seconds of a step over so many documents or pairs."""
        return BACKWARD * self.seconds * texts

    @property
    def training_memory_bytes(self) -> int:
        """A guess at the memory of training: what is held already, and the optimiser's copies."""
        return peak_memory_bytes() + (MOMENTS - 1) * FLOAT * self.parameters

    def model_bytes(self, copies: int = 1) -> int:
        """Return the disk space of so many copies of the weights."""
        return copies * FLOAT * self.parameters


class Rates:
    """Rates by model, each measured once, on texts of a dataset."""

    def __init__(self, dataset: Dataset | None) -> None:
        self._dataset = dataset
        self._known: dict[str, Rate] = {}

    def of(self, spec: Mapping[str, Any]) -> Rate:
        """Return the rate of an encoder or reranker; it is loaded, and reads a few texts."""
        key = repr(sorted(spec.items(), key=str))
        if key not in self._known:
            self._known[key] = self._measured(spec)
        return self._known[key]

    def _measured(self, spec: Mapping[str, Any]) -> Rate:
        level = log.level
        log.setLevel(logging.ERROR)  # a new head is expected: it will be trained
        try:
            encoder = make_encoder(spec, where="encoder", model=str)
        finally:
            log.setLevel(level)
        texts = self._texts
        if spec.get("type") == "cross_encoder":
            pairs = [(texts[0][:100], text) for text in texts]
            seconds = _timed(lambda: encoder.score(pairs))
        else:
            seconds = _timed(lambda: encoder.encode_documents(texts))
        trained = isinstance(encoder, BiEncoder | PairEncoder)
        parameters = sum(each.numel() for each in encoder.module.parameters()) if trained else 0
        return Rate(seconds / len(texts), parameters)

    @functools.cached_property
    def _texts(self) -> list[str]:
        corpus = () if self._dataset is None else self._dataset.corpus
        texts = [document.full_text for document in itertools.islice(corpus, TRIAL)]
        return texts or ["a text of some length, as a document of a collection may have"] * TRIAL


def _timed(work: Callable[[], object]) -> float:
    """Return the seconds of the faster of two passes; the first makes room and loads."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
