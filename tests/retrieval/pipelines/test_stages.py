"""Stages: the algebra, cuts, fusion, reranking; end points that must reproduce single runs."""

import numpy as np
import pytest
from small_world import ConstantScorer, LengthScorer, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Fuse, Rerank, Retriever, Run, Stage
from sluice.retrieval.pipelines.expression import names_in, parse
from sluice.retrieval.pipelines.operators import Cut, Then
from sluice.retrieval.runs.queries import Queries

QUERIES = {"a": "gold river", "b": "number 7", "c": "zzz"}


class Listed(Stage):
    """A stage that returns a fixed run and remembers how deep it was asked."""

    def __init__(self, run: Run, name: str = "listed") -> None:
        self.fixed, self.name, self.asked = run, name, []

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        self.asked.append(k)
        return self.fixed


def test_a_cut_reaches_the_retriever_before_it_and_no_other() -> None:
    first, second = Listed(Run({"a": {"x": 2.0, "y": 1.0}})), Listed(Run({"a": {"y": 3.0}}))
    assert list((first % 1).run({"a": ""})["a"].doc_ids) == ["x"]
    ((first | second) % 1).run({"a": ""})
    (first % 5 % 3).run({"a": ""})
    (first % 3 % 5).run({"a": ""}, None, 10_000)
    (first | second).run({"a": ""}, None, 2_000)
    assert first.asked == [1, 1000, 3, 3, 2000]
    assert second.asked == [1000, 2000]


def test_or_is_one_flat_fusion() -> None:
    a, b, c = (Listed(Run({}), name) for name in "abc")
    fused = a | b | c
    assert isinstance(fused, Fuse)
    assert fused.stages == (a, b, c)
    assert (((a | b) % 10) | c).stages[1] is c
    assert (a | (b | c)).name == "(a | b | c)"


def test_fusion_end_points_reproduce_single_runs(bm25: Retriever, dense: Retriever) -> None:
    one, other = bm25.run(QUERIES), dense.run(QUERIES)
    for normalise in ("min-max", "z-score"):
        fused = Fuse([bm25, dense], method="weighted", weights=[1.0, 0.0], normalise=normalise)
        for query, ranking in fused.run(QUERIES).items():
            assert list(ranking.doc_ids)[: len(one[query])] == list(one[query].doc_ids)
    swapped = Fuse([bm25, dense], method="rrf", weights=[0.0, 1.0]).run(QUERIES)
    assert {q: list(r.doc_ids)[:3] for q, r in swapped.items()} == {
        q: list(r.doc_ids)[:3] for q, r in other.items()
    }


def test_depth_zero_is_the_identity(bm25: Retriever) -> None:
    assert dict((bm25 >> Rerank(LengthScorer(), depth=0)).run(QUERIES)) == dict(bm25.run(QUERIES))


@pytest.mark.parametrize("depth", [1, 3, 10_000])
def test_reranking_permutes_its_prefix_only(bm25: Retriever, depth: int) -> None:
    given = bm25.run(QUERIES)
    run = (bm25 >> Rerank(LengthScorer(), depth=depth)).run(QUERIES)
    for query, ranking in given.items():
        before, after = list(ranking.doc_ids), list(run[query].doc_ids)
        assert after[depth:] == before[depth:]
        assert sorted(after[:depth]) == sorted(before[:depth])
        lengths = [len(text) for text in bm25.documents.texts(after[:depth])]
        assert lengths == sorted(lengths, reverse=True)
        scores = run[query].scores
        assert (np.diff(scores) <= 0).all()
        if depth < len(after):
            assert scores[depth] < scores[depth - 1]


def test_a_scorer_that_ties_keeps_the_order(bm25: Retriever) -> None:
    run = (bm25 >> Rerank(ConstantScorer(), depth=20)).run(QUERIES)
    assert {q: list(r.doc_ids) for q, r in run.items()} == {
        q: list(r.doc_ids) for q, r in bm25.run(QUERIES).items()
    }


