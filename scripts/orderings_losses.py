"""The orderings of losses and negatives in ``scripts/orderings.py``."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from orderings_bench import (
    INFO_NCE,
    NDCG,
    Bench,
    Claim,
    Ordering,
    Trained,
    Values,
    over,
    paraphrase,
    relevant,
)  # fmt: skip


def plain(bench: Bench, seed: int) -> Values:
    return {NDCG: bench.measured(bench.encoder())}


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


def loses_less(says: str, one: str, other: str) -> Claim:
    """One loss with wrong labels is less below itself without than the other."""
    weights = {one: 1.0, f"{one.split()[0]} 0 %": -1.0, other: -1.0}
    return Claim(says, NDCG, {**weights, f"{other.split()[0]} 0 %": 1.0})


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
        loses_less("BiXSE loses less, 10 %", "bixse 10 %", "info_nce 10 %"),
        loses_less("BiXSE loses less, 30 %", "bixse 30 %", "info_nce 30 %"),
        loses_less("BiXSE told grades of .3", "bixse 30 %, graded .3", "info_nce 30 %"),
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
        loses_less("PSL loses less, 20 %", "psl 20 %", "info_nce 20 %"),
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

DROP, END = "worst drop", f"{NDCG} at the end"


def drop_of(curve: Sequence[float]) -> float:
    """Return how far the curve falls below what it had reached, at most."""
    return float(max(np.maximum.accumulate(curve) - np.asarray(curve)))


def along(negatives: str, optim: str) -> Trained:
    def train(bench: Bench, seed: int) -> Values:
        from sluice.training import pair_examples

        hard = bench.mined("naive", seed, range_max=50, sampling="random")
        examples = pair_examples(bench.queries, bench.positives, bench.texts, hard)
        seen: list[dict[str, float]] = []

        def evaluate(encoder: Any) -> dict[str, float]:
            seen.append(bench.measured(encoder, 200))
            return {NDCG: float(np.mean(list(seen[-1].values())))}

        rate = {"adamw_torch": bench.rate, "lamb": 20 * bench.rate}[optim]
        trainer = {"optim": optim, "learning_rate": rate}
        more = {"evaluate": evaluate, "evaluate_every": max(1, bench.steps // 12)}
        loss = {"type": "star", "negatives": negatives}
        bench.fitted(bench.encoder(), examples, loss, seed, trainer=trainer, **more)
        curve = [float(np.mean(list(each.values()))) for each in seen]
        return {
            END: seen[-1], "best": max(curve), DROP: drop_of(curve),
            "standard deviation of its changes": float(np.diff(curve).std()),
            "curve": " ".join(f"{value:.4f}" for value in curve),
        }  # fmt: skip

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
            over(f"both over random alone, {optim}", END, f"both, {optim}", f"random, {optim}"),
            over(f"both over hard alone, {optim}", END, f"both, {optim}", f"hard, {optim}"),
        )
    ],
)  # fmt: skip


# Mining

FALSE = "false negatives a query"


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
        false = sum(d in own[query] for query, found in mined.items() for d in found)
        examples = pair_examples(bench.queries, bench.positives, texts, mined)
        encoder = bench.fitted(bench.encoder(), examples, INFO_NCE, seed)
        return {NDCG: bench.measured(encoder), FALSE: false / len(mined)}

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
        over("percentage over naive", NDCG, "percentage", "naive"),
    ],
)
