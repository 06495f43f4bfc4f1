"""Measures, tests, fusion, run files, odd numbers and odd texts against their references."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
import time
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from fuzzing import Case, forked
from numpy.typing import NDArray
from scipy import sparse, stats

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import SluiceError
from sluice.indexing import FaissIndex, FlatIndex, Index, InvertedIndex
from sluice.retrieval import Document, Rerank, Retriever, Run, evaluate
from sluice.retrieval.evaluation import significance as tests
from sluice.retrieval.pipelines.fusion import Fusion

Rankings = dict[str, dict[str, float]]
Qrels = dict[str, dict[str, int]]
SCORES: list[Callable[[random.Random], float]] = [
    lambda chance: chance.choice([0.0, 1.0, 2.0]),
    random.Random.random,
    lambda chance: chance.gauss(0, 1e-30),
    lambda chance: 1 + chance.random() * 1e-8,
    lambda chance: chance.uniform(-1e38, 1e38),
    lambda chance: chance.choice([0.0, -0.0, 5e-46, -5e-46, 1e-45]),
]
GRADES = [[0, 1], [0, 1, 2, 3], [-2, -1, 0, 1, 2], [1], [0], [0, 100]]
# Ours and trec_eval's names.
MEASURES = {
    "nDCG@10": "ndcg_cut_10", "nDCG": "ndcg", "AP": "map", "AP@5": "map_cut_5", "RR": "recip_rank",
    "R@5": "recall_5", "P@5": "P_5", "Success@1": "success_1", "Rprec": "Rprec", "Bpref": "bpref",
    "infAP": "infAP", "SetP": "set_P", "SetR": "set_recall", "SetF": "set_F", "SetAP": "set_map",
    "NumRet": "num_ret", "NumRelRet": "num_rel_ret", "IPrec@0.1": "iprec_at_recall_0.10",
    "nDCG@1": "ndcg_cut_1", "nDCG@1000": "ndcg_cut_1000", "P@100": "P_100",
}  # fmt: skip
ASKED = {
    "ndcg_cut.1,10,1000", "ndcg", "map", "map_cut.5", "recip_rank", "recall.5", "P.5,100",
    "success.1", "Rprec", "bpref", "infAP", "set_P", "set_recall", "set_F", "set_map", "num_ret",
    "num_rel_ret", "iprec_at_recall",
}  # fmt: skip


def scores_of(queries: NDArray[Any], rows: NDArray[Any], metric: str) -> NDArray[Any]:
    """Return every row's score for every query, float64."""
    left, right = queries.astype(np.float64), rows.astype(np.float64)
    if metric == "l2":
        found: NDArray[Any] = -((left[:, None] - right) ** 2).sum(axis=2)
        return found
    found = left @ right.T
    if metric == "cosine":
        sizes = np.outer(np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1))
        found = found / np.where(sizes == 0, 1, sizes)
    return found


def judged_run(chance: random.Random) -> tuple[Rankings, Qrels]:
    """Return a run and judgements that have some queries and documents in common."""
    queries = [f"q{number}" for number in range(chance.choice([1, 2, 10, 40]))]
    ids = [f"d{number}" for number in range(chance.choice([3, 20, 60]))]
    ids += ["é", "Z", "a", "10", "9", "\U0001f600"]
    grades, score = chance.choice(GRADES), chance.choice(SCORES)

    def some(most: int) -> list[str]:
        return chance.sample(ids, chance.randint(1, min(len(ids), most)))

    qrels = {
        query: {name: chance.choice(grades) for name in some(25)}
        for query in queries
        if chance.random() < 0.9
    }
    run = {
        query: {name: score(chance) for name in some(100)}
        for query in queries
        if chance.random() < 0.9
    }
    return run or {"q0": {"d0": 1.0}}, qrels or {"q0": {"d0": 1}}


