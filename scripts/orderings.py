#!/usr/bin/env python
"""Orderings that papers promise, each on the cheapest collection that can show it.

    SLUICE_DATA=FOLDER .venv/bin/python scripts/orderings.py bixse --seeds 13 14 15
    SLUICE_DATA=FOLDER .venv/bin/python scripts/orderings.py --show

Names: layers (2D Matryoshka at half the layers), bixse (under wrong positives), psl (under hidden
positives), clp (cosines to the queries that negatives answer), star (stability), pooling (SPLADE,
max over sum), mining (thresholds, with planted false negatives), cloze (ICT > MLM > none). All
train on a cut of a collection's train split and are measured on its dev queries; no test split is
read. A result that is there is not made again. ``--show`` prints a table and a verdict for each
claim: it holds if every seed says so and, where there is a value for each query, if a paired t-test
over queries (means over seeds) has p < .05.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from orderings_bench import (
    MODEL,
    NDCG,
    Bench,
    Claim,
    Ordering,
    Trained,
    Values,
    over,
    paraphrase,
    relevant,
    results_of,
    table,
)


def plain(bench: Bench, seed: int) -> Values:
    return {NDCG: bench.measured(bench.encoder())}


# Half the layers


def layers_of(loss: Values) -> Trained:
    def train(bench: Bench, seed: int) -> Values:
        from sluice.training import pair_examples

        encoder = bench.encoder(layers=None)
        half, values = encoder.layer_count // 2, {}
        if loss:
            examples = pair_examples(bench.queries, bench.positives, bench.texts)
            bench.fitted(encoder, examples, loss, seed)
        with tempfile.TemporaryDirectory() as folder:
            encoder.save_pretrained(Path(folder) / "model")
            for name, cut in {
                "": {}, "half the layers": {"layers": half},
                "half, a quarter of the dimensions": {"layers": half, "dim": encoder.dim // 4},
            }.items():  # fmt: skip
                short = bench.encoder(Path(folder) / "model", **cut)
                values[f"{NDCG} {name}".strip()] = bench.measured(short)
        return values

    return train


INFO_NCE = {"type": "info_nce", "temperature": 0.05}
HALF, QUARTER = f"{NDCG} half the layers", f"{NDCG} half, a quarter of the dimensions"
LAYERS = Ordering(
    "2D Matryoshka at half the layers",
    {
        "untrained": layers_of({}),
        "plain": layers_of(INFO_NCE),
        "matryoshka": layers_of({"type": "matryoshka", "loss": INFO_NCE}),
        "matryoshka_2d": layers_of({"type": "matryoshka_2d", "loss": INFO_NCE}),
    },
    [
        over("2D over plain, half the layers", HALF, "matryoshka_2d", "plain"),
        over("2D over 1D, half the layers", HALF, "matryoshka_2d", "matryoshka"),
        over(
            "2D over plain, half the layers, a quarter of the dimensions",
            QUARTER,
            "matryoshka_2d",
            "plain",
        ),
        over(
            "2D over 1D, half the layers, a quarter of the dimensions",
            QUARTER,
            "matryoshka_2d",
            "matryoshka",
        ),
    ],
)


# Wrong labels


def wrong_positives(loss: Values, share: float, label: float = 1.0) -> Trained:
    """Some queries' positive is a document from ranks 20 to 99 of the untrained encoder."""

    def train(bench: Bench, seed: int) -> Values:
        from sluice.training import pair_examples

        chance = random.Random(seed)  # the same for both losses
        wrong = set(chance.sample(sorted(bench.positives), round(share * len(bench.positives))))
        lists, positives = bench.lists(), {}
        for query, grades in bench.positives.items():
            others = [d for d, _ in lists[query][20:] if d not in grades]
            positives[query] = {chance.choice(others): label} if query in wrong else grades
        examples = pair_examples(bench.queries, positives, bench.texts, labels="grades")
        return {NDCG: bench.measured(bench.fitted(bench.encoder(), examples, loss, seed))}

    return train


def loses_less(says: str, one: str, other: str, noisy: str) -> Claim:
    weights = {f"{one} {noisy}": 1.0, f"{one} 0 %": -1.0, f"{other} {noisy}": -1.0}
    return Claim(says, NDCG, {**weights, f"{other} 0 %": 1.0})


