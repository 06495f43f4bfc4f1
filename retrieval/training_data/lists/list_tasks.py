"""Searches the ranked lists that negatives are mined from as tasks: slices of the queries."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sluice.encoders.foundation.disk.files import fingerprint_of, replaced_file, write_text
from sluice.encoders.foundation.progress import Advance, counted_by
from sluice.retrieval.execution.executor import LOCAL, Executor, Facts, Task
from sluice.retrieval.execution.plan import Plan, begin_alone, run_plan
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.dataset_runs import lists_for
from sluice.retrieval.runs.queries import Queries, SelfExcluding
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.training_data.lists.positive_scores import missed_scores, scoring_retriever
from sluice.retrieval.training_data.lists.sent_stage import SentStage, stage_identity

SLICE = 512  # queries of a task
SOURCE, INPUTS, LISTS = "source", "inputs", "lists"  # below the work folder


class Lists(NamedTuple):
    """A run, and the scores of positives that it lacks, by query."""

    run: Run
    scores: dict[str, dict[str, float]]


class Asked(NamedTuple):
    """The questions to a stage: queries with their known positives, how deep, and for what.

    With ``excluding`` a hit that is the query itself is left out; with ``scored`` the positives
    that a list lacks are scored.
    """

    queries: Queries
    positives: Mapping[str, Collection[str]]
    depth: int
    excluding: bool
    scored: bool

    def slices(self) -> Iterator[Asked]:
        """Yield the parts that are searched by themselves."""
        names = list(self.queries)
        for start in range(0, len(names), SLICE):
            part = names[start : start + SLICE]
            yield self._replace(
                queries={name: self.queries[name] for name in part},
                positives={name: list(self.positives.get(name, ())) for name in part},
            )


def find_lists(stage: Stage, asked: Asked) -> Lists:
    """Search a slice of queries; ``DataError`` for lists that lack a shard's documents."""
    queries = SelfExcluding(asked.queries) if asked.excluding else asked.queries
    run = lists_for(stage, queries, asked.depth).top(asked.depth)
    retriever = scoring_retriever(stage) if asked.scored else None
    scores = {}
    if retriever is not None:
        scores = missed_scores(retriever, run, asked.queries, asked.positives)
    return Lists(run, scores)


def lists_of(stage: Stage, asked: Asked, work: Path | None, executor: Executor = LOCAL) -> Lists:
    """Search all queries, slice by slice; with ``work`` by ``executor``, into files there.

    The same call after a kill continues there; ``work`` is the caller's to remove. Bits do not
    depend on either: slices are always the same.
    """
    if work is None:
        return _joined([find_lists(stage, part) for part in asked.slices()])
    sent = None
    if executor.remote:
        sent = SentStage(stage, work / SOURCE / fingerprint_of(stage.name)[:8])
        if sent.stays_here:
            begin_alone("mine", executor, sent.stays_here)
            sent, executor = None, LOCAL
    identity = stage_identity(stage) or uuid.uuid4().hex
    tasks = [
        _task(f"mine {stage.name} {number}", stage, sent, part, identity, work)
        for number, part in enumerate(asked.slices())
    ]
    run_plan(Plan("mine", tasks, "queries"), executor)
    found = _joined([read_lists(task.output) for task in tasks])
    shutil.rmtree(work / SOURCE, ignore_errors=True)
    return found


def _task(
    name: str, stage: Stage, sent: SentStage | None, asked: Asked, identity: str, work: Path
) -> Task:
    key = fingerprint_of(identity, asked._asdict())[:32]
    inputs = (work / INPUTS / f"{key}.json").absolute()
    output = (work / LISTS / f"{key}.parquet").absolute()

    def prepare() -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        if sent is not None:
            inputs.parent.mkdir(exist_ok=True)
            write_text(inputs, json.dumps(asked._asdict()))

    def here(advance: Advance) -> Facts:
        start = time.perf_counter()
        with counted_by(lambda amount=1: None):  # an encoder counts texts, this job queries
            write_lists(find_lists(stage, asked), output)
        return {"seconds": time.perf_counter() - start}

    form = {} if sent is None else sent.form
    args = {"stage": form, "inputs": str(inputs), "output": str(output)}
    return Task(
        "lists", name, args, output, here, len(asked.queries),
        prepare=prepare, finish=lambda: inputs.unlink(missing_ok=True),
    )  # fmt: skip


def _joined(parts: Sequence[Lists]) -> Lists:
    rankings: dict[str, Ranking] = {}
    scores: dict[str, dict[str, float]] = {}
    for part in parts:
        rankings.update(part.run.items())
        scores.update(part.scores)
    return Lists(Run(rankings), scores)


def write_lists(lists: Lists, path: Path) -> None:
    """Write lists as parquet, a row for each query, in one step."""
    import pyarrow as pa
    from pyarrow import parquet

    names = list(dict.fromkeys([*lists.run, *lists.scores]))
    rows = [lists.run.get(name) for name in names]
    known = [lists.scores.get(name) for name in names]
    columns: dict[str, tuple[Any, Any]] = {
        "query_id": (names, pa.string()),
        "doc_ids": ([None if row is None else list(row.doc_ids) for row in rows],
                    pa.list_(pa.string())),
        "scores": ([None if row is None else row.scores for row in rows], pa.list_(pa.float32())),
        "known_ids": ([None if each is None else list(each) for each in known],
                      pa.list_(pa.string())),
        "known": ([None if each is None else list(each.values()) for each in known],
                  pa.list_(pa.float64())),
    }  # fmt: skip
    table = pa.table({name: pa.array(*column) for name, column in columns.items()})
    with replaced_file(path) as stream:
        parquet.write_table(table, stream, compression="zstd")


def read_lists(path: Path) -> Lists:
    """Read what ``write_lists`` wrote."""
    from pyarrow import parquet

    table = parquet.read_table(path)
    names = table["query_id"].to_pylist()
    rankings = {
        name: Ranking(ids, np.asarray(scores.values.to_numpy(), np.float32))
        for name, ids, scores in zip(
            names, table["doc_ids"].to_pylist(), table["scores"], strict=True
        )
        if ids is not None
    }
    scores = {
        name: dict(zip(ids, known, strict=True))
        for name, ids, known in zip(
            names, table["known_ids"].to_pylist(), table["known"].to_pylist(), strict=True
        )
        if ids is not None
    }
    return Lists(Run(rankings), scores)
