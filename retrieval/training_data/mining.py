"""Mines hard negatives with any retriever, pipeline or TREC run, and writes them to files."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import check_arguments
from sluice.encoders.foundation.disk.files import packed_file, write_json
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.q_net import q_net_scores
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.pipelines.stage import Cut, Stage
from sluice.retrieval.retrievers.candidate_lists import RandomRun, Sources, random_run
from sluice.retrieval.retrievers.corpus.token_scores import stored_scores
from sluice.retrieval.retrievers.dataset_runs import run_on
from sluice.retrieval.retrievers.retriever import Retriever, retriever_of
from sluice.retrieval.retrievers.state import queries_at_a_time
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.teachers.judges import open_judge

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training.negatives.audit import MiningAudit
    from sluice.training.negatives.judge import Judge
    from sluice.training.negatives.report import MinedNegatives
    from sluice.training.negatives.settings import Mining
    from sluice.training.negatives.text_identity import TextSource

log = logging.getLogger("sluice")

PAIRS = 16_384  # (query, document) pairs scored at a time
BLOCK = 256  # queries whose networks are made together
DEPTH = 100  # candidates looked at for each query
SPARE = 4  # random documents drawn for each negative: some are dropped as copies of others


class MiningLists(NamedTuple):
    """The miner's input: lists and the scores of positives they lack, by name; texts."""

    lists: dict[str, Run]
    scores: dict[str, dict[str, dict[str, float]]]
    texts: TextSource


def mine_negatives(
    source: Stage | Run,
    dataset: Dataset,
    spec: Mapping[str, Any],
    *,
    seed: int,
    judge: Judge | None = None,
) -> MinedNegatives:
    """Mine negatives for a dataset's queries from the lists of ``source``.

    ``spec`` is the YAML section ``negatives``. Each part of ``Sources`` gives candidates of its
    own. A retriever also scores the positives that its list missed, so that every query has the
    limit that TopK-PercPos needs; a run cannot, which the report counts. A hit that is the query
    itself is not a candidate. ``judge`` is opened from ``spec["judge"]`` unless given; names of an
    experiment's rerankers must be given.

    Raises ``DataError`` if a source answers none of the queries or no query gets a negative, and
    warns of a shortage.
    """
    from sluice.training.negatives.mining import mine_lists

    mining = mining_of(spec, "negatives")
    if judge is None and spec.get("judge") is not None:
        judge = open_judge(spec["judge"], "negatives.judge")
    inputs = mining_lists(source, dataset, mining, spec.get("depth"), judge)
    mined = mine_lists(
        inputs.lists,
        dataset.qrels,
        mining,
        positive_scores=inputs.scores,
        queries=dataset.queries,
        texts=inputs.texts,
        judge=judge,
        seed=seed,
    )
    _check_mined(mined, dataset)
    return mined


def random_lists(dataset: Dataset, mining: Mining, seed: int) -> RandomRun:
    """Draw the random documents that negatives are mined from, for each query."""
    count = mining.range_min + SPARE * mining.per_query  # the first ranks are passed over
    return random_run(dataset, count, seed)


def mining_of(spec: Mapping[str, Any], where: str) -> Mining:
    """Return the ``Mining`` that a section ``negatives`` describes; check its depth too."""
    from sluice.training.negatives.settings import Mining

    whole_number(spec.get("depth", 1), f"{where}.depth", 1)
    others = ("type", "retriever", "depth", "mode", "judge", "refresh")
    settings = {key: value for key, value in spec.items() if key not in others}
    check_arguments(Mining, settings, where=where, kind="mined")
    if spec.get("judge") is not None and settings.get("judge_gamma") is None:
        settings.setdefault("judge_margin", 0.01)
    return Mining.in_mode(spec.get("mode", "percentage"), settings)


def audit_negatives(
    source: Stage | Run,
    dataset: Dataset,
    spec: Mapping[str, Any],
    *,
    share: float,
    seed: int,
    judge: Judge | None = None,
) -> MiningAudit:
    """Hide a share of a dataset's positives and count which modes of mining reject them.

    ``spec`` is as in ``mine_negatives``: its settings are audited as ``as set``, beside every mode
    with its defaults.
    """
    from sluice.training.negatives.audit import audit_mining
    from sluice.training.negatives.settings import MODES, Mining

    own = mining_of(spec, "negatives")
    if judge is None and spec.get("judge") is not None:
        judge = open_judge(spec["judge"], "negatives.judge")
    plain = {"per_query": own.per_query}
    modes = {n: Mining.in_mode(n, plain) for n in MODES if n != "judge" or judge is not None}
    deepest = max(modes.values(), key=lambda mining: mining.depth)
    deepest = own if own.depth > deepest.depth else deepest
    inputs = mining_lists(source, dataset, deepest, spec.get("depth"), judge, all_scores=True)
    if own not in modes.values():
        modes["as set"] = own
    return audit_mining(
        inputs.lists,
        dataset.qrels,
        modes,
        share=share,
        positive_scores=inputs.scores,
        queries=dataset.queries,
        texts=inputs.texts,
        judge=judge,
        seed=seed,
    )