def test_interpolation_ends_in_the_scorer_and_in_the_earlier_order(bm25: Retriever) -> None:
    def order(share: float) -> list[str]:
        run = (bm25 >> Rerank(LengthScorer(), depth=15, interpolate=share)).run(QUERIES)
        return list(run["b"].doc_ids)

    given = bm25.run(QUERIES)["b"]
    texts = bm25.documents.texts(given.doc_ids[:15])
    by_length = sorted(range(15), key=lambda place: -len(texts[place]))
    assert order(0.0)[:15] == [given.doc_ids[place] for place in by_length]
    assert order(1.0) == list(given.doc_ids)
    lengths, scores = np.array([len(t) for t in texts], float), given.scores[:15].astype(float)
    mixed = 0.7 * (lengths - lengths.mean()) / lengths.std() + 0.3 * (
        (scores - scores.mean()) / scores.std()
    )
    assert order(0.3)[:15] == [given.doc_ids[i] for i in np.argsort(-mixed, kind="stable")]
    for wrong in (-0.1, 1.1, True):
        with pytest.raises(ConfigError, match="interpolate"):
            Rerank(LengthScorer(), interpolate=wrong)


def test_an_oracle_reaches_the_recall_ceiling(bm25: Retriever) -> None:
    class Oracle:
        def score(self, pairs: list[tuple[str, str]]) -> list[float]:
            return [float("word20 " in document) for _, document in pairs]

    hits = (bm25 % 30 >> Rerank(Oracle(), depth=30)).search("gold and the number", k=1)
    assert hits[0].doc_id == "d20"


def test_cascades_chain_and_find_their_texts(bm25: Retriever, dense: Retriever) -> None:
    inner = Rerank(LengthScorer(), depth=10) >> Rerank(ConstantScorer(), depth=5)
    cascade = (bm25 | dense) % 20 >> inner
    assert isinstance(cascade, Then)
    assert len(cascade.run(QUERIES)["a"]) == 20
    assert cascade.search("gold", k=2)[0].text


def test_a_reranker_of_your_own_stays_one_behind_a_retriever(bm25: Retriever) -> None:
    class Own(Rerank):
        def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
            return super().run(queries, given, k).top(1)

    pipeline = bm25 >> Own(LengthScorer(), 3)
    assert isinstance(pipeline.second, Own)
    assert len(pipeline.run(QUERIES)["a"]) == 1


def test_scores_that_are_no_numbers_are_said(bm25: Retriever) -> None:
    class Words:
        def score(self, pairs: object) -> list[str]:
            return ["high"] * len(list(pairs))  # type: ignore[call-overload]

    with pytest.raises(DataError, match="not a list of numbers"):
        (bm25 >> Rerank(Words(), 3)).run(QUERIES)


def test_a_filter_that_cannot_be_put_in_is_said(bm25: Retriever) -> None:
    class Wrapped(Listed):
        inner = (bm25,)  # and no ``over``

    with pytest.raises(ConfigError, match="where cannot be put into its retrievers"):
        Wrapped(Run({})).filtered({"lang": "en"})


