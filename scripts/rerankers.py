#!/usr/bin/env python
"""What makes a reranker of a small sentence encoder useful: rows by seeds, on dev queries.

    SLUICE_DATA=FOLDER .venv/bin/python scripts/rerankers.py --only present seven --seeds 13
    SLUICE_DATA=FOLDER .venv/bin/python scripts/rerankers.py --show

Each row is trained at the budget of ``cross-ft`` in configs/reference.yaml (50 steps of 64 pairs,
half of the layers frozen) unless it says otherwise, and scores the first 20 documents of the dev
queries' lists. The first stage is BM25 and a dense encoder trained on the same train queries, made
once for a collection. A result that is there is not made again; no test split is read.

Rows: untrained (the similarity head before training), start_untrained (over the trained dense
encoder), max_sim and max_sim_trained (of the dense encoders), present (3 negatives, softmax over
the group), seven (negatives, of half as many queries), trained_start (from the trained dense
encoder), residual (learns what the scores of BM25 and the untrained dense encoder leave to do),
distilled (softmax, and KL to BM25 + dense + MaxSim), margin (MarginMSE to MaxSim), listwise (the
candidates of a query see each other), twice (100 steps), soup (the mean of the weights of
``present`` by all seeds). The table adds: the scores of BM25 and dense added to ``residual``
again, the mean of the scores of a row's seeds, and all scores in a softmax regression that is
fitted on the other half of the queries.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from harness import options, refuse, same_settings, write_whole
from rerankers_bench import (
    FREE,
    HALVINGS,
    MODEL,
    PARTS,
    Bench,
    Measured,
    Scores,
    likeliest,
    measured,
    mined,
    sorted_by,
    table,
    z_scores,
)

SOFTMAX = {"type": "localized_softmax"}
KL = {"type": "sum", "losses": [{**SOFTMAX, "weight": 0.5}, {"type": "kl_div", "weight": 0.5}]}
TAUGHT = (*FREE, "max_sim")
BASE = "present"
WEIGHTS = "weights"
Row = Callable[[Bench, int], Scores]
Teacher = Callable[[Bench], Callable[[str, Sequence[str]], Any]]


def weighed(*names: str) -> Teacher:
    """Return a teacher of the sum of features, weighted so that positives are likeliest."""

    def teach(bench: Bench) -> Callable[[str, Sequence[str]], Any]:
        weights = bench.calibrated(names)
        return lambda query, documents: bench.features(query, documents, names) @ weights

    return teach


def late(bench: Bench) -> Callable[[str, Sequence[str]], Any]:
    return lambda query, documents: np.array([bench.max_sim[query][d] for d in documents])


def cross(
    *, start: str = "", negatives: int = 3, loss: Any = SOFTMAX, teacher: Teacher | None = None,
    steps: int = 1, listwise: bool = False,
) -> Row:  # fmt: skip
    """Return a row: how one cross-encoder is trained, ``steps`` times as long as others."""

    def train(bench: Bench, seed: int) -> Scores:
        encoder = drawn(bench, start, listwise=listwise)
        trainer = {
            "max_steps": steps * bench.steps,
            "per_device_train_batch_size": bench.pairs // (1 + negatives),
            "learning_rate": 1.5e-4,
        }
        examples = groups(bench, seed, negatives, teacher)
        chosen = residual_loss() if loss == "residual" else loss
        bench.fitted(encoder, examples, chosen, seed, trainer, head_learning_rate=1e-3)
        if listwise:
            return {query: whole_list(encoder, bench.pairs_of(query)) for query in bench.qrels}
        if train is ROWS[BASE]:
            keep(encoder, bench.folder / WEIGHTS / f"{seed}.safetensors")
        return scored(bench, encoder)

    return train


def drawn(bench: Bench, start: str = "", *, listwise: bool = False) -> Any:
    """Return an untrained cross-encoder; its head is drawn alike for all seeds, for soups."""
    from sluice.encoders import CrossEncoder
    from sluice.encoders.tuning.tune import freeze

    encoder = CrossEncoder.from_pretrained(
        bench.folder / start if start else bench.model, head="similarity",
        max_length=bench.trained_length,
    )  # fmt: skip
    if listwise:
        from rerankers_listwise import ListwiseHead

        head = ListwiseHead(encoder.similarity_head, size=8)
        encoder = CrossEncoder(
            encoder.model, encoder.tokenizer, max_length=bench.trained_length, similarity_head=head
        )
    freeze(encoder, layers=encoder.model.config.num_hidden_layers // 2, embeddings=True)
    return encoder


def groups(bench: Bench, seed: int, negatives: int, teacher: Teacher | None) -> Iterator[Any]:
    """Yield a train query's positive with some of the first stage's list."""
    from sluice.training import pair_examples

    lists = {
        query: list(zip(found["documents"], found["first"], strict=True))[: bench.depth]
        for query, found in bench.lists.items()
    }
    settings = {"mode": "naive", "per_query": negatives}
    hard = mined(lists, bench.positives, settings, seed)
    teach = None if teacher is None else teacher(bench)
    for example in pair_examples(bench.asked, bench.positives, bench.texts, hard):
        names = [document.id for document in example.documents]
        if len(names) == 1 + negatives:
            scores = () if teach is None else teach(example.query.id, names).tolist()
            yield replace(example, scores=tuple(scores))


def residual_loss() -> Any:
    from sluice.training import LossBase
    from sluice.training.losses.contrastive.softmax import contrast

    class Residual(LossBase):
        """The softmax over a group of the sum of the encoder's scores and those it was given."""

        negatives = "own"
        needs_teacher = True

        def _value(self, matrix: Any) -> Any:
            return contrast(matrix._replace(scores=matrix.scores + matrix.teacher.nan_to_num()))

    return Residual()


