"""Measure evaluation: scoring against pytrec_eval, tests of significance, start-up, the report.

    python scripts/bench_eval.py [--queries 7000] [--depth 1000] [--rounds 3] [--report SUITE]

Both sides read the same two files, imports included, and compute ten measures; the values are
compared. Every round is a process of its own, sluice and pytrec_eval in turn; seconds are the
processor's, of all threads, so that other programs count little. ``--report`` is the
output folder of an evaluated suite, whose page is built and timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import options, printed_by

MEASURES = {
    "nDCG@10": "ndcg_cut_10", "nDCG@100": "ndcg_cut_100", "R@10": "recall_10",
    "R@100": "recall_100", "R@1000": "recall_1000", "P@5": "P_5", "P@10": "P_10", "AP": "map",
    "RR": "recip_rank", "Success@10": "success_10",
}  # fmt: skip


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
    from sluice import Run, evaluate
    from sluice.retrieval.runs.trec_files import read_qrels

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


SIDES = {"sluice": with_sluice, "pytrec_eval": with_pytrec_eval}


def apart(side: str, run: Path, qrels: Path) -> tuple[float, dict[str, float]]:
    """Return the processor seconds a side takes in a process of its own, and its means."""
    found = printed_by(__file__, "--side", side, run, qrels)
    return found["seconds"], found["means"]


def scoring(queries: int, depth: int, rounds: int) -> None:
    """Time both sides in turn, compare their values, print medians and the ratio."""
    spent: dict[str, list[float]] = {side: [] for side in SIDES}
    means: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        run, qrels = write_files(Path(folder), queries, depth)
        print(f"{queries:,} queries x {depth:,}: {run.stat().st_size / 1e6:.0f} MB, ten measures")
        for _ in range(rounds):
            for side in SIDES:
                seconds, means[side] = apart(side, run, qrels)
                spent[side].append(seconds)
    for name, value in means["sluice"].items():
        if abs(value - means["pytrec_eval"][name]) > 1e-6:
            raise SystemExit(f"{name} differs: {value} and {means['pytrec_eval'][name]}")
    middle = {side: statistics.median(seconds) for side, seconds in spent.items()}
    pairs = zip(spent["sluice"], spent["pytrec_eval"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    ours, theirs = middle["sluice"], middle["pytrec_eval"]
    print(f"sluice {ours:.2f} s (target 3), pytrec_eval {theirs:.2f} s")
    print(f"{ratio:.2f} of its time (must .3)")


def testing(queries: int) -> None:
    """Time the tests of one pair of systems, 10,000 permutations or samples."""
    from sluice.retrieval.evaluation.significance import fisher_randomisation, paired_bootstrap

    rng = np.random.default_rng(13)
    first = rng.random(queries)
    second = np.clip(first + rng.normal(0.002, 0.1, queries), 0, 1)
    for name, test in (("fisher", fisher_randomisation), ("bootstrap", paired_bootstrap)):
        start = time.perf_counter()
        test(first, second)
        print(f"{name}, {queries:,} queries: {time.perf_counter() - start:.2f} s (target 2)")


def starting(rounds: int) -> None:
    """Time ``score`` and ``compare`` on a run of one query: what is left is starting up."""
    with tempfile.TemporaryDirectory() as folder:
        run, qrels = write_files(Path(folder), 1, 10)
        other = Path(folder) / "other.trec"
        other.write_text(run.read_text().replace("bench", "other"))
        for words in (["score", run, qrels], ["compare", run, other, "--qrels", qrels]):
            spent = []
            for _ in range(2 * rounds + 1):
                start = time.perf_counter()
                command = [sys.executable, "-m", "sluice", *map(str, words)]
                subprocess.run(command, capture_output=True, check=True)
                spent.append(time.perf_counter() - start)
            print(f"sluice {words[0]}: {statistics.median(spent):.2f} s (target 1)")


def reporting(suite: Path) -> None:
    """Build the report of a suite: seconds, and the size of its page."""
    from sluice.retrieval.studies.report.page import build_report

    start = time.perf_counter()
    page = build_report(suite)
    seconds, size = time.perf_counter() - start, page.stat().st_size / 1e6
    print(f"report of {suite}: {size:.1f} MB (target 15), built in {seconds:.1f} s")


def main() -> None:
    chosen = options(__doc__, {
        "--queries": 7000, "--depth": 1000, "--rounds": 3, "--report": Path,
        "--side": ({"choices": list(SIDES)}, argparse.SUPPRESS),
        "files": ({"nargs": "*", "type": Path}, argparse.SUPPRESS),
    })  # fmt: skip
    if chosen.side:
        start = time.process_time()
        means = SIDES[chosen.side](*chosen.files)
        print(json.dumps({"seconds": time.process_time() - start, "means": means}))
        return
    scoring(chosen.queries, chosen.depth, chosen.rounds)
    testing(chosen.queries)
    starting(chosen.rounds)
    if chosen.report:
        reporting(chosen.report)


if __name__ == "__main__":
    main()
