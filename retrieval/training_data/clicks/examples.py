"""Training examples of click logs: ``examples: {type: clicks}``."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from sluice.encoders.foundation.bounded_input import expanded, read_whole, same_text_key
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number, plural, whole_number
from sluice.retrieval.training_data.clicks.log import Counts, read_log, unknown
from sluice.retrieval.training_data.clicks.models import (
    Estimate,
    Floats,
    Model,
    check_propensities,
    estimate,
    summary,
)
from sluice.retrieval.training_data.files.examples import (
    document_texts,
    known_positives,
    query_texts,
    tested_texts,
    untested,
)
from sluice.retrieval.training_data.files.rows import ExampleSource, Labelled, Named, Row

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training import Example

log = logging.getLogger("sluice")

CLIP = 0.05  # the least propensity that divides, if the section does not say
SMOOTHING = 1.0  # impressions of the mean relevance that each document is given beside its own
MOST_GRADES = 30


@dataclass(frozen=True, slots=True)
@checked()
class ClickExamples(ExampleSource):
    """What users clicked, with the bias of its position taken out by a click ``model``.

    ``file`` is a log or several, read in that order: rows of ``query_id`` or ``query``, ``doc_id``,
    ``position`` and ``clicked``, or ``clicks`` and ``impressions``, and ``session`` for the models
    that need it. ``model`` is ``counts`` (clicks as they are), ``pbm`` (position bias, estimated,
    or given as ``propensities``: a list from position 1 on, or a file of `sluice teach clicks`),
    ``cascade`` or ``dbn``.

    ``positives: each`` makes an example of every clicked document, which weighs what it would have
    been clicked had users looked at it each time it was shown: its clicks by inverse propensity
    (Joachims, Swaminathan and Schnabel 2017, WSDM), the mean of all examples being 1.
    ``together`` makes one of each query, whose labels are the documents' estimated relevance from 0
    to 1, drawn to the mean by ``smoothing`` impressions; with ``grades`` G they are whole numbers:
    the y with (2^y - 1) / (2^G - 1) nearest in logarithm to the share of the query's most relevant.
    Documents that were looked at and never clicked are negatives, the most seen first, at most
    ``per_query``. Propensities below ``clip`` count as ``clip``. With ``unknown: skip`` rows of
    queries and documents that the dataset lacks are left out.
    """

    file: Annotated[
        str | list[str],
        "The click log, or several: query_id or query, doc_id, position, clicked, or "
        "clicks and impressions, and session where the model needs it.",
    ]
    model: Annotated[
        Model,
        "What explains the clicks beside relevance: nothing (counts), the position (pbm), "
        "or users who go down the page (cascade, dbn).",
    ] = "pbm"
    propensities: Annotated[
        str | list[float] | None,
        "The chances that users look at positions 1, 2, ..., or a file of `sluice teach "
        "clicks`; left out, estimated.",
    ] = None
    positives: Annotated[
        Literal["each", "together"],
        "Each clicked document an example, weighed by inverse propensity, or together with "
        "their query's others, labelled by relevance.",
    ] = "each"
    grades: Annotated[
        int | None,
        "Labels are whole numbers from 0 to this, relevance being their gain; left out, "
        "the relevance from 0 to 1.",
    ] = None
    smoothing: Annotated[
        float | None,
        "Impressions of mean relevance that a document has beside its own; left out, 1.",
    ] = None
    clip: Annotated[float | None, "The least propensity that divides; left out, 0.05."] = None
    per_query: Annotated[
        int | None, Ge(0), "Negatives of an example, at most: looked at, and never clicked."
    ] = None
    unknown: Annotated[
        Literal["refuse", "skip"],
        "Whether rows of queries and documents that the dataset lacks are an error.",
    ] = "refuse"

    def __post_init__(self) -> None:
        if not self.file:
            raise ConfigError("file: empty; give the path of a click log, or a list of paths")
        self._refuse_unread()
        if isinstance(self.propensities, list):
            check_propensities(self.propensities, "propensities")
        for name, most in (("clip", 1.0), ("smoothing", math.inf)):
            if getattr(self, name) is not None:
                finite_number(getattr(self, name), name, 0.0, most)
        if self.grades is not None:
            whole_number(self.grades, "grades", 1, MOST_GRADES)

    def _refuse_unread(self) -> None:
        """Raise ``ConfigError`` for settings that have no effect beside the others."""
        for name in ("propensities", "clip"):
            if getattr(self, name) is not None and self.model != "pbm":
                raise ConfigError(
                    f"{name}: is of model: pbm, and {self.model} has no propensities; leave it out"
                )
        for name in ("grades", "smoothing"):
            if getattr(self, name) is not None and self.positives == "each":
                raise ConfigError(
                    f"{name}: is of labels, and with positives: each every label is 1; leave it "
                    "out, or set positives: together"
                )

    @property
    def logs(self) -> list[Path]:
        """The logs in the order they are read."""
        return [
            expanded(name) for name in ([self.file] if isinstance(self.file, str) else self.file)
        ]

    @property
    def paths(self) -> list[Path]:
        """The logs, and the file of propensities."""
        propensities = self.propensities
        return [*self.logs, *([expanded(propensities)] if isinstance(propensities, str) else [])]

    def first_rows(self) -> Iterator[Row]:
        """Yield the first row of every log; ``DataError`` for one that cannot be read."""
        self._propensities()
        for path in self.logs:
            first = next(read_log([path]))
            document = Labelled(Named(first.document, None), float(first.clicks > 0))
            yield Row(first.place, first.query, (document,))

    def estimate(self) -> Estimate:
        """Read the logs and explain their clicks by the model."""
        clip = CLIP if self.clip is None else self.clip
        return estimate(self.logs, self.model, propensities=self._propensities(), clip=clip)

    def examples(self, dataset: Dataset, seed: int) -> list[Example]:
        """Return the logs' examples, in the order of their queries.

        ``dataset`` gives texts by id, further known positives, and the queries of ``dev`` and
        ``test``, whose rows are left out with a warning. Raises ``DataError`` for ids that it
        lacks, at the first row that has one, and if no query has a click.
        """
        estimated = self.estimate()
        log.info("%s: %s", self.logs[0], summary(estimated))
        queries, texts = self._texts(estimated.counts, dataset)
        examples = list(self._examples(estimated, dataset, queries, texts))
        without = len(queries) - len({example.query.id for example in examples})
        if not examples:
            raise DataError(
                f"{self.logs[0]}: of {plural(len(queries), 'query')} outside dev and test none has "
                "a click that counts, and so nothing to train on"
            )
        if without:
            log.warning(
                "%s: left out %s of %s: without a click that counts", self.logs[0],
                f"{without:,}", plural(len(queries), "query"),
            )  # fmt: skip
        if self.positives == "together":
            return examples
        mean = sum(example.weight for example in examples) / len(examples)
        return [replace(example, weight=example.weight / mean) for example in examples]

    def _examples(
        self,
        estimated: Estimate,
        dataset: Dataset,
        queries: Mapping[str, str],
        texts: Mapping[str, str],
    ) -> Iterator[Example]:
        from sluice.training import Example, Text

        labels = self._labels(estimated)
        own: dict[str, list[tuple[int, str]]] = {name: [] for name in queries}
        for (name, document), pair in estimated.counts.pairs.items():
            if name in own and document in texts:
                own[name].append((pair, document))
        each = self.positives == "each"
        for name, pairs in own.items():
            best = sorted(pairs, key=lambda one: -labels[one[0]])
            best = [one for one in best if labels[one[0]] > 0]
            known = known_positives(name, queries[name], dataset)
            relevant = frozenset(known.union(document for _, document in best))
            same = {same_text_key(texts[document]) for document in relevant & texts.keys()}
            negatives = [
                one
                for one in _unclicked(pairs, estimated)
                if one[1] not in relevant and same_text_key(texts[one[1]]) not in same
            ][: self.per_query]
            for group in [[one] for one in best] if each else [best] if best else []:
                documents = [*group, *negatives]
                yield Example(
                    Text(name, queries[name]),
                    tuple(Text(document, texts[document]) for _, document in documents),
                    () if each else tuple(float(labels[pair]) for pair, _ in documents),
                    relevant,
                    weight=float(labels[group[0][0]]) if each else 1.0,
                )

    def _labels(self, estimated: Estimate) -> Floats:
        """Return the pairs' weights with ``positives: each``, else labels; 0: not a positive."""
        if self.positives == "each":
            return estimated.weights
        smoothing = SMOOTHING if self.smoothing is None else self.smoothing
        relevance = np.where(estimated.clicked > 0, estimated.relevance(smoothing), 0.0)
        if self.grades is None:
            return relevance
        return graded(relevance, [query for query, _ in estimated.counts.pairs], self.grades)

    def _texts(self, counts: Counts, dataset: Dataset) -> tuple[dict[str, str], dict[str, str]]:
        """Return the texts of the log's queries, without tested ones, and of its documents."""
        skip = self.unknown == "skip"
        by_id = {name for name, (query, _) in counts.queries.items() if query.text is None}
        known = query_texts(by_id, dataset)
        places = {name: place for name, (_, place) in counts.queries.items() if name in by_id}
        absent = unknown(known, places, "query", dataset.name, skip=skip)
        texts = document_texts(set(counts.documents), dataset)
        gone = unknown(texts, counts.documents, "document", dataset.name, skip=skip)
        if absent or gone:
            log.warning(
                "%s: left out what %s lacks: %s and %s of the log", self.logs[0], dataset.name,
                plural(len(absent), "query"), plural(len(gone), "document"),
            )  # fmt: skip
        rows = [
            Row(place, Named(name, query.text or known[name]), ())
            for name, (query, place) in counts.queries.items()
            if name not in absent
        ]
        train_rows = untested(rows, dataset, tested_texts(dataset))
        return {row.query.key: row.query.text or "" for row in train_rows}, texts

    def _propensities(self) -> Sequence[float] | Mapping[int, float] | None:
        if not isinstance(self.propensities, str):
            return self.propensities
        return read_propensities(expanded(self.propensities))


