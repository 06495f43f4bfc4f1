"""Runs one pipeline on one dataset and measures what it costs, or reuses the saved run.

A run is reused for the same settings, files and queries: adding a pipeline runs only that pipeline,
and a killed evaluation continues with the next one.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import fingerprint_of, read_json, write_json
from sluice.encoders.foundation.errors import SluiceError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.processes import give_back_memory, peak_memory
from sluice.encoders.foundation.provenance import provenance
from sluice.retrieval.config.file_keys import path_contents
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.output.changes import retrievers_of
from sluice.retrieval.experiments.output.folder import RETRIEVERS
from sluice.retrieval.pipelines.expression import caches_in, texts_in
from sluice.retrieval.retrievers.candidate_lists import asked, run_on
from sluice.retrieval.retrievers.folder import HEAD, read_head
from sluice.retrieval.retrievers.measurements import Latency, alone, gather_recalls, measure_latency
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.run import Run

log = logging.getLogger("sluice")

VERSION = 2
TRACED = 10  # queries on which each stage's share of the latency is measured


@dataclass(slots=True)
class SystemResult:
    """What a pipeline's run cost.

    ``queries_per_second`` is measured with all queries in one call, ``latency`` one at a time.
    ``index_bytes`` and ``documents_per_second`` (reading, encoding and indexing) cover all
    retrievers that the pipeline searches; ``resident_bytes`` is how much of the indexes should fit
    into memory, without what is only read to score candidates again; ``peak_memory_bytes`` is that
    of the process during the run, models included. ``changes`` are those of retrievers whose
    documents were changed since their build, ``origin`` is the code, packages, machine and time of
    the run. ``fitted`` says what was chosen for each ``fitted(...)`` of the pipeline (``shown``),
    and in a sentence ``why``.
    ``gathers`` are the recalls of its stages that score candidates by token vectors, and of its
    indexes that gather them.
    """

    name: str
    pipeline: str
    documents: int = 0
    index_bytes: int = 0
    documents_per_second: float | None = None
    queries_per_second: float | None = None
    peak_memory_bytes: int = 0
    resident_bytes: int | None = None
    latency: Latency | None = None
    fingerprints: dict[str, str] = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    fitted: list[dict[str, str]] = field(default_factory=list)
    gathers: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bytes_per_document(self) -> float | None:
        """Bytes of index for each document, None if nothing is searched."""
        return self.index_bytes / self.documents if self.documents else None

    def to_dict(self) -> dict[str, Any]:
        """Return the facts for ``results.json``."""
        facts = asdict(self)
        facts["bytes_per_document"] = self.bytes_per_document
        facts["latency_ms"] = self.latency.to_dict() if self.latency else None
        del facts["latency"]
        return facts

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> SystemResult:
        """Return the result that ``to_dict`` described."""
        fields = dict(facts)
        del fields["bytes_per_document"]
        latency = fields.pop("latency_ms")
        return cls(**fields, latency=None if latency is None else Latency.from_dict(latency))


def system_result(
    experiment: Experiment, name: str, dataset: Dataset, depth: int
) -> tuple[SystemResult, Run]:
    """Return a pipeline's costs and its run of ``depth`` documents a query, saved or made now.

    Both are stored in ``<output>/runs``: ``NAME.trec.gz`` and, written last, ``NAME.json``.
    """
    folder = experiment.output / "runs"
    run_file, costs_file = folder / f"{name}.trec.gz", folder / f"{name}.json"
    key = _key(experiment, name, dataset, depth)
    saved = _saved(experiment, name, run_file, costs_file, key)
    if saved is not None:
        log.info("%s: reusing the saved run", name)
        return saved
    costs_file.unlink(missing_ok=True)
    stage = experiment.stage(name)
    key = _key(experiment, name, dataset, depth)  # once more: a retriever may be another one now
    queries = asked(dataset, stage)
    log.info("%s: searching %s", name, plural(len(dataset.queries), "query"))
    for query in list(queries)[:1]:  # what is loaded or compiled on first use is not timed
        stage.run(alone(queries, query), None, depth)
    with peak_memory() as peak:
        start = time.perf_counter()
        run = run_on(stage, dataset, depth)
        seconds = time.perf_counter() - start
        held = peak()
    run.name = name
    run.save(run_file, tag=name)
    result = SystemResult(
        name,
        experiment.config.pipelines.get(name, name),
        queries_per_second=len(queries) / seconds if queries else None,
        peak_memory_bytes=held,
        latency=measure_latency(
            stage, queries, sample=experiment.config.evaluate.latency_queries, traced=TRACED
        ),
    )  # fmt: skip
    _describe(result, retrievers_of(stage))
    result.gathers = [asdict(each) for each in gather_recalls(stage, dataset.queries)]
    if name in experiment.config.pipelines:
        result.fitted = [{"shown": f.shown, "why": f.why} for f in experiment.fits.chosen(name)]
    facts = provenance({}, seconds=seconds)
    result.origin = {part: fact for part, fact in facts.items() if part != "config"}
    result.origin["session"] = _session()
    held_by = {"run": path_contents(str(run_file)), "models": _reranking_models(experiment, name)}
    write_json(costs_file, {"key": key, **held_by, "result": result.to_dict()})
    give_back_memory()
    return result, run


@functools.cache
def _session() -> str:
    """Return a name of this process: what it measures, it measures under about the same load."""
    return f"{time.time():.0f}-{os.getpid()}"


def sessions_note(systems: Iterable[SystemResult]) -> str:
    """Return a sentence that dates the latencies if several sessions measured them, else ""."""
    dates: dict[str, str] = {}
    names: dict[str, list[str]] = {}
    for system in systems:
        if system.latency is not None:
            session = str(system.origin.get("session", ""))
            dates.setdefault(session, str(system.origin.get("written", "earlier")))
            names.setdefault(session, []).append(system.name)
    if len(dates) < 2:
        return ""
    parts = [f"{', '.join(names[session])} {date}" for session, date in dates.items()]
    return (
        f"Latencies were measured in {len(dates)} sessions, whose load may have differed: "
        f"{'; '.join(parts)}. Delete the files in runs/ to measure all of them again."
    )


def _describe(result: SystemResult, retrievers: list[Retriever]) -> None:
    heads = [retriever.head for retriever in retrievers]
    if not heads:
        return
    result.documents = heads[0].documents
    result.index_bytes = sum(head.index_bytes for head in heads)
    result.resident_bytes = sum(retriever.index.resident_bytes for retriever in retrievers)
    result.fingerprints = {r.name: r.head.encoder_fingerprint for r in retrievers}
    result.changes = {r.name: str(r.head.changes) for r in retrievers if r.head.changes}
    spent = sum(float(head.origin.get("seconds") or 0) for head in heads)
    if spent > 0:
        result.documents_per_second = result.documents / spent


def _key(experiment: Experiment, name: str, dataset: Dataset, depth: int) -> str:
    """Hash all that decides a system's run: settings, the files they name, queries, changes."""
    config = experiment.config
    kind = "pipelines" if name in config.pipelines else "retrievers"
    nodes = [f"{kind}.{name}"]
    expressions = [
        config.pipelines[node.partition(".")[2]]
        for node in experiment.needs.closure(nodes[0])
        if node.startswith("pipelines.")
    ]
    where = f"pipelines.{name}"
    named = {text for each in expressions for text in texts_in(each, where=where)}
    named -= {text for each in expressions for text in caches_in(each, where=where)}
    folders = [experiment.output / RETRIEVERS / each for each in experiment.needs.searched([name])]
    states = {path.name: read_head(path).state for path in folders if (path / HEAD).exists()}
    changed = [{each: state for each, state in states.items() if state is not None}]
    return fingerprint_of(
        VERSION,
        experiment.needs.keys(nodes[0]).key,
        sorted((text, path_contents(text)) for text in named),
        sorted(dataset.queries.items()),
        depth,
        config.evaluate.latency_queries,
        *experiment.fits.state(name),
        *filter(None, changed),  # without changes the key is that of earlier versions
    )


