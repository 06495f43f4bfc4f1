"""What ``scripts/rerankers.py`` stands on: a fixed first stage, its lists, and the table."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
NDCG = "nDCG@10"
PARTS = ("bm25", "dense zero-shot", "dense")
FREE = ("bm25", "dense zero-shot")  # of the parts, those that no train query has taught
POOL = 50  # documents of each list of the first stage
HALVINGS = 10  # of the dev queries
Array = NDArray[np.float64]
Lists = dict[str, dict[str, list[Any]]]  # query -> its documents, their scores by name
Scores = dict[str, list[float]]  # query -> of the first documents of its list


@dataclass
class Bench:
    """A collection: train queries, dev queries, and the lists of a first stage for both.

    The first stage is BM25 and a dense encoder that was trained on the train queries, weighted as
    the dev queries have it (two weights, the same for every row). Where there is no dev split, a
    fifth of the train queries is taken for it and trains nothing. All is made once, in ``folder``.
    """

    dataset: str
    folder: Path
    model: str = MODEL
    queries: int = 1000
    dev: int = 160
    depth: int = 20  # that rerankers score
    steps: int = 50
    pairs: int = 64  # of a step
    longest: int = 128  # tokens of a document, or a pair when it is scored
    texts: dict[str, str] = field(init=False)
    asked: dict[str, str] = field(init=False)  # all queries' texts
    positives: dict[str, dict[str, float]] = field(init=False)  # of the train queries
    qrels: dict[str, dict[str, int]] = field(init=False)  # of the dev queries

    def __post_init__(self) -> None:
        from sluice.retrieval import load_dataset

        train = load_dataset(self.dataset, "train")
        chance, judged = random.Random(0), dict(train.qrels)  # the cut is the same for all seeds
        if "dev" in train.splits:
            dev = train.with_split("dev")
            names = chance.sample(sorted(dev.qrels), min(self.dev, len(dev.qrels)))
        else:
            dev = train
            names = chance.sample(sorted(judged), min(self.dev, len(judged) // 5))
        self.asked = {**train.queries, **dev.queries}
        self.qrels = {name: dict(dev.qrels[name]) for name in names if name in dev.queries}
        held = {self.asked[name] for name in self.qrels}
        self.texts = {document.id: document.full_text for document in train.corpus}
        free = [name for name in sorted(train.queries) if self.asked[name] not in held]
        self.positives = {}
        for name in chance.sample(free, min(self.queries, len(free))):
            relevant = {d: float(g) for d, g in judged[name].items() if g > 0 and d in self.texts}
            if relevant:
                self.positives[name] = relevant
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def trained_length(self) -> int:
        """The tokens of a pair in training."""
        return min(96, self.longest)

    @cached_property
    def parts(self) -> dict[str, NDArray[np.float32]]:
        """The scores ``[train and dev queries, documents]`` of each of ``PARTS``."""
        file = self.folder / "parts.npz"
        if not file.exists():
            values = self._parts()
            np.savez(self.folder / "part.npz", **values)
            (self.folder / "part.npz").replace(file)
        with np.load(file) as saved:
            return {name: saved[name] for name in PARTS}

    def _parts(self) -> dict[str, NDArray[np.float32]]:
        from sluice.encoders import BM25Encoder
        from sluice.training import pair_examples

        texts, queries = list(self.texts.values()), list(self.numbers)
        bm25 = BM25Encoder()
        impacts = bm25.fit_documents(texts)
        asked = [self.asked[name] for name in queries]
        scores = {"bm25": np.asarray((bm25.encode_queries(asked) @ impacts.T).todense())}
        start = self.dense(self.model)
        scores["dense zero-shot"] = start.encode_queries(asked) @ start.encode_documents(texts).T
        lists = {
            name: ranked(scores["dense zero-shot"][self.numbers[name]], list(self.texts), POOL)
            for name in self.positives
        }
        one = {"mode": "percentage", "per_query": 1, "positives": "highest", "range_max": POOL}
        negatives = mined(lists, self.positives, one)
        examples = pair_examples(self.asked, self.positives, self.texts, negatives)
        encoder = self.dense(self.model, document_length=min(64, self.longest), dtype="float32")
        trainer = {"max_steps": 60, "per_device_train_batch_size": 32, "learning_rate": 5e-5}
        self.fitted(encoder, examples, {"type": "info_nce", "temperature": 0.05}, 13, trainer)
        encoder.save_pretrained(self.folder / "dense")
        trained = self.dense(self.folder / "dense")
        scores["dense"] = trained.encode_queries(asked) @ trained.encode_documents(texts).T
        return {name: np.asarray(table, np.float32) for name, table in scores.items()}

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The rows of the queries in ``parts``."""
        return {name: number for number, name in enumerate([*self.positives, *self.qrels])}

    @cached_property
    def places(self) -> dict[str, int]:
        """The columns of the documents in ``parts``."""
        return {name: number for number, name in enumerate(self.texts)}

    @cached_property
    def lists(self) -> Lists:
        """The first stage's documents and scores for every query, best first."""
        from sluice.retrieval import Run
        from sluice.retrieval.pipelines.fusion import fit_fusion

        names = list(self.texts)
        runs = {
            part: Run(
                {q: dict(ranked(scores[n], names, 2 * POOL)) for q, n in self.numbers.items()},
                name=part,
            )
            for part, scores in self.parts.items()
        }
        used = [runs["bm25"], runs["dense"]]
        fit = fit_fusion(
            [Run({q: run[q] for q in self.qrels}, name=run.name) for run in used], self.qrels
        )
        (self.folder / "first.txt").write_text(fit.why + "\n")
        fused = fit.fuse(used)
        return {
            query: {"documents": list(r.doc_ids[:POOL]), "first": r.scores[:POOL].tolist()}
            for query, r in fused.items()
        }

    @cached_property
    def max_sim(self) -> dict[str, dict[str, float]]:
        """MaxSim of the untrained encoder for each list's head and the query's positives."""
        from sluice.retrieval.stages.rerankers.similarity import MaxSim

        file = self.folder / "max_sim.json"
        if not file.exists():
            wanted = [(q, d) for q in self.lists for d in self.group(q)]
            scorer = MaxSim(self.dense(self.model, document_length=self.trained_length))
            scores = scorer.score([(self.asked[q], self.texts[d]) for q, d in wanted])
            found: dict[str, dict[str, float]] = {}
            for (query, document), score in zip(wanted, scores.tolist(), strict=True):
                found.setdefault(query, {})[document] = score
            file.write_text(json.dumps(found))
        loaded: dict[str, dict[str, float]] = json.loads(file.read_text())
        return loaded

    def group(self, query: str) -> list[str]:
        """Return the head of a query's list, and its positives."""
        head = self.lists[query]["documents"][: self.depth]
        return list(dict.fromkeys([*head, *self.positives.get(query, ())]))

    def features(self, query: str, documents: Sequence[str], names: Sequence[str]) -> Array:
        """Return ``[documents, names]``: z-scores by mean and deviation of the list's head.

        Names are of ``PARTS`` and ``max_sim``.
        """
        head = self.lists[query]["documents"][: self.depth]
        columns = []
        for name in names:
            if name == "max_sim":
                own, all_of = (
                    np.array([self.max_sim[query][d] for d in some]) for some in (documents, head)
                )
            else:
                row = self.parts[name][self.numbers[query]].astype(float)
                own, all_of = (row[[self.places[d] for d in some]] for some in (documents, head))
            columns.append((own - all_of.mean()) / (all_of.std() or 1.0))
        return np.stack(columns, axis=1)

    def calibrated(self, names: Sequence[str]) -> Array:
        """Return the features' weights under which train queries' positives are likeliest."""
        groups = []
        for query, relevant in self.positives.items():
            documents = self.group(query)
            labels = np.array([document in relevant for document in documents])
            groups.append((self.features(query, documents, names), labels))
        return likeliest(groups)

    def dense(self, model: str | Path, **options: Any) -> Any:
        """Load a dense encoder with the reference's lengths."""
        from sluice.encoders import DenseEncoder

        options = {
            "query_length": min(32, self.longest), "document_length": self.longest,
            "dtype": "bfloat16", **options,
        }  # fmt: skip
        return DenseEncoder.from_pretrained(model, **options)

    def fitted(
        self, encoder: Any, examples: Any, loss: Any, seed: int,
        trainer: Mapping[str, Any], **more: Any,
    ) -> None:  # fmt: skip
        """Train in place; ``loss`` is one or its settings."""
        from sluice.encoders.foundation.build import build
        from sluice.training import LOSSES, fit

        if isinstance(loss, Mapping):
            loss = build(dict(loss), LOSSES, where="loss")
        trainer = {"bf16": True, "save_strategy": "no", "logging_steps": 1000, **trainer}
        with tempfile.TemporaryDirectory() as folder:
            fit(encoder, list(examples), loss, output=folder, trainer=trainer, seed=seed, **more)

    def scored(self, score: Any) -> Scores:
        """Return ``score(pairs)`` for the head of every dev query's list."""
        pairs = {query: self.pairs_of(query) for query in self.qrels}
        scores = iter(score([pair for some in pairs.values() for pair in some]).tolist())
        return {query: [next(scores) for _ in some] for query, some in pairs.items()}

    def pairs_of(self, query: str) -> list[tuple[str, str]]:
        """Return the query with each document of its list's head, as texts."""
        head = self.lists[query]["documents"][: self.depth]
        return [(self.asked[query], self.texts[document]) for document in head]


