"""The ranked lists that negatives are mined from, as tasks, with scores of missing positives."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import (
    file_hash,
    fingerprint_of,
    read_json,
    replaced_file,
    write_text,
)
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.progress import Advance, counted_by
from sluice.encoders.foundation.q_net import q_net_scores
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.retrieval.execution.executor import (
    LOCAL,
    Executor,
    Facts,
    Plan,
    Task,
    begin_alone,
    run_plan,
)
from sluice.retrieval.pipelines.operators import Cut
from sluice.retrieval.pipelines.saving import GIVEN, PIPELINE, named_parts
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.candidate_lists import lists_for
from sluice.retrieval.retrievers.corpus.token_scores import stored_scores
from sluice.retrieval.retrievers.folder import HEAD
from sluice.retrieval.retrievers.retriever import Retriever, retriever_of
from sluice.retrieval.retrievers.state import queries_at_a_time
from sluice.retrieval.runs.queries import Queries, SelfExcluding
from sluice.retrieval.runs.run import Ranking, Run

PAIRS = 16_384  # (query, document) pairs scored at a time
BLOCK = 256  # queries whose networks are made together


def scoring_retriever(source: Stage | Run) -> Retriever | None:
    """Return the retriever whose scores the lists have; with a filter it may lack positives."""
    inner = source.stage if isinstance(source, Cut) else source
    if isinstance(inner, Stage) and inner.base_where is None:
        return retriever_of(inner)
    return None


def missed_scores(
    retriever: Retriever,
    run: Run,
    queries: Mapping[str, str],
    positives: Mapping[str, Collection[str]],
) -> dict[str, dict[str, float]]:
    """Score the positives that a retriever's lists lack, as its index would."""
    pairs = []
    for query in queries:
        hits = set(run[query].doc_ids) if query in run else set()
        pairs += [(query, doc) for doc in positives.get(query, ()) if doc not in hits]
    documents = list(dict.fromkeys(doc for _, doc in pairs))
    known = retriever.store.rows(documents) >= 0
    documents = [doc for doc, stored in zip(documents, known, strict=True) if stored]
    if not documents:
        return {}
    place = {doc: number for number, doc in enumerate(documents)}
    pairs = [pair for pair in pairs if pair[1] in place]
    distinct = list(dict.fromkeys(query for query, _ in pairs))
    of = {query: number for number, query in enumerate(distinct)}
    scores: dict[str, dict[str, float]] = {}
    if hooks_of(retriever.encoder).similarity == "q_net":
        vectors = dict(zip(documents, _vectors_of(retriever, documents), strict=True))
        return _net_scores(retriever, queries, pairs, vectors)
    left = retriever.encoder.encode_queries([queries[query] for query in distinct])
    if hooks_of(retriever.encoder).similarity == "attention":
        return _attended(retriever, dict(zip(distinct, left, strict=True)), pairs)
    if isinstance(left, TokenVectors):
        rows = retriever.store.rows(documents)
        for query, doc in pairs:
            one, row = left[[of[query]]], rows[[place[doc]]]
            score = float(stored_scores(retriever.index, one, row)[0])
            scores.setdefault(query, {})[doc] = score
        return scores
    right = _vectors_of(retriever, documents)
    metric = retriever.index.metric or "ip"
    for start in range(0, len(pairs), PAIRS):
        part = pairs[start : start + PAIRS]
        one = left[np.array([of[query] for query, _ in part])]
        other = right[np.array([place[doc] for _, doc in part])]
        similarities = _similarities(one, other, metric).tolist()
        for (query, doc), score in zip(part, similarities, strict=True):
            scores.setdefault(query, {})[doc] = score
    return scores


def _net_scores(
    retriever: Retriever,
    texts: Mapping[str, str],
    pairs: Sequence[tuple[str, str]],
    vectors: Mapping[str, Any],
) -> dict[str, dict[str, float]]:
    """Score pairs of queries that become networks and documents, by these vectors."""
    missed = _by_query(pairs)
    queries, most = list(missed), min(BLOCK, queries_at_a_time(retriever.encoder))
    scores: dict[str, dict[str, float]] = {}
    for start in range(0, len(queries), most):
        block = queries[start : start + most]
        nets = retriever.encoder.encode_queries([texts[query] for query in block])
        for query, net in zip(block, nets, strict=True):
            docs = missed[query]
            values = q_net_scores(net[None], np.stack([vectors[doc] for doc in docs]))[0].tolist()
            scores[query] = dict(zip(docs, values, strict=True))
    return scores