BIXSE = Ordering(
    "BiXSE against InfoNCE, a share of the positives wrong",
    {
        "untrained": plain,
        **{
            f"{loss['type']} {round(100 * share)} %": wrong_positives(loss, share)
            for share in (0.0, 0.1, 0.3)
            for loss in (INFO_NCE, {"type": "bixse"})
        },
        "bixse 30 %, graded .3": wrong_positives({"type": "bixse"}, 0.3, 0.3),
    },
    [
        loses_less("BiXSE loses less, 10 %", "bixse", "info_nce", "10 %"),
        loses_less("BiXSE loses less, 30 %", "bixse", "info_nce", "30 %"),
        loses_less("told grades of .3, it loses less", "bixse", "info_nce", "30 %, graded .3")
        ._replace(weights={"bixse 30 %, graded .3": 1.0, "bixse 0 %": -1.0,
                           "info_nce 30 %": -1.0, "info_nce 0 %": 1.0}),
        over("BiXSE over InfoNCE, 30 %", NDCG, "bixse 30 %", "info_nce 30 %"),
    ],
)  # fmt: skip


def hidden_positives(loss: Values, share: float) -> Trained:
    """Some queries' hard negative is their own positive in other words."""

    def train(bench: Bench, seed: int) -> Values:
        from sluice.training import pair_examples

        chance, negatives, texts = random.Random(seed), dict(bench.mined()), dict(bench.texts)
        wrong = chance.sample(sorted(bench.positives), round(share * len(bench.positives)))
        for query in wrong:
            own = relevant(bench.positives[query])[0]
            texts[f"{own} again"] = paraphrase(texts[own], own)
            negatives[query] = (f"{own} again",)
        examples = pair_examples(bench.queries, bench.positives, texts, negatives)
        return {NDCG: bench.measured(bench.fitted(bench.encoder(), examples, loss, seed))}

    return train


# The gaps of PSL are halved (its scale of 2), and so is its temperature.
PSL = Ordering(
    "PSL against InfoNCE, a share of the hard negatives hidden positives",
    {
        "untrained": plain,
        **{
            f"{loss['type']} {round(100 * share)} %": hidden_positives(loss, share)
            for share in (0.0, 0.2)
            for loss in (INFO_NCE, {"type": "psl", "temperature": 0.025})
        },
    },
    [
        loses_less("PSL loses less, 20 %", "psl", "info_nce", "20 %"),
        over("PSL over InfoNCE, 20 %", NDCG, "psl 20 %", "info_nce 20 %"),
    ],
)


# Negatives and the queries that they answer

OWN, ANSWERED = "cos(query, its positive)", "cos(negative, a query it answers)"


def answering(loss: Values | None) -> Trained:
    def train(bench: Bench, seed: int) -> Values:
        from sluice.training import pair_examples

        negatives = bench.mined()
        answers = {d: query for query in bench.positives for d in relevant(bench.positives[query])}
        examples = list(
            pair_examples(
                bench.queries, bench.positives, bench.texts, negatives, answered=answers
            )
        )  # fmt: skip
        encoder = bench.encoder()
        if loss is not None:
            bench.fitted(encoder, examples, loss, seed)
        own = [(e.query.text, e.documents[0].text) for e in examples[:500]]
        other = [
            (query, text.text)
            for e in examples[:1000]
            for text, query in zip(e.documents, e.answered, strict=True)
            if query
        ]
        values: Values = {NDCG: bench.measured(encoder)}
        for name, pairs in ((OWN, own), (ANSWERED, other[:500])):
            left = encoder.encode_queries([query for query, _ in pairs])
            right = encoder.encode_documents([text for _, text in pairs])
            values[name] = float((left * right).sum(axis=1).mean())
        return values

    return train


CLP = Ordering(
    "CLP against InfoNCE: cosines of train queries and documents",
    {
        "untrained": answering(None),
        "info_nce": answering({"type": "info_nce", "temperature": 0.02}),
        "clp": answering({"type": "clp"}),
    },
    [
        over("CLP keeps negatives nearer to queries they answer", ANSWERED, "clp", "info_nce"),
        over("CLP keeps queries nearer to their positives", OWN, "clp", "info_nce"),
        over("CLP over InfoNCE", NDCG, "clp", "info_nce"),
    ],
)


# Stability

DROP = "worst drop"


def drop_of(curve: Sequence[float]) -> float:
    """Return how far the curve falls below what it had reached, at most."""
    return float(max(np.maximum.accumulate(curve) - np.asarray(curve)))