def mining_lists(
    source: Stage | Run,
    dataset: Dataset,
    mining: Mining,
    depth: int | None = None,
    judge: Judge | None = None,
    *,
    all_scores: bool = False,
) -> MiningLists:
    """Run every part of ``source``, to ``depth`` or as deep as ``mining`` reaches."""
    if depth is None:
        counts = (sum(g > 0 for g in grades.values()) for grades in dataset.qrels.values())
        # Ranks skip the known positives, which take up places of the list.
        depth = max(DEPTH, mining.depth + min(max(counts, default=0), DEPTH) * bool(mining.depth))
    parts = source.parts if isinstance(source, Sources) else {source.name: source}
    lists, scores = {}, {}
    for name, part in parts.items():
        run = lists[name] = run_on(part, dataset, depth).top(depth)
        if not any(query in run for query in dataset.queries):
            raise DataError(
                f"negatives.retriever: {name!r} answers none of the {len(dataset.queries):,} "
                f"training queries of {dataset.name}; is it a run on another split?"
            )
        if isinstance(part, RandomRun):
            scores[name] = {
                query: {doc: 0.0 for doc, grade in grades.items() if grade > 0}
                for query, grades in dataset.qrels.items()
            }
            continue
        retriever = _retriever(part)
        if retriever is not None and (all_scores or mining.needs_positive_score):
            scores[name] = _missed_scores(retriever, run, dataset)
    store = source.documents if isinstance(source, Stage) else None
    if isinstance(store, DocumentStore):
        return MiningLists(lists, scores, functools.partial(_stored_texts, store))
    texts = _corpus_texts(lists, dataset, keys=judge is None or not judge.needs_texts)
    return MiningLists(lists, scores, texts)


def _stored_texts(store: DocumentStore, ids: list[str]) -> dict[str, str]:
    """Read documents' texts from a store, leaving out those that it does not hold."""
    rows = store.rows(ids)
    known = [doc for doc, row in zip(ids, rows.tolist(), strict=True) if row >= 0]
    documents = store.documents(rows[rows >= 0])
    return {doc: each.full_text for doc, each in zip(known, documents, strict=True)}


def _corpus_texts(lists: Mapping[str, Run], dataset: Dataset, *, keys: bool) -> dict[str, str]:
    """Read the corpus once for the texts of candidates and positives.

    With ``keys`` each text is replaced by a short key: enough to see which texts are equal.
    """
    from sluice.training.negatives.text_identity import text_key

    graded = (pair for grades in dataset.qrels.values() for pair in grades.items())
    needed = {document for document, grade in graded if grade > 0}
    for run in lists.values():
        for query in dataset.queries:
            if query in run:
                needed.update(run[query].doc_ids)
    texts = ((each.id, each.full_text) for each in dataset.corpus if each.id in needed)
    if not keys:
        return dict(texts)
    return {name: f"{text_key(text):x}" if text.strip() else "" for name, text in texts}


def _check_mined(mined: MinedNegatives, dataset: Dataset) -> None:
    """Raise ``DataError`` without any negative or training pair; warn of a shortage."""
    report, name = mined.report, dataset.name
    pairs = sum(grade > 0 for query in mined.negatives for grade in dataset.qrels[query].values())
    if report.queries and not report.kept:
        raise DataError(f"negatives: {name}: no query got a negative; {report.shortage}")
    if report.inconsistent_pairs and report.inconsistent_pairs == pairs:
        raise DataError(
            f"negatives.consistency: {name}: none of the {report.inconsistent_pairs:,} positives "
            "ranks high enough in its query's list; raise it, or mine with a better retriever"
        )
    if report.shortage:
        log.warning("negatives: %s: %s", name, report.shortage)


def _retriever(source: Stage | Run) -> Retriever | None:
    """Return the retriever whose scores the lists have; with a filter it may lack positives."""
    inner = source.stage if isinstance(source, Cut) else source
    if isinstance(inner, Stage) and inner.base_where is None:
        return retriever_of(inner)
    return None