def _saved(
    experiment: Experiment, name: str, run_file: Path, costs_file: Path, key: str
) -> tuple[SystemResult, Run] | None:
    """Return the saved run and its costs, if key and models are the same as now."""
    if not (run_file.exists() and costs_file.exists()):
        return None
    try:
        saved = read_json(costs_file)
        now = {
            "key": key, "run": path_contents(str(run_file)),
            "models": _reranking_models(experiment, name),
        }  # fmt: skip
        if any(saved[part] != value for part, value in now.items()):
            return None
        result = SystemResult.from_dict(saved["result"])
        for part, fingerprint in result.fingerprints.items():  # not one that only mined negatives
            path = experiment.output / RETRIEVERS / part
            if not experiment.is_built(part):
                return None
            if fingerprint != read_head(path).encoder_fingerprint:
                return None  # trained again: the same recipe, other weights
        run = Run.load(run_file)
    except (SluiceError, KeyError, TypeError, AttributeError, ValueError) as error:
        log.warning("%s: damaged (%s); the pipeline is run again", costs_file, error)
        return None
    run.name = name
    return result, run


def is_saved(experiment: Experiment, name: str, dataset: Dataset, depth: int) -> bool:
    """Return whether ``system_result`` would reuse a saved run; nothing is opened for it."""
    folder = experiment.output / "runs"
    run_file, costs_file = folder / f"{name}.trec.gz", folder / f"{name}.json"
    if not (run_file.exists() and costs_file.exists()):
        return False
    key = _key(experiment, name, dataset, depth)
    return _saved(experiment, name, run_file, costs_file, key) is not None


def _needed(experiment: Experiment, name: str, section: str) -> list[tuple[str, str]]:
    """Return the parts of a section that a system needs, as (node, name)."""
    kind = "pipelines" if name in experiment.config.pipelines else "retrievers"
    nodes = dict.fromkeys(experiment.needs.closure(f"{kind}.{name}"))
    parts = (node.partition(".") for node in nodes)
    return [(f"{kind}.{part}", part) for kind, _, part in parts if kind == section]


def _reranking_models(experiment: Experiment, name: str) -> dict[str, str | None]:
    """Return hashes of the folders of models trained here that rerank, None without a folder."""
    trained = {
        needed.partition(".")[2]
        for node, _ in _needed(experiment, name, "rerankers")
        for needed in experiment.needs.needs(node)
        if needed.startswith("train.")
    }
    folder = experiment.output / "models"
    return {model: path_contents(str(folder / model)) for model in sorted(trained)}
