"""Detects circular evaluation: a judge that is also one of the rankers it judges."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sluice.retrieval.pipelines.expression import names_in
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.studies.judging.grading import GradingJudge
from sluice.retrieval.studies.judging.table import known_as

log = logging.getLogger("sluice")

Names = Collection[str]  # fingerprints, folders and names of models


@runtime_checkable
class NamesModels(Protocol):
    """A scorer that names the models it uses, as a ``GradingJudge`` does."""

    @property
    def models(self) -> Names:
        """Their fingerprints, folders or names."""
        ...


def circular(judge: GradingJudge | Names, systems: Mapping[str, Stage | Names]) -> list[str]:
    """Return the systems that also rank with the judge's model, and log a warning for each.

    ``judge`` is a judge or the names of its models, a system a pipeline or the names of its models;
    they are compared by fingerprint, folder and name. An empty list does not prove independence: a
    ranker that was distilled from the judge has another name.
    """
    models = judge if isinstance(judge, Collection) else judge.models
    own = {name for model in models for name in known_as(model)}
    circles = []
    for system, ranker in systems.items():
        names = rankers_in(ranker) if isinstance(ranker, Stage) else set(ranker)
        shared = own & {each for name in names for each in known_as(name)}
        if shared:
            circles.append(system)
            log.warning(
                "circular: %s is ranked by the model that judges it (%s); its score shows how well "
                "that model agrees with itself",
                system,
                min(shared, key=len),
            )
    return circles


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
    """Return the models that produced an experiment's run file, by folder, name and fingerprint.

    Empty for a run from elsewhere, which has no record of its models.
    """
    from sluice.encoders.foundation.disk.files import read_json
    from sluice.retrieval.config.yaml_file import read_yaml
    from sluice.retrieval.experiments.output.folder import SETTINGS

    output = path.resolve().parent.parent
    settings = output / SETTINGS
    if path.resolve().parent.name != "runs" or not settings.is_file():
        return set()
    config = read_yaml(settings)
    system = path.name.removesuffix(".gz").removesuffix(".trec")
    found: set[str] = set()
    for part in _parts(system, config):
        for section in ("rerankers", "retrievers"):
            for model in _models(_section(config, section).get(part)):
                trained = model in _section(config, "train")
                found |= set(known_as(str(output / "models" / model) if trained else model))
    results = output / "results.json"
    for each in _systems(read_json(results)) if results.is_file() else []:
        if each.get("name") == system:
            found |= set(map(str, _section(each, "fingerprints").values()))
    return found


def _fingerprints(scorer: Any) -> Iterator[str]:
    """Yield the fingerprints of a scorer and of the models inside it."""
    hooks = ScorerHooks(scorer)
    if hooks.fingerprint is not None:
        yield hooks.fingerprint
    if isinstance(scorer, NamesModels):
        yield from (model for model in scorer.models if isinstance(model, str))
    for inner in hooks.inside:
        yield from _fingerprints(inner)


def _section(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a mapping in a file that anybody may have written; {} where there is none."""
    inner = value.get(key)
    return inner if isinstance(inner, Mapping) else {}


def _systems(results: Any) -> list[Mapping[str, Any]]:
    listed = results.get("systems") if isinstance(results, Mapping) else None
    systems = listed if isinstance(listed, list) else []
    return [each for each in systems if isinstance(each, Mapping)]


def _parts(system: str, config: Mapping[str, Any]) -> set[str]:
    """Return the retrievers and rerankers in a pipeline, including those of pipelines it names."""
    pipelines = _section(config, "pipelines")
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