def _missed_scores(retriever: Retriever, run: Run, dataset: Dataset) -> dict[str, dict[str, float]]:
    """Score the positives that a retriever's lists lack, as its index would."""
    pairs = []
    for query, grades in dataset.qrels.items():
        hits = set(run[query].doc_ids) if query in run else set()
        if query in dataset.queries:
            pairs += [
                (query, doc) for doc, grade in grades.items() if grade > 0 and doc not in hits
            ]
    documents = list(dict.fromkeys(doc for _, doc in pairs))
    known = retriever.store.rows(documents) >= 0
    documents = [doc for doc, stored in zip(documents, known, strict=True) if stored]
    if not documents:
        return {}
    place = {doc: number for number, doc in enumerate(documents)}
    pairs = [pair for pair in pairs if pair[1] in place]
    queries = list(dict.fromkeys(query for query, _ in pairs))
    of = {query: number for number, query in enumerate(queries)}
    scores: dict[str, dict[str, float]] = {}
    if hooks_of(retriever.encoder).similarity == "q_net":
        vectors = dict(zip(documents, _vectors_of(retriever, documents), strict=True))
        return _net_scores(retriever, dataset.queries, pairs, vectors)
    left = retriever.encoder.encode_queries([dataset.queries[query] for query in queries])
    if hooks_of(retriever.encoder).similarity == "attention":
        return _attended(retriever, dict(zip(queries, left, strict=True)), pairs)
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
    found: dict[str, list[str]] = {}
    for query, doc in pairs:
        found.setdefault(query, []).append(doc)
    return found


def _attended(
    retriever: Retriever, vectors: Mapping[str, Any], pairs: Sequence[tuple[str, str]]
) -> dict[str, dict[str, float]]:
    """Score pairs of queries, with their vectors, and documents of several vectors each."""
    scores: dict[str, dict[str, float]] = {}
    for query, docs in _by_query(pairs).items():
        rows = retriever.store.rows(docs)
        hits = retriever.index.search(vectors[query][None], len(docs), keep=rows)
        found = dict(zip(hits.rows[0].tolist(), hits.scores[0].tolist(), strict=True))
        # a document without vectors is not found
        scores[query] = {doc: found.get(row, 0.0) for doc, row in zip(docs, rows, strict=True)}
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


def write_mined(output: Path, dataset: Dataset, mined: MinedNegatives) -> None:
    """Write ``x.jsonl``, ``x.report.json`` and ``x.provenance.parquet``.

    A line is ``{query_id, query, pos, neg, pos_ids, neg_ids, pos_scores, neg_scores}``: the last
    two are the judge's scores, else those of the one list mined from, and left out where any of
    the line's documents has none. Queries without text, documents that are not in the corpus, and
    positives that the ranking-consistency filter drops are left out.
    """
    from sluice.training.negatives.provenance_file import write_provenance

    with packed_file(output) as stream:
        stream.writelines(
            json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n"
            for line in _lines(dataset, mined)
        )
    write_json(output.with_suffix(".report.json"), mined.report.as_dict())
    write_provenance(output.with_suffix(".provenance.parquet"), mined)


def _lines(dataset: Dataset, mined: MinedNegatives) -> Iterator[dict[str, Any]]:
    positives = {
        query: [
            doc
            for doc, grade in dataset.qrels[query].items()
            if grade > 0 and doc not in mined.inconsistent.get(query, ())
        ]
        for query in mined.negatives
    }
    needed = {doc for docs in (*positives.values(), *mined.negatives.values()) for doc in docs}
    texts = {d.id: d.full_text for d in dataset.corpus if d.id in needed}
    absent = sorted(needed - texts.keys())
    if absent:
        log.warning(
            "%s: left out %d of %d documents named by the lists or the qrels: not in the corpus "
            "(%s)", dataset.name, len(absent), len(needed), ", ".join(absent[:3]),
        )  # fmt: skip
    table = mined.table
    for place, query in enumerate(table.queries):
        ids = {
            "pos": [doc for doc in positives[query] if doc in texts],
            "neg": [doc for doc in mined.negatives[query] if doc in texts],
        }
        if query in dataset.queries and ids["pos"]:
            scores = table.scores_of(place)
            yield {
                "query_id": query,
                "query": dataset.queries[query],
                **{side: [texts[doc] for doc in docs] for side, docs in ids.items()},
                **{f"{side}_ids": docs for side, docs in ids.items()},
                **{
                    f"{side}_scores": [scores[doc] for doc in docs]
                    for side, docs in ids.items()
                    if all(doc in scores for doc in docs)
                },
            }
