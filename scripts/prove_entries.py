#!/usr/bin/env python
"""DefSent+ beside contrast: definitions find the names of pydocs' entries, all 7,426 of them.

    scripts/prove_entries.py OUTPUT [--seeds 13 14 15] [--steps 30] [--split dev]

The corpus is the entries' names, as words; a query is what an entry's documentation says first, and
its own name alone is relevant. MiniLM is trained on the train split's definitions by InfoNCE, by
``entries`` with the mean of definitions, the same without whitening, and with the vectors of the
names; then the dev split's definitions are searched. What is made already is not made again.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

MODEL = {"type": "dense", "model": "sentence-transformers/all-MiniLM-L6-v2"}
LENGTHS = {"query_length": 64, "document_length": 32}
LOSSES: dict[str, dict[str, Any]] = {
    "contrast": {"type": "info_nce", "temperature": 0.05},
    "entries": {"type": "entries"},
    "unwhitened": {"type": "entries", "whitening": False},
    "names": {"type": "entries", "of": "entry"},
}


def write_names(folder: Path) -> None:
    """Write the collection as a BEIR folder."""
    from sluice.retrieval import load_dataset

    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as stream:
        for document in load_dataset("pydocs", None).corpus:
            words = re.sub(r"[._]", " ", document.id)
            name = re.sub(r"([a-z])([A-Z])", r"\1 \2", words).strip()
            stream.write(json.dumps({"_id": document.id, "title": "", "text": name}) + "\n")
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as queries:
        for split in ("train", "dev", "test"):
            data = load_dataset("pydocs", split)
            lines = ["query-id\tcorpus-id\tscore\n"]
            for query, text in data.queries.items():
                queries.write(json.dumps({"_id": query, "text": text}) + "\n")
                lines.append(f"{query}\t{query}\t1\n")
            (folder / "qrels" / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    from sluice.retrieval import run

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("output", type=Path, help="The folder of the collection and the runs.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[13, 14, 15])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--split", default="dev", help="What is measured.")
    asked = parser.parse_args()
    data = asked.output / "names"
    write_names(data)
    trainer = {
        "max_steps": asked.steps, "per_device_train_batch_size": 32, "learning_rate": 5.0e-5,
    }  # fmt: skip
    models = {"start": MODEL, **{name: {"type": "dense", "model": name} for name in LOSSES}}
    for seed in asked.seeds:
        run({
            "dataset": str(data), "output": str(asked.output / str(seed)), "seed": seed,
            "evaluate": {"split": asked.split, "measures": ["nDCG@10", "R@10", "R@100"]},
            "train": {
                name: {"encoder": {**MODEL, **LENGTHS}, "loss": loss, "trainer": trainer}
                for name, loss in LOSSES.items()
            },
            "retrievers": {
                name: {"encoder": {**model, **(LENGTHS if name == "start" else {})}}
                for name, model in models.items()
            },
            "pipelines": {name: name for name in models},
        })  # fmt: skip
        print((asked.output / str(seed) / "report.md").read_text(encoding="utf-8"), flush=True)


if __name__ == "__main__":
    main()
