"""What ``scripts/orderings.py`` stands on: a cut of a collection, claims, tables and verdicts."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
NDCG = "nDCG@10"
INFO_NCE = {"type": "info_nce", "temperature": 0.05}
LEAST_SEEDS = 3  # for a verdict
Values = dict[str, Any]  # measure -> a number, or each query's
Lists = dict[str, list[tuple[str, float]]]  # query -> documents with scores, best first
Trained = Callable[["Bench", int], Values]


class Claim(NamedTuple):
    """A sum of the systems' values, times ``weights``, is above 0."""

    says: str
    measure: str
    weights: Mapping[str, float]


class Ordering(NamedTuple):
    """A table: what trains and measures each row, and what a paper says of the rows."""

    title: str
    systems: Mapping[str, Trained]
    claims: Sequence[Claim]


def over(says: str, measure: str, better: str, worse: str) -> Claim:
    return Claim(says, measure, {better: 1.0, worse: -1.0})


@dataclass
class Bench:
    """A cut of a collection: documents, train queries that they answer, dev queries."""

    dataset: str
    model: str = MODEL
    documents: int = 500
    dev: int = 300
    steps: int = 30
    batch: int = 32
    rate: float = 1e-4
    layers: int = 2  # of the model: the lowest, so that there is much to learn in few steps
    lengths: tuple[int, int] = (16, 32)  # tokens of a query, of a document
    texts: dict[str, str] = field(init=False)
    queries: dict[str, str] = field(init=False)
    positives: dict[str, dict[str, float]] = field(init=False)
    dev_queries: dict[str, str] = field(init=False)
    qrels: dict[str, dict[str, int]] = field(init=False)
    _lists: dict[bool, Lists] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        from sluice.retrieval import load_dataset

        train, dev = load_dataset(self.dataset, "train"), load_dataset(self.dataset, "dev")
        chance = random.Random(0)  # the cut is the same for all seeds
        asked = chance.sample(sorted(dev.qrels), min(self.dev, len(dev.qrels)))
        kept = dict.fromkeys(d for query in asked for d in relevant(dev.qrels[query]))
        for query in chance.sample(sorted(train.qrels), len(train.qrels)):
            kept.update(dict.fromkeys(relevant(train.qrels[query])))
            if len(kept) >= self.documents:
                break
        self.texts = {d.id: d.full_text for d in train.corpus if d.id in kept}
        self.dev_queries = {query: dev.queries[query] for query in asked}
        self.qrels = {query: dict(dev.qrels[query]) for query in asked}
        self.positives = {
            query: {d: grades[d] for d in found}
            for query, grades in train.qrels.items()
            if (found := [d for d in relevant(grades) if d in self.texts])
        }
        self.queries = {query: train.queries[query] for query in self.positives}

    def encoder(self, model: str | Path | None = None, **options: Any) -> Any:
        """Return the start's lowest layers, or all of a model's in a folder."""
        from sluice.encoders import DenseEncoder
        from sluice.encoders.tuning.tune import freeze

        query, document = self.lengths
        options = {"layers": None if model else self.layers, "dtype": "bfloat16", **options}
        encoder = DenseEncoder.from_pretrained(
            model or self.model, query_length=query, document_length=document, **options
        )
        if model is None:  # half of the parameters, and dear to an optimiser
            freeze(encoder, embeddings=True)
        return encoder

    def fitted(
        self, encoder: Any, examples: Iterable[Any], loss: Values, seed: int, **more: Any
    ) -> Any:
        """Train in place; ``trainer`` of ``more`` overrides this bench's settings."""
        from sluice.encoders.foundation.build import build
        from sluice.training import LOSSES, fit

        trainer = {
            "max_steps": self.steps, "per_device_train_batch_size": self.batch,
            "learning_rate": self.rate, "bf16": True, "save_strategy": "no", "logging_steps": 1000,
            **more.pop("trainer", {}),
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            made = build(loss, LOSSES, where="loss")
            fit(encoder, examples, made, output=folder, trainer=trainer, seed=seed, **more)
        return encoder

    def measured(self, encoder: Any, limit: int | None = None) -> dict[str, float]:
        """Return each dev query's nDCG@10 by brute force, over all documents.

        With ``limit`` of so many queries, over the documents that they judge: fast, and easier.
        """
        from sluice import Run, evaluate

        asked = dict(list(self.dev_queries.items())[:limit])
        qrels = {query: self.qrels[query] for query in asked}
        judged = {document for grades in qrels.values() for document in grades}
        texts = {d: t for d, t in self.texts.items() if limit is None or d in judged}
        run = Run(ranked(encoder, asked, texts, 10))
        return dict(evaluate(run, qrels, [NDCG]).per_query[NDCG])

    def lists(self, twins: Mapping[str, str] | None = None) -> Lists:
        """Return the untrained encoder's lists for the train queries, with ``twins`` as documents.

        They are made once.
        """
        with_twins = twins is not None
        if with_twins not in self._lists:
            texts = {**self.texts, **(twins or {})}
            self._lists[with_twins] = ranked(self.encoder(), self.queries, texts, 100)
        return self._lists[with_twins]

    def mined(self, mode: str = "percentage", seed: int = 13, **settings: Any) -> Any:
        """Return one hard negative a query from the untrained encoder's lists."""
        from sluice.training.negatives import Mining, mine

        mining = Mining.in_mode(mode, {"per_query": 1, **settings})
        return mine(self.lists(), self.positives, mining, seed=seed, provenance=False).negatives


def relevant(grades: Mapping[str, float]) -> list[str]:
    return [document for document, grade in grades.items() if grade > 0]


def ranked(encoder: Any, queries: Mapping[str, str], texts: Mapping[str, str], depth: int) -> Lists:
    """Return each query's best documents, by brute force; ties by their order in ``texts``."""
    asked, names = encoder.encode_queries(list(queries.values())), list(texts)
    scores = asked @ encoder.encode_documents(list(texts.values())).T
    table = scores if isinstance(scores, np.ndarray) else scores.toarray()
    order = np.argsort(-table, axis=1, kind="stable")[:, :depth]
    return {
        query: [(names[d], float(table[row, d])) for d in order[row]]
        for row, query in enumerate(queries)
    }


def paraphrase(text: str, name: str) -> str:
    """Return a text without a fifth of its words: relevant as before, and another text."""
    words, chance = text.split(), random.Random(name)
    kept = [word for word in words if chance.random() > 0.2]
    return " ".join(kept if 0 < len(kept) < len(words) else words[:-1] or words)


Results = Mapping[str, Mapping[int, Values]]  # system -> seed -> values


def results_of(folder: Path) -> dict[str, dict[int, Values]]:
    """Read ``SYSTEM.SEED.json`` of a folder."""
    found: dict[str, dict[int, Values]] = {}
    for path in sorted(folder.glob("*.json")):
        system, _, seed = path.stem.rpartition(".")
        found.setdefault(system, {})[int(seed)] = json.loads(path.read_text())
    return found


def mean(value: Any) -> float:
    """Return a number, or the mean over queries."""
    return float(np.mean(list(value.values())) if isinstance(value, Mapping) else value)


def difference(results: Results, claim: Claim, seed: int) -> Any:
    """Return what should be above 0 by one seed: a number, or one for each query."""
    parts = [(w, results[system][seed][claim.measure]) for system, w in claim.weights.items()]
    if not isinstance(parts[0][1], Mapping):
        return sum(w * value for w, value in parts)
    return {query: sum(w * value[query] for w, value in parts) for query in parts[0][1]}


def verdict(results: Results, claim: Claim) -> str:
    """Return a claim's mean difference, that of each seed, p over queries, and what they say."""
    seeds = set.intersection(*(set(results.get(system, {})) for system in claim.weights))
    if not seeds:
        return f"{claim.says} ({claim.measure}): not measured"
    found = [difference(results, claim, seed) for seed in sorted(seeds)]
    values = [mean(each) for each in found]
    holds, p = all(value > 0 for value in values), ""
    if isinstance(found[0], Mapping):
        from scipy.stats import ttest_1samp

        rows = np.array([list(each.values()) for each in found]).mean(axis=0)
        chance = float(ttest_1samp(rows, 0.0).pvalue) if rows.any() else 1.0
        holds, p = holds and chance < 0.05, f", p {chance:.2g}"
    each = ", ".join(f"{value:+.4f}" for value in values)
    says = "holds" if holds else "does not hold here"
    if all(value < 0 for value in values):
        says += " (every seed says the opposite)"
    if len(values) < LEAST_SEEDS:
        says = f"open: {len(values)} of {LEAST_SEEDS} seeds"
    return f"{claim.says} ({claim.measure}): {np.mean(values):+.4f} ({each}{p}): {says}"


def table(ordering: Ordering, results: Results) -> Iterator[str]:
    """Yield a markdown table of means over seeds, then a verdict for each claim."""
    yield f"## {ordering.title}"
    yield ""
    rows = {s: list(results[s].values()) for s in ordering.systems if s in results}
    if not rows:
        yield "not measured"
        return
    first = next(iter(rows.values()))[0]
    measures = [m for m, value in first.items() if not isinstance(value, str) and m != "seconds"]
    yield "| system | " + " | ".join(measures) + " | seeds | seconds |"
    yield "|" + "---|" * (len(measures) + 3)
    for system, values in rows.items():
        cells = [f"{np.mean([mean(each[m]) for each in values]):.4f}" for m in measures]
        seconds = np.mean([each["seconds"] for each in values])
        yield f"| {system} | " + " | ".join([*cells, str(len(values)), f"{seconds:.0f}"]) + " |"
    yield ""
    for claim in ordering.claims:
        yield f"- {verdict(results, claim)}"
