"""Check reciprocal rank fusion and the measures against ranx on random runs without ties.

    python scripts/check_ranx.py

ranx compiles for up to a minute on first use, which is why this is no test.
"""

from __future__ import annotations

import numpy as np

from sluice import Run, evaluate
from sluice.retrieval.pipelines.fusion.fusion import Fusion, reciprocal_rank_fusion

MEASURES = {
    "nDCG@10": "ndcg@10", "R@20": "recall@20", "AP": "map", "RR": "mrr", "P@5": "precision@5",
    "Success@3": "hit_rate@3", "Rprec": "r-precision", "Bpref": "bpref", "SetF": "f1",
    "nDCG_exp@10": "ndcg_burges@10",
}  # fmt: skip


def main() -> None:
    """Compare both sides and exit with an error on any difference above 1e-6."""
    import ranx

    rng = np.random.default_rng(13)
    queries = [f"q{i}" for i in range(50)]

    def random_run(name: str) -> Run:
        ids = np.array([f"d{i}" for i in range(200)])
        rankings = {}
        for query in queries:
            scores = rng.permutation(1000)[:100].astype(float).tolist()
            rankings[query] = dict(zip(rng.permutation(ids)[:100].tolist(), scores, strict=True))
        return Run(rankings, name=name)

    runs = [random_run("first"), random_run("second")]
    theirs = [ranx.Run(run.to_dict(), name=run.name) for run in runs]
    pairs = [
        (
            "reciprocal rank fusion",
            reciprocal_rank_fusion(runs, k=60),
            ranx.fuse(theirs, norm=None, method="rrf", params={"k": 60}),
        ),
        (
            "min-max and weights",
            Fusion("weighted", [0.3, 0.7]).fuse(runs),
            ranx.fuse(theirs, norm="min-max", method="wsum", params={"weights": (0.3, 0.7)}),
        ),
    ]
    worst = 0.0
    for label, ours, fused in pairs:
        expected = fused.to_dict()
        for query, hits in ours.to_dict().items():
            if hits.keys() != expected[query].keys():
                raise SystemExit(f"{label}: other documents in {query}")
            worst = max(worst, *(abs(score - expected[query][doc]) for doc, score in hits.items()))
        print(f"{label}: largest difference {worst:.1e}")
    qrels = {q: {f"d{i}": int(g) for i, g in enumerate(rng.integers(0, 3, 200))} for q in queries}
    ours_mean = evaluate(runs[0], qrels, MEASURES).mean
    their_mean = ranx.evaluate(ranx.Qrels(qrels), theirs[0], list(MEASURES.values()))
    for name, their_name in MEASURES.items():
        difference = abs(ours_mean[name] - their_mean[their_name])
        worst = max(worst, difference)
        print(f"{name}: {ours_mean[name]:.6f}, ranx {their_mean[their_name]:.6f}")
    if worst > 1e-6:
        raise SystemExit(f"largest difference {worst}")
    print("same values")
    check_differences()


def check_differences() -> None:
    """Exit with an error if ranx no longer differs as docs/measures.md says."""
    import ranx

    qrels = {"q": {"a": 1, "b": 0}}

    def both(run: dict[str, float], ours: str, theirs: str) -> tuple[float, float]:
        expected = float(ranx.evaluate(ranx.Qrels(qrels), ranx.Run({"q": run}), theirs))
        return evaluate({"q": run}, qrels, [ours]).mean[ours], expected

    found = {
        "ties": both({"a": 1.0, "b": 1.0}, "RR", "mrr"),
        "float64": both({"b": 1.0, "a": 1.0 + 1e-9}, "RR", "mrr"),
    }
    qrels = {"q": {"a": 1, "b": 2}}
    plain, lowered = (
        both({"a": 2.0, "b": 1.0}, "nDCG@2", name)[1] for name in ("ndcg@2", "ndcg@2-l2")
    )
    biased = both({"a": 2.0, "b": 1.0}, "RBP(p=0.8)", "rbp.80")
    try:
        ranx.evaluate(ranx.Qrels({**qrels, "p": {"a": 1}}), ranx.Run({"q": {"a": 1.0}}), "mrr")
        refused = False
    except AssertionError:
        refused = True
    graded = np.allclose(biased, (0.2 * (1 + 0.8), 0.2 * (1 + 0.8 * 2)))
    if set(found.values()) != {(0.5, 1.0)} or lowered >= plain or not refused or not graded:
        raise SystemExit(f"docs/measures.md: {found}, nDCG {plain}, {lowered}; {refused}; {biased}")
    print("differences as docs/measures.md has them")


if __name__ == "__main__":
    main()
