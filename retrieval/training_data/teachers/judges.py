"""Judges of relevance by name, component or object: what ``negatives.judge`` stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.runs.run import Run

if TYPE_CHECKING:
    from sluice.retrieval.config.components import Allow
    from sluice.training.negatives.judge import Judge

JUDGE = (
    "a reranker's name, an inline {type: cross_encoder, model: ...}, a model's folder, a run file, "
    "a file of `sluice teach distil`, or a list of these"
)


def open_judge(
    named: Any,
    where: str,
    *,
    scorer: Callable[[str], Any] | None = None,
    known: Sequence[str] = (),
    model: Callable[[str], str] = str,
) -> Judge:
    """Return the judge that a config's ``judge`` stands for.

    An inline ``{type: cross_encoder, ...}`` or ``{type: ensemble, ...}``, one of the rerankers
    ``known`` (which ``scorer`` makes by name), a run file, a file of scores as
    ``sluice teach distil`` writes it, a model's folder or id, or a list of these, whose
    scores are averaged as they are; or an object: a run, a scorer, a reranking stage, a judge
    itself. ``model`` maps the names of models trained in an experiment to their folders.
    """
    from sluice.retrieval.training_data.teachers.teachers import (
        Ensemble,
        ModelTeacher,
        RunTeacher,
        is_score_file,
        make_teacher,
    )

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
        return ModelTeacher(scorer(named), named)
    if isinstance(named, str) and is_score_file(named):
        return RunTeacher(_score_file(Path(named)), Path(named).name, "")
    if isinstance(named, (str, Mapping)):
        opened: Judge = make_teacher(named, where=where, model=model)
        return opened
    if isinstance(named, Rerank):
        return ModelTeacher(named.scorer, named.name)
    if callable(getattr(named, "scores", None)):
        own: Judge = named
        return own
    return ModelTeacher(named, type(named).__name__)


def _score_file(path: Path) -> Run:
    from sluice.retrieval.training_data.teachers.distillation import read_scores

    lists: dict[str, dict[str, float]] = {}
    for queries, documents, scores in read_scores(path):
        for query, document, score in zip(queries, documents, scores.tolist(), strict=True):
            lists.setdefault(query, {})[document] = score
    return Run(lists, name=path.name)


def check_judge(named: Any, where: str, *, known: Sequence[str] = (), allow: Allow = None) -> None:
    """Raise ``ConfigError`` unless ``named`` can be a judge; nothing is loaded."""
    from sluice.retrieval.training_data.teachers.teachers import check_teacher, is_score_file

    if isinstance(named, (list, tuple)):
        if not named:
            raise ConfigError(f"{where}: an empty list; name at least one judge")
        for place, each in enumerate(named):
            check_judge(each, f"{where}[{place}]", known=known, allow=allow)
    elif isinstance(named, Mapping) and not isinstance(named, Run):
        check_teacher(named, where, allow)
    elif isinstance(named, str):
        file = is_score_file(named) or named.endswith((".trec", ".gz"))
        plain = known and named not in known and "/" not in named  # no hub id
        if not named or ((file or plain) and not Path(named).exists()):
            near = suggest(named, known)
            raise ConfigError(f"{where}: {named!r} is not there; expected {JUDGE}{near}")
    elif not isinstance(named, (Run, Rerank)) and not any(
        callable(getattr(named, name, None)) for name in ("scores", "score", "encode_documents")
    ):
        raise ConfigError(f"{where}: {named!r}; expected {JUDGE}")
