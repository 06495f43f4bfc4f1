#!/usr/bin/env python
"""From random weights by the inverse cloze task: nDCG@10 of an untrained BERT, before and after.

    python scripts/prove_ict.py ../shared/data/nfcorpus
    python scripts/prove_ict.py FOLDER --layers 4 --hidden 256 --epochs 8 --json FILE

The tokenizer is learnt from the corpus, the weights are drawn by the seed; no query and no
judgement is seen in training. Prints the measures of both encoders and the seconds it took.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("dataset", help="A dataset: folder, ir_datasets id, name.")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=6000)
    parser.add_argument("--epochs", type=int, default=2, help="Cloze questions of each document.")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=64, help="Tokens of a document.")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--json", type=Path, help="Write the figures here too.")
    return parser.parse_args()


def measured(encoder: Any, dataset: Any, folder: Path) -> dict[str, float]:
    from sluice.indexing import FlatIndex
    from sluice.retrieval import Retriever, evaluate

    retriever = Retriever.build(encoder, dataset.corpus, index=FlatIndex(), path=folder)
    run = retriever.run(dataset.queries, k=100)
    return dict(evaluate(run, dataset.qrels, ["nDCG@10", "R@100"]).mean)


def main() -> None:
    from sluice.encoders import DenseEncoder
    from sluice.encoders.transformer.text_encoder import fresh_model
    from sluice.retrieval import load_dataset
    from sluice.retrieval.training_data.example_sources import file_examples
    from sluice.training import fit
    from sluice.training.losses.contrastive.softmax import InfoNCE

    asked = arguments()
    dataset = load_dataset(asked.dataset, "test")
    spec = {"type": "ict", "keep": 0.1}
    examples = [
        example
        for epoch in range(asked.epochs)
        for example in file_examples(spec, dataset, asked.seed, epoch=epoch)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.monotonic()
        texts = (document.full_text for document in dataset.corpus)
        path = fresh_model(
            texts,
            folder / "fresh",
            layers=asked.layers,
            hidden=asked.hidden,
            vocabulary=asked.vocabulary,
            seed=asked.seed,
        )
        encoder = DenseEncoder.from_pretrained(path, document_length=asked.length, query_length=64)
        figures: dict[str, Any] = {"before": measured(encoder, dataset, folder / "before")}
        begun = time.monotonic()
        report = fit(
            encoder,
            examples,
            InfoNCE(temperature=0.05),
            output=folder / "training",
            trainer={
                "num_train_epochs": 1,
                "per_device_train_batch_size": asked.batch,
                "learning_rate": asked.learning_rate,
                "warmup_steps": 20,
            },
            seed=asked.seed,
        )
        figures["training_seconds"] = round(time.monotonic() - begun, 1)
        figures["after"] = measured(encoder, dataset, folder / "after")
    figures |= {
        "dataset": dataset.name,
        "examples": len(examples),
        "steps": report.steps,
        "seconds": round(time.monotonic() - start, 1),
    }
    print(json.dumps(figures, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
