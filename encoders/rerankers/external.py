"""Scorers outside Sluice: a function, another library's ``CrossEncoder``, Cohere's ``/rerank``."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.dense.remote.encoder import (
    RERANK,
    RERANKING,
    Api,
    HttpService,
    Usage,
    rerank_body,
    scores_in,
)
from sluice.encoders.dense.remote.http_json import in_threads
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.table import USUAL_RANKER

log = logging.getLogger("sluice")


class HttpReranker(HttpService):
    """Scores from a server that is sent a query with up to ``batch_size`` of its texts.

    ``url`` is the server's base, as ``https://api.cohere.com/v2``; ``api`` its shape: ``cohere``
    (also Jina, vLLM, Infinity) or ``tei`` (text-embeddings-inference, which knows no ``model``).
    Scores are the server's own. Texts beyond ``max_characters`` are cut. Requests, keys and
    failures are as in ``HttpEncoder``; ``price`` is that of a thousand searches.
    """

    def __init__(
        self,
        url: Annotated[str, "The server's base, such as https://api.cohere.com/v2."],
        model: Annotated[
            str, "The name that the server knows the model by; api tei takes none."
        ] = "",
        *,
        api: Annotated[
            Api, "The shape of the server's requests: cohere (also Jina, vLLM) or tei."
        ] = "cohere",
        max_characters: Annotated[
            int | None, "Texts beyond so many characters are cut before they are sent."
        ] = None,
        batch_size: Annotated[int, "Texts of a request, at most."] = 64,
        concurrency: int = 4,
        requests_per_minute: Annotated[
            float | None, "Requests begin so far apart; left out, at once."
        ] = None,
        api_key_env: str | None = None,
        api_key_file: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 4,
        backoff_s: float = 1.0,
        price: Annotated[
            float, "What a thousand searches cost, by which the cost is counted."
        ] = 0.0,
    ) -> None:
        self.connect(locals(), RERANKING, RERANK, "a thousand searches")
        self.batch_size = whole_number(batch_size, "batch_size", 1)
        self.usage = Usage(per_thousand_searches=price)
        self.name = model or self.url

    @property
    def fingerprint(self) -> str:
        """A hash of address, model and settings; the server's weights cannot be hashed."""
        facts = [self.url, self.model, self.api, self.max_characters]
        return fingerprint_of("sluice.http_rerank", facts)

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return the server's score of each (query, text) pair, float32 ``[n]``.

        Blank texts are not sent: they get the lowest score of the call, as do pairs of a blank
        query.
        """
        scores = np.full(len(pairs), np.nan, np.float32)
        places: dict[str, list[int]] = {}
        for place, (query, text) in enumerate(pairs):
            if query.strip() and text.strip():
                places.setdefault(query, []).append(place)
        batches = [
            (query, rows[start : start + self.batch_size])
            for query, rows in places.items()
            for start in range(0, len(rows), self.batch_size)
        ]
        calls = [(query, [pairs[row][1] for row in rows]) for query, rows in batches]
        answers = in_threads(self._ask, calls, self.concurrency)
        for (_, rows), each in zip(batches, answers, strict=True):
            scores[rows] = each
        if len(batches) > 1:
            log.info("%s: so far %s", self.endpoint.url, self.usage)
        unsent = np.isnan(scores)
        scores[unsent] = np.min(scores[~unsent], initial=np.inf) if not unsent.all() else 0.0
        return scores

    def _ask(self, query: str, texts: Sequence[str], stop: threading.Event) -> list[float]:
        sent = [text[: self.max_characters] for text in texts]
        body = rerank_body(self.api, self.model, query[: self.max_characters], sent)

        return self.rows(body, scores_in, len(texts), stop)

    def __repr__(self) -> str:
        return f"HttpReranker({self.endpoint.url!r}, {self.model!r})"


class FunctionScorer:
    """Scores pairs by a function: of a list of (query, document) pairs, or of a query and texts.

    Which of the two is seen from its required parameters: one, or two. It returns one number per
    pair, or per text, higher is better. ``name`` is shown in tables; given, it is also the
    fingerprint that saved scores are known by.
    """

    def __init__(self, function: Callable[..., Any], *, name: str = "") -> None:
        self.function = function
        self.name = name or getattr(function, "__name__", "") or type(function).__name__
        self.name = "function" if self.name == "<lambda>" else self.name
        self.fingerprint = fingerprint_of("sluice.function_scorer", name) if name else None
        self.by_query = _required(function) >= 2

    def score(self, pairs: Sequence[tuple[str, str]]) -> Any:
        """Return the function's numbers, one per pair."""
        if not self.by_query:
            return self.function(list(pairs))
        scores: list[float] = []
        for query, group in groupby(pairs, key=itemgetter(0)):
            texts = [text for _, text in group]
            returned = self.function(query, texts)
            try:
                found = [float(score) for score in returned]
            except (TypeError, ValueError):
                raise DataError(
                    f"{self.name}: returned {returned!r:.60}; expected a number for each text"
                ) from None
            if len(found) != len(texts):
                raise DataError(f"{self.name}: {len(found)} scores for {len(texts)} texts")
            scores += found
        return scores

    def __repr__(self) -> str:
        return f"FunctionScorer({self.name!r})"


class PredictScorer:
    """Scores pairs by the ``predict`` of a sentence-transformers ``CrossEncoder`` object."""

    def __init__(self, model: Any, *, batch_size: int = 32) -> None:
        self.model, self.batch_size = model, batch_size
        self.name = USUAL_RANKER

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return getattr(self.model, "tokenizer", None)

    def score(self, pairs: Sequence[tuple[str, str]]) -> Any:
        """Return the model's scores, one per pair."""
        if not len(pairs):
            return []
        inputs = [list(pair) for pair in pairs]
        return self.model.predict(inputs, batch_size=self.batch_size, show_progress_bar=False)

    def save_pretrained(self, path: Any) -> None:
        """Write the model's own folder."""
        self.model.save_pretrained(str(path))

    def __repr__(self) -> str:
        return f"PredictScorer({type(self.model).__name__})"


def _required(function: Callable[..., Any]) -> int:
    """Return how many positional arguments a function must have, 1 if nobody can tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters)
