"""Circular evaluation: a judge that also ranks, and so finds its own order right."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sluice.retrieval.pipelines.expression import names_in
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.studies.judging.grading import GradingJudge
from sluice.retrieval.studies.judging.table import known_as

log = logging.getLogger("sluice")

Names = Collection[str]  # fingerprints, folders and names of models
INSIDE = ("scorer", "model", "teacher")  # where a scorer keeps the model that it asks


@runtime_checkable
class NamesModels(Protocol):
    """A scorer that says itself which models it asks, as a ``GradingJudge`` does."""

    @property
    def models(self) -> Names:
        """Their fingerprints, folders or names."""
        ...


def circular(judge: GradingJudge | Names, systems: Mapping[str, Stage | Names]) -> list[str]:
    """Return the systems in which a judge ranks too, by fingerprint, folder or name; log a warning.

    A judge is given itself or by the names of its models, a system as a pipeline or by those of
    its. An empty list does not say that they are independent: a ranker that was distilled from the
    judge has another name.
    """
    models = judge if isinstance(judge, Collection) else judge.models
    own = {name for model in models for name in known_as(model)}
    found = []
    for system, given in systems.items():
        names = rankers_in(given) if isinstance(given, Stage) else set(given)
        shared = own & {each for name in names for each in known_as(name)}
        if shared:
            found.append(system)
            log.warning(
                "circular: %s is ranked by the model that judges it (%s); its score says how well "
                "it agrees with itself",
                system,
                min(shared, key=len),
            )
    return found


def rankers_in(stage: Stage) -> set[str]:
    """Return the fingerprints of the models that a pipeline retrieves and reranks by."""
    found: set[str] = set()
    retriever = None if stage.inner else retriever_of(stage)
    if retriever is not None:
        found.add(str(retriever.head.encoder_fingerprint))
    for scorer in stage.ranking_models:
        found |= set(_fingerprints(scorer))
    return found.union(*(rankers_in(part) for part in stage.inner))


def rankers_of_run(path: Path) -> set[str]:
    """Return the models behind a run file that an experiment wrote, by folder, name, fingerprint.

    Empty for a run from elsewhere: nothing says what made it.
    """
    import yaml

    from sluice.encoders.foundation.files import read_json
    from sluice.retrieval.experiments.experiment import SETTINGS

    output = path.resolve().parent.parent
    settings = output / SETTINGS
    if path.resolve().parent.name != "runs" or not settings.is_file():
        return set()
    config = yaml.safe_load(settings.read_text(encoding="utf-8")) or {}
    system = path.name.removesuffix(".gz").removesuffix(".trec")
    found: set[str] = set()
    for part in _parts(system, config):
        for section in ("rerankers", "retrievers"):
            for model in _models((config.get(section) or {}).get(part)):
                trained = model in (config.get("train") or {})
                found |= set(known_as(str(output / "models" / model) if trained else model))
    results = output / "results.json"
    for each in read_json(results).get("systems", []) if results.is_file() else []:
        if each.get("name") == system:
            found |= set(map(str, (each.get("fingerprints") or {}).values()))
    return found


def _fingerprints(scorer: Any) -> Iterator[str]:
    """Yield the fingerprints of a scorer and of what it asks."""
    name = getattr(scorer, "fingerprint", None)
    if isinstance(name, str):
        yield name
    if isinstance(scorer, NamesModels):
        yield from (model for model in scorer.models if isinstance(model, str))
    for place in INSIDE:
        inner = getattr(scorer, place, None)
        if inner is not None and inner is not scorer:
            yield from _fingerprints(inner)


def _parts(system: str, config: Mapping[str, Any]) -> set[str]:
    """Return the retrievers and rerankers in a pipeline, those of pipelines it names included."""
    pipelines = config.get("pipelines") or {}
    found, waiting = set[str](), [system]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if name in pipelines:
            waiting += names_in(str(pipelines[name]), where=f"pipelines.{name}")
    return found


def _models(spec: Any) -> Iterator[str]:
    """Yield every ``model:`` inside a component."""
    if isinstance(spec, Mapping):
        for key, value in spec.items():
            if key == "model" and isinstance(value, str):
                yield value
            else:
                yield from _models(value)