def along(negatives: str, optim: str) -> Trained:
    def train(bench: Bench, seed: int) -> Values:
        from sluice.training import pair_examples

        hard = bench.mined("naive", seed, range_max=50, sampling="random")
        examples = pair_examples(bench.queries, bench.positives, bench.texts, hard)
        curve: list[float] = []

        def evaluate(encoder: Any) -> dict[str, float]:
            curve.append(float(np.mean(list(bench.measured(encoder, 200).values()))))
            return {NDCG: curve[-1]}

        rate = {"adamw_torch": bench.rate, "lamb": 20 * bench.rate}[optim]
        trainer = {"optim": optim, "learning_rate": rate}
        more = {"evaluate": evaluate, "evaluate_every": max(1, bench.steps // 12)}
        loss = {"type": "star", "negatives": negatives}
        bench.fitted(bench.encoder(), examples, loss, seed, trainer=trainer, **more)
        return {
            f"{NDCG} at the end": curve[-1],
            "best": max(curve),
            DROP: drop_of(curve),
            "standard deviation of its changes": float(np.diff(curve).std()),
            "curve": " ".join(f"{value:.4f}" for value in curve),
        }

    return train


STAR = Ordering(
    "STAR's stability: static hard and random negatives against either alone",
    {
        f"{name}, {label}": along(negatives, optim)
        for optim, label in (("adamw_torch", "AdamW"), ("lamb", "LAMB"))
        for name, negatives in (("both", "all"), ("hard", "own"), ("random", "inbatch_pos"))
    },
    [
        claim
        for optim in ("AdamW", "LAMB")
        for claim in (
            over(f"hard alone falls further, {optim}", DROP, f"hard, {optim}", f"both, {optim}"),
            over(
                f"both over random alone, {optim}", f"{NDCG} at the end",
                f"both, {optim}", f"random, {optim}",
            ),
            over(
                f"both over hard alone, {optim}", f"{NDCG} at the end",
                f"both, {optim}", f"hard, {optim}",
            ),
        )
    ],
)  # fmt: skip


# SPLADE


def pooled(pooling: str) -> Trained:
    def train(bench: Bench, seed: int) -> Values:
        from sluice.encoders.splade.start import start_splade
        from sluice.training import pair_examples

        query, document = bench.lengths
        with tempfile.TemporaryDirectory() as folder:
            bench.encoder().save_pretrained(Path(folder) / "model")
            encoder = start_splade(
                Path(folder) / "model", bench.texts.values(), positions=20_000, terms=120,
                pooling=pooling, query_length=query, document_length=document,
            )  # fmt: skip
        examples = pair_examples(bench.queries, bench.positives, bench.texts, bench.mined())
        bench.fitted(
            encoder, examples, {"type": "info_nce", "temperature": 0.3}, seed,
            sparsity={"target_query_terms": 30, "target_doc_terms": 120},
            head_learning_rate=2e-4,
        )  # fmt: skip
        shares = []
        values: Values = {NDCG: bench.measured(encoder)}
        for side, encode, texts in (
            ("query", encoder.encode_queries, bench.dev_queries),
            ("document", encoder.encode_documents, bench.texts),
        ):
            vectors = encode(list(texts.values()))
            shares.append(np.bincount(vectors.indices, minlength=vectors.shape[1]) / len(texts))
            values[f"terms of a {side}"] = float(shares[-1].sum())
        return {**values, "FLOPS": float(shares[0] @ shares[1])}

    return train


POOLING = Ordering(
    "SPLADE: max over sum, both held at 30 / 120 terms",
    {"sum": pooled("sum"), "max": pooled("max")},
    [over("max over sum", NDCG, "max", "sum")],
)


# Mining

FALSE = "false negatives among those mined"


def mined_in(mode: str) -> Trained:
    """Every positive has a twin in other words, which nobody judged, among the candidates."""

    def train(bench: Bench, seed: int) -> Values:
        from sluice.training import pair_examples
        from sluice.training.negatives import Mining, mine

        twins = {
            f"{d} again": paraphrase(bench.texts[d], d)
            for grades in bench.positives.values()
            for d in relevant(grades)
        }
        texts = {**bench.texts, **twins}
        mining = Mining.in_mode(mode, {"per_query": 1})
        mined = mine(bench.lists(twins), bench.positives, mining, provenance=False).negatives
        own = {q: {f"{d} again" for d in grades} for q, grades in bench.positives.items()}
        chosen = [d in own[query] for query, negatives in mined.items() for d in negatives]
        examples = pair_examples(bench.queries, bench.positives, texts, mined)
        encoder = bench.fitted(bench.encoder(), examples, INFO_NCE, seed)
        return {NDCG: bench.measured(encoder), FALSE: float(np.mean(chosen))}

    return train


MINING = Ordering(
    "Thresholds of mining, a planted false negative for every positive",
    {mode: mined_in(mode) for mode in ("naive", "shifted", "margin", "percentage")},
    [
        over("naive lets more through than shifted", FALSE, "naive", "shifted"),
        over("shifted lets more through than percentage", FALSE, "shifted", "percentage"),
        over("shifted over naive", NDCG, "shifted", "naive"),
        over("margin over naive", NDCG, "margin", "naive"),
        over("percentage over shifted", NDCG, "percentage", "shifted"),
        over("percentage over margin", NDCG, "percentage", "margin"),
    ],
)


# Pre-training

LARGE = {"per_device_train_batch_size": 64, "learning_rate": 1e-3, "max_steps": 200}


def pretrained(task: str, questions: int = 64) -> Trained:
    """A fresh BERT, pre-trained on the documents, then trained with a few queries."""

    def train(bench: Bench, seed: int) -> Values:
        from sluice.encoders import SpladeEncoder
        from sluice.encoders.transformer.from_scratch import fresh_model
        from sluice.training import pair_examples
        from sluice.training.generation.inverse_cloze import Passage, ict_examples

        with tempfile.TemporaryDirectory() as folder:
            fresh = fresh_model(
                bench.texts.values(), Path(folder) / "fresh",
                layers=2, hidden=128, vocabulary=4000, seed=seed,
            )  # fmt: skip
            encoder = bench.encoder(fresh)
            passages = [Passage(name, "", text) for name, text in bench.texts.items()]
            if task == "cloze":
                examples = [e for epoch in range(20) for e in ict_examples(passages, seed, epoch)]
                bench.fitted(encoder, examples, INFO_NCE, seed, trainer=LARGE)
            elif task == "words":
                masked = SpladeEncoder.from_pretrained(fresh, document_length=bench.lengths[1])
                pairs = pair_examples(bench.queries, bench.positives, bench.texts)
                bench.fitted(masked, pairs, {"type": "masked_language"}, seed, trainer=LARGE)
                weights = masked.model.base_model.state_dict()
                encoder.model.load_state_dict(weights, strict=False)
        values: Values = {f"{NDCG} before": bench.measured(encoder)}
        few = random.Random(seed).sample(sorted(bench.positives), questions)
        positives = {query: bench.positives[query] for query in few}
        examples = list(pair_examples(bench.queries, positives, bench.texts))
        bench.fitted(encoder, examples, INFO_NCE, seed, trainer={"learning_rate": 5e-4})
        return {**values, NDCG: bench.measured(encoder)}

    return train


CLOZE = Ordering(
    "Pre-training before 64 queries: ICT, masked words, none",
    {name: pretrained(name) for name in ("none", "words", "cloze")},
    [
        over("masked words over none", NDCG, "words", "none"),
        over("ICT over masked words", NDCG, "cloze", "words"),
        over("ICT over none", NDCG, "cloze", "none"),
    ],
)

ORDERINGS = {
    "layers": LAYERS, "bixse": BIXSE, "psl": PSL, "clp": CLP, "star": STAR, "pooling": POOLING,
    "mining": MINING, "cloze": CLOZE,
}  # fmt: skip


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ORDERINGS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[13, 14, 15])
    parser.add_argument("--only", nargs="+", help="these systems")
    parser.add_argument("--dataset", default="feedbackqa", help="with a train and a dev split")
    parser.add_argument("--model", default=MODEL)
    for name in ("documents", "dev", "steps", "batch", "layers"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Bench, name))
    parser.add_argument("--output", type=Path, default=Path("runs/orderings"))
    parser.add_argument("--show", action="store_true", help="print what is there, train nothing")
    asked = parser.parse_args(words)
    names = asked.names or list(ORDERINGS)
    unknown = [name for name in names if name not in ORDERINGS]
    if unknown:
        parser.error(f"{unknown[0]!r}: unknown; names are {', '.join(ORDERINGS)}")
    if not asked.show:
        settings = {
            key: getattr(asked, key)
            for key in ("dataset", "model", "documents", "dev", "steps", "batch", "layers")
        }
        bench = Bench(**settings)
        noted = asked.output / "settings.json"
        asked.output.mkdir(parents=True, exist_ok=True)
        if noted.exists() and json.loads(noted.read_text()) != settings:
            parser.error(f"{noted}: results of other settings are there; name another --output")
        noted.write_text(json.dumps(settings))
        for name in names:
            for seed in asked.seeds:
                for system, train in ORDERINGS[name].systems.items():
                    if not asked.only or system in asked.only:
                        one(bench, train, seed, asked.output / name / f"{system}.{seed}.json")
    for name in names:
        print("\n".join(table(ORDERINGS[name], results_of(asked.output / name))), end="\n\n")


def one(bench: Bench, train: Trained, seed: int, result: Path) -> None:
    """Train and measure one system, unless its result is there."""
    if result.exists():
        return
    start = time.monotonic()
    values = {**train(bench, seed), "seconds": round(time.monotonic() - start, 1)}
    result.parent.mkdir(parents=True, exist_ok=True)
    unfinished = result.with_suffix(".part")
    unfinished.write_text(json.dumps(values))
    unfinished.replace(result)
    print(
        f"{result.parent.name}: {result.stem}, {values['seconds']} s", file=sys.stderr, flush=True
    )


if __name__ == "__main__":
    main()
