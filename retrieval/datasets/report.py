"""Describes a dataset: counts, lengths, grades, and what does not fit together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.datasets.beir import LooseFiles
from sluice.retrieval.datasets.dataset import UNJUDGED, Dataset, IdenticalIdCheck, load_dataset
from sluice.retrieval.datasets.source import Qrels
from sluice.retrieval.documents.readers.source import is_source

log = logging.getLogger("sluice")
EXAMPLES = 3
# Tokens that encoders usually read of a document, and how many words of English they are: a word
# takes about 1.35 tokens. What an encoder really cuts is logged when it indexes.
LIMITS = {256: 190, 512: 380}


def describe(
    dataset: Dataset | str | Path | Mapping[str, Any], split: str = "test"
) -> dict[str, Any]:
    """Read a dataset once from end to end and return what is in it, ready for JSON.

    A dataset given by name is opened with ``split``, or without one if no split has judgements,
    which is then logged in one warning. The path of a folder of files, or another source that
    ``as_documents`` reads, is a corpus.

    Judgements of documents outside the corpus and queries that no split judges are logged in
    one warning each, with the count and three examples. Memory: the queries and qrels, and the
    ids of the judged documents. Bad input anywhere is a ``DataError``.
    """
    if not isinstance(dataset, Dataset):
        corpus_alone = open_corpus(dataset)
        dataset = corpus_alone.with_split(split) if corpus_alone.splits else corpus_alone
    report: dict[str, Any] = {"name": dataset.name, "split": dataset.split}
    if isinstance(dataset.source, LooseFiles):
        report["corpus"] = dataset.source.described
    if not dataset.splits:
        log.warning("dataset %s: %s", dataset.name, UNJUDGED)
    judged = dataset.with_split(dataset.split)
    queries = judged.queries if judged.split is not None else {}
    qrels = judged.qrels if judged.split is not None else {}
    report |= _described_corpus(judged, queries, qrels)
    if judged.split is None:
        return report
    report |= {
        "queries": len(queries),
        "words_per_query": _spread([len(text.split()) for text in queries.values()]),
        **_described_qrels(qrels),
        **_described_splits(judged),
    }
    return report


def open_corpus(name: str | Path | Mapping[str, Any]) -> Dataset:
    """Open a dataset by name or, where none is called so, what the name is the path of."""
    try:
        return load_dataset(name, None)
    except DataError:
        if isinstance(name, Mapping) or not is_source(name):
            raise
    return load_dataset({"corpus": name}, None)


def _described_corpus(dataset: Dataset, queries: dict[str, str], qrels: Qrels) -> dict[str, Any]:
    absent = {name for grades in qrels.values() for name in grades}
    check = IdenticalIdCheck(queries, qrels)
    documents = words = longest = empty = 0
    beyond = {limit: [0, 0] for limit in LIMITS}  # documents and words beyond each limit
    with progress(f"reading {dataset.name}", dataset.corpus.size, "documents") as advance:
        for document in dataset.corpus:
            length = len(document.full_text.split())
            documents += 1
            words += length
            longest = max(longest, length)
            empty += length == 0
            for limit, counts in beyond.items():
                counts[0] += length > LIMITS[limit]
                counts[1] += max(0, length - LIMITS[limit])
            absent.discard(document.id)
            check.see(document)
            advance()
    report: dict[str, Any] = {
        "documents": documents,
        "words_per_document": {"mean": words / max(documents, 1), "max": longest},
        "longer_than": {
            f"{limit} tokens, about {LIMITS[limit]} words": {
                "documents": count,
                "unread_share": round(unread / max(words, 1), 3),
            }
            for limit, (count, unread) in beyond.items()
        },
        "empty_documents": empty,
    }
    if dataset.split is None:
        return report
    place = dataset.source.places(dataset.split)
    # In the order of the qrels, so that the examples are the same every time.
    missing = [name for name in _judged_documents(qrels) if name in absent]
    decision = check.decide() if dataset.ignore_identical_ids == "auto" else dataset.identical_ids()
    return {
        **report,
        "missing_documents": _reported(
            missing, "judged document", f"{place.qrels}: %s not in {place.corpus}: %s"
        ),
        "identical_ids": decision._asdict(),
    }


def _judged_documents(qrels: Qrels) -> Iterable[str]:
    return dict.fromkeys(name for grades in qrels.values() for name in grades)


def _described_qrels(qrels: Qrels) -> dict[str, Any]:
    grades = Counter(grade for judged in qrels.values() for grade in judged.values())
    positives = [sum(grade > 0 for grade in judged.values()) for judged in qrels.values()]
    return {
        "judgements": sum(grades.values()),
        "grades": dict(sorted(grades.items())),
        "positives_per_query": _spread(positives),
        "queries_without_positives": positives.count(0),
    }


def _described_splits(dataset: Dataset) -> dict[str, Any]:
    """Count every split, and the queries that none of them judges."""
    splits: dict[str, Any] = {}
    judged: set[str] = set()
    for split in dataset.splits:
        qrels = dataset.qrels if split == dataset.split else dataset.source.qrels(split)
        splits[split] = {"queries": len(qrels), "judgements": sum(map(len, qrels.values()))}
        judged.update(qrels)
    files = {dataset.source.places(split).queries: split for split in dataset.splits}
    unjudged = list(
        dict.fromkeys(
            name
            for split in files.values()
            for name, _ in dataset.source.queries(split)
            if name not in judged
        )
    )
    message = f"{', '.join(files)}: %s without judgements in any split, not used: %s"
    return {"splits": splits, "unjudged_queries": _reported(unjudged, "query", message)}


def _reported(names: Sequence[str], noun: str, message: str) -> dict[str, Any]:
    examples = list(names[:EXAMPLES])
    if names:
        log.warning(message, plural(len(names), noun), ", ".join(examples))
    return {"count": len(names), "examples": examples}


def _spread(values: Sequence[int]) -> dict[str, float]:
    return {
        "mean": sum(values) / max(len(values), 1),
        "min": min(values, default=0),
        "max": max(values, default=0),
    }
