from pathlib import Path

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.evaluation.measures import Measure, at_level, parse_measure
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.runs.run import Run
from sluice.retrieval.runs.trec_files import read_qrels

SPELLED = {
    "nDCG@10": ["nDCG@10", "ndcg_cut_10", "ndcg@10", "NDCG@10", "ndcg_cut.10", " nDCG@10 "],
    "nDCG": ["ndcg", "nDCG"],
    "AP": ["map", "AP", "MAP"],
    "AP@100": ["map_cut_100", "MAP@100", "AP@100", "map_cut.100"],
    "RR": ["mrr", "RR", "recip_rank"],
    "RR@10": ["mrr@10", "MRR@10", "RR@10", "recip_rank_10"],
    "R@100": ["recall.100", "recall_100", "Recall@100", "R@100"],
    "P@5": ["P_5", "precision@5", "P@5", "P.5"],
    "Success@5": ["success_5", "hit@5", "Success@5", "hit_rate@5", "accuracy@5"],
    "Judged@10": ["judged@10", "Judged@10"],
    "AP(rel=2)@100": ["AP(rel=2)@100", "map@100(rel=2)"],
    "P(rel=3)@5": ["P(rel=3)@5"],
    "R@7": ["R(rel=1)@7"],
    "Rprec": ["Rprec", "RPrec", "r_precision"],
    "Bpref": ["bpref", "Bpref", "BPref"],
    "infAP": ["infAP", "infap"],
    "IPrec@0.1": ["IPrec@0.1", "iprec_at_recall_0.10", "iprec_at_recall.0.1", "IPrec(recall=0.1)"],
    "IPrec@0": ["IPrec@0.0", "iprec_at_recall_0.00"],
    "SetP": ["set_P", "SetP"],
    "SetRelP": ["set_relative_P", "SetRelP"],
    "SetR": ["set_recall", "SetR"],
    "SetF": ["set_F", "SetF", "SetF(beta=1.0)", "set_F_1.0"],
    "SetF(beta=0.5)": ["set_F_0.5", "set_F.0.5", "SetF(beta=0.5)"],
    "SetAP": ["set_map", "SetAP"],
    "NumRet": ["num_ret", "NumRet"],
    "NumRel": ["num_rel", "NumRel"],
    "NumRelRet": ["num_rel_ret", "NumRelRet", "NumRet(rel=1)"],
    "NumRelRet(rel=2)": ["NumRet(rel=2)", "NumRelRet(rel=2)"],
    "GMAP": ["gm_map", "GMAP"],
    "R_cap@100": ["R_cap@100", "recall_cap@100", "capped_recall@100", "relative_P_100"],
    "Hole@10": ["hole@10", "Hole@10"],
    "ERR@20": ["ERR@20", "err@20"],
    "ERR(max=4)@20": ["ERR(max=4)@20", "ERR@20(max=4)", "ERR( max = 4.0 )@20"],
    "RBP(p=0.8)": ["RBP", "rbp", "RBP(p=0.8)"],
    "RBP(p=0.95,rel=2)@50": ["RBP(p=0.95,rel=2)@50", "RBP(rel=2)@50(p=0.95)"],
    "RBP_residual(p=0.8)": ["RBP_residual"],
    "nDCG_exp@20": ["nDCG_exp@20", "nDCG(dcg='exp-log2')@20"],
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
        ("nDGC@10", "did you mean 'nDCG@10'"),
        ("recal@10", "did you mean 'R@10'"),
        ("nDCG@10,AP", "did you mean 'nDCG@10'"),
        ("", "unknown measure"),
        ("nDCG@", "unknown measure"),
        ("nDCG@-1", "unknown measure"),
        ("relstring", "known: nDCG@10"),
        ("bpref@10", "looks at all documents"),
        ("IPrec", "needs a recall"),
        ("IPrec@1.5", "recall=1.5; expected a number from 0 to 1"),
        ("IPrec(recall=0.1)@0.2", "recall is given twice"),
        ("SetF(beta=x)", "beta=x; expected a number"),
        ("RBP(p=1)", "p=1; expected a number from 0.001 to 0.999"),
        ("RBP(q=1)", "RBP has no 'q'; it takes rel and p"),
        ("ERR(max=2.5)@5", "max=2.5; expected a whole number"),
        ("ERR(rel=2)@5", "takes no relevance level"),
        ("Rprec(p=0.5)", "it takes rel"),
        ("nDCG(dcg=log10)@5", "dcg is 'exp-log2'"),
        ("P(5)", "expected such as rel=2"),
        ("P@2.5", "not a whole number"),
        ("P(rel=2,rel=3)@5", "the relevance level is given twice"),
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
    **{f"R_cap@{k}": f"relative_P_{k}" for k in (1, 3, 10, 1000)},
    **{f"IPrec@{recall:.1f}": f"iprec_at_recall_{recall:.2f}" for recall in np.arange(11) / 10},
    "nDCG": "ndcg",
    "AP": "map",
    "RR": "recip_rank",
    "Rprec": "Rprec",
    "Bpref": "bpref",
    "infAP": "infAP",
    "SetP": "set_P",
    "SetRelP": "set_relative_P",
    "SetR": "set_recall",
    "SetF": "set_F",
    "SetAP": "set_map",
    "NumRet": "num_ret",
    "NumRelRet": "num_rel_ret",
}
CUT = ("ndcg_cut", "recall", "P", "map_cut", "relative_P")
ASKED = {f"{name}.1,3,10,1000" for name in CUT} | {"success.1,3,10", "iprec_at_recall"} | {
    name for name in THEIRS.values() if not name[-1].isdigit()
}  # fmt: skip
TOTALS = ("NumRet", "NumRelRet")


