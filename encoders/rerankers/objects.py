"""Scorers of what a program has already: a function, or a ``CrossEncoder`` of another library."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.table import USUAL_RANKER


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