def scored(bench: Bench, encoder: Any) -> Scores:
    """Score the dev queries' lists as a reranker does: saved, loaded, in bfloat16."""
    from sluice.encoders import CrossEncoder

    with tempfile.TemporaryDirectory() as folder:
        encoder.save_pretrained(Path(folder) / "model")
        reranker = CrossEncoder.from_pretrained(
            Path(folder) / "model", dtype="bfloat16", max_length=bench.longest
        )
        return bench.scored(reranker.score)


def whole_list(encoder: Any, pairs: Sequence[tuple[str, str]]) -> list[float]:
    import torch

    encoder.similarity_head.size = len(pairs)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        scores: list[float] = encoder.logits(encoder.tokenize_pairs(pairs)).tolist()
    return scores


def keep(encoder: Any, file: Path) -> None:
    """Write what was trained, for a soup."""
    from safetensors.torch import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    trained = {n: p.detach() for n, p in encoder.module.named_parameters() if p.requires_grad}
    save_file(trained, file)


def soup(bench: Bench, seed: int) -> Scores:
    import torch
    from safetensors.torch import load_file

    files = sorted((bench.folder / WEIGHTS).glob("*.safetensors"))
    if len(files) < 2:
        raise SystemExit(f"soup: {len(files)} trainings of {BASE!r} are there; run its seeds first")
    loaded, encoder = [load_file(file) for file in files], drawn(bench)
    with torch.no_grad():
        for name, parameter in encoder.module.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.stack([each[name] for each in loaded]).mean(0))
    return scored(bench, encoder)


def max_sim(model: str) -> Row:
    def score(bench: Bench, seed: int) -> Scores:
        from sluice.retrieval.stages.rerankers.similarity import MaxSim

        encoder = bench.dense(bench.folder / model if model else bench.model)
        return bench.scored(MaxSim(encoder).score)

    return score


ROWS: dict[str, Row] = {
    "untrained": lambda bench, seed: scored(bench, drawn(bench)),
    "start_untrained": lambda bench, seed: scored(bench, drawn(bench, "dense")),
    "max_sim": max_sim(""), "max_sim_trained": max_sim("dense"), "present": cross(),
    "seven": cross(negatives=7), "trained_start": cross(start="dense"),
    "residual": cross(loss="residual", teacher=weighed(*FREE)),
    "distilled": cross(loss=KL, teacher=weighed(*TAUGHT)),
    "margin": cross(loss={"type": "margin_mse"}, teacher=late),
    "listwise": cross(negatives=7, listwise=True), "twice": cross(steps=2), "soup": soup,
}  # fmt: skip
NUMBERS = ("queries", "dev", "steps", "pairs", "depth", "longest")
ONCE = ("untrained", "start_untrained", "max_sim", "max_sim_trained", "soup")  # of no seed


# Rows of what is there


