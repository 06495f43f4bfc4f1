"""Exits by the variance that an encoder gives a query, fitted and run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Document, Rerank, Retriever
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.rerank import DepthRule, QueryRule
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.abstain import abstain, fit_abstention
from sluice.retrieval.stages.confidence import LEAST, certainty
from sluice.retrieval.stages.confidence_exit import (
    ConfidenceExit,
    VarianceExit,
    exit_rule,
    fit_exit,
)

VARIANCES = {"narrow": [0.1, 0.4], "wide": [2.0, 0.5], "wider": [3.0, 12.0]}
QUERIES = {"a": "narrow", "b": "wide", "c": "wider", "blank": "  "}
CORPUS = [Document(f"d{n}", "", "x" * n) for n in range(1, 5)]
WORDS = [Document("d1", "", "narrow"), Document("d2", "", "wide wider")]
MEANS = {"a": math.log(0.04) / 2, "b": 0.0, "c": math.log(36.0) / 2}  # of the logarithms


class Clouds:
    """Queries of known variances, which stand in their vectors; all documents are alike."""

    dim = 3
    fingerprint = "clouds"

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[1.0, *VARIANCES[text]] for text in texts], np.float32)

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[float(len(text)), 0, 0] for text in texts], np.float32)

    def uncertainty(self, vectors: np.ndarray) -> np.ndarray:
        means: np.ndarray = np.log(vectors[:, 1:].astype(np.float64)).mean(axis=1)
        return means

    def save_pretrained(self, path: str | Path) -> None:
        Path(path).mkdir()

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Clouds:
        return cls()


class Shortest:
    """Shorter documents first; keeps which queries it was asked."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.asked |= {query for query, _ in pairs}
        return [-float(len(document)) for _, document in pairs]


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    return Retriever.build(Clouds(), CORPUS, path=tmp_path_factory.mktemp("clouds") / "r")


@pytest.fixture(scope="module")
def bm25(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    return Retriever.build(BM25Encoder(), WORDS, path=tmp_path_factory.mktemp("bm25") / "r")


def test_certainty_is_minus_the_mean_logarithm(clouds: Retriever, bm25: Retriever) -> None:
    found = certainty(QUERIES, clouds)
    assert found.pop("blank") == LEAST
    assert found == pytest.approx({query: -value for query, value in MEANS.items()}, abs=1e-6)
    for first in (clouds % 2, bm25 | clouds, bm25 >> Rerank(Shortest()) | clouds,
                  clouds.filtered({"id": "d1"})):  # fmt: skip
        assert certainty(QUERIES, first) == {**found, "blank": LEAST}


def test_sure_queries_keep_their_order(clouds: Retriever) -> None:
    plain = clouds.run(QUERIES)
    for threshold, sure in ((2.0, ""), (1.0, "a"), (-0.5, "ab"), (-2.0, "abc")):
        scorer = Shortest()
        run = (clouds >> Rerank(scorer, rules=[VarianceExit(threshold)])).run(QUERIES)
        assert scorer.asked == {QUERIES[query] for query in "abc" if query not in sure}
        for query in "abc":
            ids = list(plain[query].doc_ids)
            assert list(run[query].doc_ids) == (ids if query in sure else ids[::-1])
        assert not len(run["blank"])


def test_other_rules_hold_as_well(clouds: Retriever) -> None:
    scorer = Shortest()
    rules: list[DepthRule | QueryRule] = [
        VarianceExit(1.0),
        ConfidenceExit(0.0),
    ]  # every ranking is sure of its margin
    (clouds >> Rerank(scorer, rules=rules)).run(QUERIES)
    assert not scorer.asked


def test_fitted_on_judged_queries_and_run(clouds: Retriever, tmp_path: Path) -> None:
    """Reranking helps `c`, the widest, alone: the other two exit, and no loss is left."""
    queries = {query: QUERIES[query] for query in "abc"}
    names = {"clouds": lambda: clouds, "short": Shortest}
    before = clouds.run(queries)
    after = parse("clouds >> short", names).run(queries)
    qrels = {"a": {"d4": 1}, "b": {"d4": 1}, "c": {"d1": 1}}
    found = fit_exit(
        before, after, qrels, epsilon=0.01, kind="variance", certain=certainty(queries, clouds)
    )
    assert isinstance(found.rule, VarianceExit)
    assert found.rule.threshold == pytest.approx(0.0, abs=1e-7)
    assert found.exited == pytest.approx(2 / 3)
    assert (found.loss, found.value) == (0.0, 1.0)
    found.save(tmp_path / "exit.json")
    assert exit_rule(str(tmp_path / "exit.json")) == found.rule
    run = parse(f"clouds >> short(exit='{tmp_path}/exit.json')", names).run(queries)
    assert [run[query].doc_ids[0] for query in "abc"] == ["d4", "d4", "d1"]
    none = fit_exit(
        before, after, qrels, epsilon=0, kind="variance", certain=certainty(queries, clouds)
    )
    assert none.exited == 0
    assert isinstance(none.rule, VarianceExit)
    assert not none.rule.sure(queries, clouds)


def test_refused_before_searching(clouds: Retriever, bm25: Retriever, tmp_path: Path) -> None:
    file = tmp_path / "exit.json"
    file.write_text('{"format": "sluice.exit", "version": 1, "kind": "variance", "threshold": 0.5}')
    names = {"clouds": lambda: clouds, "bm25": lambda: bm25, "short": Shortest}
    with pytest.raises(ConfigError, match=r"no encoder of .* has a variance .* gaussian"):
        parse(f"bm25 >> short(exit='{file}')", names)
    with pytest.raises(ConfigError, match="no encoder of"):
        (bm25 >> Rerank(Shortest(), rules=[VarianceExit(0.5)])).run({"q": "narrow"})
    own = Rerank(Shortest(), rules=[VarianceExit(0.5)], documents=clouds.documents)
    with pytest.raises(ConfigError, match="asks the retriever before it"):
        (clouds >> own).run(QUERIES)


def test_two_encoders_are_refused(clouds: Retriever, tmp_path: Path) -> None:
    class Others(Clouds):
        fingerprint = "others"

    other = Retriever.build(Others(), CORPUS, path=tmp_path / "r")
    with pytest.raises(ConfigError, match="a variance of the query each"):
        certainty(QUERIES, clouds | other)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": "variance"}, "expected certain="),
        ({"certain": {"a": 1.0}}, "expected certain="),
        ({"kind": "variance", "certain": {"a": 1.0}, "temperature": 2.0}, "leave both out"),
        ({"kind": "varience", "certain": {"a": 1.0}}, "did you mean 'variance'"),
    ],
)
def test_bad_settings(options: dict[str, object], says: str) -> None:
    run = Run({"a": Ranking(["d"], [1.0])})
    with pytest.raises(ConfigError, match=says):
        fit_exit(run, run, {"a": {"d": 1}}, **options)  # type: ignore[arg-type]
    for threshold in (float("nan"), "x", True):
        with pytest.raises(ConfigError, match="exit"):
            VarianceExit(threshold)  # type: ignore[arg-type]


