"""Judges of mined candidates: teachers by name or component, rerankers, runs and objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import encodes
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.generative.pointwise import Pointwise
from sluice.retrieval.stages.generative.word_logit import WordLogit
from sluice.retrieval.training_data.teachers.ensemble import Ensemble
from sluice.retrieval.training_data.teachers.language import LanguageTeacher
from sluice.retrieval.training_data.teachers.teachers import (
    BM25,
    STORED,
    ModelTeacher,
    RunTeacher,
    check_teacher,
    is_score_file,
    make_teacher,
    score_file,
)
from sluice.training.negatives.judge import Judge

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
    if isinstance(named, str) and is_score_file(named):
        return RunTeacher(score_file(Path(named)), Path(named).name, "")
    if isinstance(named, (str, Mapping)):
        judge: Judge = make_teacher(named, where=where, model=model)
        return judge
    if isinstance(named, Rerank):
        return ModelTeacher(named.scorer, named.name)
    if _judges(named):
        judge = named
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
        check_teacher(named, where, allow)
        _refuse_unjudging(named, where)
    elif isinstance(named, str):
        file = is_score_file(named) or named.endswith((".trec", ".gz"))
        plain = known and named not in known and "/" not in named  # no hub id
        if not named or ((file or plain) and not Path(named).exists()):
            near = suggest(named, known)
            raise ConfigError(f"{where}: {named!r} not found; expected {JUDGE}{near}")
    elif not isinstance(named, (Run, Rerank)) and not (
        _judges(named) or ScorerHooks(named).scores_pairs or encodes(named)
    ):
        raise ConfigError(f"{where}: {named!r}; expected {JUDGE}")


def _refuse_unjudging(spec: Mapping[str, Any], where: str) -> None:
    """Raise ``ConfigError`` for teachers that mining cannot ask: it has no corpus or examples."""
    for member in spec.get("teachers", [spec]):
        kind = member.get("type") if isinstance(member, Mapping) else member
        if kind in (BM25, STORED):
            raise ConfigError(
                f"{where}: {kind} cannot judge candidates; name a model, or a run of its scores"
            )
        if isinstance(member, Mapping) and member is not spec:
            _refuse_unjudging(member, where)
