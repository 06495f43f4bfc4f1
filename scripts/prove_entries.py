#!/usr/bin/env python
"""DefSent+ beside contrast: definitions find the names of pydocs' entries, all 7,426 of them.

    scripts/prove_entries.py OUTPUT [--seeds 13 14 15] [--steps 30] [--split dev]

The corpus is the entries' names, as words; a query is what an entry's documentation says first, and
its own name alone is relevant. MiniLM is trained on the train split's definitions by InfoNCE, by
``entries`` with the mean of definitions, the same without whitening, and with the vectors of the
names; then the dev split's definitions are searched. What is made already is not made again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harness import options, write_beir

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

    def name(entry: str) -> str:
        return re.sub(r"([a-z])([A-Z])", r"\1 \2", re.sub(r"[._]", " ", entry)).strip()

    splits = {split: load_dataset("pydocs", split).queries for split in ("train", "dev", "test")}
    corpus = ((each.id, "", name(each.id)) for each in load_dataset("pydocs", None).corpus)
    qrels = {split: {query: {query: 1} for query in own} for split, own in splits.items()}
    write_beir(folder, corpus, {q: t for own in splits.values() for q, t in own.items()}, qrels)


def main() -> None:
    from sluice.retrieval import run

    asked = options(__doc__, {
        "output": (Path, "The folder of the collection and the runs."), "--seeds": [13, 14, 15],
        "--steps": 30, "--split": ("dev", "What is measured."),
    })  # fmt: skip
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
