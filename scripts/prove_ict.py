#!/usr/bin/env python
"""From random weights by the inverse cloze task: nDCG@10 of an untrained BERT, before and after.

    python scripts/prove_ict.py ../shared/data/nfcorpus
    python scripts/prove_ict.py FOLDER --layers 4 --hidden 256 --epochs 8 --json FILE

The tokenizer is learnt from the corpus, the weights are drawn by the seed; no query and no
judgement is seen in training. Prints the measures of both encoders and the seconds it took.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import figures as mean_of, options, write_record

OPTIONS = {
    "dataset": "A dataset: folder, ir_datasets id, name.", "--layers": 2, "--hidden": 128,
    "--vocabulary": 6000, "--epochs": (2, "Cloze questions of each document."), "--batch": 64,
    "--length": (64, "Tokens of a document."), "--learning-rate": 2e-3, "--seed": 13,
    "--json": (Path, "Write the figures here too."),
}  # fmt: skip


def measured(encoder: Any, dataset: Any, folder: Path) -> dict[str, float]:
    from sluice import FlatIndex, Retriever

    retriever = Retriever.build(encoder, dataset.corpus, index=FlatIndex(), path=folder)
    return mean_of(retriever, dataset.queries, dataset.qrels, ["nDCG@10", "R@100"])


def main() -> None:
    from sluice import DenseEncoder, load_dataset
    from sluice.encoders.transformer.from_scratch import fresh_model
    from sluice.retrieval.training_data.example_sources import file_examples
    from sluice.training import fit
    from sluice.training.losses.contrastive.softmax import InfoNCE

    asked = options(__doc__, OPTIONS)
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
            texts, folder / "fresh", layers=asked.layers, hidden=asked.hidden,
            vocabulary=asked.vocabulary, seed=asked.seed,
        )  # fmt: skip
        encoder = DenseEncoder.from_pretrained(path, document_length=asked.length, query_length=64)
        figures: dict[str, Any] = {"before": measured(encoder, dataset, folder / "before")}
        begun = time.monotonic()
        report = fit(
            encoder,
            examples,
            InfoNCE(temperature=0.05),
            output=folder / "training",
            trainer={
                "num_train_epochs": 1, "per_device_train_batch_size": asked.batch,
                "learning_rate": asked.learning_rate, "warmup_steps": 20,
            },
            seed=asked.seed,
        )  # fmt: skip
        figures["training_seconds"] = round(time.monotonic() - begun, 1)
        figures["after"] = measured(encoder, dataset, folder / "after")
    figures |= {
        "dataset": dataset.name, "examples": len(examples), "steps": report.steps,
        "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip
    print(json.dumps(figures, indent=2))
    write_record(asked.json, figures)


if __name__ == "__main__":
    main()
