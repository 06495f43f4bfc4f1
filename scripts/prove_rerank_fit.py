#!/usr/bin/env python
"""How fitted rerankers are chosen: the likeliest share against smoothed bagging of nDCG@10.

    SLUICE_DATA=FOLDER .venv/bin/python scripts/prove_rerank_fit.py --sizes 10 20 60 150

Lists of BM25, all-MiniLM-L6-v2 and both for train queries (never a test) are reranked by the
other, by noise, by noise with a share of the truth and by both; so there are pairs where reranking
helps and pairs where it harms. From samples of the queries a rule chooses depth and share, which
are scored on the rest. Printed for each rule and size: the mean of nDCG@10 over the first stage,
the share of draws more than .002 below it, and their mean loss. ``--scored FOLDER`` takes the dev
lists and scores that ``scripts/rerankers.py`` wrote instead. Lists are kept in ``--output``.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rerankers_bench import MODEL, Array, searched, z_scores

from sluice.retrieval.pipelines.fitting.rerank_choice import RerankChoice, supported
from sluice.retrieval.pipelines.fusion.choice import WIDTH, bagged, held_out, kernel

Choose = Callable[[Array], int]
DEPTH_STEP = WIDTH / 2  # between neighbouring depths, for the smoothing
HARM = 0.002


def likeliest(choice: RerankChoice) -> Choose:
    """Return the rule in use."""
    return choice.choose


def by_bagging(choice: RerankChoice) -> Choose:
    """Return the rule before: smoothed bagging, if above the first stage by a standard error."""
    count, settings = len(choice.settings), choice.settings[1:]
    depths = sorted({depth for depth, _ in settings})
    points = np.array([(DEPTH_STEP * depths.index(depth), share) for depth, share in settings])
    smoothing = kernel(points)

    def choose(rows: Array) -> int:
        place = 1 + bagged(rows[1:count], points, smoothing)
        return place if supported(rows[place] - rows[0]) else 0

    return choose


RULES = {"smoothed bagging": by_bagging, "likeliest share": likeliest}


def guarded(choose: Choose, rows: Array) -> int:
    """Return what is chosen if its held-out mean is above the first stage, as a fit does."""
    place = choose(rows)
    held = held_out(rows, choose) if place else None
    return place if held is not None and held.mean() > rows[0].mean() else 0


def differences(choice: RerankChoice, size: int, draws: int) -> dict[str, list[float]]:
    """Return each rule's mean over the first stage, on the rest of ``draws`` samples."""
    values, found = choice.values, dict[str, list[float]]()
    for rule, made in RULES.items():
        choose = made(choice)
        for draw in range(draws):
            order = np.random.default_rng(draw).permutation(values.shape[1])
            place = guarded(choose, choice.rows[:, order[:size]])
            rest = order[size:]
            found.setdefault(rule, []).append(float((values[place] - values[0])[rest].mean()))
    return found


def worlds(dataset: str, queries: int, depth: int, folder: Path) -> Iterator[RerankChoice]:
    """Yield pairs of a first stage and a scorer over train queries."""
    lists, qrels = train_lists(dataset, queries, folder)
    chance = np.random.default_rng(7)
    for parts in (("bm25",), ("dense",), ("bm25", "dense")):
        first = {query: mixed([own[part] for part in parts]) for query, own in lists.items()}
        heads = {
            query: sorted(scores.items(), key=lambda each: -each[1])[:depth]
            for query, scores in first.items() if len(scores) > 1
        }  # fmt: skip
        names = {query: [name for name, _ in head] for query, head in heads.items()}
        ranked = {
            query: {"documents": names[query], "first": [score for _, score in head]}
            for query, head in heads.items()
        }
        noise = {query: chance.normal(size=len(own)) for query, own in names.items()}
        truth = {
            query: np.array([qrels[query].get(name, 0) > 0 for name in own], float)
            for query, own in names.items()
        }
        others = {
            part: {q: of_list(lists[q][part], own) for q, own in names.items()}
            for part in ("bm25", "dense") if (part,) != parts
        }  # fmt: skip
        dense = {q: of_list(lists[q]["dense"], own) for q, own in names.items()}
        scorers = [
            *others.values(),
            noise,
            *({q: noise[q] + share * truth[q] for q in names} for share in (0.4, 0.8)),
            {q: dense[q] + 0.5 * noise[q] + 0.5 * truth[q] for q in names},
        ]
        judged = {query: qrels[query] for query in names}
        for scorer in scorers:
            scores = {query: values.tolist() for query, values in scorer.items()}
            yield RerankChoice(searched(ranked, judged, scores), depth)