@settings(derandomize=True, max_examples=75, deadline=None)
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
            assert ours.per_query[measure][query] == pytest.approx(expected, abs=1e-9)
        total = sum(values[name] for values in theirs.values())
        count = 1 if measure in TOTALS else len(qrels)
        assert ours.mean[measure] == pytest.approx(total / count, abs=1e-9)
    # other relevance levels
    names = {
        "AP": "map", "R@3": "recall_3", "P@3": "P_3", "RR": "recip_rank", "Rprec": "Rprec",
        "Bpref": "bpref", "infAP": "infAP", "SetF(beta=0.5)": "set_F", "NumRelRet": "num_rel_ret",
        "R_cap@3": "relative_P_3", "IPrec@0.3": "iprec_at_recall_0.30",
    }  # fmt: skip
    asked = {"map", "recall.3", "P.3", "recip_rank", "Rprec", "bpref", "infAP", "set_F.0.5"}
    asked |= {"num_rel_ret", "relative_P.3", "iprec_at_recall"}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, asked, relevance_level=level)
    theirs = evaluator.evaluate({query: hits for query, hits in run.items() if hits})
    for text, name in names.items():
        parsed = parse_measure(text)
        scores = evaluate(run, qrels, [Measure(parsed.name, parsed.cutoff, level, parsed.option)])
        (values,) = scores.per_query.values()
        for query, expected in theirs.items():
            assert values[query] == pytest.approx(expected[name], abs=1e-9)


@pytest.mark.parametrize("year", [19, 20])
def test_real_runs_equal_pytrec_evals(collections: Path, year: int) -> None:
    """Six systems a year, graded qrels, read as columns: every measure trec_eval has, by query."""
    qrels = read_qrels(collections / f"dl{year}-passage" / "qrels" / "test.tsv")
    runs = sorted((collections / "msmarco-dl-pool" / "runs").glob(f"dl{year}.*.trec"))
    assert len(runs) == 6
    for level in (1, 2):
        names = {
            str(at_level([parse_measure(text)], level)[0]): name for text, name in THEIRS.items()
        }
        evaluator = pytrec_eval.RelevanceEvaluator(qrels, ASKED, relevance_level=level)
        for path in runs:
            run = Run.load(path)
            ours = evaluate(run, qrels, names)
            theirs = evaluator.evaluate(run.to_dict())
            assert len(theirs) == ours.queries - ours.missing > 40
            for measure, name in names.items():
                found = [ours.per_query[measure][query] for query in theirs]
                expected = [values[name] for values in theirs.values()]
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9, err_msg=measure)


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
    assert {name for name, value in scores.mean.items() if value} == {"NumRet"}
