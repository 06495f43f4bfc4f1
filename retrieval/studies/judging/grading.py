"""Judges that grade documents on the scale of human judgements, and how YAML opens them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.bounded_input import expanded, read_whole
from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.disk.files import file_hash, fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.pipelines.scorer import remembered
from sluice.retrieval.runs.trec_files import read_qrels
from sluice.retrieval.stages.generative.http_language_model import HttpLanguageModel
from sluice.retrieval.stages.generative.rerankers import ModelSpec, local_model, with_model
from sluice.retrieval.stages.rerankers.score_cache import ScoreCache
from sluice.retrieval.studies.judging.generative_judge import (
    DEFINITIONS,
    Answer,
    GenerativeJudge,
    Method,
    Order,
)
from sluice.retrieval.training_data.teachers.teachers import Teacher
from sluice.training.negatives.false_negatives import JudgedPair, judged

if TYPE_CHECKING:
    from sluice.retrieval.stages.rerankers.score_cache import ScoreCache


log = logging.getLogger("sluice")

Grades = NDArray[np.float64]  # [pairs], NaN for no grade


class GradingJudge(Teacher, Protocol):
    """A teacher whose scores are grades from 0 to ``highest``; a fraction expresses doubt.

    ``models`` are the fingerprints, folders and names of its models: see ``circularity``.
    """

    @property
    def highest(self) -> int:
        """The grade of the most relevant documents."""
        ...

    @property
    def models(self) -> tuple[str, ...]:
        """The names of its models, under which a ranker might be known too."""
        ...


def rounded(grades: Grades) -> NDArray[np.int64]:
    """Round grades to labels, halves up."""
    return np.floor(grades + 0.5).astype(np.int64)


class CachedScores:
    """A teacher whose scores are cached by its fingerprint and the two texts.

    They are written ``block`` by block, so an interruption loses one block at most. A pair without
    a score is tried again next time. Scores are rounded to float32, cached or not.
    """

    needs_texts = True

    def __init__(self, teacher: Teacher, cache: ScoreCache, *, block: int = 64) -> None:
        self.teacher = teacher
        self.cache = cache
        self.block = block
        self.name = teacher.name
        self.hits = 0
        self.misses = 0

    @property
    def fingerprint(self) -> str:
        """The teacher's fingerprint: the cache only rounds its scores."""
        return self.teacher.fingerprint

    def scores(self, pairs: Sequence[JudgedPair]) -> Grades:
        """Return the teacher's scores, NaN for a pair without one."""
        identity = self.fingerprint

        def score(places: list[int]) -> NDArray[np.float32]:
            return judged(self.teacher, [pairs[place] for place in places]).astype(np.float32)

        def put(texts: list[tuple[str, str]], scores: NDArray[np.float32]) -> None:
            rows = np.flatnonzero(np.isfinite(scores)).tolist()
            self.cache.put(identity, [texts[row] for row in rows], scores[rows])

        texts = [(pair.query, pair.document) for pair in pairs]
        get = partial(self.cache.get, identity)
        scores, misses = remembered(texts, get, score, put, block=self.block)
        self.hits += len(pairs) - misses
        self.misses += misses
        return scores.astype(np.float64)


class CachedGrades(CachedScores):
    """A grading judge whose grades are cached; see ``CachedScores``."""

    def __init__(self, judge: GradingJudge, cache: ScoreCache, *, block: int = 64) -> None:
        super().__init__(judge, cache, block=block)
        self.highest = judge.highest
        self.models = judge.models


