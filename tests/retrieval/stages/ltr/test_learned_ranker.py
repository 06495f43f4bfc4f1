"""Learned rankers: features of parts, training without leaks, folders, the stage."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_world import WordEncoder, documents

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import (
    ConfigError,
    DataError,
    MissingPackageError,
    ModelError,
)
from sluice.indexing import FlatIndex
from sluice.retrieval import Ranking, Rerank, Retriever, Run, Stage
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.experiments.tuning.ranker_training import judged
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.runs.queries import Queries
from sluice.retrieval.stages.ltr.collection_terms import collection_terms
from sluice.retrieval.stages.ltr.lexical_features import LEXICAL
from sluice.retrieval.stages.ltr.ranker import LearnedRanker, check_model, part_fingerprint
from sluice.retrieval.stages.ltr.reranker import CandidateFeatures, LearnedReranker, ltr, selected
from sluice.retrieval.stages.rerankers.similarity import candidate_scores
from sluice.training.rankers.tree_ranker import has_lightgbm

QUERIES = {"a": "gold river", "b": "number stone water", "c": "sluice vector", "d": "index of rank"}
QRELS = {"a": {"d00": 2, "d10": 1}, "b": {"d02": 1, "d12": 1}, "c": {"d04": 1}, "d": {}}
MODELS = ["linear", pytest.param("lightgbm", marks=pytest.mark.skipif(
    not has_lightgbm(), reason="LightGBM is not installed"))]  # fmt: skip


@pytest.fixture(scope="module")
def features(bm25: Retriever, dense: Retriever) -> CandidateFeatures:
    return CandidateFeatures([bm25, dense])


@pytest.fixture(scope="module")
def heads(bm25: Retriever, dense: Retriever) -> dict[str, Ranking]:
    return dict(((bm25 | dense) % 25).run(QUERIES))


def trained(features: CandidateFeatures, heads: dict[str, Ranking], model: str) -> LearnedRanker:
    return LearnedRanker.fit(
        judged(features, QUERIES, heads, QRELS),
        features.names,
        model={"type": model, **({"trees": 8, "rows_per_leaf": 2} if model == "lightgbm" else {})},
        parts={part.name: part_fingerprint(part) for part in features.parts},
    )


def test_parts_score_and_rank_every_candidate(
    features: CandidateFeatures, heads: dict[str, Ranking], dense: Retriever
) -> None:
    matrix = features.matrix(QUERIES, heads)
    column = {name: matrix[:, place] for place, name in enumerate(features.names)}
    assert len(features.names) == len(set(features.names)) == len(LEXICAL) + 9
    begin = 0
    for query, head in heads.items():
        own = slice(begin, begin := begin + len(head))
        whole = dict(dense.run({query: QUERIES[query]}, None, 100)[query])
        expected = np.array([whole[doc] for doc in head.doc_ids], np.float32)
        np.testing.assert_allclose(column["dense.score"][own], expected, rtol=1e-6)
        order = np.argsort(-expected, kind="stable")
        assert column["dense.rank"][own][order].tolist() == list(range(1, len(head) + 1))
        np.testing.assert_allclose(
            column["dense.reciprocal_rank"][own], 1 / column["dense.rank"][own]
        )
        assert column["given.score"][own].tolist() == head.scores.tolist()
        assert column["given.rank"][own].tolist() == list(range(1, len(head) + 1))
    assert np.isfinite(matrix).all()


def test_the_bm25_part_and_the_bm25_feature_agree(
    features: CandidateFeatures, heads: dict[str, Ranking]
) -> None:
    matrix = features.matrix(QUERIES, heads)
    one, other = (matrix[:, features.names.index(name)] for name in ("bm25.score", "all.bm25"))
    np.testing.assert_allclose(one, other, rtol=1e-5)


class Listed(Stage):
    """A stage that knows two documents of the first query."""

    name = "listed"

    def run(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        return Run({"a": {"d00": 3.0, "d01": 2.0}})


def test_a_stage_without_vectors_is_run(bm25: Retriever) -> None:
    heads = {"a": Ranking(["d05", "d01", "d00"], [3, 2, 1]), "b": Ranking(["d00"], [1])}
    scores = candidate_scores(Listed(), QUERIES, heads).tolist()
    assert scores[1:] == [2.0, 3.0, 0.0]
    assert 1.99 < scores[0] < 2.0
    assert candidate_scores(Listed(), QUERIES, {}).shape == (0,)
    assert CandidateFeatures([Listed(), bm25]).matrix(QUERIES, heads).shape == (4, len(LEXICAL) + 9)


def test_a_query_s_features_do_not_depend_on_the_others(
    features: CandidateFeatures, heads: dict[str, Ranking]
) -> None:
    together = features.matrix(QUERIES, heads)
    alone = [features.matrix({q: QUERIES[q]}, {q: head}) for q, head in heads.items()]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-6)
    assert features.matrix(QUERIES, {}).shape == (0, len(features.names))


def test_no_label_enters_the_features(
    features: CandidateFeatures, heads: dict[str, Ranking]
) -> None:
    one = judged(features, QUERIES, heads, QRELS)
    other = judged(features, QUERIES, heads, {"a": {"d33": 4}})
    np.testing.assert_array_equal(one.features, other.features)
    assert one.grades.sum() == 6
    assert other.ideals.tolist() == [4.0, 0, 0, 0]


def test_a_single_dense_feature_reproduces_the_dense_order(
    features: CandidateFeatures, heads: dict[str, Ranking], dense: Retriever
) -> None:
    chosen = selected(features.names, ["dense.score"])
    lists = judged(features, QUERIES, heads, QRELS).taking(chosen.columns)
    ranker = LearnedRanker.fit(lists, chosen.names, model="linear")
    scores = ranker.score(lists.features)
    for own, head in zip(itertools.pairwise(lists.starts), heads.values(), strict=True):
        ours, theirs = scores[slice(*own)], lists.features[slice(*own), 0]
        assert (
            np.argsort(-ours, kind="stable").tolist() == np.argsort(-theirs, kind="stable").tolist()
        ), head


@pytest.mark.parametrize("model", MODELS)
def test_a_saved_ranker_gives_the_same_scores(
    features: CandidateFeatures, heads: dict[str, Ranking], model: str, tmp_path: Path
) -> None:
    ranker = trained(features, heads, model)
    matrix = features.matrix(QUERIES, heads)
    ranker.save(tmp_path / "ltr", features.terms(None))
    again = LearnedRanker.open(tmp_path / "ltr")
    np.testing.assert_array_equal(again.score(matrix), ranker.score(matrix))
    assert (again.features, dict(again.parts)) == (ranker.features, dict(ranker.parts))
    assert again.importances().rows == ranker.importances().rows
    shares = [row["share"] for row in again.importances().rows.values()]
    assert sum(float(share or 0) for share in shares) == pytest.approx(1)
    ranker.save(tmp_path / "ltr")  # in place of the other
    assert not list(tmp_path.rglob("*.pkl"))


@pytest.mark.parametrize("model", MODELS)
def test_the_stage_reranks_as_the_ranker_scores(
    features: CandidateFeatures,
    heads: dict[str, Ranking],
    bm25: Retriever,
    dense: Retriever,
    model: str,
    tmp_path: Path,
) -> None:
    ranker = trained(features, heads, model)
    ranker.save(tmp_path / "ltr", features.terms(None))
    names = {"bm25": lambda: bm25, "dense": lambda: dense}
    text = f"(bm25 | dense) % 25 >> ltr(dense, bm25, model='{tmp_path}/ltr', depth=25)"
    stage = parse(text, names)
    run = stage.run(QUERIES)
    scores = ranker.score(features.matrix(QUERIES, heads))
    begin = 0
    for query, head in heads.items():
        own = scores[begin : (begin := begin + len(head))]
        order = np.argsort(-own, kind="stable")
        assert list(run[query].doc_ids) == [head.doc_ids[place] for place in order]
        np.testing.assert_allclose(run[query].scores, own[order], rtol=1e-6)
    assert {part.name for part in stage.inner[1].inner} == {"bm25", "dense"}
    assert stage.search("gold river", k=3)[0].text


def test_odd_lists_are_ranked_all_the_same(
    features: CandidateFeatures,
    heads: dict[str, Ranking],
    bm25: Retriever,
    dense: Retriever,
    tmp_path: Path,
) -> None:
    trained(features, heads, "linear").save(tmp_path / "ltr")
    stage = Rerank(ltr(bm25, dense, model=str(tmp_path / "ltr")), documents=bm25.store)
    queries = {"none": "gold", "one": "gold", "ties": "", "strange": "gold zzz", "absent": "gold"}
    given = Run({
        "none": Ranking([], []),
        "one": Ranking(["d03"], [1.0]),
        "ties": Ranking(["d01", "d02", "d03"], [1.0, 1.0, 1.0]),
        "strange": Ranking(["nobody", "d00", "neither"], [3.0, 2.0, 1.0]),
    })  # fmt: skip
    run = stage.run(queries, given)
    assert {query: len(ranking) for query, ranking in run.items()} == {
        "none": 0, "one": 1, "ties": 3, "strange": 3, "absent": 0,
    }  # fmt: skip
    assert sorted(run["strange"].doc_ids) == ["d00", "neither", "nobody"]
    assert stage.run({}, Run({})) == {}


def test_terms_of_another_corpus_are_counted_anew(
    features: CandidateFeatures, heads: dict[str, Ranking], tmp_path: Path
) -> None:
    trained(features, heads, "linear").save(tmp_path / "ltr", features.terms(None))
    grown = Retriever.build(BM25Encoder(), documents(60), name="bm25")
    saved = CandidateFeatures([grown], saved=tmp_path / "ltr" / "terms")
    assert saved.terms(None).documents == 60
    head = {"a": Ranking(["d55"], [1.0])}
    np.testing.assert_array_equal(
        saved.matrix(QUERIES, head), CandidateFeatures([grown]).matrix(QUERIES, head)
    )
    same = CandidateFeatures(features.parts, saved=tmp_path / "ltr" / "terms").terms(None)
    assert not same.terms.flags.owndata  # the file, mapped into memory


def test_a_ranker_of_other_features_is_refused(
    features: CandidateFeatures,
    heads: dict[str, Ranking],
    bm25: Retriever,
    dense: Retriever,
    tmp_path: Path,
) -> None:
    ranker = trained(features, heads, "linear")
    ranker.save(tmp_path / "ltr")
    given = Run(heads)
    with pytest.raises(ModelError, match=r"trained with the scores of bm25, dense, got bm25;"):
        Rerank(ltr(bm25, model=str(tmp_path / "ltr")), documents=bm25.store).run(QUERIES, given)
    wider = Retriever.build(WordEncoder(32), documents(), name="dense", index=FlatIndex())
    with pytest.raises(ModelError, match=r"dense of encoder \w+, which is \w+ now"):
        Rerank(LearnedReranker((bm25, wider), tmp_path / "ltr")).run(QUERIES, given)
    renamed = replace(ranker, features=("all.bm26", *ranker.features[1:]))
    renamed.save(tmp_path / "renamed")
    with pytest.raises(ModelError, match=r"feature 'all.bm26'.*did you mean 'all.bm25'"):
        Rerank(ltr(bm25, dense, model=str(tmp_path / "renamed"))).run(QUERIES, given)
    with pytest.raises(ModelError, match=r"no ranker\.json here"):
        Rerank(ltr(bm25, model=str(tmp_path))).run(QUERIES, given)


def test_a_damaged_folder_is_refused(
    features: CandidateFeatures, heads: dict[str, Ranking], tmp_path: Path
) -> None:
    trained(features, heads, "linear").save(tmp_path / "ltr")
    changes: list[dict[str, object]]
    changes = [{"version": 2}, {"format": "other"}, {"type": "forest"}, {"features": ["x"]}]
    for change in [*changes, {"files": {}}]:
        shutil.copytree(tmp_path / "ltr", tmp_path / "bad", dirs_exist_ok=True)
        head = tmp_path / "bad" / "ranker.json"
        head.write_text(json.dumps({**json.loads(head.read_text()), **change}))
        with pytest.raises(ModelError, match=r"train it again|sluice fit ranker|upgrade sluice-ir"):
            LearnedRanker.open(tmp_path / "bad")
    shutil.copytree(tmp_path / "ltr", tmp_path / "bad", dirs_exist_ok=True)
    with (tmp_path / "bad" / "linear.json").open("a") as stream:
        stream.write(" ")
    with pytest.raises(ModelError, match="changed or damaged"):
        LearnedRanker.open(tmp_path / "bad")


def test_wrong_uses_are_named(
    bm25: Retriever, features: CandidateFeatures, heads: dict[str, Ranking]
) -> None:
    with pytest.raises(ConfigError, match="a part named 'bm25'"):
        CandidateFeatures([bm25, bm25])
    with pytest.raises(ConfigError, match="no document store"):
        CandidateFeatures([]).matrix(QUERIES, {"a": Ranking(["d00"], [1.0])})
    with pytest.raises(ConfigError, match=r"'dense.scor' matches no feature.*'dense.score'"):
        selected(features.names, ["dense.scor"])
    with pytest.raises(ConfigError, match="did you mean 'lightgbm'"):
        check_model("lightgbn", "ranker.model")
    with pytest.raises(ConfigError, match=r"leafs.*did you mean 'leaves'"):
        check_model({"type": "lightgbm", "leafs": 3}, "ranker.model")
    with pytest.raises(ConfigError, match="ltr needs 'model'"):
        parse("bm25 >> ltr(bm25)", {"bm25": lambda: bm25})
    lists = judged(features, QUERIES, heads, {})
    with pytest.raises(DataError, match="none of the 4 queries has a relevant document"):
        LearnedRanker.fit(lists, features.names)


def test_without_lightgbm_auto_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.training.rankers.tree_ranker.has_lightgbm", lambda: False)
    assert check_model("auto", "ranker.model") == {"type": "linear"}
    with pytest.raises(MissingPackageError):
        check_model("lightgbm", "ranker.model")


def test_terms_of_a_later_state_of_the_corpus_are_not_taken(tmp_path: Path) -> None:
    store = Retriever.build(BM25Encoder(), documents(), path=tmp_path / "r").store
    later = DocumentStore(store.path)
    later.delete([0])
    later.compact()
    ahead = collection_terms(later)
    ahead.save(tmp_path / "terms")
    features = CandidateFeatures([], saved=tmp_path / "terms")
    assert features.terms(later).fingerprint == ahead.fingerprint
    assert features.terms(store).documents == 40  # rows are others


def test_grades_whose_gains_no_float_holds_are_refused(
    features: CandidateFeatures, heads: dict[str, Ranking]
) -> None:
    lists = judged(features, QUERIES, heads, {"a": {"d00": 2000}})
    with pytest.raises(DataError, match="grade of 2,000"):
        LearnedRanker.fit(lists, features.names, model="linear")