def test_abstention_by_the_variance_of_the_query(clouds: Retriever, tmp_path: Path) -> None:
    answerable = clouds.run({"a": "narrow", "b": "wide"})
    unanswerable = clouds.run({"c": "wider", "a": "wide"})  # an id of its own
    known, unknown = certainty({"a": "narrow", "b": "wide"}, clouds), {"c": -MEANS["c"], "a": 9.0}
    found = fit_abstention(
        answerable, unanswerable, kind="variance", refused=0.0, certain=(known, unknown)
    )
    assert found.threshold == pytest.approx(-MEANS["b"], abs=1e-6)
    assert (found.refused, found.caught) == (0.0, 0.5)
    assert found.auroc["variance"] == pytest.approx(0.5)  # above c, below a
    assert {"margin", "energy"} < found.auroc.keys()
    found.save(tmp_path / "no.json")
    names = {"clouds": lambda: clouds, "short": Shortest}
    for text in (
        f"abstain(clouds, fitted='{tmp_path}/no.json')",
        "abstain(clouds >> short(depth=2), threshold=-0.1, kind='variance')",
    ):
        stage = parse(text, names)
        run = stage.run(QUERIES, k=2)
        assert {query: len(hits) for query, hits in run.items()} == {
            "a": 2, "b": 2, "c": 0, "blank": 0,
        }  # fmt: skip
    stage = parse("abstain(clouds, threshold=-0.1, kind='variance')", names)
    assert stage.written(lambda part: "x") == "abstain(x, threshold=-0.1, kind='variance')"


def test_abstention_that_cannot_be(clouds: Retriever, bm25: Retriever, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"abstain: variance: no encoder of r .* as energy"):
        abstain(bm25, threshold=0.0, kind="variance")
    file = tmp_path / "no.json"
    file.write_text(
        '{"format": "sluice.no_answer", "version": 1, "kind": "variance", "threshold": 0.5}'
    )
    with pytest.raises(ConfigError, match="abstain: variance: no encoder of r has"):
        abstain(bm25, fitted=str(file))
    for given in ({"width": 5}, {"temperature": 2.0}):
        with pytest.raises(ConfigError, match="a variance is the query's and reads no scores"):
            abstain(clouds, threshold=0.0, kind="variance", **given)  # type: ignore[arg-type]
    run = clouds.run({"a": "narrow"})
    with pytest.raises(ConfigError, match="expected certain=, the number of each query"):
        fit_abstention(run, run, kind="variance")
    with pytest.raises(ConfigError, match="expected certain="):
        fit_abstention(run, run, certain=({"a": 1.0}, {"a": 1.0}))
