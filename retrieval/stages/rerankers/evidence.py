"""Scores documents by their fields or sentences, joined by soft AND and OR of probabilities."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import finite_number, is_number
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.json_files import read_objects
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.pipelines.hit import PartScore
from sluice.retrieval.pipelines.scorer import Scorer, Scores
from sluice.retrieval.pipelines.search import documents_in
from sluice.retrieval.pipelines.stage import Texts
from sluice.retrieval.pipelines.tracing import tally
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.rerankers.scorer_identity import ScorerAround
from sluice.training.generation.inverse_cloze import sentences

Array = NDArray[np.float64]


def some_of(logits: Sequence[float], sharpness: float) -> float:
    """Return the log-odds that at least one holds, of the log-odds of each; -inf of none.

    ``1 - exp(-(sum_i (-log(1 - p_i))^s)^(1/s))``: with sharpness s = 1 ``1 - prod_i(1 - p_i)``, for
    ever larger s the largest p alone. (The t-conorm of Aczel and Alsina, 1982.) One value is
    itself; p of 0 and 1, log-odds of -inf and inf, follow Boolean logic.
    """
    # a_i = -log(1 - p_i) = log(1 + exp(logit))
    logs = np.array([_log_softplus(float(logit)) for logit in logits])
    return -_odds(_joined(logs, sharpness))


def all_of(logits: Sequence[float], sharpness: float) -> float:
    """Return the log-odds that all hold; inf of none.

    ``not some_of(not p_i)``: with sharpness 1 the product, for ever larger ones the least alone.
    """
    return -some_of([-logit for logit in logits], sharpness)


def _joined(logs: Array, sharpness: float) -> float:
    """Return ``log((sum_i exp(log_i)^s)^(1/s))``; -inf of none."""
    most = float(logs.max(initial=-np.inf))
    if np.isinf(most) or np.isinf(sharpness):
        return most
    return most + float(np.log(np.exp(sharpness * (logs - most)).sum())) / sharpness


def _log_softplus(value: float) -> float:
    """Return ``log(log(1 + exp(value)))``."""
    if value < -30:
        return value  # log(1 + x) is x
    return float(np.log(np.logaddexp(0.0, value)))


def _odds(log_a: float) -> float:
    """Return the log-odds of ``exp(-a)`` of ``log a``: ``-a - log(1 - exp(-a))``."""
    if log_a < -30:
        return -log_a  # 1 - exp(-a) is a
    if log_a > 700:
        return -np.inf
    a = float(np.exp(log_a))
    return -a - float(np.log(-np.expm1(-a)))


KINDS = ("sentences", "fields")
EDIT = '{"query": ..., "part": ..., "probability": 0 to 1}'
CERTAIN = 1.0e4  # log-odds of what is certain, as a score has to be finite
Overrides = Mapping[tuple[str, str], float]

log = logging.getLogger("sluice")


class Evidence(ScorerAround):
    """Scores a document by ``scorer``'s scores of the query with each of its parts.

    ``by``: the parts are ``"sentences"`` of each field, or whole ``"fields"``: the title, the text,
    and every text of the metadata, of which a list has several. A score becomes a probability by
    ``sigmoid((score - threshold) / temperature)``; ``threshold`` is the score at which relevance is
    as likely as not. A document is relevant if some part of it is,
    or, with ``required``, if some part of each of these fields is; a field that it lacks is not.
    The result is turned into a score again, so that one part alone scores as the scorer says.
    (Entity-based relevance model, EBRM; the way of joining is ours, see ``soft_logic``.)

    ``sharpness`` 1 joins by products, and ever larger ones by the best part (MaxP) and the worst
    required field alone. ``overrides`` replace the probability of a query and a part: a mapping of
    (query, part's text) to 0 ... 1, or a JSON lines file of ``{"query", "part", "probability"}``.
    Each distinct query and part of a call is scored once; ``evidence(cached(cross, file=...))``
    keeps the scores.
    """

    def __init__(
        self,
        scorer: Scorer,
        /,
        *,
        by: Literal["sentences", "fields"] = "sentences",
        required: Sequence[str] = (),
        sharpness: Annotated[
            float, "1 joins by products, larger values ever more by the best part (MaxP)."
        ] = 1.0,
        temperature: Annotated[
            float, "How many points of score make the odds e times as large."
        ] = 1.0,
        threshold: float = 0.0,
        overrides: str | Path | Overrides = "",
    ) -> None:
        super().__init__(scorer, "evidence")
        if by not in KINDS:
            raise ConfigError(
                f"evidence: by {by!r}; known: {', '.join(KINDS)}{suggest(str(by), KINDS)}"
            )
        if isinstance(required, str) or not all(isinstance(name, str) for name in required):
            raise ConfigError(f"evidence: required {required!r}; expected a list of fields' names")
        self.by = by
        self.required = tuple(dict.fromkeys(required))
        self.sharpness = finite_number(sharpness, "evidence: sharpness", 1.0)
        self.temperature = finite_number(temperature, "evidence: temperature", 0.0)
        if self.temperature == 0:
            raise ConfigError("evidence: temperature 0; expected a number above 0")
        self.threshold = finite_number(threshold, "evidence: threshold")
        given = read_overrides(Path(overrides)) if isinstance(overrides, str | Path) else overrides
        self.overrides = {pair: _log_odds(value, pair) for pair, value in given.items()}
        self._told: set[str] = set()  # required fields that no candidate had

    @property
    def fingerprint(self) -> str:
        """A hash of the scorer, the settings and the overrides."""
        settings = [self.by, self.required, self.sharpness, self.temperature, self.threshold]
        edits = sorted([*pair, value] for pair, value in self.overrides.items())
        return fingerprint_of("evidence", self._identity(), settings, edits)

    def check_documents(self, documents: Texts) -> None:
        """Raise ``ConfigError`` for a required field that no document of a store has as text."""
        if not isinstance(documents, DocumentStore) or not len(documents):
            return
        segments = [columns for _, columns in documents.columns]
        texts = {
            name
            for columns in segments
            for name, kinds in columns.items()
            if any(column.words is not None for column in kinds)
        }
        known = ["title", "text", *sorted(texts - {"title", "text"})]
        for name in self.required:
            if name not in known:
                raise ConfigError(
                    f"evidence: required {name!r}: no document has such a field of text, so that "
                    f"none would be relevant; known: {', '.join(known)}{suggest(name, known)}"
                )

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, Scores]:
        """Return the scores of each query's candidates, float32."""
        if documents is None:
            raise ConfigError(
                "evidence: needs the documents' texts; put it behind a retriever with a document "
                "store"
            )
        distinct = list(dict.fromkeys(d for head in heads.values() for d in head.doc_ids))
        whole = documents_in(documents, distinct)
        parts = {d: self.parts(one) for d, one in zip(distinct, whole, strict=True)}
        self._warn_of_absent(parts)
        wanted = {
            (queries[query], text): None
            for query, head in heads.items()
            for doc_id in head.doc_ids
            for texts in parts[doc_id].values()
            for text in texts
        }
        odds = self._odds(list(wanted))
        tally({"parts": len(wanted)})
        return {
            query: np.array(
                [self._joined(queries[query], parts[doc_id], odds) for doc_id in head.doc_ids],
                np.float32,
            )
            for query, head in heads.items()
        }

    def parts_of(self, query: str, doc_id: str, documents: Texts | None) -> list[PartScore]:
        """Return the parts of a document with their probabilities, scored again."""
        from scipy.special import expit

        (document,) = documents_in(documents, [doc_id])
        parts = [(name, text) for name, texts in self.parts(document).items() for text in texts]
        odds = self._odds(list(dict.fromkeys((query, text) for _, text in parts)))
        return [PartScore(name, text, float(expit(odds[query, text]))) for name, text in parts]

    def parts(self, document: Document) -> dict[str, list[str]]:
        """Return the texts of a document's parts by field, of the required fields if there are any.

        Blank ones are left out.
        """
        fields: dict[str, list[str]] = {"title": [document.title], "text": [document.text]}
        for name, value in document.metadata.items():
            values = (
                value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            )
            texts = [each for each in values if isinstance(each, str)]
            if texts and name not in fields:
                fields[name] = texts
        chosen = {name: fields.get(name, []) for name in self.required} or fields
        split = sentences if self.by == "sentences" else _itself
        return {
            name: list(dict.fromkeys(part for text in texts for part in split(text.strip())))
            for name, texts in chosen.items()
        }

    def _odds(self, pairs: list[tuple[str, str]]) -> dict[tuple[str, str], float]:
        """Return the log-odds of each query and part, those that are overridden unscored."""
        asked = [pair for pair in pairs if pair not in self.overrides]
        scores = np.asarray(self.scorer.score(asked) if asked else [], np.float64)
        if scores.shape != (len(asked),) or not np.isfinite(scores).all():
            raise DataError(
                f"evidence: {type(self.scorer).__name__} returned scores of shape {scores.shape} "
                f"for {len(asked):,} parts, or one that is not finite"
            )
        found = ((scores - self.threshold) / self.temperature).tolist()
        return {**self.overrides, **dict(zip(asked, found, strict=True))}

    def _joined(
        self, query: str, parts: Mapping[str, list[str]], odds: Mapping[tuple[str, str], float]
    ) -> float:
        """Return a document's score."""
        groups = [[odds[query, text] for text in texts] for texts in parts.values()]
        if self.required:
            joined = all_of([some_of(each, self.sharpness) for each in groups], self.sharpness)
        else:
            joined = some_of([one for each in groups for one in each], self.sharpness)
        return min(max(joined, -CERTAIN), CERTAIN) * self.temperature + self.threshold

    def _warn_of_absent(self, parts: Mapping[str, Mapping[str, list[str]]]) -> None:
        """Log once that a required field is in none of the candidates, which then all fail."""
        for name in self.required:
            if name in self._told or not parts or any(each[name] for each in parts.values()):
                continue
            self._told.add(name)
            log.warning(
                "evidence: required %r: none of %s candidates has this field, so that none is "
                "relevant; is it spelled as in the corpus?", name, f"{len(parts):,}",
            )  # fmt: skip


def read_overrides(file: Path) -> dict[tuple[str, str], float]:
    """Read ``{"query", "part", "probability"}`` lines; none of an empty name.

    ``DataError`` names the line of anything else, and of a pair that comes twice.
    """
    if str(file) in ("", "."):
        return {}
    if not file.is_file():
        raise ConfigError(f"evidence: overrides: no file {file}; expected JSON lines of overrides")
    found: dict[tuple[str, str], float] = {}
    for number, line in read_objects(file, EDIT):
        pair: Any = (line.get("query"), line.get("part"))
        value: Any = line.get("probability")
        if not all(isinstance(text, str) for text in pair):
            raise DataError(f"{file}:{number}: {line!r:.80}; expected {EDIT}")
        if pair in found:
            raise DataError(f"{file}:{number}: this query and part came before; keep one line")
        _log_odds(value, pair, f"{file}:{number}: ")
        found[pair] = value
    return found


def _log_odds(
    probability: Any, pair: tuple[str, str], where: str = "evidence: overrides: "
) -> float:
    if not is_number(probability) or not 0 <= probability <= 1:
        raise DataError(f"{where}probability {probability!r} of {pair!r:.80}; expected 0 to 1")
    if probability in (0, 1):
        return math.inf if probability else -math.inf
    return math.log(probability) - math.log1p(-probability)


def _itself(text: str) -> list[str]:
    return [text] if text else []


evidence = Evidence  # ``evidence(cross, by='fields', required=['title', 'text'])`` in a pipeline