def test_bad_stages_are_named(bm25: Retriever) -> None:
    class Short:
        def score(self, pairs: list[tuple[str, str]]) -> list[float]:
            return [1.0]

    class Nan:
        def score(self, pairs: list[tuple[str, str]]) -> list[float]:
            return [float("nan")] * len(pairs)

    with pytest.raises(ConfigError, match="needs candidates"):
        Rerank(LengthScorer()).run(QUERIES)
    with pytest.raises(ConfigError, match="needs the documents' texts"):
        (Listed(Run({"a": {"x": 1.0}})) >> Rerank(LengthScorer())).run({"a": "q"})
    with pytest.raises(DataError, match="shape"):
        (bm25 >> Rerank(Short())).run(QUERIES)
    with pytest.raises(DataError, match="finite"):
        (bm25 >> Rerank(Nan())).run(QUERIES)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ConfigError, match="depth"):
            Rerank(LengthScorer(), depth=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cut"):
        bm25 % 0
    with pytest.raises(TypeError):
        bm25 >> 3  # type: ignore[operator]


def test_expressions_are_the_operators(bm25: Retriever, dense: Retriever) -> None:
    names = {
        "bm25": lambda: bm25,
        "dense-ft": lambda: dense,
        "cross": LengthScorer,
    }
    parsed = parse("(bm25 | dense-ft) % 20 >> cross(depth=5)", names)
    built = (bm25 | dense) % 20 >> Rerank(LengthScorer(), depth=5)
    assert dict(parsed.run(QUERIES)) == dict(built.run(QUERIES))
    assert isinstance(parsed.first, Cut)
    weighted = parse("weighted(bm25, dense-ft, weights=[1e-3, 7], normalise='z-score')", names)
    assert (weighted.fusion.weights, weighted.fusion.normalise) == ((0.001, 7.0), "z-score")
    assert parse("bm25 >> cross", names).second.depth == 100
    assert list(names_in("(bm25 | dense-ft) >> cross(depth=2)", where="x")) == [
        "bm25", "dense-ft", "cross",
    ]  # fmt: skip


def test_texts_come_from_the_corpus_that_has_all(bm25: Retriever) -> None:
    pruned = Retriever.build(BM25Encoder(), documents(5), name="pruned")
    names = {"bm25": lambda: bm25, "pruned": lambda: pruned, "cross": LengthScorer}
    for first in ("(pruned | bm25)", "pruned >> rm3(bm25)", "pruned % 2 >> rm3(bm25) % 30"):
        stage = parse(f"{first} >> cross(depth=30)", names)
        found = stage.search("gold river", 30)
        assert {hit.doc_id for hit in found} > {"d00", "d30"}
        assert all(hit.text for hit in found)
    assert (pruned | bm25).documents is bm25.documents
    assert (bm25 | bm25).documents is bm25.documents


def test_what_is_called_with_parts_is_no_name(bm25: Retriever) -> None:
    with pytest.raises(ConfigError, match=r"dot is a function \(write dot\(\.\.\.\)"):
        parse("bm25 >> dot", {"bm25": lambda: bm25})


def test_names_are_read_whole_and_numbers_are_left_alone(bm25: Retriever) -> None:
    names = {"a-b.v2": lambda: bm25, "rrf": lambda: bm25, "e-3": lambda: bm25}
    assert set(names_in("rrf(a-b.v2, e-3) | rrf", where="x")) == set(names)
    for text, weights in [("[1e-3, 1]", (0.001, 1.0)), ("[1.5E-3,2e-1]", (0.0015, 0.2))]:
        assert parse(f"rrf(a-b.v2, e-3, weights={text})", names).fusion.weights == weights
    for text in ("[1-1, 2]", "[-1, 2]", "[True, 1]", "[0, 0]", "[1e999, 1]", "5", "['a', 'b']"):
        with pytest.raises(ConfigError, match=r"constant|list of numbers"):
            parse(f"rrf(a-b.v2, e-3, weights={text})", names)
    for normalise, constant in [("z_score", 60), (3, 60), ("none", -1), ("none", "a")]:
        with pytest.raises(ConfigError, match=r"normalise=|rank_constant="):
            Fuse([bm25, bm25], normalise=normalise, rank_constant=constant)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bm52", "unknown name 'bm52'.*did you mean 'bm25'"),
        ("bm25 +", "not a pipeline"),
        ("bm25 - bm25", r"operator - is not supported"),
        ("bm25 * bm25", r"\* takes a number and a pipeline, as in 0.3 \* bm25"),
        ("2 * 3", "is not a name, a call"),
        ("-0.3 * bm25 + bm25", r"weight of \* is -0.3, expected a number, 0 or more"),
        ("0 * bm25 + 0 * bm25", "not all of them 0"),
        ("bm25 % depth", "not a constant"),
        ("bm25 % 0", "cut"),
        ("cross(dept=3)", "takes no 'dept' .*takes depth, interpolate.*did you mean 'depth'"),
        ("bm25(k=3)", "takes no arguments"),
        ("cross(3)", "named arguments only"),
        ("rrf(bm25)", "at least 2 stages"),
        ("rrf(bm25, bm25, kk=3)", "takes rank_constant"),
        ("__import__('os').system('true')", "is not a name, a call"),
        ("(lambda: bm25)()", "is not a name, a call"),
        ("bm25 % (1).__class__", "not a constant"),
        ("", "not a pipeline"),
    ],
)
def test_other_expressions_are_errors(bm25: Retriever, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text, {"bm25": lambda: bm25, "cross": LengthScorer}, where="pipelines.x")
