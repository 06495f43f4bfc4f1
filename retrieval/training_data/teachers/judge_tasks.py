"""Has a judge score what mining will ask it about, as tasks, and looks the scores up there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.retrieval.execution.executor import Executor, begin_alone
from sluice.retrieval.training_data.teachers.distillation import SHARD
from sluice.retrieval.training_data.teachers.ensemble import Ensemble
from sluice.retrieval.training_data.teachers.language import LanguageTeacher
from sluice.retrieval.training_data.teachers.score_files import read_scores
from sluice.retrieval.training_data.teachers.scoring_tasks import Ids, Shards, score_shards
from sluice.retrieval.training_data.teachers.teachers import ModelTeacher
from sluice.training.negatives.judge import Judge, JudgedPair
from sluice.training.negatives.text_identity import TextSource, texts_of

JUDGED = "judged"  # below the work folder


class Recorded:
    """A judge whose scores are known already; a pair without one has NaN."""

    needs_texts = False

    def __init__(self, name: str, scores: Mapping[str, Mapping[str, float]]) -> None:
        self.name = name
        self._scores = scores

    def scores(self, pairs: Sequence[JudgedPair]) -> NDArray[np.float64]:
        """Return the recorded scores of pairs, by their ids."""
        none: dict[str, float] = {}
        return np.array(
            [self._scores.get(pair.query_id, none).get(pair.document_id, np.nan) for pair in pairs]
        )


def judged_by_tasks(
    judge: Judge,
    asked: Sequence[tuple[str, list[str]]],
    queries: Mapping[str, str],
    texts: TextSource,
    work: Path,
    executor: Executor,
    key: str,
) -> Judge:
    """Return the judge with its scores of the pairs ``asked`` recorded.

    Shards of the pairs are the tasks of ``executor``; what is complete stays in ``work``. A judge
    that is looked up, or an object of one's own, is returned as it is. ``key`` is that of the
    texts.
    """
    if not isinstance(judge, ModelTeacher | LanguageTeacher | Ensemble) or not judge.needs_texts:
        if executor.remote and judge.needs_texts:
            begin_alone("judge", executor, f"{judge.name} is an object of this process")
        return judge

    def pairs(ids: Ids) -> list[JudgedPair]:
        read = texts_of(texts, list(dict.fromkeys(document for _, document in ids)))
        return [JudgedPair(q, queries[q], d, read[d]) for q, d in ids if d in read and q in queries]

    parts = work / JUDGED / fingerprint_of(judge.fingerprint, asked, queries, key)[:16]
    parts.mkdir(parents=True, exist_ok=True)
    shards = Shards(asked, SHARD)
    score_shards("judge", judge, shards, pairs, parts, executor)
    scores: dict[str, dict[str, float]] = {}
    for file in shards.files(parts):
        for names, documents, values in read_scores(file):
            for query, document, value in zip(names, documents, values.tolist(), strict=True):
                scores.setdefault(query, {})[document] = value
    return Recorded(judge.name, scores)
