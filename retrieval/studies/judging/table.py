"""Opens grading judges from YAML: a cross-encoder, a language model, or a file of labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice.encoders.foundation.build import build
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.input.bounded import expanded, read_whole
from sluice.retrieval.stages.generative.http_language_model import HttpLanguageModel
from sluice.retrieval.stages.generative.options import ModelSpec, local_model, with_model
from sluice.retrieval.studies.judging.generative_judge import (
    DEFINITIONS,
    Answer,
    GenerativeJudge,
    Method,
    Order,
)
from sluice.retrieval.studies.judging.grading import CachedGrades, CachedScores, ThresholdJudge

if TYPE_CHECKING:
    from sluice.retrieval.stages.rerankers.score_cache import ScoreCache
    from sluice.retrieval.studies.judging.grading import GradingJudge

JUDGES: Final[Mapping[str, str]] = {
    "cross_encoder": "sluice.retrieval.studies.judging.table:cross_encoder_judge",
    "generative": "sluice.retrieval.studies.judging.table:generative_judge",
    "http": "sluice.retrieval.studies.judging.table:http_judge",
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
    from sluice.retrieval.training_data.teachers.teachers import open_teacher

    return ThresholdJudge(open_teacher(model), thresholds, models=known_as(model))


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
    import yaml

    from sluice.encoders.foundation.input.plain_yaml import LARGEST, load_yaml

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
    try:
        spec = load_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: {text!r:.200} is not YAML ({error})") from None
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where}: {spec!r:.80}; expected {EXPECTED}")
    return spec
