"""Says what was run: data, parts of each system, machine, versions, command, configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from sluice.encoders.foundation.numbers import duration, plural
from sluice.retrieval.config.sections import ExperimentConfig
from sluice.retrieval.experiments.reuse import Dependencies
from sluice.retrieval.retrievers.corpus.encoding import Reading
from sluice.retrieval.retrievers.measurements import GatherRecall
from sluice.retrieval.studies.report.evaluated import EvaluatedSet

# Settings of a training run that are listed, in this order: key, and the words before its value.
TRAINED = (
    ("num_train_epochs", "epochs"), ("max_steps", "steps"),
    ("per_device_train_batch_size", "batch"), ("learning_rate", "learning rate"),
)  # fmt: skip
Facts = list[list[str]]  # pairs of a name and what it is


def origin_of(evaluated: EvaluatedSet) -> dict[str, Any]:
    """Return what was run, as texts: ``systems``, ``parts`` and ``facts`` are pairs."""
    config = evaluated.config
    pipelines = {str(each["name"]): _pipeline(each) for each in evaluated.systems}
    return {
        "systems": [[name, pipeline or name] for name, pipeline in pipelines.items()],
        "parts": list(_parts(evaluated)),
        "facts": _facts(evaluated),
        "config": yaml.safe_dump(
            config.model_dump(mode="json", exclude_defaults=True), sort_keys=False,
            allow_unicode=True, width=100,
        ),
    }  # fmt: skip


def _pipeline(system: Mapping[str, Any]) -> str:
    """Return a system's expression, what was chosen for what it leaves open, and its recalls."""
    chosen = [str(fit.get("shown")) for fit in system.get("fitted") or ()]
    pipeline = " = ".join([str(system.get("pipeline", "")), *filter(None, [", ".join(chosen)])])
    gathered = [str(GatherRecall.noted(each)) for each in system.get("gathers") or ()]
    return "; ".join([pipeline, *gathered])


def _parts(evaluated: EvaluatedSet) -> Iterator[list[str]]:
    """Yield each retriever, reranker and trained model that a system is made of."""
    config = evaluated.config
    needs = Dependencies(config)
    kind = "pipelines" if config.pipelines else "retrievers"
    known = getattr(config, kind)
    nodes: dict[str, None] = {}
    for system in evaluated.systems:
        if system["name"] in known:
            nodes |= dict.fromkeys(needs.closure(f"{kind}.{system['name']}"))
    spent = {part["part"]: part for part in evaluated.results.get("parts") or ()}
    for node in nodes:
        section, _, name = node.partition(".")
        took = _cost(spent.get(node, {}))
        if section == "retrievers":
            yield [name, _retriever(evaluated, name) + took]
        elif section == "rerankers":
            yield [name, f"reranker: {_component(config.rerankers[name])}"]
        elif section == "train":
            yield [name, _training(config, name) + took]


def _cost(part: Mapping[str, Any]) -> str:
    """Return how long a part took to make, and the memory of the process meanwhile."""
    seconds, memory = part.get("seconds"), part.get("peak_memory_bytes")
    facts = [] if seconds is None else [f"made in {duration(seconds)}"]
    if memory is not None:
        facts.append(f"at most {memory / 1e6:,.0f} MB of memory")
    return f"; {', '.join(facts)}" if facts else ""


def _retriever(evaluated: EvaluatedSet, name: str) -> str:
    section = evaluated.config.retrievers[name]
    parts = [_component(section.encoder)]
    if section.index is not None:
        parts.append(f"index {_component(section.index)}")
    if section.passages is not None:
        of = section.passages
        parts.append(f"passages of {of.length} tokens, {of.overlap} shared ({of.aggregate})")
    if section.prune is not None:
        parts.append(f"without {section.prune.share:.0%} of the documents")
    retriever = evaluated.retrievers.get(name)
    reading = None if retriever is None else Reading.noted(retriever.head.origin)
    if reading is not None and reading.cut:
        parts.append(str(reading))
    return "; ".join(parts)


def _training(config: ExperimentConfig, name: str) -> str:
    section = config.train[name]
    parts = [f"trained: {_component(section.encoder)}", f"loss {_component(section.loss)}"]
    if section.negatives is not None:
        parts.append(f"negatives {_component(section.negatives)}")
    if section.teacher is not None:
        parts.append(f"teacher {_component(section.teacher)}")
    if section.tuning is not None:
        parts.append(f"tuning {_component(section.tuning)}")
    trainer = section.trainer
    facts = [f"{what} {trainer[key]}" for key, what in TRAINED if key in trainer]
    arithmetic = [kind for kind in ("bf16", "fp16") if trainer.get(kind)]
    return "; ".join([*parts, *([", ".join([*facts, *arithmetic])] if facts or arithmetic else [])])


def _component(value: Any) -> str:
    """Return a component such as ``{type: dense, model: x}`` as ``dense x``, others in brackets."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        dumped = getattr(value, "model_dump", None)
        value = dumped(mode="json", exclude_defaults=True) if callable(dumped) else {}
    value = dict(value)
    names = [str(value.pop(key)) for key in ("type", "model") if isinstance(value.get(key), str)]
    rest = [f"{key} {_plain(each)}" for key, each in value.items() if each is not None]
    return " ".join(names) + (f" ({', '.join(rest)})" if rest else "")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return _component(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _facts(evaluated: EvaluatedSet) -> Facts:
    results, qrels = evaluated.results, evaluated.dataset.qrels
    origin = results.get("origin") or {}
    judgements = sum(map(len, qrels.values()))
    documents = max((int(each.get("documents") or 0) for each in evaluated.systems), default=0)
    data = f"{evaluated.name}, split {results['split']}: "
    data += f"{plural(documents, 'document')}, " if documents else ""
    data += f"{plural(len(evaluated.queries), 'query')}, {plural(judgements, 'judgement')}"
    facts = {"data": data, "seed": str(evaluated.config.seed)}
    facts["evaluated"] = str(origin.get("written") or "").replace("T", " ").replace("Z", " UTC")
    facts["command"] = str(origin.get("command") or "")
    machine = origin.get("machine") or {}
    facts["machine"] = ", ".join(
        [str(machine[key]) for key in ("platform",) if machine.get(key)]
        + [plural(int(machine["cpus"]), "CPU") for key in ("cpus",) if machine.get(key)]
        + [f"GPU {name}" for name in machine.get("gpus") or ()]
    )
    versions = dict(origin.get("packages") or {})
    if machine.get("python"):
        versions = {"Python": machine["python"], **versions}
    facts["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    facts["commit"] = str(origin.get("git_commit") or "")[:12]
    contents = results.get("contents") or {}
    facts["fingerprints"] = ", ".join(f"{key} {str(text)[:12]}" for key, text in contents.items())
    return [[name, text] for name, text in facts.items() if text]
