#!/usr/bin/env python
"""Document expansion under BM25: R@100 and nDCG@10 of a corpus with and without generated queries.

    python scripts/prove_expansion.py ../shared/data/scifact
    python scripts/prove_expansion.py FOLDER --model runs/doc2query --consistency 30 --json FILE

Without ``--model`` the queries are titles and key sentences of the documents themselves, which
needs no weights: words that matter to a document then count more in it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from harness import figures as mean_of, options, write_record

OPTIONS = {
    "dataset": "A dataset: folder, ir_datasets id, name.",
    "--model": (str, "A generator's folder or hub id."), "--queries": [1, 2, 3, 5],
    "--consistency": (int, "The BM25 filter's depth."),
    "--json": (Path, "Write the figures here too."),
}  # fmt: skip


def measured(dataset: Any, documents: list[Any], folder: Path) -> dict[str, float]:
    from sluice import BM25Encoder, InvertedIndex, Retriever

    retriever = Retriever.build(BM25Encoder(), documents, index=InvertedIndex(), path=folder)
    return mean_of(retriever, dataset.queries, dataset.qrels, ["nDCG@10", "R@100"])


def main() -> None:
    from sluice.retrieval import load_dataset
    from sluice.retrieval.datasets.beir import read_documents
    from sluice.retrieval.training_data.written.query_generation import generate_queries
    from sluice.training.generation.decoding import DiverseBeams
    from sluice.training.generation.query_generation import KeySentences, ModelGenerator

    asked = options(__doc__, OPTIONS)
    dataset = load_dataset(asked.dataset, "test")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = {"plain": measured(dataset, list(dataset.corpus), folder / "plain")}
        for count in asked.queries:
            generator: Any = KeySentences(count)
            if asked.model:
                by = DiverseBeams(groups=count)
                generator = ModelGenerator.from_pretrained(asked.model, by=by)
            longer = folder / f"{count}.jsonl"
            generate_queries(
                generator, dataset, folder / "rows.jsonl",
                consistency=asked.consistency, expanded=longer,
            )  # fmt: skip
            documents = list(read_documents(longer))
            figures[f"{count} queries"] = measured(dataset, documents, folder / f"{count}")
    print(json.dumps(figures, indent=2))
    write_record(asked.json, figures)


if __name__ == "__main__":
    main()
