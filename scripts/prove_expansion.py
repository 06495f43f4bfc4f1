#!/usr/bin/env python
"""Document expansion under BM25: R@100 and nDCG@10 of a corpus with and without generated queries.

    python scripts/prove_expansion.py ../shared/data/scifact
    python scripts/prove_expansion.py FOLDER --model runs/doc2query --consistency 30 --json FILE

Without ``--model`` the queries are titles and key sentences of the documents themselves, which
needs no weights: words that matter to a document then count more in it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("dataset", help="A dataset: folder, ir_datasets id, name.")
    parser.add_argument("--model", help="A generator's folder or hub id.")
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 2, 3, 5])
    parser.add_argument("--consistency", type=int, help="The BM25 filter's depth.")
    parser.add_argument("--json", type=Path, help="Write the figures here too.")
    return parser.parse_args()


def measured(dataset: Any, documents: list[Any], folder: Path) -> dict[str, float]:
    from sluice.encoders import BM25Encoder
    from sluice.indexing import InvertedIndex
    from sluice.retrieval import Retriever, evaluate

    retriever = Retriever.build(BM25Encoder(), documents, index=InvertedIndex(), path=folder)
    run = retriever.run(dataset.queries, k=100)
    return dict(evaluate(run, dataset.qrels, ["nDCG@10", "R@100"]).mean)


def main() -> None:
    from sluice.retrieval import load_dataset
    from sluice.retrieval.datasets.beir import read_documents
    from sluice.retrieval.training_data.written.query_generation import generate_queries
    from sluice.training.generation.decoding import DiverseBeams
    from sluice.training.generation.query_generation import KeySentences, ModelGenerator

    asked = arguments()
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
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