def measures(case: Case) -> None:
    """Measures are pytrec_eval's, whichever way the run came."""
    import pytrec_eval

    run, qrels = judged_run(case.chance)
    if not run.keys() & qrels.keys():
        return
    evaluator = pytrec_eval.RelevanceEvaluator
    # In a child, because trec_eval's own memory is damaged by some judgements.
    done = forked(lambda: print(json.dumps(evaluator(qrels, ASKED).evaluate(run))))
    if done.code:
        case.tally.counts["pytrec_eval crashed"] += 1
        return
    expected = json.loads(done.out)
    _by_ir_measures(case, run, qrels)
    lines = [
        f"{query} Q0 {name} 0 {score!r} t\n"
        for query, hits in run.items()
        for name, score in case.chance.sample([*hits.items()], len(hits))
    ]
    (case.folder / "given.trec").write_text("".join(lines), encoding="utf-8")
    Run(run).save(case.folder / "saved.trec")
    for way in ("given.trec", "saved.trec", ""):
        loaded = Run.load(case.folder / way) if way else Run(run)
        found = evaluate(loaded, qrels, list(MEASURES)).per_query
        for ours, name in MEASURES.items():
            for query, values in expected.items():
                if not math.isclose(found[ours][query], values[name], rel_tol=1e-6, abs_tol=1e-7):
                    what = f"{ours} is {found[ours][query]}, trec_eval's {values[name]}"
                    case.wrong(what, way=way, run=run[query], qrels=qrels[query])
                    return


IR_MEASURES = ("nDCG@10", "RR@10", "P@5", "R@5", "Judged@10")


def _by_ir_measures(case: Case, run: Rankings, qrels: Qrels) -> None:
    """Compare with ir_measures, which breaks ties in its own way: where float32 has none."""
    import ir_measures

    if any(len(set(np.float32([*hits.values()]).tolist())) < len(hits) for hits in run.values()):
        return
    found = evaluate(Run(run), qrels, list(IR_MEASURES)).per_query
    measures = {ir_measures.parse_measure(name): name for name in IR_MEASURES}
    for each in ir_measures.iter_calc([*measures], qrels, run):
        ours = found[measures[each.measure]].get(each.query_id, each.value)
        if not math.isclose(ours, each.value, rel_tol=1e-6, abs_tol=1e-7):
            case.wrong(f"{each.measure} is {ours}, ir_measures' {each.value}", query=each.query_id)


def significance(case: Case) -> None:
    """Tests of paired values are scipy's."""
    chance = case.chance
    numbers = np.random.default_rng(chance.getrandbits(60))
    n = chance.choice([2, 3, 5, 8, 12, 30, 300])
    drawn = numbers.random(n)
    values = [drawn, drawn.round(1), (drawn > 0.5) * 1.0, np.full(n, 0.3), drawn * 1e-9]
    one = chance.choice(values)
    noise = numbers.normal(0, 0.1, n)
    other = chance.choice([one + noise, numbers.permutation(one), one.copy(), one + 0.1, drawn])
    difference = one - other
    spread = float(difference.std(ddof=1))
    found = tests.paired_t_test(one, other)
    if spread > 1e-12:
        right = stats.ttest_rel(one, other)
        interval, effect = right.confidence_interval(0.95), tests.effect(one, other)
        pairs = [(found, right.pvalue), (effect.low, interval.low), (effect.high, interval.high)]
        if not all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in pairs):
            case.wrong(f"t test and interval {pairs}")
    elif not 0 <= found <= 1:
        case.wrong(f"t test of a constant difference: {found}")
    if n <= 8 and abs(difference.sum()) > 1e-12 * np.abs(difference).max():  # else rounding decides
        exact = stats.permutation_test(
            (difference,), np.mean, permutation_type="samples", n_resamples=np.inf
        ).pvalue
        share = tests.fisher_randomisation(one, other)
        if not math.isclose(share, exact, rel_tol=1e-9, abs_tol=1e-9):
            case.wrong(f"randomisation {share}, scipy {exact}", differences=difference)
    drawn_p = [chance.random() ** 3 for _ in range(chance.randint(1, 8))] + [0.0, 1.0]
    order, running, corrected = sorted(range(len(drawn_p)), key=drawn_p.__getitem__), 0.0, {}
    for rank, at in enumerate(order):
        running = max(running, min(1.0, (len(drawn_p) - rank) * drawn_p[at]))
        corrected[at] = running
    if not np.allclose(tests.holm(drawn_p), [corrected[at] for at in range(len(drawn_p))]):
        case.wrong(f"holm of {drawn_p}")
    boot = tests.paired_bootstrap(one, other, resamples=200)
    if not (0 <= boot.p_value <= 1 and boot.low <= boot.high + 1e-12):
        case.wrong(f"bootstrap {boot}")