class ThresholdJudge:
    """A teacher's scores, such as a cross-encoder's, cut into grades.

    The grade is the number of ``thresholds`` that a score reaches. They ascend; between equal ones
    no grade is given. Without thresholds only ``fitted`` can be called.
    """

    def __init__(
        self,
        teacher: Teacher,
        thresholds: Sequence[float] | None = None,
        *,
        models: Sequence[str] = (),
    ) -> None:
        self.teacher = teacher
        self.name = teacher.name
        self.needs_texts = teacher.needs_texts
        self.thresholds = None if thresholds is None else [float(each) for each in thresholds]
        cuts = self.thresholds
        if cuts is not None and (not cuts or cuts != sorted(cuts) or not all(map(_is_cut, cuts))):
            raise ConfigError(f"thresholds: {cuts}; expected one rising number for each grade")
        self.models = (*models, teacher.fingerprint)

    @property
    def highest(self) -> int:
        """The number of thresholds."""
        return len(self._cuts())

    @property
    def fingerprint(self) -> str:
        """A hash of the teacher's fingerprint and the thresholds."""
        return fingerprint_of("thresholds", self.teacher.fingerprint, self._cuts())

    def scores(self, pairs: Sequence[JudgedPair]) -> Grades:
        """Return integer grades, NaN for a pair without a score."""
        cuts = self._cuts()
        scores = judged(self.teacher, pairs)
        grades = np.searchsorted(cuts, scores, side="right").astype(np.float64)
        return np.where(np.isnan(scores), np.nan, grades)

    def fitted(self, pairs: Sequence[JudgedPair], grades: Sequence[int]) -> ThresholdJudge:
        """Return the judge with the thresholds that fit labelled pairs: see ``fit_thresholds``."""
        scores = judged(self.teacher, pairs)
        known = np.isfinite(scores)
        fitted = fit_thresholds(scores[known], np.asarray(grades)[known])
        return ThresholdJudge(self.teacher, fitted, models=self.models[:-1])

    def _cuts(self) -> list[float]:
        if self.thresholds is None:
            raise ConfigError(
                f"judge {self.name}: has no thresholds; give them (thresholds: [0.2, 0.5, 0.8], "
                "one for each grade above 0), or human labels to fit them on"
            )
        return self.thresholds


def fit_thresholds(scores: Grades, grades: NDArray[np.integer]) -> list[float]:
    """Return thresholds for grades 1, 2, ... that give each as often as the human labels do.

    Each cut lies halfway between two scores, with as many above it as there are labels of the grade
    or more, to within ties (equipercentile linking). It agrees with other queries' labels better
    than cuts that agree best with these, which may leave a grade out. ``DataError`` if there is no
    label of 0, or none above it.
    """
    values = np.asarray(scores, np.float64)
    labels = np.maximum(np.asarray(grades, np.int64), 0)
    highest = int(labels.max(initial=0))
    if not len(values) or highest < 1 or (labels > 0).all():
        counts = ", ".join(f"{n:,} of grade {g}" for g, n in enumerate(np.bincount(labels)) if n)
        raise DataError(
            f"thresholds: the labels to fit on are {counts or 'none'}; expected some of grade 0 "
            "and some above, or give the thresholds"
        )
    values = np.sort(values)
    steps = np.flatnonzero(values[1:] > values[:-1]) + 1  # a cut before each of these
    if not len(steps):
        raise DataError(
            f"thresholds: all {len(values):,} scores are {values[0]:g}; expected at least two"
        )
    halves = (values[steps - 1] + values[steps]) / 2.0
    below = [np.count_nonzero(labels < grade) for grade in range(1, highest + 1)]
    return [float(halves[np.argmin(np.abs(steps - count))]) for count in below]


class LabelFile:
    """A judge that reads its labels from a qrels file. Grades below 0 count as 0."""

    needs_texts = False

    def __init__(self, path: str | Path) -> None:
        self.path = expanded(path)
        self.name = self.path.name
        self._labels = read_qrels(self.path)
        self.fingerprint = fingerprint_of("labels", file_hash(self.path))
        self.highest = max(1, *(g for grades in self._labels.values() for g in grades.values()))
        self.models: tuple[str, ...] = ()

    def scores(self, pairs: Sequence[JudgedPair]) -> Grades:
        """Return the file's grades, NaN for a pair without one."""
        labels = [self._labels.get(pair.query_id, {}).get(pair.document_id) for pair in pairs]
        return np.array([math.nan if grade is None else max(grade, 0) for grade in labels])


