"""One side of a gate, baseline or candidate: values by query, costs, what it was made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from sluice.encoders.foundation.disk.files import fingerprint_of, read_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import is_number
from sluice.retrieval.evaluation.measures import Measure, at_level
from sluice.retrieval.evaluation.scores import Qrels, evaluate
from sluice.retrieval.experiments.evaluation import qrels_hash
from sluice.retrieval.experiments.experiment import open_experiment
from sluice.retrieval.experiments.training.summary import KEY
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.studies.report.evaluated import EvaluatedSet, open_sets

DIGITS: Final = 6  # of a value, as recorded; the candidate's are rounded too
SAME: Final = 100  # documents of each query in which equal runs agree
FIRST: Final = 3  # of these that are shown
UNJUDGED: Final = "Hole@10"
LATENCIES: Final = {"p50_ms": "p50", "p95_ms": "p95", "p99_ms": "p99"}
COSTS: Final = {**LATENCIES, "bytes": "index_bytes", "bytes_per_document": "bytes_per_document",
                "peak_memory_bytes": "peak_memory_bytes"}  # fmt: skip
NO_HITS: Final = Ranking([], [])
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Facts(BaseModel):
    """What is known of a system beside its values by query.

    ``bounds`` are those of latencies, ``reference`` is the fixed task's time beside them.
    ``fingerprints`` are hashes of ``queries``, ``corpus``, ``run``, ``qrels`` and the judgements at
    the evaluation, ``judged``. ``unjudged`` is
    the share of the first ten documents without a judgement, ``judged_only`` has the means without
    these. ``trained`` counts, by model, tested queries in training queries.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    system: str = ""
    written: str = ""
    machine: dict[str, Any] = {}
    costs: dict[str, Finite] = {}
    bounds: dict[str, list[Finite | None]] = {}
    reference: Finite | None = None
    fingerprints: dict[str, str] = {}
    unjudged: Finite | None = None
    judged_only: dict[str, Finite] = {}
    trained: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class System:
    """One system on one set of queries.

    ``values`` are by measure and query; ``first`` has the best documents of a query, as far as
    known. ``run`` and ``qrels`` are None where the values were recorded, ``stage`` where what
    ranked the documents is not at hand.
    """

    where: str
    facts: Facts
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    first: Mapping[str, Sequence[str]] = field(default_factory=dict)
    run: Run | None = None
    qrels: Qrels | None = None
    level: int = 1
    texts: Mapping[str, str] = field(default_factory=dict)
    stage: Callable[[], Stage] | None = None

    def scored(self, measures: Sequence[Measure], qrels: Qrels | None = None) -> System:
        """Return the system with the values of its run, by its own judgements or by others.

        A recorded one has its values already; ``DataError`` for a measure that it lacks.
        """
        names, truth = list(map(str, measures)), qrels or self.qrels
        if self.run is None or truth is None:
            if missing := [name for name in names if name not in self.values]:
                raise DataError(
                    f"{self.where}: has {', '.join(self.values)}, not {', '.join(missing)}; record "
                    f"it again with -m {missing[0]}"
                )
            return replace(self, values={name: self.values[name] for name in names})
        own = at_level(measures, self.level)
        scores = evaluate(self.run, truth, [*own, UNJUDGED])
        # Condensed lists, without unjudged documents (Sakai 2007).
        condensed = {
            query: [hit for hit in self.run.get(query, NO_HITS) if hit[0] in grades]
            for query, grades in truth.items()
        }
        judged = evaluate(Run(condensed), truth, own).mean if own else {}
        values = {
            name: {query: round(value, DIGITS) for query, value in scores.per_query[str(m)].items()}
            for name, m in zip(names, own, strict=True)
        }
        top = {q: list(self.run.get(q, NO_HITS).doc_ids[:SAME]) for q in truth if truth[q]}
        hashes = {"qrels": qrels_hash(truth), "run": fingerprint_of(sorted(top.items()))}
        update = {
            "fingerprints": {**self.facts.fingerprints, **hashes},
            "unjudged": round(scores.mean[UNJUDGED], DIGITS),
            "judged_only": {
                n: round(judged[str(m)], DIGITS) for n, m in zip(names, own, strict=True)
            },
        }
        return replace(
            self, values=values, qrels=truth, facts=self.facts.model_copy(update=update),
            first={query: ids[:FIRST] for query, ids in top.items()},
        )  # fmt: skip

    def first_relevant(self, query: str) -> int | None:
        """Return the rank of a query's first relevant document, 0 without one; None if unknown."""
        if self.run is None or self.qrels is None:
            return None
        grades, ids = self.qrels[query], self.run.get(query, NO_HITS).doc_ids
        ranks = (rank for rank, doc in enumerate(ids, 1) if grades.get(doc, 0) >= self.level)
        return next(ranks, 0)


def open_folder(folder: Path, system: str | None = None, allow: Collection[str] = ()) -> System:
    """Return one system of an output folder; ``ConfigError`` where it is not clear which."""
    sets = open_sets(folder, allow)
    if sets[0].folder != folder:
        raise ConfigError(
            f"{folder}: evaluates several datasets; name one of them: {folder}/datasets/NAME "
            f"({', '.join(each.name for each in sets)})"
        )
    evaluated = sets[0]
    systems = {str(each["name"]): each for each in evaluated.systems}
    name = next(iter(systems)) if system is None and len(systems) == 1 else str(system)
    if name not in systems:
        raise ConfigError(
            f"{folder}: which system? choose with --system NAME; it has {', '.join(systems)}"
            f"{suggest(name, systems)}"
        )
    facts = systems[name]
    latency, origin = facts.get("latency_ms") or {}, facts.get("origin") or {}
    contents = evaluated.results.get("contents") or {}
    bounds, measured = latency.get("bounds") or {}, {**facts, **latency}
    known = Facts(
        system=name, written=str(origin.get("written", "")), machine=origin.get("machine") or {},
        reference=latency.get("reference"),
        costs={cost: measured[key] for cost, key in COSTS.items() if is_number(measured.get(key))},
        bounds={cost: bounds[key] for cost, key in LATENCIES.items() if key in bounds},
        fingerprints={"judged" if part == "qrels" else part: text
                      for part, text in {**contents, **_corpus(evaluated, facts)}.items()},
        trained=_trained(folder),
    )  # fmt: skip
    dataset = evaluated.dataset
    return System(
        str(folder), known, run=evaluated.runs[name], qrels=dataset.qrels, level=dataset.level,
        texts=dataset.queries, stage=lambda: open_experiment(folder, allow=allow).stage(name),
    )  # fmt: skip


def _corpus(evaluated: EvaluatedSet, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the hash of the documents that a system's retrievers store."""
    names = [name for name in facts.get("fingerprints") or () if name in evaluated.retrievers]
    stored = sorted({str(evaluated.retrievers[name].store.fingerprint) for name in names})
    return {"corpus": fingerprint_of(stored)} if stored else {}


def _trained(folder: Path) -> dict[str, int]:
    """Return how many tested queries the models of a folder saw, as their training noted it."""
    seen: dict[str, int] = {}
    for manifest in sorted(folder.glob(f"models/*/{MANIFEST}")):
        note: Any = read_json(manifest)
        for key in (KEY, "overlap"):
            note = note.get(key) if isinstance(note, Mapping) else None
        count = note.get("in_queries") if isinstance(note, Mapping) else None
        if isinstance(count, int):
            seen[manifest.parent.name] = count
    return seen
