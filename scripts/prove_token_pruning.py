"""Token vectors a third as many: pruned by Voronoi cells, pooled by Ward, or the first of them.

python scripts/prove_token_pruning.py cranfield [--vectors FOLDER]: exact MaxSim over all documents
by the token vectors of a model without a trained projection; FOLDER keeps them for another run.
``--queries`` takes the first so many, ``--documents`` those relevant to them and the first others.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ttest_rel

from sluice.encoders import TokenEncoder
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.late_interaction.pooling import pooled_tokens
from sluice.encoders.late_interaction.pruning import kept_tokens, least_loss, pruned_tokens
from sluice.retrieval import Run, evaluate, load_dataset

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MEASURE = "nDCG@10"


def encoded(folder: Path | None, name: str, encoder: TokenEncoder, texts: list[str]) -> Any:
    """Return the token vectors of texts, kept in a folder if there is one."""
    file = None if folder is None else folder / f"{name}.npz"
    if file is not None and file.exists():
        kept = np.load(file)
        return TokenVectors(kept["v"], np.concatenate([[0], np.cumsum(kept["l"])]))
    vectors = encoder.encode_documents(texts)
    if file is not None:
        np.savez(file, v=vectors.values, l=vectors.lengths)
    return vectors


def searched(
    queries: TokenVectors, ids: list[str], names: list[str], values: Any, counts: Any
) -> Run:
    """Return the first 100 documents of each query by exact MaxSim."""
    starts, live = np.cumsum(counts) - counts, counts > 0
    rankings = {}
    for row, query in enumerate(ids):
        products = queries.text(row) @ values.T
        scores = np.full(len(counts), -np.inf, np.float32)
        scores[live] = np.maximum.reduceat(products, starts[live], axis=1).sum(axis=0)
        order = np.argsort(-scores, kind="stable")[:100]
        rankings[query] = {names[place]: float(scores[place]) for place in order}
    return Run(rankings)


def first_tokens(values: Any, counts: Any, factor: float) -> tuple[Any, Any]:
    """Return the first tokens of documents, as many as pruning leaves."""
    after = np.minimum(counts, np.maximum((np.maximum(counts - 1, 0)) // factor, 1) + 1).astype(int)
    starts = np.cumsum(counts) - counts
    parts = [start + np.arange(n) for start, n in zip(starts.tolist(), after.tolist(), strict=True)]
    return values[np.concatenate(parts)], after


def uniform(values: Any, counts: Any, factor: float) -> tuple[Any, Any]:
    """Return what is left where queries are drawn from all directions, not near the tokens."""
    drawn = np.random.default_rng(13).standard_normal((1024, values.shape[1]), np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    parts, start = [], 0
    for count in counts.tolist():
        most = len(kept_tokens(values[start : start + count], factor, 1))
        parts.append(start + least_loss(drawn @ values[start : start + count].T, most, 1))
        start += count
    return values[np.concatenate(parts)], np.array(list(map(len, parts)))


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--factor", type=float, default=3.0)
    parser.add_argument("--vectors", type=Path, help="a folder that keeps the vectors")
    parser.add_argument("--queries", type=int)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--length", type=int, help="tokens of a document")
    options = parser.parse_args()
    dataset = load_dataset(options.dataset, split="test")
    encoder = TokenEncoder.from_pretrained(
        MODEL, projection=False, query_marker="", document_marker="", expand_queries=False,
        **({"document_length": options.length} if options.length else {}),
    )  # fmt: skip
    documents = list(dataset.corpus)
    ids = [query for query in dataset.queries if query in dataset.qrels][: options.queries]
    if options.documents:
        judged = {doc for query in ids for doc, grade in dataset.qrels[query].items() if grade > 0}
        documents.sort(key=lambda document: document.id not in judged)
        documents = documents[: max(options.documents, len(judged))]
    texts = [document.full_text for document in documents]
    whole = encoded(options.vectors, options.dataset, encoder, texts)
    queries = encoder.encode_queries([dataset.queries[query] for query in ids])
    values, counts, factor = whole.values, np.asarray(whole.lengths), options.factor
    ways = {
        "whole": (values, counts),
        "ward": pooled_tokens(values, counts, factor, protected=1, normalize=True),
        "voronoi": pruned_tokens(values, counts, factor, protected=1),
        "voronoi, all directions": uniform(values, counts, factor),
        "first tokens": first_tokens(values, counts, factor),
    }
    rows: dict[str, Any] = {}
    names = [document.id for document in documents]
    for name, (own, sizes) in ways.items():
        run = searched(queries, ids, names, own, sizes)
        judgements = {query: dataset.qrels[query] for query in ids}
        by_query = evaluate(run, judgements, [MEASURE]).per_query[MEASURE]
        rows[name] = np.array([by_query[query] for query in ids])
        p = (
            ""
            if name == "whole"
            else f", p against whole {ttest_rel(rows[name], rows['whole'])[1]:.2g}"
        )
        if name not in ("whole", "ward"):
            p += f", against ward {ttest_rel(rows[name], rows['ward'])[1]:.2g}"
        size = own.nbytes / 1e6
        print(f"{options.dataset}, {name}: {rows[name].mean():.4f}, {len(own):,} vectors, "
              f"{size:.1f} MB{p}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
