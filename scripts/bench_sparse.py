#!/usr/bin/env python
"""Measure the inverted index against what else is installed, and print the table of targets.

    python scripts/bench_sparse.py --quick
    python scripts/bench_sparse.py --documents 200000 1000000 --seismic --splade MODEL --json FILE

Peers: bmp (Rust, block-max pruning), scipy's sparse product, a compiled loop over the postings as
naver/splade has it, seismic (approximate; builds for minutes, so only with --seismic) and bm25s;
``pip install -e '.[bench]'`` brings them. Collections and the peers' indexes are kept under --data.

Ratios are ours over theirs, on one thread: all engines answer each query one after the other in one
process, and the ratio is the median over the queries. Each timed answer of ours is compared with
brute force, rows and scores; one that differs makes the exit status 1. On a machine that others
share, believe the ratios and not the milliseconds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bench_sparse_rows as table
from bench_sparse_data import Collection, texts_folder
from bench_sparse_peers import BMP_BYTES_PER_POSTING, ENGINES, OURS, SEISMICS
from bench_sparse_tasks import remove, run
from harness import TaskFailedError

log = logging.getLogger("sluice")

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("SLUICE_BENCH", Path.home() / ".cache" / "sluice" / "bench"))
HARD_UP_TO = 500_000  # documents; the flatter queries have a target at 200,000 alone
FRESH_STARTS = 5
TEXTS = ("nfcorpus", "msmarco-dl-pool")


@dataclass
class Bench:
    """What one call measures, and the rows and figures so far."""

    options: argparse.Namespace
    rows: list[table.Row] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    wrong: int = 0
    checked: int = 0

    @property
    def data(self) -> Path:
        """Where collections and indexes are kept."""
        return Path(self.options.data)

    def made_up(self, documents: int) -> None:
        """Measure everything on a made-up collection."""
        collection = Path(run("make", root=str(self.data), documents=documents))
        label = f"{documents:,}"
        peers = ["bmp", "scipy", "loop"]
        if self.options.seismic and documents <= self.options.seismic_most:
            peers += SEISMICS
        kinds = ["easy", "hard"] if documents <= HARD_UP_TO else ["easy"]
        figures, absent = self.engines(collection, label, peers, kinds)
        timings = figures["timing"]
        for kind, timing in timings.items():
            self.rows += table.speed_rows(f"{label} {kind}", documents, timing, absent)
        why = absent.get("seismic", "only with --seismic, and up to --seismic-most documents")
        self.rows.append(table.seismic_row(f"{label} easy", documents, timings["easy"], why))
        self.rows += table.planner_rows(label, documents, list(timings.values()))
        index = str(self.path(collection, "exact"))
        given: dict[str, Any] = {"collection": str(collection), "path": index, "kind": "easy"}
        figures["threads"] = run("threads", threads=2, queries=500, rounds=9, **given)
        self.rows.append(table.threads_row(label, documents, figures["threads"]))
        figures["first_query"] = [run("first_query", **given) for _ in range(FRESH_STARTS)]
        self.rows.append(table.first_query_row(label, documents, figures["first_query"]))
        self.rows += table.resource_rows(label, documents, figures, absent)

    def real(self, dataset: str, splade: str | None) -> None:
        """Measure the speed on a real collection's vectors."""
        folder = texts_folder()
        label = f"{dataset}, {'BM25' if splade is None else 'SPLADE'}"
        if folder is None:
            self.rows.append(table.missing(label, "SLUICE_DATA names no folder of collections"))
            return
        given = {"root": str(self.data), "dataset": str(folder / dataset), "splade": splade}
        collection = Path(run("encode", threads=os.cpu_count() or 1, **given))
        peers = ["bmp", "scipy", "loop"] + (["bm25s"] if splade is None else [])
        figures, absent = self.engines(collection, label, peers, ["test"])
        self.rows += table.speed_rows(label, 0, figures["timing"]["test"], absent)

    def engines(
        self, collection: Path, label: str, peers: list[str], kinds: list[str]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Build all, weigh all, and time all together; return figures, and why peers are absent."""
        figures: dict[str, Any] = {"build": {}, "serve": {}, "timing": {}}
        self.figures[collection.name] = figures
        absent: dict[str, str] = {}
        taking_part: dict[str, str] = {}
        given: dict[str, Any] = {"collection": str(collection), "queries": self.options.queries}
        for name in (*OURS, *peers):
            files = ENGINES[name].files
            if files in absent:
                continue
            path = self.path(collection, files)
            if files not in figures["build"]:
                try:
                    figures["build"][files] = self.built(collection, name)
                    figures["serve"][files] = run(
                        "serve", engine=name, path=str(path), kind=kinds[0], **given
                    )
                except (TaskFailedError, MemoryError) as error:
                    if name in OURS:
                        raise
                    absent[files] = str(error)
                    log.warning("%s, %s: %s", label, name, error)
                    continue
            taking_part[name] = str(path)
        for kind in kinds:
            truths = {
                fidelity: run(
                    "truth", fidelity=fidelity, path=str(self.path(collection, fidelity)),
                    kind=kind, out=str(self.data / f"truth-{fidelity}.npz"), **given,
                )
                for fidelity in ("exact", "u8")
            }  # fmt: skip
            report = run(
                "timing", engines=taking_part, truths=truths, kind=kind, rounds=self.options.rounds,
                **given,
            )  # fmt: skip
            figures["timing"][kind] = report
            self.wrong += report["wrong"]
            self.checked += report["checked"]
        return figures, absent

    def built(self, collection: Path, name: str) -> dict[str, Any]:
        """Build an index and return what that took; a peer's is kept from run to run."""
        engine = ENGINES[name]
        path = self.path(collection, engine.files)
        record = path.with_name(path.name + ".json")
        if name not in OURS:
            if not engine.installed:
                raise TaskFailedError(f"{engine.package} is not installed")
            self.check_memory(collection, name)
            if record.exists() and path.exists() and not self.options.rebuild:
                return {**json.loads(record.read_text()), "earlier": True}
        log.info("build %s over %s", engine.files, collection.name)
        record.unlink(missing_ok=True)
        report: dict[str, Any] = run(
            "build", collection=str(collection), engine=name, path=str(path)
        )
        log.info("  %s", {key: round(value, 1) for key, value in report.items()})
        record.write_text(json.dumps(report))
        return report

    def check_memory(self, collection: Path, name: str) -> None:
        """Raise where the peer would take more memory than is free."""
        memory = Path("/proc/meminfo")
        if name != "bmp" or not memory.exists():
            return
        (line,) = (x for x in memory.read_text().splitlines() if x.startswith("MemAvailable:"))
        free = int(line.split()[1]) * 1024
        facts = Collection(collection).facts
        needed = BMP_BYTES_PER_POSTING * facts["documents"] * facts["terms_per_document"]
        if needed > 0.85 * free:
            raise MemoryError(f"needs about {needed / 1e9:.0f} GB, {free / 1e9:.0f} GB are free")

    def path(self, collection: Path, files: str) -> Path:
        """Where an engine's index over a collection is."""
        return self.data / "indexes" / f"{collection.name}-{files}"


def _models() -> list[str]:
    """Return SPLADE models that an experiment left under runs/."""
    found = (ROOT / "runs").glob("*/models/splade*")
    return sorted(str(path) for path in found if path.is_dir())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--documents", type=int, nargs="*", default=[200_000, 1_000_000], help="collection sizes")
    add("--quick", action="store_true", help="20,000 documents, few queries; under two minutes")
    add("--queries", type=int, default=200, help="of each set, at most 500")
    add("--rounds", type=int, default=3, help="times each query is asked")
    add("--data", default=str(DATA), help="folder for collections and indexes ($SLUICE_BENCH)")
    add("--splade", help="a SPLADE model for the real collections; default: one under runs/")
    add("--no-real", action="store_true", help="made-up collections only")
    add("--seismic", action="store_true", help="build seismic too: minutes at 200,000 documents")
    add("--seismic-most", type=int, default=200_000, help="largest collection to build it for")
    add("--rebuild", action="store_true", help="build the peers' indexes anew")
    add("--json", type=Path, help="also write rows and figures to this file")
    options = parser.parse_args()
    if options.quick:
        options.documents, options.queries, options.rounds = [20_000], 60, 3
    return options


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = _options()
    bench = Bench(options)
    bench.data.mkdir(parents=True, exist_ok=True)
    run("compile_kernels")
    for documents in options.documents:
        bench.made_up(documents)
    folder = texts_folder()
    if not options.no_real:
        found = [] if options.quick else _models()  # encoding takes longer than --quick may
        splade = options.splade or next(iter(found), None)
        for dataset in TEXTS[:1] if options.quick else TEXTS:
            bench.real(dataset, None)
            if splade is not None:
                bench.real(dataset, splade)
            else:
                why = "no SPLADE model, or --quick: name one with --splade"
                bench.rows.append(table.missing(f"{dataset}, SPLADE", why))
    dataset = "pydocs" if folder is None else str(folder / TEXTS[-1])
    report = run("text_indexing", dataset=dataset, rounds=5)
    bench.figures["text_indexing"] = report
    bench.rows.append(table.text_indexing_row(report, Path(dataset).name))
    bench.rows.append(table.exactness_row(bench.wrong, bench.checked))
    print(table.markdown(bench.rows))
    if options.json is not None:
        for figures in bench.figures.values():
            for kind, timing in figures.get("timing", {}).items():
                figures["timing"][kind] = table.summary(timing)
        kept = {"rows": table.as_records(bench.rows), "figures": bench.figures}
        options.json.write_text(json.dumps(kept, indent=1) + "\n")
    remove(bench.data / "truth-exact.npz")
    remove(bench.data / "truth-u8.npz")
    return 1 if bench.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