def fusion(case: Case) -> None:
    """Fused scores are the formulas', and their order is that of a run."""
    chance = case.chance
    runs = []
    for _ in range(chance.randint(2, 4)):
        score = chance.choice(
            [random.Random.random, SCORES[0], lambda chance: chance.uniform(-9e29, 9e29)]
        )
        lists = {
            f"q{number}": {f"d{at}": score(chance) for at in chance.sample(range(30), size)}
            for number in range(3)
            for size in [chance.randint(0, 25)]
        }
        runs.append(Run(lists))
    method = chance.choice(["rrf", "rank_biased", "comb_sum", "comb_mnz"])
    weights = [round(chance.uniform(0.01, 2), 2) for _ in runs]
    method_of = Fusion(method, weights)
    found = method_of.fuse(runs)
    for query in runs[0]:
        expected: dict[str, float] = {}
        times: dict[str, int] = {}
        for run, weight in zip(runs, weights, strict=True):
            ranking = list(run[query])
            scores = [score for _, score in ranking]
            for rank, (name, score) in enumerate(ranking, 1):
                width = max(scores) - min(scores)
                share = {
                    "rrf": 1 / (60 + rank),
                    "rank_biased": (1 - method_of.phi) * method_of.phi ** (rank - 1),
                }.get(method, (score - min(scores)) / width if width else 1.0)
                expected[name] = expected.get(name, 0.0) + weight * share
                times[name] = times.get(name, 0) + 1
        if method == "comb_mnz":
            expected = {name: score * times[name] for name, score in expected.items()}
        ranking = list(found[query])
        if dict(ranking).keys() != expected.keys():
            case.wrong(f"{method}: other documents")
        elif not all(
            math.isclose(score, expected[name], rel_tol=1e-4, abs_tol=1e-6)
            for name, score in ranking
        ):
            case.wrong(f"{method} {weights}: {ranking[:5]}")
        elif ranking != sorted(sorted(ranking, reverse=True), key=lambda hit: -hit[1]):
            case.wrong(f"{method}: order {ranking[:9]}")


SCORERS: dict[str, Callable[[int], Any]] = {  # what a reranker may return for so many pairs
    "falling": lambda count: [float(count - at) for at in range(count)],
    "rising": lambda count: [float(at) for at in range(count)],
    "ties": lambda count: [1.0] * count,
    "nan": lambda count: [math.nan] * count,
    "inf": lambda count: [math.inf] * count,
    "-inf": lambda count: [-math.inf] * count,
    "huge": lambda count: [1e300 * (at + 1) for at in range(count)],
    "few": lambda count: [1.0] * (count - 1),
    "many": lambda count: [1.0] * (count + 1),
    "none": lambda count: None,
    "texts": lambda count: ["a"] * count,
    "columns": lambda count: [[1.0]] * count,
}


class Given:
    """A scorer that returns what it was given."""

    name = fingerprint = "given"

    def __init__(self, scores: Callable[[int], Any]) -> None:
        self.scores = scores

    def score(self, pairs: list[tuple[str, str]]) -> Any:
        """Return the scores, whatever they are."""
        return self.scores(len(pairs))


