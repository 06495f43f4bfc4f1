#!/usr/bin/env python
"""Static pruning: nDCG@10 without the worst share of a corpus, by different ideas of quality.

    python scripts/prove_pruning.py runs/zero-retriever nfcorpus --share 0.3
    python scripts/prove_pruning.py RETRIEVER FOLDER --split dev --labels share --l2 1 30

The head is fitted on train queries; ``random`` is the mean of five draws. The last columns are the
equivalence test's p-value for a bound of 5% of the whole corpus' value, and the paired t-test's.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import options, write_record

BOUND = 0.05


OPTIONS = {
    "retriever": "A dense retriever folder over the whole corpus.",
    "dataset": "A dataset with train and test: folder or name.", "--share": ([0.3], "What goes."),
    "--split": ("test", "What is measured."), "--labels": ["share", "any"],
    "--loss": ["bce", "pairwise"], "--l2": [1.0],
    "--text": ({"nargs": "+", "default": []}, "Models that read documents alone, see fit quality."),
    "--norm": (False, "Encode the corpus for its norms too."),
    "--json": (Path, "Write the figures here too."),
}  # fmt: skip


def qualities(asked: argparse.Namespace, retriever: Any, train: Any) -> dict[str, list[Any]]:
    """Return quality scores by name, several of one name where they are random."""
    from sluice.encoders import DenseEncoder
    from sluice.retrieval.retrievers.quality.scorers import (
        InformationToNoise,
        Length,
        Magnitude,
        RandomQuality,
        UnigramLikelihood,
        score_quality,
        text_quality,
    )
    from sluice.retrieval.retrievers.quality.scores import score_retriever, train_quality_head

    made: dict[str, list[Any]] = {
        "random": [score_quality(train.corpus, RandomQuality(seed)) for seed in range(5)]
    }
    plain: list[Any] = [Length(), InformationToNoise(), UnigramLikelihood.fit(train.corpus)]
    if asked.norm:
        folder = retriever.path / "encoder"
        plain.append(Magnitude(DenseEncoder.from_pretrained(folder, normalize=False)))
    made.update((by.name, [score_quality(train.corpus, by)]) for by in plain)
    for model in asked.text:
        made[f"text {Path(model).parent.name}"] = [score_quality(train.corpus, text_quality(model))]
    for labels in asked.labels:
        for loss in asked.loss:
            for l2 in asked.l2:
                fit = {"labels": labels, "loss": loss, "l2": l2}
                head = train_quality_head(retriever, train.qrels, **fit)
                made[f"head {labels} {loss} {l2:g}"] = [score_retriever(retriever, head)]
    return made


def main() -> None:
    from sluice import BM25Encoder, FlatIndex, Retriever, evaluate, load_dataset
    from sluice.retrieval.evaluation.significance import equivalence, paired_t_test
    from sluice.retrieval.retrievers.candidate_lists import run_on
    from sluice.retrieval.retrievers.quality.scores import PrunedCorpus

    asked = options(__doc__, OPTIONS)
    retriever = Retriever.open(asked.retriever)
    truth = load_dataset(asked.dataset, asked.split)
    corpus = list(truth.corpus)
    vectors = retriever.index.documents(retriever.store.rows([each.id for each in corpus]))

    def values(kept: Any, documents: list[Any]) -> dict[str, np.ndarray]:
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            builds = {
                "dense": (retriever.encoder, {"index": FlatIndex(), "vectors": [vectors[kept]]}),
                "bm25": (BM25Encoder(), {}),
            }
            for name, (encoder, options) in builds.items():
                made = Retriever.build(encoder, documents, path=Path(folder) / name, **options)
                scores = evaluate(run_on(made, truth, 100), truth.qrels, ["nDCG@10"])
                found[name] = np.array(list(scores.per_query["nDCG@10"].values()))
        return found

    whole = values(np.ones(len(corpus), bool), corpus)
    for name, value in whole.items():
        print(
            f"{'whole corpus':<24} {name:<6} nDCG@10 {value.mean():.4f}  {len(corpus):,} documents"
        )
    figures = []
    made = qualities(asked, retriever, load_dataset(asked.dataset, "train"))
    for share in asked.share:
        for name, draws in made.items():
            found = [
                values(each.best(share), list(PrunedCorpus(corpus, each, share))) for each in draws
            ]
            for kind, full in whole.items():
                value = np.mean([draw[kind] for draw in found], axis=0)
                p = equivalence(value, full, BOUND * float(full.mean())).p_value
                t = paired_t_test(value, full)
                mean, change = float(value.mean()), value.mean() / full.mean() - 1
                figures.append({"quality": name, "share": share, "retriever": kind,
                                "nDCG@10": mean, "equivalence": p, "t": t})  # fmt: skip
                print(f"{name:<24} {kind:<6} -{share:.0%}  nDCG@10 {mean:.4f} ({change:+.1%})  "
                      f"equivalent p={p:.4f}  t-test p={t:.4f}", flush=True)  # fmt: skip
    write_record(asked.json, figures)


if __name__ == "__main__":
    main()
