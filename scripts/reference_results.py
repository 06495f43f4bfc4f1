#!/usr/bin/env python
"""Make docs/results.md: seven collections by seven systems, from configs/reference*.yaml.

    SLUICE_DATA=FOLDER scripts/reference_results.py [--seeds 13 14 15] [--only-write]

Every collection is searched by one recipe, trained anew for each seed where the collection has
queries to train on. What is made already is not made again, so a killed run goes on where it was;
``--only-write`` makes nothing and writes the page from what is there.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from harness import options
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
TRAINED, UNTRAINED = "configs/reference.yaml", "configs/reference-untrained.yaml"
CORPUS = "configs/reference-corpus.yaml"  # where there is no train split: pairs of the corpus
MEASURES = ("nDCG@10", "R@100", "RR@10")
# A system, and what it must not be worse than: the best of these.
NO_HARM = {
    "dense": ("dense-zero-shot",),
    "hybrid": ("bm25", "dense-zero-shot", "dense", "splade"),
    "cascade": ("hybrid",),
}
ORDER = (
    "bm25", "dense-zero-shot", "hybrid-zero-shot", "dense", "splade", "hybrid", "cascade",
)  # fmt: skip
UNSEEN = "cascade over its first stage, queries without a document of training"
NAMED = {"dense": "start", "hybrid": "best part", "cascade": "first stage"}
UNTRAINED_SYSTEMS = ("bm25", "dense-zero-shot", "hybrid-zero-shot")
# nDCG@10 on the test split: BEIR's leaderboard and Anserini's flat BM25; the model's own card.
PUBLISHED = {
    ("scifact", "bm25"): 0.6789, ("scifact", "dense-zero-shot"): 0.6451,
    ("nfcorpus", "bm25"): 0.3218, ("nfcorpus", "dense-zero-shot"): 0.3159,
    ("feedbackqa", "dense-zero-shot"): 0.5823,
}  # fmt: skip

Values = NDArray[np.float64]  # of one measure, a query each


@dataclass(slots=True)
class Collection:
    """What was measured on one collection: by seed, the results and every query's values."""

    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    values: dict[int, dict[str, dict[str, Values]]] = field(default_factory=dict)
    queries: list[str] = field(default_factory=list)  # in the order of the values
    folder: Path = Path()  # the last seed's output
    unseen: set[str] = field(default_factory=set)  # queries: no seed saw a document of theirs

    @property
    def systems(self) -> list[str]:
        """The names of the systems, in the order of the configuration."""
        return [each["name"] for each in self._first["systems"]]

    @property
    def _first(self) -> dict[str, Any]:
        return next(iter(self.results.values()))

    def tried(self, model: str) -> dict[float, float]:
        """Return the dev measure of each share of the way from the start to the trained weights."""
        text = (self.folder / "training" / model / "kept.json").read_text(encoding="utf-8")
        return {float(share): float(value) for share, (value, _) in json.loads(text).items()}

    def means(self, system: str, measure: str) -> list[float]:
        """Return the mean over queries, by seed; none where the collection has no such system."""
        if system not in self.systems:
            return []
        return [float(found[system][measure].mean()) for found in self.values.values()]

    def mean(self, system: str, measure: str) -> float:
        """Return the mean over queries and seeds."""
        return float(np.mean(self.means(system, measure)))

    def by_query(self, system: str, measure: str) -> Values:
        """Return each query's mean over the seeds."""
        values = [found[system][measure] for found in self.values.values()]
        return np.asarray(np.mean(values, axis=0), np.float64)

    def cost(self, system: str) -> Mapping[str, Any]:
        """Return latency and size with the first seed."""
        return next(each for each in self._first["systems"] if each["name"] == system)


