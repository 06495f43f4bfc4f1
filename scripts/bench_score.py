"""Time scoring a run file against pytrec_eval: 7,000 queries of 1,000 hits, all in one process.

    python scripts/bench_score.py [--queries 7000] [--depth 1000] [--only sluice]

Both sides read the same two files and compute nDCG@10, R@100 and AP; the values are compared.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

MEASURES = {"nDCG@10": "ndcg_cut_10", "R@100": "recall_100", "AP": "map"}


def write_files(folder: Path, queries: int, depth: int) -> tuple[Path, Path]:
    """Write a run and qrels of random documents out of MS MARCO's 8.8 million ids."""
    rng = np.random.default_rng(13)
    run, qrels = folder / "run.trec", folder / "qrels.trec"
    with run.open("w") as runs, qrels.open("w") as judged:
        for query in range(1_000_000, 1_000_000 + queries):
            documents = rng.choice(8_841_823, depth, replace=False)
            scores = np.sort(rng.random(depth) * 30)[::-1]
            pairs = enumerate(zip(documents.tolist(), scores.tolist(), strict=True), 1)
            runs.write("".join(f"{query} Q0 {d} {r} {s:.6f} bench\n" for r, (d, s) in pairs))
            relevant = rng.choice(documents, 3, replace=False).tolist()
            judged.write("".join(f"{query} 0 {d} {g}\n" for g, d in enumerate(relevant)))
    return run, qrels


def with_sluice(run: Path, qrels: Path) -> dict[str, float]:
    """Load and score with Sluice."""
    from retrieval.evaluation import evaluate
    from retrieval.ranking import Run
    from retrieval.trec_files import read_qrels

    return dict(evaluate(Run.load(run), read_qrels(qrels), MEASURES).mean)


def with_pytrec_eval(run: Path, qrels: Path) -> dict[str, float]:
    """Load and score with pytrec_eval's own readers."""
    import pytrec_eval

    with qrels.open() as stream:
        judged = pytrec_eval.parse_qrel(stream)
    with run.open() as stream:
        ranked = pytrec_eval.parse_run(stream)
    values = pytrec_eval.RelevanceEvaluator(judged, set(MEASURES.values())).evaluate(ranked)
    return {
        name: float(np.mean([value[theirs] for value in values.values()]))
        for name, theirs in MEASURES.items()
    }


def timed(
    label: str, score: Callable[[Path, Path], dict[str, float]], run: Path, qrels: Path
) -> tuple[float, dict[str, float]]:
    """Return the seconds a scorer takes, its imports included, and its means."""
    start = time.perf_counter()
    means = score(run, qrels)
    seconds = time.perf_counter() - start
    shown = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
    print(f"{label:<12} {seconds:6.2f} s   {shown}")
    return seconds, means


def main() -> None:
    """Write the files, time both, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=7000)
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--only", choices=["sluice"], help="leave pytrec_eval out")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, qrels = write_files(Path(folder), chosen.queries, chosen.depth)
        print(f"{chosen.queries:,} queries x {chosen.depth:,}: {run.stat().st_size / 1e6:.0f} MB")
        ours, our_means = timed("sluice", with_sluice, run, qrels)
        if chosen.only:
            return
        theirs, their_means = timed("pytrec_eval", with_pytrec_eval, run, qrels)
    for name, value in our_means.items():
        if abs(value - their_means[name]) > 1e-6:
            raise SystemExit(f"{name} differs: {value} and {their_means[name]}")
    print(f"same values; {theirs / ours:.1f} times as fast")


if __name__ == "__main__":
    main()
