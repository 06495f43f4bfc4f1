"""Every fusion method: by its definition, against ranx, at the end points and on odd lists."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranx_agreement
from hypothesis import given, settings, strategies as st
from places import ROOT
from ranx_agreement import odd_lists
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import FlatIndex
from sluice.retrieval import Fuse, Ranking, Retriever, Run, Stage
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.fusion.fusion import METHODS, NORMALISATIONS, Fusion
from sluice.retrieval.pipelines.fusion.search import condorcet
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.runs.several_runs import Pool

HITS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.sampled_from([-1.0, 0.0, 0.5, 2.0]), max_size=8
)
RUNS = st.lists(
    st.dictionaries(st.sampled_from(["q1", "q2", "q3"]), HITS).map(Run), min_size=1, max_size=3
)


class Fixed(Stage):
    """A stage that returns one run, whatever it is asked."""

    def __init__(self, run: Run, name: str = "fixed") -> None:
        self.fixed, self.name = run, name

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return self.fixed


@pytest.mark.parametrize("name", [*METHODS, "condorcet", "weighted_condorcet"])
def test_odd_lists(name: str) -> None:
    odd_lists(name)


@pytest.mark.thorough
def test_methods_of_ranx() -> None:
    """Everything that calls ranx, in Python: its compilation would take minutes."""
    script = Path(ranx_agreement.__file__)
    words = [sys.executable, "-W", "error", str(script)]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_condorcet() -> None:
    lists = [["a", "b", "c", "d"], ["b", "a", "d", "c"], ["a", "c", "b", "d"]]
    assert condorcet(lists, [1, 1, 1]) == ["a", "b", "c", "d"]
    assert condorcet(lists, [1, 3, 1])[:2] == ["b", "a"]
    assert condorcet([["x"], ["y", "x"]], [1, 1]) == ["x", "y"]  # even: by reciprocal ranks
    assert sorted(condorcet([["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]], [1, 1, 1])) == [
        "a", "b", "c",
    ]  # fmt: skip
    named = [Run({"q": {doc: -float(i) for i, doc in enumerate(hits)}}) for hits in lists]
    for name in ("condorcet", "weighted_condorcet"):
        assert list(Fusion(name).fuse(named)["q"].doc_ids) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("name", ["rrf", "rank_biased", "condorcet"])
def test_rank_methods_go_by_the_order_given(name: str) -> None:
    odd = Run({"q": Ranking(["a", "b", "c"], [1.0, 5.0, 3.0])})
    assert list(Fusion(name).fuse([odd, odd])["q"].doc_ids) == ["a", "b", "c"]


@pytest.mark.parametrize("normalise", [n for n in NORMALISATIONS if n != "none"])
def test_constant_lists_and_end_points(normalise: str) -> None:
    constant, one = Run({"q": {"a": 3.0, "b": 3.0}}), Run({"q": {"b": 9.0, "c": 4.0, "d": 2.0}})
    for weights in ([1.0, 1.0], [1.0, 0.0], [0.0, 1.0]):
        fused = Fusion("weighted", weights, normalise, minimum=0).fuse([constant, one])["q"]
        assert np.isfinite(fused.scores).all()
        assert fused.doc_ids[0] == "b"
        if weights[0] == 0:
            assert list(fused.doc_ids) == list(one["q"].doc_ids)
    if normalise not in ("z-score", "steep"):
        fused = Fusion("weighted", None, normalise, 0).fuse([constant, one])["q"]
        assert set(fused.doc_ids[:2]) == {"a", "b"}


def test_pyserini_is_its_formula() -> None:
    first, second = {"a": 9.0, "b": 4.0, "c": 1.0}, {"c": 0.9, "d": 0.2}
    fused = Fusion("weighted", [0.1, 1.0], "pyserini").fuse([Run({"q": first}), Run({"q": second})])

    def share(hits: dict[str, float], doc: str) -> float:
        low, high = min(hits.values()), max(hits.values())
        return (hits.get(doc, low) - (low + high) / 2) / (high - low)

    for doc, score in fused["q"]:
        assert score == pytest.approx(0.1 * share(first, doc) + share(second, doc), abs=1e-6)


def test_theoretical_minimum() -> None:
    sparse, dense = {"a": 8.0, "b": 4.0}, {"b": 0.6, "c": 0.2}
    runs = [Run({"q": sparse}), Run({"q": dense})]
    fused = dict(Fusion("weighted", None, "theoretical-min", (0, -1)).fuse(runs)["q"])
    assert fused == pytest.approx({"a": 1 + 1.2 / 1.6, "b": 0.5 + 1.0, "c": 0.5 + 1.2 / 1.6})
    with pytest.raises(ConfigError, match="needs minimum=: the least score"):
        Fusion("weighted", None, "theoretical-min").fuse(runs)
    with pytest.raises(DataError, match=r"best score is 0\.6, below minimum=1"):
        Fusion("weighted", None, "theoretical-min", [0, 1]).fuse(runs)


@pytest.mark.parametrize("minimum", [" ", [0, "1"], float("nan"), True, {}])
def test_a_minimum_that_is_no_number_is_refused(minimum: Any) -> None:
    with pytest.raises(ConfigError, match=r"minimum=.*; expected a number, or one for each run"):
        Fusion("weighted", None, "theoretical-min", minimum=minimum)


def test_theoretical_minimum_of_retrievers() -> None:
    bm25 = Retriever.build(BM25Encoder(), documents(), name="bm25")
    cosine = Retriever.build(WordEncoder(), documents(), index=FlatIndex("cosine"), name="cosine")
    counts = Retriever.build(WordEncoder(), documents(), name="counts")
    queries = {"a": "gold river", "b": "", "c": "zzz"}
    text = "weighted(bm25 % 9, cosine % 9, normalise='theoretical-min')"
    found = parse(text, {"bm25": lambda: bm25, "cosine": lambda: cosine}).run(queries)
    runs = [(bm25 % 9).run(queries), (cosine % 9).run(queries)]
    assert dict(found) == dict(Fusion("weighted", None, "theoretical-min", [0, -1]).fuse(runs))
    unknown = Fuse([bm25, counts], method="weighted", normalise="theoretical-min")
    with pytest.raises(ConfigError, match="the least score of counts is not known; give minimum="):
        unknown.run(queries)
    known = Fuse([bm25, counts], method="weighted", normalise="theoretical-min", minimum=[0, 0])
    assert len(known.run(queries)["a"])


@settings(derandomize=True, max_examples=50, deadline=None)
@given(RUNS, st.sampled_from([*METHODS]), st.sampled_from([*NORMALISATIONS]))
def test_a_batch_is_its_queries_one_by_one(runs: list[Run], name: str, normalise: str) -> None:
    fusion = Fusion(name, None, normalise, minimum=-1)
    whole = fusion.fuse(runs)
    for query, ranking in whole.items():
        alone = fusion.fuse([Run({q: r for q, r in run.items() if q == query}) for run in runs])
        assert alone[query] == ranking


@pytest.mark.thorough
def test_many_queries_are_pooled_in_blocks() -> None:
    rng = np.random.default_rng(3)
    runs = []
    for _ in range(2):
        ids = [f"d{number}" for number in range(400)]
        lists = {f"q{n}": {d: float(rng.integers(9)) for d in ids} for n in range(90)}
        runs.append(Run(lists))
    pools = list(Pool.blocks(runs))
    assert len(pools) > 3
    assert [q for pool in pools for q in pool.queries] == list(runs[0])
    fused = Fusion("comb_sum", normalise="none").fuse(runs)
    expected = {q: {d: s + dict(runs[1][q])[d] for d, s in r} for q, r in runs[0].items()}
    assert dict(fused) == dict(Run(expected))


def test_scores_too_large_for_float32() -> None:
    run = Run({"q": {"a": 3e38, "b": 1.0}})
    fused = Fusion("weighted", [1e9, 1e9], "none").fuse([run, run])["q"]
    assert list(fused.doc_ids) == ["a", "b"]
    assert np.isfinite(fused.scores).all()


def test_expressions() -> None:
    a, b = Fixed(Run({"q": {"x": 2.0, "y": 1.0}}), "a"), Fixed(Run({"q": {"y": 5.0}}), "b")
    names = {"a": lambda: a, "b": lambda: b}
    runs = [a.fixed, b.fixed]
    for text, fusion in [
        ("rrf(a, b)", Fusion()),
        ("rank_biased(a, b, phi=0.5)", Fusion("rank_biased", phi=0.5)),
        ("comb_sum(a, b, normalise='none')", Fusion("comb_sum", normalise="none")),
        ("comb_mnz(a, b)", Fusion("comb_mnz")),
        ("fused(a, b, method='condorcet')", Fusion("condorcet")),
        ("weighted(a, b, normalise='theoretical-min', minimum=[0, -1.0])",
         Fusion("weighted", None, "theoretical-min", [0, -1])),
        ("weighted(a, b, normalise='theoretical-min', minimum=0)",
         Fusion("weighted", None, "theoretical-min", 0)),
    ]:  # fmt: skip
        stage = parse(text, names)
        assert dict(stage.run({"q": ""})) == dict(fusion.fuse(runs)), text
        assert stage.name.startswith(("(a | b", text.split("(")[0], "condorcet"))
    for text, message in [
        ("fused(a, b, method='irs')", "fusion 'irs'.*did you mean 'isr'"),
        ("fused(a, b, method='isr', weights=[1, 2])", "isr takes no weights"),
        ("rank_biased(a, b, phi=1)", "phi=1; expected a share between 0 and 1"),
        ("rank_biased(a, b, phi='x')", "phi: 'x'; expected a number"),
        ("rrf(a)", "expected at least 2 stages to fuse, got 1"),
        ("rrf(a, b, rank_constant=0)", "rank_constant=0"),
        ("weighted(a, b, normalise='zscore')", "did you mean 'z-score'"),
        ("weighted(a, b, minimum=[1])", "1 values of minimum for 2 stages"),
        ("fused(a, b, gama=1)", "'?gama'?.*did you mean 'gamma'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            parse(text, names)
