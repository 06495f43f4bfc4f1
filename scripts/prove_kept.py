#!/usr/bin/env python
"""What kept parts save: Pyramid's lower states and EBRM's sentence scores, time and memory a query.

    SLUICE_DATA=FOLDER scripts/prove_kept.py [--dataset cranfield] [--queries 12] [--depth 30]

BM25's first candidates of each query are reranked twice by each row: the first reading, and again
when everything is kept (another query over documents that were read, for Pyramid; the same query,
for sentences, whose scores are of a query). Weights are the start's, untrained, on which times do
not depend. Milliseconds of processor time a query, the median; MB are what is kept for all of them.
The scores of both readings must be the same.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import MODEL, options

QUERY, TITLE, BODY = 32, 16, 160


def main() -> None:
    from sluice import BM25Encoder, CrossEncoder, Rerank, Retriever, load_dataset
    from sluice.encoders.rerankers.pyramid import PyramidEncoder
    from sluice.retrieval import Run
    from sluice.retrieval.stages.rerankers.evidence import Evidence
    from sluice.retrieval.stages.rerankers.score_cache import cached

    asked = options(__doc__, {
        "--dataset": "cranfield", "--split": "test", "--model": MODEL, "--queries": 12,
        "--depth": 30,
    })  # fmt: skip
    data = load_dataset(asked.dataset, asked.split)
    first = Retriever.build(BM25Encoder(), data.corpus)
    queries = {query: data.queries[query] for query in list(data.qrels)[: asked.queries]}
    run = first.run(queries, k=asked.depth)

    def seconds_of(scorer: Any) -> tuple[float, Any]:
        stage, seconds, found = Rerank(scorer, asked.depth, documents=first.store), [], {}
        for query, text in queries.items():
            start = time.process_time()
            found |= stage.run({query: text}, Run({query: run[query]}))
            seconds.append(time.process_time() - start)
        return 1_000 * statistics.median(seconds), Run(found)

    def pyramid(lower: int) -> Any:
        return PyramidEncoder.from_pretrained(
            asked.model, head="similarity", lower_layers=lower, query_length=QUERY,
            title_tokens=TITLE, body_length=BODY, memory_mb=2_048,
        )  # fmt: skip

    cross = CrossEncoder.from_pretrained(
        asked.model, head="similarity", max_length=QUERY + TITLE + BODY
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "parts.sqlite"
        rows = {
            "cross-encoder": cross,
            **{f"pyramid, {lower} of 6 layers apart": pyramid(lower) for lower in (3, 5)},
            "evidence over sentences": Evidence(cached(cross, file=str(file))),
        }
        print("| | ms a query, first | again | kept MB |\n|---|---:|---:|---:|")
        for name, scorer in rows.items():
            (before, one), (after, two) = seconds_of(scorer), seconds_of(scorer)
            for query in queries:
                if one[query].doc_ids != two[query].doc_ids:
                    raise SystemExit(f"{name}: query {query} has another order when kept")
            kept = getattr(scorer, "_kept_bytes", 0)
            if "evidence" in name:
                kept = sum(each.stat().st_size for each in Path(folder).glob("parts.sqlite*"))
            print(f"| {name} | {before:.0f} | {after:.0f} | {kept / 1e6:.2f} |", flush=True)


if __name__ == "__main__":
    main()