def likeliest(groups: Sequence[tuple[Array, NDArray[np.bool_]]], penalty: float = 1e-3) -> Array:
    """Return the weights w of the likeliest positives, of groups of features X and labels.

    They minimise the mean over groups of ``log sum_j exp(X_j w) - mean_positives X_j w``, plus
    ``penalty |w|^2``. Groups without positives or without others are left out.
    """
    from scipy.optimize import minimize

    used = [(x, y) for x, y in groups if y.any() and not y.all()]
    width = max(len(y) for _, y in used)
    there = np.array([np.arange(width) < len(y) for _, y in used])
    features = np.stack([np.pad(x, ((0, width - len(x)), (0, 0))) for x, _ in used])
    target = np.stack([np.pad(y / y.sum(), (0, width - len(y))) for _, y in used])

    def cost(weights: Array) -> tuple[float, Array]:
        sums = features @ weights
        logits = np.where(there, sums, -np.inf)
        total = np.logaddexp.reduce(logits, axis=1)
        off = np.exp(logits - total[:, None]) - target
        value = (total - (target * sums).sum(axis=1)).mean()
        slope = np.einsum("gn,gnf->f", off, features) / len(used)
        return float(value + penalty * weights @ weights), slope + 2 * penalty * weights

    found: Array = minimize(cost, np.ones(features.shape[2]), jac=True).x
    return found