def _is_cut(value: float) -> bool:
    return math.isfinite(value)


JUDGES: Final[Mapping[str, str]] = {
    "cross_encoder": "sluice.retrieval.studies.judging.grading:cross_encoder_judge",
    "generative": "sluice.retrieval.studies.judging.grading:generative_judge",
    "http": "sluice.retrieval.studies.judging.grading:http_judge",
    "file": "sluice.retrieval.studies.judging.grading:LabelFile",
}
EXPECTED = (
    "a qrels file, a cross-encoder's folder or hub id, a YAML file, or YAML such as "
    "'{type: http, url: ..., model: ...}'"
)
CROSS_BLOCK = 1_024  # pairs of a cross-encoder that an interruption can lose


def open_grading_judge(
    named: str | Path | Mapping[str, Any],
    *,
    where: str = "judge",
    cache: ScoreCache | None = None,
) -> GradingJudge:
    """Open the judge of a specification; with ``cache`` it labels no pair twice.

    ``named`` is a qrels file, the folder or hub id of a cross-encoder, a component such as
    ``{type: generative, model: ...}`` of ``JUDGES``, or that component as YAML text or file.
    """
    spec = _component(named, where)
    judge: GradingJudge = build(spec, JUDGES, where=where)
    if cache is None or not judge.needs_texts:
        return judge
    if isinstance(judge, ThresholdJudge):  # scores are cached, so that thresholds can change
        scores = CachedScores(judge.teacher, cache, block=CROSS_BLOCK)
        return ThresholdJudge(scores, judge.thresholds, models=judge.models[:-1])
    return CachedGrades(judge, cache)


def cross_encoder_judge(model: str, *, thresholds: list[float] | None = None) -> ThresholdJudge:
    """Open a judge that cuts the scores of a cross-encoder or an encoder into grades."""
    from sluice.retrieval.training_data.teachers.spec import Context, teacher_spec

    return ThresholdJudge(teacher_spec(model).make(Context()), thresholds, models=known_as(model))


def _judge(
    model: ModelSpec,
    *,
    method: Method = "direct",
    order: Order = "ascending",
    answer: Answer = "probabilities",
    definitions: list[str] | None = None,
    criteria: dict[str, str] | None = None,
    prompt: str | None = None,
    max_new_tokens: int = 256,
) -> GenerativeJudge:
    """Open a judge that asks a language model, loaded here or behind an endpoint."""
    return GenerativeJudge(
        model.open(),
        name=model.name,
        method=method,
        order=order,
        answer=answer,
        definitions=definitions or DEFINITIONS,
        criteria=criteria,
        prompt=prompt,
        max_new_tokens=max_new_tokens,
        models=known_as(model.name),
    )


generative_judge = with_model(_judge, local_model)
http_judge = with_model(_judge, HttpLanguageModel)


def known_as(model: str) -> tuple[str, ...]:
    """Return the names of a model: as written, and its absolute path if it is a folder."""
    path = expanded(model)
    return (model, str(path.resolve())) if path.exists() else (model,)


def _component(named: str | Path | Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return a specification as ``{type: ..., ...}``."""
    from sluice.encoders.foundation.bounded_input import LARGEST, yaml_value

    if isinstance(named, Mapping):
        return named
    text = str(named)
    path = expanded(text)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        text = read_whole(path, LARGEST).decode("utf-8-sig", "replace")
    elif path.is_file():
        return {"type": "file", "path": text}
    elif "{" not in text:
        if not path.is_dir() and (path.suffix or text.count("/") != 1):
            raise ConfigError(f"{where}: {text!r} does not exist; expected {EXPECTED}")
        return {"type": "cross_encoder", "model": text}
    spec = yaml_value(text, where)
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where}: {spec!r:.80}; expected {EXPECTED}")
    return spec
