"""Grading judges by their YAML keys: a cross-encoder, a language model, or a file of labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from encoders.build import build
from encoders.errors import ConfigError
from retrieval.grading import CachedGrades, CachedScores, ThresholdJudge

if TYPE_CHECKING:
    from retrieval.generative_judge import Answer, GenerativeJudge, Method, Order
    from retrieval.grading import GradingJudge
    from retrieval.score_cache import ScoreCache

JUDGES: Final[Mapping[str, str]] = {
    "cross_encoder": "retrieval.grading_table:cross_encoder_judge",
    "generative": "retrieval.grading_table:generative_judge",
    "http": "retrieval.grading_table:http_judge",
    "file": "retrieval.grading:LabelFile",
}
EXPECTED = (
    "a qrels file, a cross-encoder's folder or hub id, a YAML file, or YAML such as "
    "'{type: http, url: ..., model: ...}'"
)
CROSS_BLOCK = 1_024  # pairs of a cross-encoder that a kill can cost


def open_grading_judge(
    named: str | Path | Mapping[str, Any],
    *,
    where: str = "judge",
    cache: ScoreCache | None = None,
) -> GradingJudge:
    """Return the judge that a specification stands for; with ``cache`` it labels no pair twice.

    ``named`` is a qrels file, the folder or hub id of a cross-encoder, a component such as
    ``{type: generative, model: ...}`` of ``JUDGES``, or that component as YAML text or file.
    """
    spec = _component(named, where)
    judge: GradingJudge = build(spec, JUDGES, where=where)
    if cache is None or not judge.needs_texts:
        return judge
    if isinstance(judge, ThresholdJudge):  # scores are kept: other thresholds need no new ones
        kept = CachedScores(judge.teacher, cache, block=CROSS_BLOCK)
        return ThresholdJudge(kept, judge.thresholds, models=judge.models[:-1])
    return CachedGrades(judge, cache)


def cross_encoder_judge(model: str, *, thresholds: list[float] | None = None) -> ThresholdJudge:
    """Return the judge by a cross-encoder's scores, or the similarity of an encoder's vectors."""
    from retrieval.teachers import open_teacher

    return ThresholdJudge(open_teacher(model), thresholds, models=known_as(model))


def generative_judge(
    model: str,
    *,
    method: Method = "direct",
    order: Order = "ascending",
    answer: Answer = "probabilities",
    definitions: list[str] | None = None,
    criteria: dict[str, str] | None = None,
    prompt: str | None = None,
    max_new_tokens: int = 256,
    context_length: int | None = None,
    document_length: int | None = None,
    chat: bool | None = None,
    device: str = "auto",
    dtype: Literal["float32", "bfloat16", "auto"] = "float32",
    batch_tokens: int | None = None,
) -> GenerativeJudge:
    """Return the judge by a causal or encoder-decoder model of transformers, loaded here."""
    from encoders.local_language_model import LocalLanguageModel
    from retrieval.generative_judge import DEFINITIONS, GenerativeJudge

    loaded = LocalLanguageModel.from_pretrained(
        model,
        context_length=context_length,
        document_length=document_length,
        chat=chat,
        device=device,
        dtype=dtype,
        batch_tokens=batch_tokens,
    )
    return GenerativeJudge(
        loaded,
        name=model,
        method=method,
        order=order,
        answer=answer,
        definitions=definitions or DEFINITIONS,
        criteria=criteria,
        prompt=prompt,
        max_new_tokens=max_new_tokens,
        models=known_as(model),
    )


def http_judge(
    url: str,
    model: str,
    *,
    method: Method = "direct",
    order: Order = "ascending",
    answer: Answer = "probabilities",
    definitions: list[str] | None = None,
    criteria: dict[str, str] | None = None,
    prompt: str | None = None,
    max_new_tokens: int = 256,
    context_length: int = 4096,
    document_length: int | None = None,
    api_key_env: str | None = None,
    logprobs: bool = True,
    concurrency: int = 4,
    timeout_s: float = 60.0,
    retries: int = 4,
    backoff_s: float = 1.0,
    body: dict[str, Any] | None = None,
) -> GenerativeJudge:
    """Return the judge by a model behind an OpenAI-compatible endpoint; see ``generative_http``."""
    from retrieval.generative_judge import DEFINITIONS, GenerativeJudge
    from retrieval.http_language_model import HttpLanguageModel

    asked = HttpLanguageModel(
        url,
        model,
        api_key_env=api_key_env,
        logprobs=logprobs,
        context_length=context_length,
        document_length=document_length,
        concurrency=concurrency,
        timeout_s=timeout_s,
        retries=retries,
        backoff_s=backoff_s,
        body=body,
    )
    return GenerativeJudge(
        asked,
        name=model,
        method=method,
        order=order,
        answer=answer,
        definitions=definitions or DEFINITIONS,
        criteria=criteria,
        prompt=prompt,
        max_new_tokens=max_new_tokens,
        models=known_as(model),
    )


def known_as(model: str) -> tuple[str, ...]:
    """Return the names of a model: as it is given, and its folder in full where it is one."""
    path = Path(model).expanduser()
    return (model, str(path.resolve())) if path.exists() else (model,)


def _component(named: str | Path | Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return a specification as ``{type: ..., ...}``."""
    import yaml

    if isinstance(named, Mapping):
        return named
    text = str(named)
    path = Path(text).expanduser()
    if path.suffix in (".yaml", ".yml") and path.is_file():
        text = path.read_text(encoding="utf-8")
    elif path.is_file():
        return {"type": "file", "path": text}
    elif "{" not in text:
        if not path.is_dir() and (path.suffix or text.count("/") != 1):
            raise ConfigError(f"{where}: {text!r} is not there; expected {EXPECTED}")
        return {"type": "cross_encoder", "model": text}
    try:
        spec = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: {text!r:.200} is not YAML ({error})") from None
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where}: {spec!r:.80}; expected {EXPECTED}")
    return spec