def ranked(scores: NDArray[Any], names: Sequence[str], depth: int) -> list[tuple[str, float]]:
    order = np.argsort(-scores, kind="stable")[:depth]
    return [(names[place], float(scores[place])) for place in order]


def mined(
    lists: Mapping[str, Any], positives: Mapping[str, Any], settings: Mapping[str, Any],
    seed: int = 13,
) -> Any:  # fmt: skip
    from sluice.training.negatives import Mining, mine

    others = {key: value for key, value in settings.items() if key != "mode"}
    mining = Mining.in_mode(settings["mode"], {"sampling": "random", **others})
    return mine(lists, positives, mining, seed=seed, provenance=False).negatives


# The table


class Measured(NamedTuple):
    """Of each dev query, ``[queries]``: the first stage, the scorer alone, and cross-fitted."""

    first: Array
    alone: Array
    fitted: Array


def searched(lists: Lists, qrels: Mapping[str, Any], scores: Scores) -> Any:
    from sluice.retrieval import Run
    from sluice.retrieval.evaluation import parse_measure
    from sluice.retrieval.pipelines.fitting.rerank_fit import RerankSearch

    first = {q: dict(zip(lists[q]["documents"], lists[q]["first"], strict=True)) for q in qrels}
    head = {q: dict(zip(lists[q]["documents"], s, strict=False)) for q, s in scores.items()}
    return RerankSearch(Run(first), Run(head), qrels, parse_measure(NDCG))


def sorted_by(lists: Lists, qrels: Mapping[str, Any], scores: Scores) -> Array:
    """Return nDCG@10 of each query, the heads of the lists sorted by ``scores``."""
    values: Array = searched(lists, qrels, scores).values(max(map(len, scores.values())), 0.0)
    return values


