"""Retrieval across languages on XQuAD's parallel questions: BM25 and a monolingual model.

python scripts/prove_languages.py --xquad FOLDER, a clone of google-deepmind/xquad, which is read
and not copied. Paragraphs are documents, questions queries, and each has one relevant paragraph.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders import BM25Encoder
from sluice.encoders.lexical.detection import guess_language
from sluice.retrieval import Run, evaluate
from sluice.retrieval.evaluation.significance import paired_bootstrap

LANGUAGES = ("en", "de", "es", "ru", "tr", "zh")
MEASURE = "nDCG@10"
Texts = dict[str, str]
Qrels = dict[str, dict[str, int]]


def read(folder: Path, language: str) -> tuple[Texts, Texts, Qrels]:
    """Return documents, queries and judgements of one language, with ids that all share."""
    articles = json.loads((folder / f"xquad.{language}.json").read_text("utf-8"))["data"]
    documents, queries, qrels = Texts(), Texts(), Qrels()
    for place, article in enumerate(articles):
        for number, paragraph in enumerate(article["paragraphs"]):
            document = f"{place}-{number}"
            documents[document] = paragraph["context"]
            for question in paragraph["qas"]:
                queries[question["id"]] = question["question"]
                qrels[question["id"]] = {document: 1}
    return documents, queries, qrels


def run_of(scores: Any, queries: Sequence[str], documents: Sequence[str]) -> Run:
    """Return the first 100 documents of each query by a matrix of scores."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :100]
    return Run(
        {
            query: {documents[d]: float(scores[row, d]) for d in order[row] if scores[row, d] > 0}
            for row, query in enumerate(queries)
        }
    )


def measured(scores: Any, queries: Texts, documents: Sequence[str], qrels: Qrels) -> Any:
    """Return the measure by query."""
    run = run_of(scores, list(queries), documents)
    return evaluate(run, {query: qrels[query] for query in queries}, [MEASURE]).per_query[MEASURE]


def bm25(language: str, texts: Sequence[str], queries: Sequence[str]) -> Any:
    """Return BM25's scores of every document for every query."""
    encoder = BM25Encoder(language=language).fit(texts)
    return (encoder.encode_queries(queries) @ encoder.encode_documents(texts).T).toarray()


def mean(values: Mapping[str, float]) -> float:
    """Return the mean over queries."""
    return float(np.mean(list(values.values())))


def compared(one: Mapping[str, float], other: Mapping[str, float]) -> str:
    """Return the difference with its bootstrap interval."""
    first, second = (np.array([each[q] for q in one]) for each in (one, other))
    interval = paired_bootstrap(first, second)
    return f"{(first - second).mean():+.4f} [{interval.low:+.4f}, {interval.high:+.4f}]"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--xquad", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=400, help="of each language, the first")
    parser.add_argument("--model", default="", help="a dense model; left out, BM25 alone")
    parser.add_argument("--languages", nargs="*", default=LANGUAGES)
    parser.add_argument("--dtype", default="float32", help="of the model")
    options = parser.parse_args()
    worlds = {code: read(options.xquad, code) for code in options.languages}
    worlds = {
        code: (documents, dict(list(queries.items())[: options.queries]), qrels)
        for code, (documents, queries, qrels) in worlds.items()
    }
    usual = {"zh": "cjk"}
    print("language of documents, queries guessed rightly; BM25 on one language:")
    for code, (documents, queries, qrels) in worlds.items():
        rows = {}
        for name in dict.fromkeys((usual.get(code, code), "auto", "en", "none")):
            scores = bm25(name, list(documents.values()), list(queries.values()))
            rows[name] = measured(scores, queries, list(documents), qrels)
        own = usual.get(code, code)
        right = [
            np.mean([guess_language([text], sure=False) == own for text in texts.values()])
            for texts in (documents, queries)
        ]
        shown = ", ".join(f"{name} {mean(values):.4f}" for name, values in rows.items())
        difference = compared(rows["auto"], rows[own])
        print(
            f"{code}: {right[0]:.3f} {right[1]:.3f}; {shown}; auto - own {difference}", flush=True
        )
    print("all documents of all languages in one index; a query's are those of its own:")
    everything = [text for documents, _, _ in worlds.values() for text in documents.values()]
    names = [f"{code}/{doc}" for code, (documents, _, _) in worlds.items() for doc in documents]
    for name in ("auto", "en", "none", "cjk"):
        begun, cells = time.perf_counter(), []
        asked = [text for _, queries, _ in worlds.values() for text in queries.values()]
        scores = bm25(name, everything, asked)
        start = 0
        for code, (_, queries, qrels) in worlds.items():
            own = {q: {f"{code}/{d}": 1 for d in qrels[q]} for q in queries}
            part = scores[start : start + len(queries)]
            cells.append(f"{code} {mean(measured(part, queries, names, own)):.4f}")
            start += len(queries)
        print(f"{name}: {', '.join(cells)} ({time.perf_counter() - begun:.1f} s)", flush=True)
    print("queries of the row's language, documents of the column's:", ", ".join(worlds))
    print_pairs("bm25 auto", worlds, lambda texts, queries: bm25("auto", texts, queries))
    if options.model:
        from sluice.encoders import DenseEncoder

        encoder = DenseEncoder.from_pretrained(options.model, dtype=options.dtype)
        known: dict[tuple[str, ...], Any] = {}

        def dense(texts: Sequence[str], queries: Sequence[str]) -> Any:
            sides = (texts, encoder.encode_documents), (queries, encoder.encode_queries)
            for part, encode in sides:
                if tuple(part) not in known:
                    known[tuple(part)] = encode(part)
            return known[tuple(queries)] @ known[tuple(texts)].T + 1.0  # cosines from 0

        print_pairs(options.model, worlds, dense)


def print_pairs(name: str, worlds: Mapping[str, Any], score: Any) -> None:
    """Print a row for each language of queries."""
    for asked, (_, queries, _) in worlds.items():
        cells = []
        for documents, _, qrels in worlds.values():
            scores = score(list(documents.values()), list(queries.values()))
            cells.append(f"{mean(measured(scores, queries, list(documents), qrels)):.4f}")
        print(f"{name}, {asked}: {' '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