def rerankers(case: Case) -> None:
    """Scores that are none are refused; others order the head, and the tail stays."""
    chance = case.chance
    count, depth = chance.randint(1, 30), chance.choice([1, 2, 5, 30, 100])
    kind = chance.choice([*SCORERS])
    given = [Document(f"d{at}", "", f"gold {'river ' * (count - at)}") for at in range(count)]
    retriever = Retriever.build(BM25Encoder(), given)
    first = retriever.run({"q": "river gold"}, None, 100)["q"].doc_ids
    cascade = retriever % 100 >> Rerank(Given(SCORERS[kind]), depth=depth)
    case.tally.counts["searches"] += 2
    try:
        ranking = cascade.run({"q": "river gold"})["q"]
    except SluiceError as error:
        if kind in ("falling", "rising", "ties"):
            case.wrong(f"{kind}: refused: {error}")
        return
    if kind not in ("falling", "rising", "ties", "columns"):
        case.wrong(f"{kind}: accepted")
    head, tail = list(ranking.doc_ids)[:depth], list(ranking.doc_ids)[depth:]
    if sorted(head) != sorted(first[:depth]) or tail != list(first[depth:]):
        case.wrong(f"{kind}: other documents, or another tail", depth=depth, ids=ranking.doc_ids)
    if any(a < b for a, b in itertools.pairwise(score for _, score in ranking)):
        case.wrong(f"{kind}: scores rise", ranking=list(ranking))
    expected = {"falling": list(first[:depth]), "rising": list(first[:depth])[::-1]}
    if head != expected.get(kind, head):
        case.wrong(f"{kind}: order {head}")