def measured(lists: Lists, qrels: Mapping[str, Any], scores: Scores) -> Measured:
    """Return nDCG@10 of reranked lists.

    Cross-fitted: depth and share of the first stage's score are chosen on one half of the queries
    and scored on the other, and the reverse; the mean of ``HALVINGS`` random halvings. As in a
    fitted pipeline the choice is by smoothed bagging; depth 0 is taken where it is no better.
    """
    from sluice.retrieval.pipelines.fitting.choice import bagged, kernel
    from sluice.retrieval.pipelines.fitting.rerank_fit import DEPTH_STEP, settings_up_to

    depth = max(map(len, scores.values()))
    search = searched(lists, qrels, scores)
    settings = settings_up_to(depth)
    values = np.array([search.values(*setting) for setting in settings])
    depths = sorted({depth for depth, _ in settings[1:]})
    points = np.array([(DEPTH_STEP * depths.index(d), share) for d, share in settings[1:]])
    smoothing = kernel(points)

    def choose(values: Array) -> int:
        place = 1 + bagged(values[1:], points, smoothing)
        return place if values[place].mean() > values[0].mean() else 0

    rows = []
    for halving in range(HALVINGS):
        half = np.random.default_rng(halving).permutation(values.shape[1]) % 2 == 0
        chosen = np.where(half, choose(values[:, ~half]), choose(values[:, half]))
        rows.append(values[chosen, np.arange(values.shape[1])])
    return Measured(values[0], values[settings.index((depth, 0.0))], np.mean(rows, axis=0))


def z_scores(scores: Sequence[float]) -> Array:
    centred = np.asarray(scores, float) - np.mean(scores)
    scaled: Array = centred / (centred.std() or 1.0)
    return scaled


def paired(differences: Sequence[Array]) -> tuple[float, float]:
    """Return the mean of the collections' mean differences, and p of that being 0.

    One array of the queries' differences for each collection: for one it is the paired t-test, for
    several the normal test of the mean of their means.
    """
    from scipy.stats import norm, ttest_1samp

    mean = float(np.mean([each.mean() for each in differences]))
    if all(np.allclose(each, 0, atol=1e-9) for each in differences):  # the rest is rounding
        return mean, 1.0
    if len(differences) == 1:
        return mean, float(ttest_1samp(differences[0], 0.0).pvalue)
    error = np.sqrt(sum(each.var(ddof=1) / len(each) for each in differences)) / len(differences)
    return mean, float(2 * norm.sf(abs(mean) / error))


def table(rows: Mapping[str, Mapping[str, Sequence[Measured]]], base: str) -> Iterator[str]:
    """Yield markdown: collection -> row -> what was measured by each seed.

    ``base`` is the row that the others are compared with; the last part is over all collections.
    """
    head = "| row | seeds | first | alone | cross-fitted | over the first (p) | over the base (p) |"
    means: dict[str, dict[str, Measured]] = {}
    for name, found in rows.items():
        means[name] = {row: Measured(*np.mean(seeds, axis=0)) for row, seeds in found.items()}
        yield from (f"## {name}, base: {base}", "", head, "|" + "---|" * 7)
        for row, seeds in found.items():
            yield _line(row, str(len(seeds)), [means[name]], base)
        yield ""
    common = [row for row in next(iter(rows.values()), {}) if all(row in m for m in means.values())]
    if len(rows) > 1:
        yield from ("## all", "", head, "|" + "---|" * 7)
        for row in common:
            counts = sorted({len(found[row]) for found in rows.values()})
            yield _line(row, "-".join(map(str, counts)), list(means.values()), base)


def _line(row: str, seeds: str, means: Sequence[Mapping[str, Measured]], base: str) -> str:
    own = [found[row] for found in means]
    cells = [f"{np.mean([each[n].mean() for each in own]):.4f}" for n in range(3)]
    for other in ("first", base):
        if other != "first" and not all(other in found for found in means):
            cells.append("-")
            continue
        differences = [
            each.fitted - (each.first if other == "first" else found[other].fitted)
            for each, found in zip(own, means, strict=True)
        ]
        cells.append("{:+.4f} ({:.2g})".format(*paired(differences)))
    return f"| {row} | {seeds} | " + " | ".join(cells) + " |"
