"""Mines hard negatives with any retriever, pipeline or TREC run, and writes them to files."""

from __future__ import annotations

import functools
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sluice.encoders.foundation.build import check_arguments
from sluice.encoders.foundation.disk.files import packed_file, write_json
from sluice.encoders.foundation.disk.generations import writer_lock
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.config.component_types import MINED
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.execution.executor import LOCAL, Executor, end_planning
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.candidate_lists import (
    RandomRun,
    Sources,
    asked_on,
    random_run,
    run_on,
)
from sluice.retrieval.runs.queries import SelfExcluding
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.list_tasks import INPUTS, LISTS, SOURCE, Asked, lists_of
from sluice.retrieval.training_data.teachers.judges import JUDGED, judged_by_tasks, open_judge

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training.negatives.audit import MiningAudit
    from sluice.training.negatives.false_negatives import Judge, TextSource
    from sluice.training.negatives.report import MinedNegatives
    from sluice.training.negatives.settings import Mining

log = logging.getLogger("sluice")

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
    work: Path | None = None,
    executor: Executor = LOCAL,
    key: str = "",
) -> MinedNegatives:
    """Mine negatives for a dataset's queries from the lists of ``source``.

    ``spec`` is the YAML section ``negatives``. Each part of ``Sources`` gives candidates of its
    own. A retriever also scores the positives that its list missed, so that every query has the
    limit that TopK-PercPos needs; a run cannot, which the report counts. A hit that is the query
    itself is not a candidate. ``judge`` is opened from ``spec["judge"]`` unless given; names of an
    experiment's rerankers must be given.

    With ``work``, a folder, ``executor`` searches slices of the queries and asks the judge about
    shards of the pairs; what is complete is kept there until all is mined, so that the same call
    after a kill continues. ``key`` hashes the texts of the corpus, which a judge reads, unless the
    folder is of one corpus alone.

    Raises ``DataError`` if a source answers none of the queries or no query gets a negative, and
    warns of a shortage.
    """
    from sluice.training.negatives.mining import mine_lists

    mining = mining_of(spec, "negatives")
    if judge is None and spec.get("judge") is not None:
        judge = open_judge(spec["judge"], "negatives.judge")
    if work is not None:
        _refuse_foreign(work)
    with nullcontext() if work is None else writer_lock(work):
        inputs = mining_lists(
            source, dataset, mining, spec.get("depth"), judge, work=work, executor=executor
        )
        if work is not None:
            if judge is not None and mining.judged:
                judge = _recorded(judge, inputs, dataset, mining, work, executor, key)
            end_planning("mine")
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
    if work is not None:
        shutil.rmtree(work, ignore_errors=True)
    return mined


def _recorded(
    judge: Judge,
    inputs: MiningLists,
    dataset: Dataset,
    mining: Mining,
    work: Path,
    executor: Executor,
    key: str,
) -> Judge:
    """Have the judge score, by tasks, all pairs that the miner will ask it about."""
    from sluice.training.negatives.mining import pairs_to_judge

    pairs = pairs_to_judge(
        inputs.lists, dataset.qrels, mining, positive_scores=inputs.scores, texts=inputs.texts
    )
    return judged_by_tasks(judge, list(pairs), dataset.queries, inputs.texts, work, executor, key)


def _refuse_foreign(work: Path) -> None:
    """Raise ``ConfigError`` if a folder that will be removed holds what no mining wrote."""
    known = (SOURCE, INPUTS, LISTS, JUDGED)
    names = sorted(path.name for path in work.glob("*")) if work.exists() else []
    foreign = [name for name in names if name not in known and not name.startswith(".")]
    if foreign:
        raise ConfigError(
            f"{work}: is for unfinished mining, but holds {foreign[0]!r}; move it, or give another "
            "output"
        )


def random_lists(dataset: Dataset, mining: Mining, seed: int) -> RandomRun:
    """Draw the random documents that negatives are mined from, for each query."""
    count = mining.range_min + SPARE * mining.per_query  # the first ranks are passed over
    return random_run(dataset, count, seed)


def mining_of(spec: Mapping[str, Any], where: str) -> Mining:
    """Return the ``Mining`` that a section ``negatives`` describes; check its depth too."""
    from sluice.training.negatives.settings import Mining

    whole_number(spec.get("depth", 1), f"{where}.depth", 1)
    whole_number(spec.get("folds", 2), f"{where}.folds", 2)
    others = ("type", "retriever", "depth", "folds", "mode", "judge", "refresh")
    settings = {key: value for key, value in spec.items() if key not in others}
    check_arguments(Mining, settings, where=where, kind=MINED)
    if spec.get("judge") is not None and settings.get("judge_gamma") is None:
        settings.setdefault("judge_margin", 0.01)
    try:
        return Mining.in_mode(spec.get("mode", "percentage"), settings)
    except ConfigError as error:  # negatives.KEY: ...
        raise ConfigError(f"{where.removesuffix('negatives')}{error}") from None


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
    work: Path | None = None,
    executor: Executor = LOCAL,
) -> MiningLists:
    """Run every part of ``source``, to ``depth`` or as deep as ``mining`` reaches.

    ``work`` and ``executor`` are those of ``lists_of``.
    """
    if depth is None:
        counts = (sum(g > 0 for g in grades.values()) for grades in dataset.qrels.values())
        # Ranks skip the known positives, which take up places of the list.
        depth = max(DEPTH, mining.depth + min(max(counts, default=0), DEPTH) * bool(mining.depth))
    parts = source.parts if isinstance(source, Sources) else {source.name: source}
    positives = {
        query: [doc for doc, grade in grades.items() if grade > 0]
        for query, grades in dataset.qrels.items()
    }
    scored = all_scores or mining.needs_positive_score
    lists, scores = {}, {}
    for name, part in parts.items():
        if isinstance(part, Run):
            run = lists[name] = run_on(part, dataset, depth).top(depth)
        else:
            excluding = isinstance(asked_on(part, dataset), SelfExcluding)
            asking = Asked(dataset.queries, positives, depth, excluding, scored)
            run, known = lists_of(part, asking, work, executor)
            lists[name] = run
            if known:
                scores[name] = known
        if not any(query in run for query in dataset.queries):
            raise DataError(
                f"negatives.retriever: {name!r} answers none of the {len(dataset.queries):,} "
                f"training queries of {dataset.name}; is it a run on another split?"
            )
        if isinstance(part, RandomRun):
            scores[name] = {query: dict.fromkeys(known, 0.0) for query, known in positives.items()}
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
    from sluice.training.negatives.false_negatives import text_key

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


def write_mined(output: Path, dataset: Dataset, mined: MinedNegatives) -> None:
    """Write ``x.jsonl``, ``x.report.json`` and ``x.provenance.parquet``.

    A line is ``{query_id, query, pos, neg, pos_ids, neg_ids, pos_scores, neg_scores}``: the last
    two are the judge's scores, else those of the one list mined from, and left out where any of
    the line's documents has none. Queries without text, documents that are not in the corpus, and
    positives that the ranking-consistency filter drops are left out.
    """
    from sluice.training.negatives.report import write_provenance

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