def mixed(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of min-max scores, nothing for a document that a list lacks."""
    found: dict[str, float] = {}
    for scores in parts:
        low, high = min(scores.values(), default=0.0), max(scores.values(), default=1.0)
        for name, score in scores.items():
            share = (score - low) / (high - low) if high > low else 1.0
            found[name] = found.get(name, 0.0) + share / len(parts)
    return found


def of_list(scores: Mapping[str, float], names: Sequence[str]) -> Array:
    low = min(scores.values(), default=0.0)
    return z_scores([scores.get(name, low) for name in names])


def train_lists(dataset: str, count: int, folder: Path) -> tuple[Any, Any]:
    """Return the first 100 of BM25 and the dense encoder for some train queries, and qrels."""
    file = folder / f"{Path(dataset).name}-{count}.json"
    if not file.exists():
        from sluice.encoders import BM25Encoder, DenseEncoder
        from sluice.retrieval import Retriever, load_dataset

        train = load_dataset(dataset, "train")
        chosen = np.random.default_rng(0).permutation(sorted(train.queries))[:count].tolist()
        queries = {query: train.queries[query] for query in chosen}
        lists: dict[str, dict[str, dict[str, float]]] = {query: {} for query in chosen}
        dense = DenseEncoder.from_pretrained(MODEL, document_length=128, dtype="bfloat16")
        for name, encoder in {"bm25": BM25Encoder(), "dense": dense}.items():
            run = Retriever.build(encoder, train.corpus).run(queries, k=100)
            for query in chosen:
                lists[query][name] = dict(run[query]) if query in run else {}
        folder.mkdir(parents=True, exist_ok=True)
        qrels = {query: dict(train.qrels[query]) for query in chosen}
        file.write_text(json.dumps([lists, qrels]))
    saved = json.loads(file.read_text())
    return saved[0], saved[1]


def scored(folder: Path) -> Iterator[RerankChoice]:
    """Yield what ``scripts/rerankers.py`` scored."""
    for file in sorted(folder.glob("*/rows/*.json")):
        saved = json.loads((file.parents[1] / "lists.json").read_text())
        scores = json.loads(file.read_text())["scores"]
        depth = max(map(len, scores.values()))
        yield RerankChoice(searched(saved["lists"], saved["qrels"], scores), depth)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--datasets", nargs="+", default=["scifact", "feedbackqa", "nfcorpus"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[10, 20, 60, 150])
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--scored", type=Path, help="what scripts/rerankers.py wrote")
    parser.add_argument("--output", type=Path, default=Path("runs/rerank_fit"))
    asked = parser.parse_args(words)
    pairs = [
        choice
        for dataset in ([] if asked.scored else asked.datasets)
        for choice in worlds(dataset, asked.queries, asked.depth, asked.output)
    ]
    pairs += [] if asked.scored is None else scored(asked.scored)
    print("| rule | queries | over the first stage | harm | mean loss | pairs |")
    print("|---|---|---|---|---|---|")
    for size in asked.sizes:
        found: dict[str, list[float]] = {rule: [] for rule in RULES}
        used = [choice for choice in pairs if size <= 0.6 * choice.values.shape[1]]
        for choice in used:
            for rule, values in differences(choice, size, asked.draws).items():
                found[rule] += values
        for rule, values in found.items():
            if values:
                each = np.array(values)
                print(
                    f"| {rule} | {size} | {each.mean():+.4f} | {(each < -HARM).mean():.1%} | "
                    f"{np.minimum(each, 0).mean():+.5f} | {len(used)} |"
                )


if __name__ == "__main__":
    main()
