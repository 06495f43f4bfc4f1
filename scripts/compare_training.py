#!/usr/bin/env python
"""Fine-tune one encoder by sentence-transformers and by Sluice: same pairs, steps and loss.

    SLUICE_DATA=FOLDER .venv/bin/python scripts/compare_training.py feedbackqa
    SLUICE_DATA=FOLDER .venv/bin/python scripts/compare_training.py nfcorpus --steps 200

One epoch (or --steps) of in-batch InfoNCE (scale 20), batch 32, length 128, learning rate 3e-5,
warm-up 10%, bf16, no text twice in a batch. Prints nDCG@10 and R@100 on test, before and after,
both scored by our evaluator on exact search, and the seconds per step of both.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from harness import MODEL, options

LENGTH, BATCH, RATE = 128, 32, 3e-5
MEASURES = ["nDCG@10", "R@100"]


def pairs_of(dataset: object) -> list[tuple[str, str]]:
    texts = {d.id: d.full_text for d in dataset.corpus}  # type: ignore[attr-defined]
    return [
        (dataset.queries[query], texts[doc])  # type: ignore[attr-defined]
        for query, grades in dataset.qrels.items()  # type: ignore[attr-defined]
        for doc, grade in grades.items()
        if grade > 0 and query in dataset.queries and doc in texts  # type: ignore[attr-defined]
    ]


def scored(folder: str, dataset: object) -> dict[str, float]:
    from sluice import DenseEncoder, Retriever, evaluate

    encoder = DenseEncoder.from_pretrained(folder, dtype="bfloat16")
    retriever = Retriever.build(encoder, dataset.corpus)  # type: ignore[attr-defined]
    return dict(evaluate(retriever.run(dataset.queries), dataset.qrels, MEASURES).mean)  # type: ignore[attr-defined]


def ours(name: str, steps: int, output: Path) -> tuple[str, float]:
    from sluice.retrieval import train

    start = time.monotonic()
    folder = train(
        {
            "dataset": name, "output": str(output),
            "encoder": {
                "type": "dense", "model": MODEL, "query_length": LENGTH, "document_length": LENGTH,
            },
            "loss": {"type": "info_nce", "temperature": 0.05},
            "trainer": {
                "max_steps": steps, "per_device_train_batch_size": BATCH, "learning_rate": RATE,
                "bf16": True, "save_strategy": "no",
            },
        }
    )  # fmt: skip
    return str(folder), (time.monotonic() - start) / steps


def theirs(pairs: list[tuple[str, str]], steps: int, output: Path) -> tuple[str, float]:
    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    from sluice.encoders.model_files.locate import model_folder

    model = SentenceTransformer(str(model_folder(MODEL)), device="cpu")
    model.max_seq_length = LENGTH
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(output), max_steps=steps, per_device_train_batch_size=BATCH,
        learning_rate=RATE, warmup_steps=0.1, bf16=True, use_cpu=True, save_strategy="no",
        report_to="none", batch_sampler="no_duplicates", seed=13,
    )  # fmt: skip
    data = datasets.Dataset.from_dict(
        {"anchor": [query for query, _ in pairs], "positive": [text for _, text in pairs]}
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model)
    )
    start = time.monotonic()
    trainer.train()
    seconds = (time.monotonic() - start) / steps
    model.save(str(output / "model"))
    return str(output / "model"), seconds


def main() -> None:
    from sluice.retrieval import load_dataset

    arguments = options(__doc__, {
        "dataset": str, "--steps": (0, "0 is one epoch"), "--ours-only": False,
    })  # fmt: skip
    test = load_dataset(arguments.dataset)
    from sluice.retrieval.datasets.dataset import training_splits

    train, _ = training_splits(arguments.dataset, 13)
    pairs = pairs_of(train)
    steps = arguments.steps or -(-len(pairs) // BATCH)
    print(f"{arguments.dataset}: {len(pairs):,} pairs, {steps} steps of {BATCH}")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        report = {"zero-shot": {**scored(MODEL, test), "s/step": 0.0}}
        print(json.dumps(report["zero-shot"]), flush=True)
        trained, seconds = ours(arguments.dataset, steps, work / "ours")
        report["sluice"] = {**scored(trained, test), "s/step": seconds}
        print(json.dumps(report["sluice"]), flush=True)
        if not arguments.ours_only:
            trained, seconds = theirs(pairs, steps, work / "theirs")
            report["sentence-transformers"] = {**scored(trained, test), "s/step": seconds}
    for system, values in report.items():
        print(system.ljust(24), "  ".join(f"{k} {v:.4f}" for k, v in values.items()))


if __name__ == "__main__":
    main()