def _by_query(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the documents of each query's pairs."""
    documents: dict[str, list[str]] = {}
    for query, doc in pairs:
        documents.setdefault(query, []).append(doc)
    return documents


def _attended(
    retriever: Retriever, vectors: Mapping[str, Any], pairs: Sequence[tuple[str, str]]
) -> dict[str, dict[str, float]]:
    """Score pairs of queries, with their vectors, and documents of several vectors each."""
    scores: dict[str, dict[str, float]] = {}
    for query, docs in _by_query(pairs).items():
        rows = retriever.store.rows(docs)
        hits = retriever.index.search(vectors[query][None], len(docs), keep=rows)
        score_of = dict(zip(hits.rows[0].tolist(), hits.scores[0].tolist(), strict=True))
        # a document without vectors is not found
        scores[query] = {doc: score_of.get(row, 0.0) for doc, row in zip(docs, rows, strict=True)}
    return scores


def _vectors_of(retriever: Retriever, documents: list[str]) -> Any:
    """Return the vectors of documents: those of the index, else encoded (whole, for passages)."""
    try:
        return retriever.index.documents(retriever.store.rows(documents))
    except ConfigError:  # it gives none back
        return retriever.encoder.encode_documents(retriever.store.texts(documents))


def _similarities(one: Any, other: Any, metric: str) -> np.ndarray:
    """Score vectors row by row as an index of that metric would (l2: the negative square)."""
    if metric == "l2":
        return np.asarray(-np.square(one - other).sum(axis=1))
    products = np.asarray((one * other).sum(axis=1)).ravel()
    if metric == "cosine":
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
        products = products / lengths.clip(1e-30)
    return products


class SentStage:
    """A stage that other processes open; ``form`` says in JSON how, ``stays_here`` why not.

    A retriever is opened from its folder. One in a temporary folder, and a pipeline, are saved to
    ``folder`` (retrievers are linked where the file system can).
    """

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._folder = folder.absolute()
        self.form: dict[str, Any] = {}
        self.stays_here = ""
        try:
            self.form = self._saved(stage)
        except (ConfigError, TypeError, ValueError) as error:
            self.stays_here = str(error)

    def _saved(self, stage: Stage) -> dict[str, Any]:
        if isinstance(stage, Retriever):
            if stage.temporary:
                _renew(stage, self._folder)
            opening = _opening(stage)
            return {"retriever": opening | ({"path": str(self._folder)} if stage.temporary else {})}
        _, parts = named_parts(stage)
        _renew(stage, self._folder)
        kinds = read_json(self._folder / PIPELINE)["rerankers"]
        given = next((name for name, facts in kinds.items() if facts["type"] == GIVEN), None)
        if given is not None:
            raise ConfigError(f"{stage.name}: {given} cannot be saved for other processes")
        bases = {name: retriever_of(part) for name, part in parts.items()}
        openings = {name: _opening(base) for name, base in bases.items() if base is not None}
        allow = sorted({word for each in openings.values() for word in each["allow"]})
        params = {name: each["params"] for name, each in openings.items()}
        return {"pipeline": str(self._folder), "allow": allow, "params": params}


def stage_identity(stage: Stage) -> str:
    """Return a hash of what decides a stage's lists; empty where that is not known."""
    try:
        text, parts = named_parts(stage)
        facts = {name: _identity(part) for name, part in parts.items()}
    except (ConfigError, AttributeError):
        return ""
    return fingerprint_of(text, facts)


def _identity(part: Any) -> Any:
    retriever = retriever_of(part) if isinstance(part, Stage) else None
    if retriever is None:
        return str(part.fingerprint)
    return [file_hash(retriever.path / HEAD), retriever.params, part.base_where]


def _opening(retriever: Retriever) -> dict[str, Any]:
    """Return the arguments of ``Retriever.open`` in JSON; raises for an encoder that was given."""
    facts = retriever.state.open_arguments()
    if facts.pop("encoder") is not None:
        raise ConfigError(f"{retriever.name}: its encoder is a function or object of a program")
    plain: dict[str, Any] = {**facts, "path": str(facts["path"]), "allow": list(facts["allow"])}
    json.dumps(plain)
    return plain


def _renew(stage: Stage, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    stage.save(folder)


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


def find_lists(stage: Stage, batch: Asked) -> Lists:
    """Search a slice of queries; ``DataError`` for lists that lack a shard's documents."""
    queries = SelfExcluding(batch.queries) if batch.excluding else batch.queries
    run = lists_for(stage, queries, batch.depth).top(batch.depth)
    retriever = scoring_retriever(stage) if batch.scored else None
    scores = {}
    if retriever is not None:
        scores = missed_scores(retriever, run, batch.queries, batch.positives)
    return Lists(run, scores)


def lists_of(stage: Stage, batch: Asked, work: Path | None, executor: Executor = LOCAL) -> Lists:
    """Search all queries, slice by slice; with ``work`` by ``executor``, into files there.

    The same call after a kill continues there; ``work`` is the caller's to remove. Bits do not
    depend on either: slices are always the same.
    """
    if work is None:
        return _joined([find_lists(stage, part) for part in batch.slices()])
    sent = None
    if executor.remote:
        sent = SentStage(stage, work / SOURCE / fingerprint_of(stage.name)[:8])
        if sent.stays_here:
            begin_alone("mine", executor, sent.stays_here)
            sent, executor = None, LOCAL
    identity = stage_identity(stage) or uuid.uuid4().hex
    tasks = [
        _task(f"mine {stage.name} {number}", stage, sent, part, identity, work)
        for number, part in enumerate(batch.slices())
    ]
    run_plan(Plan("mine", tasks, "queries"), executor)
    lists = _joined([read_lists(task.output) for task in tasks])
    shutil.rmtree(work / SOURCE, ignore_errors=True)
    return lists


def _task(
    name: str, stage: Stage, sent: SentStage | None, batch: Asked, identity: str, work: Path
) -> Task:
    key = fingerprint_of(identity, batch._asdict())[:32]
    inputs = (work / INPUTS / f"{key}.json").absolute()
    output = (work / LISTS / f"{key}.parquet").absolute()

    def prepare() -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        if sent is not None:
            inputs.parent.mkdir(exist_ok=True)
            write_text(inputs, json.dumps(batch._asdict()))

    def here(advance: Advance) -> Facts:
        start = time.perf_counter()
        with counted_by(lambda amount=1: None):  # an encoder counts texts, this job queries
            write_lists(find_lists(stage, batch), output)
        return {"seconds": time.perf_counter() - start}

    form = {} if sent is None else sent.form
    args = {"stage": form, "inputs": str(inputs), "output": str(output)}
    return Task(
        "lists", name, args, output, here, len(batch.queries),
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
