"""Random searches against brute force, through sequences of changes, and numbers against formulas.

Every kind of index over small whole numbers, where ties abound and float32 is exact, and over
numbers that round; with the kinds of ``changing_folders`` and ``formulas``. The tally counts
single queries as ``searches``.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import changing_folders
import formulas
import numpy as np
from formulas import scores_of
from fuzzing import Case, Fuzzer
from numpy.typing import NDArray
from scipy import sparse

from sluice.encoders.foundation.build import build
from sluice.indexing import Index, open_index
from sluice.indexing.table import INDEXES

Matrix = NDArray[Any]


class Searched(NamedTuple):
    """An index under test. Unless ``exhaustive`` it may miss rows; ``rounds`` is its error."""

    spec: dict[str, Any]
    exhaustive: bool = True
    rounds: float = 0.0
    params: Mapping[str, Any] = {}
    order: bool = True  # of ties by row


FLAT = {"type": "flat"}
BIAS = {"type": "document_bias", "missing": 0.0}


def _dense(spec: dict[str, Any], **more: Any) -> list[Searched]:
    return [Searched({**spec, "metric": metric}, **more) for metric in ("ip", "cosine", "l2")]


SPARSE = [
    Searched({"type": "inverted"}),
    Searched({"type": "inverted"}, params={"engine": "terms"}),
    *(Searched({"type": "inverted", "block_size": size}, params={"engine": "blocks"})
      for size in (1, 4, 16, 64)),
    Searched({"type": "inverted", "order": "cluster"}),
    Searched({"type": "inverted", "fidelity": "u8"}, exhaustive=False, rounds=0.02),
    Searched({"type": "inverted"}, exhaustive=False, rounds=1.0, params={"alpha": 0.6}),
]  # fmt: skip
DENSE = [
    *_dense(FLAT),
    *_dense({**FLAT, "first_pass": "int8"}),
    *_dense({**FLAT, "first_pass": "bf16"}),
    Searched({**FLAT, "first_pass": "binary", "depth": 10_000}),
    Searched({**FLAT, "first_pass": "binary", "depth": 2}, exhaustive=False),
    *_dense({"type": "faiss", "factory": "Flat"}, order=False),
    *_dense({"type": "faiss", "factory": "IVF3,Flat"}, params={"nprobe": 3}, order=False),
    *_dense({"type": "faiss", "factory": "IVF3,Flat"}, exhaustive=False, order=False),
    *_dense({"type": "faiss", "factory": "HNSW6"}, exhaustive=False, order=False),
    Searched({"type": "funnel", "dimensions": 2, "depth": 10_000}),
    Searched({"type": "funnel", "dimensions": 2, "depth": 3}, exhaustive=False),
    Searched({"type": "augmented", "inner": FLAT, "augmentation": BIAS}),
    Searched({"type": "passages", "inner": FLAT}),
    Searched({"type": "passages", "inner": {**FLAT, "first_pass": "int8"}}),
]


class Trial:
    """An index under test, and the vectors that it should hold."""

    def __init__(self, case: Case) -> None:
        self.case, self.chance = case, case.chance
        self.numbers = np.random.default_rng(case.chance.getrandbits(60))
        self.subject = case.chance.choice(SPARSE if case.chance.random() < 0.4 else DENSE)
        self.thin = self.subject in SPARSE
        self.metric = self.subject.spec.get("metric", "ip")
        self.whole = case.chance.random() < 0.7 and self.metric != "cosine"
        width = case.chance.choice([3, 6, 20])
        self.index: Index = build(self.subject.spec, INDEXES, where="index")
        self.rows, self.alive = np.zeros((0, width), np.float32), np.zeros(0, bool)
        self.trail = [f"{self.subject} width {width} whole {self.whole}"]

    def vectors(self, count: int) -> Matrix:
        """Draw vectors: small whole numbers, or any."""
        size = (count, self.rows.shape[1])
        if self.whole:
            least = 0 if self.thin else -2
            drawn = self.numbers.integers(least, 3, size).astype(np.float32)
        else:
            drawn = self.numbers.normal(size=size).astype(np.float32)
        if self.metric == "cosine":
            drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        return np.abs(drawn) * (self.numbers.random(size) < 0.5) if self.thin else drawn

    def given(self, vectors: Matrix) -> Any:
        """Return vectors as the index takes them."""
        return sparse.csr_array(vectors) if self.thin else vectors

    def change(self, does: str) -> None:
        """Change the index, and what is expected of it."""
        self.trail.append(does)
        if does == "add":
            first = not len(self.trail) > 2
            more = self.vectors(self.chance.choice([4, 30, 300] if first else [1, 5, 40, 150]))
            if first:
                self.index.train(self.given(more))
            self.index.add(self.given(more))
            self.rows = np.concatenate([self.rows, more])
            self.alive = np.append(self.alive, np.ones(len(more), bool))
        elif does == "delete" and self.alive.any():
            mixed = self.numbers.permutation(np.flatnonzero(self.alive))
            gone = mixed[: self.chance.choice([1, 3, 1000])]
            self.index.delete(gone)
            self.alive[gone] = False
        elif does == "compact":
            if not np.array_equal(self.index.compact() >= 0, self.alive):
                self.wrong("compact moved other rows")
            self.rows, self.alive = self.rows[self.alive], self.alive[self.alive]
        elif does == "save":
            self.index.save(self.case.folder / "index")
            self.index = open_index(self.case.folder / "index")
        elif does == "copy":
            self.index = pickle.loads(pickle.dumps(self.index))
        if len(self.index) != self.alive.sum() or self.index.rows != len(self.alive):
            self.wrong(f"{len(self.index)} of {self.index.rows} rows")

    def search(self) -> None:
        """Ask some queries, sometimes of a part of the rows, and now and then one by itself."""
        queries = self.vectors(self.chance.choice([1, 7, 40]))
        allowed, keep = self.alive, None
        if self.chance.random() < 0.4:
            keep = self.numbers.random(len(allowed)) < self.chance.choice([0.0, 0.1, 0.6, 1.0])
            allowed = allowed & keep
            keep = keep if self.chance.random() < 0.5 else np.flatnonzero(keep)
        k, params = self.chance.choice([0, 1, 3, 10, 50, 5000]), dict(self.subject.params)
        hits = self.index.search(self.given(queries), k, keep=keep, params=params)
        self.case.tally.counts["searches"] += len(queries)
        truth = scores_of(queries, self.rows, self.metric)
        for rows, scores, right in zip(*hits, truth, strict=True):
            fault = fault_in(self, rows, scores, right, allowed, k)
            if fault:
                self.wrong(fault, k=k, keep=keep is not None)
        if self.chance.random() < 0.2 and len(queries) > 1 and self.subject.order and self.whole:
            alone = self.index.search(self.given(queries[-1:]), k, keep=keep, params=params)
            self.case.tally.counts["searches"] += 1
            if not (alone.rows[0] == hits.rows[-1]).all():
                self.wrong("one query is not its batch", k=k)

    def wrong(self, what: str, **more: object) -> None:
        """Record what is wrong."""
        self.case.wrong(f"{self.subject.spec}: {what}", trail=self.trail, **more)


def indexes(case: Case) -> None:
    """One index through additions, deletions, compactions, folders and copies."""
    trial = Trial(case)
    for step in range(case.chance.randint(3, 8)):
        does = case.chance.choice(["add", "delete", "compact", "save", "copy", "nothing"])
        trial.change(does if step else "add")
        for _ in range(2):
            trial.search()


def fault_in(
    trial: Trial, rows: Matrix, scores: Matrix, truth: Matrix, allowed: Matrix, k: int
) -> str:
    """Say what is wrong with one query's hits, or nothing."""
    subject, found = trial.subject, rows >= 0
    rows, scores = rows[found], scores[found].astype(np.float64)
    candidates = np.flatnonzero(allowed & (truth > 0) if trial.thin else allowed)
    if found[len(rows) :].any() or len(np.unique(rows)) != len(rows):
        return f"rows {rows[:20].tolist()}"
    if not np.isin(rows, candidates).all():
        return "a row that is deleted, filtered out or no hit"
    if (np.diff(scores) > 0).any():
        return f"scores rise: {scores[:20].tolist()}"
    if subject.params.get("alpha") is None:
        size = subject.rounds * np.abs(truth).max(initial=0.0)
        if not np.allclose(scores, truth[rows], rtol=2e-5, atol=1e-5 + size):
            return f"scores {scores[:9].tolist()}, expected {truth[rows][:9].tolist()}"
    most = min(k, len(candidates))
    if len(rows) > most or (subject.exhaustive and len(rows) != most):
        return f"{len(rows)} hits of {most}"
    if not subject.exhaustive:
        return ""
    best = candidates[np.lexsort((candidates, -truth[candidates]))][:most]
    if not np.allclose(scores, truth[best], rtol=2e-5, atol=1e-5):
        return f"best scores {scores[:9].tolist()}, expected {truth[best][:9].tolist()}"
    if trial.whole and subject.order and not np.array_equal(rows, best):
        return f"ties: rows {rows[:20].tolist()}, expected {best[:20].tolist()}"
    return ""


def prepare(world: Path) -> None:
    """Only errors are logged: blank queries and small samples are many here."""
    logging.getLogger("sluice").setLevel(logging.ERROR)


FUZZER = Fuzzer(
    "searches",
    {"indexes": (indexes, 12), "retrievers": (changing_folders.retrievers, 4), **formulas.KINDS},
    prepare,
    long=10_000,
)