def page(
    found: Mapping[str, Collection], alone: Mapping[str, Collection], cores: str, scores: Path
) -> str:
    """Return the Markdown of the results by collection; ``alone`` learnt from their corpora."""
    seeds = {name: len(each.results) for name, each in found.items()}
    most = max(seeds.values())
    several = [name for name, count in seeds.items() if count == most > 1]
    said = (
        f"{', '.join(several)}: {most} seeds, their mean and half the distance of the largest from "
        "the smallest; the others: one seed."
        if several
        else "One seed."
    )
    lines = [
        "# Reference results",
        "",
        f"Made by `scripts/reference_results.py` from `{TRAINED}` and `{UNTRAINED}`: one recipe,",
        f"no setting chosen for a collection, {cores}. {said}",
        "What is fitted and what is kept is chosen on dev queries, never on the test; each",
        "output's `fitted/` and model cards tell how. † differs from BM25 (paired t-test over the",
        "queries, p < .05, Holm over the systems of the collection). Test splits; MS MARCO's is a",
        "pool of 30,045 passages with the queries of TREC DL 2019 and 2020. Where there is a train",
        "split the cascade returns 50 documents, which bounds its recall.",
        "Trained models may remember documents: 196 of scifact's 300 test queries, 898 of",
        "feedbackqa's 1,992 and all 323 of nfcorpus' have a relevant document that is relevant in",
        "train too ([what that means](evaluation.md#what-training-remembers)).",
    ]
    for measure in MEASURES:
        lines += ["", f"## {measure}", "", *_table(found, measure)]
        if measure == MEASURES[0]:
            lines += ["", *_harm(found), *_published(found), *_others(scores)]
            lines += ["", *_of_the_corpus(found, alone)] if alone else []
    lines += ["", "## Cost", ""]
    lines += ["Latency of one query, encoding included, one thread; the indexes of all stages."]
    for what, show in (("p50/p95 ms", _latency), ("bytes a document", _size)):
        lines += ["", f"| {what} | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]
        for system in sorted({s for each in found.values() for s in each.systems}, key=ORDER.index):
            cells = [show(each.cost(system)) if system in each.systems else "-"
                     for each in found.values()]  # fmt: skip
            lines.append(f"| {system} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _latency(cost: Mapping[str, Any]) -> str:
    spent = cost["latency_ms"]
    return f"{spent['p50']:.1f}/{spent['p95']:.1f}" if spent else "-"


def _size(cost: Mapping[str, Any]) -> str:
    return f"{cost['bytes_per_document']:,.0f}"


def _table(found: Mapping[str, Collection], measure: str) -> Iterator[str]:
    """Yield the lines of a table: systems by collection, and the average."""
    from sluice.retrieval.evaluation.significance import holm, paired_t_test

    systems = list(dict.fromkeys(s for each in found.values() for s in each.systems))
    systems.sort(key=ORDER.index)
    marks: dict[tuple[str, str], str] = {}
    for name, each in found.items():
        base = each.by_query("bm25", measure)
        others = [system for system in each.systems if system != "bm25"]
        p = holm([paired_t_test(each.by_query(system, measure), base) for system in others])
        marks |= {(name, s): "†" * (value < 0.05) for s, value in zip(others, p, strict=True)}
    yield "| | " + " | ".join(found) + " | average |"
    yield "|---" * (len(found) + 2) + "|"
    for system in systems:
        cells = [_cell(each, system, measure) + marks.get((name, system), "")
                 for name, each in found.items()]  # fmt: skip
        values = [each.means(system, measure) for each in found.values()]
        average = f"{np.mean([np.mean(v) for v in values]):.4f}" if all(values) else "-"
        yield f"| {system} | " + " | ".join([*cells, average]) + " |"
    best = [max(each.mean(s, measure) for s in UNTRAINED_SYSTEMS) for each in found.values()]
    shown = [f"{value:.4f}" for value in (*best, float(np.mean(best)))]
    yield "| best without training or fitting | " + " | ".join(shown) + " |"


def _cell(found: Collection, system: str, measure: str) -> str:
    values = found.means(system, measure)
    if not values:
        return "-"
    spread = f" ± {(max(values) - min(values)) / 2:.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{spread if max(values) > min(values) else ''}"


def _harm(found: Mapping[str, Collection]) -> Iterator[str]:
    """Yield the table that says where a system is worse than what it is made from."""
    from sluice.retrieval.evaluation.significance import paired_t_test

    yield "Worse than its start, its best part, its first stage (nDCG@10, difference and p of the"
    yield "paired t-test; the best part is the best on the test, which nothing here could know):"
    yield ""
    yield "| | " + " | ".join(found) + " |"
    yield "|---" * (len(found) + 1) + "|"
    worse: list[str] = []
    for system, parts in NO_HARM.items():
        cells = []
        for name, each in found.items():
            known = [which for which in parts if which in each.systems]
            if system not in each.systems or not known:
                cells.append("not trained")
                continue
            part = max(known, key=lambda which: each.mean(which, MEASURES[0]))
            one, base = (each.by_query(which, MEASURES[0]) for which in (system, part))
            difference = float((one - base).mean())
            p = paired_t_test(one, base) if np.any(one != base) else 1.0
            cells.append(f"{difference:+.4f} ({part}, p {p:.2g})" if p < 1 else "the same")
            if difference < 0:
                worse.append(f"{system} on {name} ({difference:+.4f}, p {p:.2g})")
        yield f"| {system} over its {NAMED[system]} | " + " | ".join(cells) + " |"
    yield f"| {UNSEEN} | " + " | ".join(_among_unseen(each) for each in found.values()) + " |"
    yield ""
    yield f"Worse than its start, its best part or its first stage: {'; '.join(worse) or 'never'}."


def _among_unseen(found: Collection) -> str:
    """Return a cell: what the cascade adds where training knew no relevant document."""
    from sluice.retrieval.evaluation.significance import paired_t_test

    if not found.unseen:
        return "none apart"
    kept = [query in found.unseen for query in found.queries]
    one, base = (found.by_query(which, MEASURES[0])[kept] for which in ("cascade", "hybrid"))
    count = f"{sum(kept):,} queries"
    if not np.any(one != base):
        return f"the same ({count})"
    return f"{(one - base).mean():+.4f} ({count}, p {paired_t_test(one, base):.2g})"


def _published(found: Mapping[str, Collection]) -> Iterator[str]:
    yield from ("", "| published nDCG@10 | theirs | here |", "|---|---|---|")
    for (name, system), value in PUBLISHED.items():
        if name in found:
            here = found[name].mean(system, MEASURES[0])
            yield f"| {name}, {system} | {value:.4f} | {here:.4f} |"


def _of_the_corpus(
    found: Mapping[str, Collection], alone: Mapping[str, Collection]
) -> Iterator[str]:
    """Yield the lines that say what a training on pairs of the corpus did to each collection."""
    from sluice.retrieval.datasets.dataset import load_dataset
    from sluice.retrieval.evaluation.significance import paired_t_test

    yield f"Trained on pairs made of the corpus (`{CORPUS}`), where there is no train split; one"
    yield "seed. What chooses is nDCG@10 on the dev queries where they are judged, which may keep"
    yield "all of the training, else on held-out pairs, which may keep a quarter of the way. On the"
    yield "test, with p of the paired t-test:"
    yield ""
    yield "| | chosen by | start, quarter, end | dense over its start | hybrid over the one above |"
    yield "|---|---|---|---|---|"
    for name, each in alone.items():
        dev = "dev" in load_dataset(name, "test").splits
        tried = each.tried("dense-ft")
        cells = ["dev queries" if dev else "held-out pairs"]
        cells.append(", ".join(f"{value:.4f}" for _, value in sorted(tried.items())))
        for system, other in (("dense", each.by_query("dense-zero-shot", MEASURES[0])),
                              ("hybrid", found[name].by_query("hybrid", MEASURES[0]))):  # fmt: skip
            one = each.by_query(system, MEASURES[0])
            p = paired_t_test(one, other)
            cells.append(f"{(one - other).mean():+.4f} ({one.mean():.4f}, p {p:.2g})")
        yield f"| {name} | " + " | ".join(cells) + " |"


def _others(scores: Path) -> Iterator[str]:
    """Yield a table of what others published for SciFact and NFCorpus, nDCG@10."""
    if not scores.exists():
        return
    core = json.loads(scores.read_text(encoding="utf-8"))["core"]
    one, two = core["scifact"], core["nfcorpus"]
    yield from ("", "Others, as published (Pyserini's reproductions, MTEB's results):", "")
    yield from ("| | scifact | nfcorpus |", "|---|---|---|")
    for name in sorted(one.keys() & two.keys(), key=lambda each: one[each]["ndcg@10"]):
        yield f"| {name} | {one[name]['ndcg@10']:.4f} | {two[name]['ndcg@10']:.4f} |"


def read(output: Path, seed: int, found: dict[str, Collection], names: Sequence[str]) -> None:
    """Add what a suite's output holds to the collections."""
    from sluice import Run, evaluate, load_dataset
    from sluice.retrieval.config.sections import ExperimentConfig, config_of
    from sluice.retrieval.experiments.unseen import unseen_judgements

    for name in names:
        folder = output / "datasets" / name
        if not (folder / "results.json").exists():
            continue
        each = found.setdefault(name, Collection())
        each.folder = folder
        each.results[seed] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        dataset = load_dataset(name, "test")
        each.queries = sorted(dataset.qrels)
        config, _ = config_of(folder / "experiment.yaml", ExperimentConfig, ())
        nodes = [f"train.{model}" for model in config.train]
        unseen = set(unseen_judgements(config, nodes, dataset))
        each.unseen = each.unseen & unseen if each.values else unseen
        each.values[seed] = {}
        for system in each.systems:
            run = Run.load(folder / "runs" / f"{system}.trec.gz")
            per_query = evaluate(run, dataset, MEASURES).per_query
            each.values[seed][system] = {
                measure: np.array([per_query[measure][query] for query in each.queries])
                for measure in MEASURES
            }


def made(config: Path, seeds: Sequence[int], only_write: bool, found: dict[str, Collection]) -> str:
    """Make what a suite describes once for each seed, and read it; return where it lies."""
    from sluice.retrieval.config.sections import load_values
    from sluice.retrieval.jobs import suite

    values = load_values(config)
    for seed in seeds:
        output = Path(f"{values['output']}-{seed}")
        if not only_write:
            suite(config, overrides=[f"seed={seed}", f"output={output}"])
        read(output, seed, found, values["dataset"])
    return str(values["output"])


def main() -> None:
    chosen = options(__doc__, {
        "--only-write": False, "--seeds": [13, 14, 15],
        "--cores": ("two CPU cores", "the machine, for the page"),
    })  # fmt: skip
    sys.path.insert(0, str(ROOT))
    found: dict[str, Collection] = {}
    alone: dict[str, Collection] = {}
    for config in (TRAINED, UNTRAINED, CORPUS):
        seeds = chosen.seeds if config == TRAINED else chosen.seeds[:1]
        made(ROOT / config, seeds, chosen.only_write, alone if config == CORPUS else found)
    scores = Path(os.environ.get("SLUICE_DATA", ".")) / "reference_scores.json"
    (ROOT / "docs" / "results.md").write_text(
        page(found, alone, chosen.cores, scores), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
