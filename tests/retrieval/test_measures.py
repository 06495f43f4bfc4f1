import ir_measures
import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from encoders.errors import ConfigError
from retrieval.evaluation import evaluate
from retrieval.measures import Measure, parse_measure

SPELLED = {
    "nDCG@10": ["nDCG@10", "ndcg_cut_10", "ndcg@10", "NDCG@10", "ndcg_cut.10", " nDCG@10 "],
    "nDCG": ["ndcg", "nDCG"],
    "AP": ["map", "AP", "MAP"],
    "AP@100": ["map_cut_100", "MAP@100", "AP@100", "map_cut.100"],
    "RR": ["mrr", "RR", "recip_rank"],
    "RR@10": ["mrr@10", "MRR@10", "RR@10", "recip_rank_10"],
    "R@100": ["recall.100", "recall_100", "Recall@100", "R@100"],
    "P@5": ["P_5", "precision@5", "P@5", "P.5"],
    "Success@5": ["success_5", "hit@5", "Success@5", "hit_rate@5"],
    "Judged@10": ["judged@10", "Judged@10"],
    "AP(rel=2)@100": ["AP(rel=2)@100", "map@100(rel=2)"],
    "P(rel=3)@5": ["P(rel=3)@5"],
    "R@7": ["R(rel=1)@7"],
}


@pytest.mark.parametrize(("canonical", "text"), [(c, t) for c, ts in SPELLED.items() for t in ts])
def test_spellings(canonical: str, text: str) -> None:
    measure = parse_measure(text)
    assert str(measure) == canonical
    assert parse_measure(measure) is measure
    assert parse_measure(str(measure)) == measure


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nDGC@10", "did you mean 'nDCG'"),
        ("recal@10", "did you mean 'R'"),
        ("", "unknown measure"),
        ("nDCG@", "unknown measure"),
        ("nDCG@-1", "unknown measure"),
        ("bpref", "known: nDCG@10"),
        ("P", "needs a cut-off"),
        ("nDCG@0", "needs a cut-off"),
        ("AP(rel=0)", "1 or more"),
        ("AP(rel=2)@5(rel=2)", "twice"),
        ("nDCG(rel=2)@10", "takes no relevance level"),
    ],
)
def test_unknown_measures(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_measure(text)


DOCS = [f"d{i}" for i in range(12)]
QUERIES = [f"q{i}" for i in range(5)]
RUNS = st.dictionaries(
    st.sampled_from(QUERIES),
    st.dictionaries(st.sampled_from(DOCS), st.sampled_from([0.0, 0.5, 0.5 + 1e-9, 1, 2])),
)
QRELS = st.dictionaries(
    st.sampled_from(QUERIES),
    st.dictionaries(st.sampled_from(DOCS), st.integers(-2, 3), min_size=1),
    min_size=1,
)
THEIRS = {
    **{f"nDCG@{k}": f"ndcg_cut_{k}" for k in (1, 3, 10, 1000)},
    **{f"R@{k}": f"recall_{k}" for k in (1, 3, 10, 1000)},
    **{f"P@{k}": f"P_{k}" for k in (1, 3, 10, 1000)},
    **{f"AP@{k}": f"map_cut_{k}" for k in (1, 3, 10, 1000)},
    **{f"Success@{k}": f"success_{k}" for k in (1, 3, 10)},
    "nDCG": "ndcg",
    "AP": "map",
    "RR": "recip_rank",
}
ASKED = {
    f"{name}.1,3,10,1000" for name in ("ndcg_cut", "recall", "P", "map_cut")
} | {"success.1,3,10", "ndcg", "map", "recip_rank"}  # fmt: skip


@settings(derandomize=True, max_examples=150, deadline=None)
@given(RUNS, QRELS, st.integers(1, 3))
def test_values_equal_pytrec_evals(
    run: dict[str, dict[str, float]], qrels: dict[str, dict[str, int]], level: int
) -> None:
    for grades in qrels.values():
        grades["judged, never retrieved"] = 0  # without it pytrec_eval sometimes crashes or hangs
    run["q0"], qrels["q0"] = {"d0": 1.0, "d1": 1.0}, {"d0": 1, "d2": 3}  # one that matches
    ours = evaluate(run, qrels, THEIRS)
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, ASKED)
    theirs = evaluator.evaluate({query: hits for query, hits in run.items() if hits})
    for measure, name in THEIRS.items():
        for query in qrels:
            expected = theirs.get(query, {}).get(name, 0.0)
            assert ours.per_query[measure][query] == pytest.approx(expected, abs=1e-6)
        total = sum(values[name] for values in theirs.values())
        assert ours.mean[measure] == pytest.approx(total / len(qrels), abs=1e-6)
    # other relevance levels
    names = {"AP": "map", "R@3": "recall_3", "P@3": "P_3", "RR": "recip_rank"}
    evaluator = pytrec_eval.RelevanceEvaluator(
        qrels, {"map", "recall.3", "P.3", "recip_rank"}, relevance_level=level
    )
    theirs = evaluator.evaluate({query: hits for query, hits in run.items() if hits})
    for text, name in names.items():
        parsed = parse_measure(text)
        scores = evaluate(run, qrels, [Measure(parsed.name, parsed.cutoff, level)])
        (values,) = scores.per_query.values()
        for query, expected in theirs.items():
            assert values[query] == pytest.approx(expected[name], abs=1e-6)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(QRELS, st.integers(0, 2**16))
def test_judged_and_rr_with_cutoff_equal_ir_measures(
    qrels: dict[str, dict[str, int]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    run = {
        query: {str(doc): float(score) for doc, score in
                zip(rng.permutation(DOCS)[:size], rng.permutation(100), strict=False)}
        for query, size in zip(qrels, rng.integers(1, 13, len(qrels)), strict=True)
    }  # fmt: skip
    texts = ["Judged@1", "Judged@5", "Judged@20", "RR@2", "RR@5"]
    ours = evaluate(run, qrels, texts)
    asked = [ir_measures.parse_measure(text) for text in texts]
    count = 0
    for metric in ir_measures.iter_calc(asked, qrels, run):
        value = ours.per_query[str(metric.measure)][metric.query_id]
        assert value == pytest.approx(metric.value, abs=1e-6)
        count += 1
    assert count == len(texts) * len(qrels)


def test_only_negative_grades_score_zero() -> None:
    scores = evaluate({"q": {"d0": 1.0}}, {"q": {"d0": -1, "d1": -2}}, [*THEIRS, "AP(rel=2)"])
    assert set(scores.mean.values()) == {0.0}