def _unclicked(pairs: Iterable[tuple[int, str]], estimated: Estimate) -> list[tuple[int, str]]:
    """Return the pairs that were looked at and never clicked, the most seen first."""
    seen = [one for one in pairs if estimated.examined[one[0]] and not estimated.clicked[one[0]]]
    return sorted(seen, key=lambda one: -estimated.examined[one[0]])


def read_propensities(path: Path) -> dict[int, float]:
    """Return the propensities in a file of `sluice teach clicks`, by position.

    A position that its log never showed has none.
    """
    try:
        value: Any = json.loads(read_whole(path))
        pairs = dict(zip(value["positions"], value["examination"], strict=True))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError(
            f"{path}: not a file of propensities; write one with `sluice teach clicks LOG --output "
            "FILE`, or give a list of numbers"
        ) from None
    for place in pairs:
        if type(place) is not int or place < 1:
            raise DataError(f"{path}: position {place!r:.40}; positions count from 1")
    return check_propensities(pairs, str(path))


def graded(relevance: Floats, groups: Sequence[str], grades: int) -> Floats:
    """Return grades from 0 to ``grades`` whose gain 2^y - 1 is as relevance, best of its group."""
    best: dict[str, float] = {}
    for group, value in zip(groups, relevance.tolist(), strict=True):
        best[group] = max(best.get(group, 0.0), value)
    tops = np.array([best[group] for group in groups])
    shares = np.divide(relevance, tops, out=np.zeros_like(relevance), where=tops > 0)
    values: Floats = np.rint(np.log2(1.0 + shares * (2.0**grades - 1.0)))
    return values
