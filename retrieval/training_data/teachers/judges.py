"""Judges of mined candidates: opened by name, and asked ahead of the mining, as tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import encodes
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.execution.executor import Executor, begin_alone
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.generative.pointwise import Pointwise
from sluice.retrieval.stages.generative.rerankers import WordLogit
from sluice.retrieval.training_data.teachers.distillation import SHARD
from sluice.retrieval.training_data.teachers.scoring_tasks import (
    Ids,
    Shards,
    read_scores,
    run_of_scores,
    score_shards,
)
from sluice.retrieval.training_data.teachers.spec import Context, ScoreFileSpec, teacher_spec
from sluice.retrieval.training_data.teachers.teachers import (
    Ensemble,
    LanguageTeacher,
    ModelTeacher,
    RunTeacher,
)
from sluice.training.negatives.false_negatives import Judge, JudgedPair, TextSource, texts_of

if TYPE_CHECKING:
    from sluice.retrieval.config.components import Allow

JUDGE = (
    "a reranker's name, an inline {type: cross_encoder, model: ...} (or generative, http), a "
    "model's folder, a run file, a file of `sluice teach distil`, or a list of these"
)


def open_judge(
    named: Any,
    where: str,
    *,
    scorer: Callable[[str], Any] | None = None,
    known: Sequence[str] = (),
    model: Callable[[str], str] = str,
) -> Judge:
    """Return the judge that ``judge`` in a config, or from Python, names.

    An inline ``{type: cross_encoder, ...}``, a language model (``{type: generative, ...}``,
    ``{type: http, ...}``), ``{type: ensemble, ...}``, one of the rerankers
    ``known`` (which ``scorer`` makes by name), a run file, a file of scores as
    ``sluice teach distil`` writes it, a model's folder or id, or a list of these, whose scores are
    averaged; or an object: a run, a scorer, a reranking stage, a judge. ``model`` maps the names of
    models trained in an experiment to their folders.
    """
    check_judge(named, where, known=known)
    if isinstance(named, (list, tuple)):
        inner = [
            open_judge(each, f"{where}[{place}]", scorer=scorer, known=known, model=model)
            for place, each in enumerate(named)
        ]
        return Ensemble(inner) if len(inner) > 1 else inner[0]  # type: ignore[arg-type]
    if isinstance(named, Run):  # before mappings: it is one
        return RunTeacher(named, named.name, "")
    if isinstance(named, str) and named in known and scorer is not None:
        opened = scorer(named)
        kind = LanguageTeacher if isinstance(opened, Pointwise | WordLogit) else ModelTeacher
        return kind(opened, named)
    if isinstance(named, (str, Mapping)):
        spec = teacher_spec(named, where)
        if isinstance(spec, ScoreFileSpec):
            return RunTeacher(run_of_scores(Path(spec.value)), Path(spec.value).name, "")
        return spec.make(Context(model))
    if isinstance(named, Rerank):
        return ModelTeacher(named.scorer, named.name)
    if _judges(named):
        judge: Judge = named
        return judge
    return ModelTeacher(named, type(named).__name__)


def _judges(named: Any) -> bool:
    return callable(getattr(named, "scores", None))


def check_judge(named: Any, where: str, *, known: Sequence[str] = (), allow: Allow = None) -> None:
    """Raise ``ConfigError`` unless ``named`` can be a judge; nothing is loaded."""
    if isinstance(named, (list, tuple)):
        if not named:
            raise ConfigError(f"{where}: an empty list; name at least one judge")
        for place, each in enumerate(named):
            check_judge(each, f"{where}[{place}]", known=known, allow=allow)
    elif isinstance(named, Mapping) and not isinstance(named, Run):
        spec = teacher_spec(named, where)
        spec.check(allow)
        for part in spec.parts():  # mining has no corpus or examples
            if part.needs:
                raise ConfigError(
                    f"{where}: {part.needs} cannot judge candidates; name a model, or a run of its "
                    "scores"
                )
    elif isinstance(named, str):
        file = isinstance(teacher_spec(named), ScoreFileSpec) or named.endswith((".trec", ".gz"))
        plain = known and named not in known and "/" not in named  # no hub id
        if not named or ((file or plain) and not Path(named).exists()):
            near = suggest(named, known)
            raise ConfigError(f"{where}: {named!r} not found; expected {JUDGE}{near}")
    elif not isinstance(named, (Run, Rerank)) and not (
        _judges(named) or ScorerHooks(named).scores_pairs or encodes(named)
    ):
        raise ConfigError(f"{where}: {named!r}; expected {JUDGE}")


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
    to_score: Sequence[tuple[str, list[str]]],
    queries: Mapping[str, str],
    texts: TextSource,
    work: Path,
    executor: Executor,
    key: str,
) -> Judge:
    """Return the judge with its scores of the pairs ``to_score`` recorded.

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

    parts = work / JUDGED / fingerprint_of(judge.fingerprint, to_score, queries, key)[:16]
    parts.mkdir(parents=True, exist_ok=True)
    shards = Shards(to_score, SHARD)
    score_shards("judge", judge, shards, pairs, parts, executor)
    scores: dict[str, dict[str, float]] = {}
    for file in shards.files(parts):
        for names, documents, values in read_scores(file):
            for query, document, value in zip(names, documents, values.tolist(), strict=True):
                scores.setdefault(query, {})[document] = value
    return Recorded(judge.name, scores)