def run_files(case: Case) -> None:
    """A run that is saved is read back the same, and trec_eval would order it so."""
    run = Run(judged_run(case.chance)[0])
    path = case.folder / case.chance.choice(["run.trec", "run.trec.gz"])
    run.save(path)
    back = Run.load(path)
    if {query: back[query].doc_ids for query in back} != {q: run[q].doc_ids for q in run}:
        case.wrong("another order when read back", run=str(dict(run)))
    data = path.read_bytes()
    last: dict[str, np.float32] = {}
    for line in (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines():
        query, _, _, _, score, _ = line.split(" ")
        value = np.float32(float(score))
        if query in last and not value < last[query]:
            case.wrong(f"scores do not fall: {line}")
            return
        last[query] = value


def _odd(vectors: NDArray[np.float32], kind: str) -> Any:
    """Return the vectors in an odd form, or with an odd value."""
    if kind in ("nan", "inf"):
        vectors = vectors.copy()
        vectors[0, 0] = float(kind)
    forms: Mapping[str, Callable[[], Any]] = {
        "float64": lambda: vectors.astype(np.float64),
        "whole": lambda: np.ones(vectors.shape, np.int64),
        "flat": lambda: vectors[0],
        "empty": lambda: vectors[:0],
        "columns": lambda: np.asfortranarray(vectors),
    }
    return forms[kind]() if kind in forms else vectors


def numbers(case: Case) -> None:
    """Vectors at the edges of float32: refused, or searched without NaN and in order."""
    chance = case.chance
    drawn = np.random.default_rng(chance.getrandbits(60))
    count, width = chance.choice([1, 2, 7, 33, 300]), chance.choice([1, 2, 3, 16, 65])
    scale = chance.choice([1.0, 1e-20, 1e-40, 1e18, 1e19, 1e30, 3e38])
    kind = chance.choice(["", "", "nan", "inf", "float64", "whole", "flat", "empty", "columns"])
    metric: Any = chance.choice(["ip", "l2", "cosine"])
    with np.errstate(all="ignore"):
        vectors = (drawn.normal(size=(count, width)) * scale).clip(-3e38, 3e38).astype(np.float32)
        queries = (drawn.normal(size=(3, width)) * chance.choice([1.0, scale])).clip(-3e38, 3e38)
    given, asked = _odd(vectors, kind), queries.astype(np.float32)
    index: Index = chance.choice([FlatIndex(metric), FaissIndex("Flat", metric=metric)])
    if chance.random() < 0.3:
        index = InvertedIndex()
        if np.ndim(given) == 2:
            given, asked = sparse.csr_array(np.abs(given)), sparse.csr_array(np.abs(asked))
    try:
        with np.errstate(all="ignore"):
            index.add(given)
            hits = index.search(asked, chance.choice([1, 5, 1000]))
    except SluiceError:
        if not kind and scale == 1.0 and metric != "cosine":  # FAISS refuses other lengths than 1
            raise
        return
    case.tally.counts["searches"] += 3
    if kind in ("nan", "inf", "flat"):
        case.wrong(f"{type(index).__name__}: {kind} was accepted")
    finite = np.where(np.isneginf(hits.scores), -3.5e38, hits.scores.astype(np.float64))
    if np.isnan(finite).any() or (np.diff(finite, axis=1) > 0).any():
        case.wrong(f"{type(index).__name__} at {scale:g}: NaN, or scores rise", kind=kind)
    if isinstance(index, FlatIndex) and kind in ("", "columns") and 1e-20 < scale <= 1e18:
        truth = scores_of(asked, vectors, metric)
        best = -np.sort(-truth, axis=1)[:, : hits.scores.shape[1]]
        sizes = np.outer(np.linalg.norm(asked, axis=1), np.linalg.norm(vectors, axis=1))
        room = 1e-5 * max(np.abs(truth).max(), sizes.max() if metric == "ip" else 0)
        if not np.allclose(hits.scores[:, : best.shape[1]], best, rtol=1e-4, atol=room):
            case.wrong(f"{metric} at {scale:g}: {hits.scores[:, :3]}, expected {best[:, :3]}")


ODD = [
    "", " ", "a", "\x00", "a\x00b", "é", "e\u0301", "\u202eabc", "🙂", "👩‍👩‍👧‍👦", "مرحبا بالعالم",
    "東京都",
    "ﬁ", "İ", "ß", "SS", "\ufeffgold", "\u200dgold", "gold\u00adriver", "Å", "\u212b", "\u1e69",
    "\U0001f1e9\U0001f1ea", "a" * 9_000, "gold " * 5_000, "\uffff", "\n" * 1_000, "((((" * 300,
    "\u0300" * 900, "-" * 1_000, "1" * 1_000, "क\u093c", "\u0958", "\u03aa\u0301", "ガ", "ｶﾞ",
]  # fmt: skip
LANGUAGES = ["en", "de", "fr", "ru", "ja", "zh", "ar", "tr", "ko", "th", "hi", "el", "none"]


def texts(case: Case) -> None:
    """Odd texts are kept as they are, and found alike in every canonically equivalent form."""
    chance = case.chance
    chosen = [*chance.choices(ODD, k=chance.randint(1, 5)), f"gold river {case.number}"]
    language, begun = chance.choice(LANGUAGES), time.monotonic()
    given = [Document(f"d{at}", chance.choice(["", "é"]), each) for at, each in enumerate(chosen)]
    retriever = Retriever.build(BM25Encoder(language=language), given)
    if list(retriever) != given:
        case.wrong("texts are not kept", language=language, chosen=chosen)
    for query in [*chosen, "gold river"]:
        forms = [unicodedata.normalize(form, query[:2_000]) for form in ("NFC", "NFD")]
        found = [retriever.search(each, 5) for each in forms]
        case.tally.counts["searches"] += 2
        if found[0] != found[1]:
            case.wrong(f"{language}: NFC and NFD find other documents", query=query[:50])
        if not all(math.isfinite(hit.score) for hit in found[0]):
            case.wrong(f"{language}: scores {found[0]}")
    if not found[0]:
        case.wrong(f"{language}: 'gold river' is not found")
    if time.monotonic() - begun > 20:
        case.wrong(f"{language}: too slow", chosen=[each[:20] for each in chosen])


KINDS: dict[str, tuple[Callable[[Case], None], int]] = {
    "measures": (measures, 3), "significance": (significance, 2), "fusion": (fusion, 3),
    "run files": (run_files, 2), "rerankers": (rerankers, 2),
    "numbers": (numbers, 4), "texts": (texts, 2),
}  # fmt: skip