def learned(lists: Mapping[str, Any], qrels: Mapping[str, Any], scores: Scores) -> Measured:
    """Return what a softmax regression of all scores does, fitted on the other half."""
    queries, depth = list(qrels), max(map(len, scores.values()))
    features = {
        q: np.column_stack([
            z_scores(lists[q]["first"][:depth]), np.array(lists[q]["features"]), z_scores(scores[q])
        ])
        for q in queries
    }  # fmt: skip
    labels = {q: np.array([qrels[q].get(d, 0) > 0 for d in lists[q]["documents"]]) for q in queries}
    rows = []
    for halving in range(HALVINGS):
        half = np.random.default_rng(halving).permutation(len(queries)) % 2 == 0
        summed: Scores = {}
        for side in (half, ~half):
            used = [q for q, other in zip(queries, side, strict=True) if not other]
            weights = likeliest([(features[q], labels[q][:depth]) for q in used], penalty=0.01)
            summed |= {
                q: (features[q] @ weights).tolist()
                for q, own in zip(queries, side, strict=True) if own
            }  # fmt: skip
        rows.append(sorted_by(lists, qrels, summed))
    first = sorted_by(lists, qrels, {q: lists[q]["first"][:depth] for q in queries})
    return Measured(first, np.mean(rows, axis=0), np.mean(rows, axis=0))


def results(folder: Path, rows: Sequence[str]) -> dict[str, list[Measured]]:
    """Return what each row of a collection has by each seed, and what the table adds."""
    if not (folder / "lists.json").exists():
        return {}
    saved = json.loads((folder / "lists.json").read_text())
    lists, qrels = saved["lists"], saved["qrels"]
    found: dict[str, list[Measured]] = {}
    for row in rows:
        files = sorted((folder / "rows").glob(f"{row}.*.json"))
        seeds: list[Scores] = [json.loads(file.read_text())["scores"] for file in files]
        variants = {row: seeds}
        if row == "residual":
            added = [
                {q: (np.array(s[q]) + saved["offsets"][q]).tolist() for q in qrels} for s in seeds
            ]
            variants["residual, and the scores"] = added
        if len(seeds) > 1:
            mean = {q: np.mean([z_scores(s[q]) for s in seeds], axis=0).tolist() for q in qrels}
            variants[f"{row}, mean of {len(seeds)} seeds' scores"] = [mean]
        for name, scores in variants.items():
            if scores:
                found[name] = [measured(lists, qrels, each) for each in scores]
        if seeds:
            found[f"{row}, in a regression"] = [learned(lists, qrels, each) for each in seeds]
    return found


def main(words: Sequence[str] | None = None) -> None:
    asked = options(__doc__, {
        "--only": ({"nargs": "+", "default": list(ROWS)}, ", ".join(ROWS)),
        "--seeds": [13, 14, 15], "--datasets": ["scifact", "feedbackqa"], "--model": MODEL,
        **{f"--{name}": getattr(Bench, name) for name in NUMBERS},
        "--output": Path("runs/rerankers"),
        "--show": (False, "print what is there, train nothing"),
    }, words)  # fmt: skip
    if stray := [row for row in asked.only if row not in ROWS]:
        refuse(f"--only {stray[0]!r}: unknown; rows are {', '.join(ROWS)}")
    if not asked.show:
        settings = {n: getattr(asked, n) for n in ("model", *NUMBERS)}
        if wrong := same_settings(asked.output, settings):
            refuse(wrong)
        for dataset in asked.datasets:
            bench = Bench(dataset, asked.output / Path(dataset).name, **settings)
            prepare(bench)
            for row in asked.only:
                for seed in asked.seeds[:1] if row in ONCE else asked.seeds:
                    one(bench, row, seed)
    names = [Path(dataset).name for dataset in asked.datasets]
    print(
        "\n".join(
            table(
                {n: found for n in names if (found := results(asked.output / n, asked.only))}, BASE
            )
        )
    )


def prepare(bench: Bench) -> None:
    """Write the first stage's lists for the dev queries, with the features of their heads."""
    file = bench.folder / "lists.json"
    if file.exists():
        return
    names = (*PARTS, "max_sim")
    weights, lists, offsets = bench.calibrated(FREE), {}, {}
    for query in bench.qrels:
        head = bench.lists[query]["documents"][: bench.depth]
        features = bench.features(query, head, names)
        lists[query] = {**bench.lists[query], "features": features.tolist()}
        offsets[query] = (bench.features(query, head, FREE) @ weights).tolist()
    file.write_text(json.dumps({"lists": lists, "offsets": offsets, "qrels": bench.qrels}))


def one(bench: Bench, row: str, seed: int) -> None:
    """Train and score one row, unless its result is there."""
    result = bench.folder / "rows" / f"{row}.{seed}.json"
    if result.exists():
        return
    start, busy = time.monotonic(), time.process_time()
    scores = ROWS[row](bench, seed)
    seconds = {"seconds": time.monotonic() - start, "processor": time.process_time() - busy}
    write_whole(result, {"scores": scores, **seconds})
    print(f"{bench.dataset}: {result.stem}, {seconds}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
