import gzip
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings, strategies as st

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.runs.trec_files import read_qrels

PAPER_TRAP = 7.038531e-26  # its shortest float32 digits land on the neighbour when read as a double


def test_mappings_and_lists_are_put_in_trec_evals_order() -> None:
    hits = {"b": 1.0, "c": 2.0, "a": 1.0, "d": 1.0 + 1e-9}  # d ties in float32
    for given_hits in (hits, list(hits.items())):
        run = Run({"q": given_hits})
        assert list(run["q"].doc_ids) == ["c", "d", "b", "a"]
        assert run["q"].scores.dtype == np.float32


def test_a_ranking_keeps_its_order() -> None:
    run = Run({"q": Ranking(["a", "b", "c"], [1.0, 3.0, 3.0])})
    assert [doc for doc, _ in run["q"]] == ["a", "b", "c"]
    scores = run.to_dict()["q"]
    assert list(scores) == ["a", "b", "c"]
    assert scores["a"] > scores["b"] > scores["c"]  # so that trec_eval agrees
    agreeing = Ranking(["c", "b", "a"], [3.0, 3.0, 1.0])
    assert Run({"q": agreeing}).to_dict() == {"q": {"c": 3.0, "b": 3.0, "a": 1.0}}


def test_ranking_is_a_sequence() -> None:
    ranking = Ranking(["a", "b", "c"], [3, 2, 1])
    assert len(ranking) == 3
    assert ranking[0] == ("a", 3.0)
    assert ranking[1:] == Ranking(["b", "c"], [2.0, 1.0])
    assert list(ranking) == [("a", 3.0), ("b", 2.0), ("c", 1.0)]
    assert ranking != Ranking(["a", "b", "c"], [3, 2, 0])
    assert "a 3" in repr(ranking)
    with pytest.raises(DataError, match="one score per document"):
        Ranking(["a"], [1.0, 2.0])


@pytest.mark.parametrize(
    ("hits", "message"),
    [
        ({"a": float("nan")}, "not a finite number"),
        ({"a": 1e39}, "not a finite number"),
        ([("a", 1.0), ("a", 2.0)], "twice"),
        ({1: 1.0}, "must be text"),
        ([("a", "high")], "expected {document id: score}"),
        ([3], "expected {document id: score}"),
    ],
)
def test_bad_hits(hits: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Run({"q": hits})  # type: ignore[dict-item]


def test_bad_query_id_and_bad_k() -> None:
    with pytest.raises(DataError, match="expected text"):
        Run({1: {"a": 1.0}})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="0 or more"):
        Run({}).top(-1)


def test_top_cuts_rankings_and_columns(tmp_path: Path) -> None:
    run = Run({"q1": {"a": 3, "b": 2, "c": 1}, "q2": {"a": 1}, "q3": {}})
    run.save(tmp_path / "r.trec")
    for source in (run, Run.load(tmp_path / "r.trec")):
        for k in (0, 1, 2, 5):
            cut = source.top(k)
            assert list(cut["q1"].doc_ids) == ["a", "b", "c"][:k]
            assert list(cut["q2"].doc_ids) == ["a"][:k]


@pytest.mark.parametrize("name", ["r.trec", "r.trec.gz"])
def test_save_and_load(tmp_path: Path, name: str) -> None:
    run = Run({"q2": {"x": 2.5, "é": -1e-7}, "q1": {"y": 1e30, "x": PAPER_TRAP}}, name="my run")
    run.save(tmp_path / name)
    loaded = Run.load(tmp_path / name)
    assert dict(loaded) == dict(run)
    assert list(loaded) == ["q2", "q1"]
    assert loaded.name == "r"
    assert "q1" in loaded
    assert "q3" not in loaded
    data = (tmp_path / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    assert text.splitlines()[0] == "q2 Q0 x 1 2.5 my_run"
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_every_printed_score_reads_back_as_its_float32(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 0x7F7FFFFF, 2000, dtype=np.uint32)
    scores = np.unique(np.append(bits.view(np.float32), np.float32(PAPER_TRAP)))[::-1]
    Run({"q": Ranking([f"d{i}" for i in range(len(scores))], scores)}).save(tmp_path / "r")
    np.testing.assert_array_equal(Run.load(tmp_path / "r")["q"].scores, scores)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (Run({"q": {"a b": 1.0}}), "'a b' is empty or holds white space"),
        (Run({"q": {"": 1.0}}), "white space"),
        (Run({"q 1": {"a": 1.0}}), "query id 'q 1'"),
        (Run({"q": Ranking(["a", "a"], [2.0, 1.0])}), "twice"),
        (Run({"q": Ranking(["a"], [float("inf")])}), "not a finite number"),
    ],
)
def test_nothing_is_written_when_a_run_cannot_be(tmp_path: Path, run: Run, message: str) -> None:
    with pytest.raises(DataError, match=message):
        run.save(tmp_path / "r.trec")
    assert not list(tmp_path.iterdir())


def test_tag_is_one_word(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one word"):
        Run({}).save(tmp_path / "r", tag="two words")


RANKINGS = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3"]),
    st.lists(
        st.tuples(st.sampled_from([f"d{i}" for i in range(9)]), st.sampled_from([0.0, 1.0, 2.0])),
        unique_by=lambda hit: hit[0],
        min_size=1,
    ),
    min_size=1,
)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(RANKINGS, st.integers(0, 2**16))
def test_order_survives_save_and_load_and_every_tool_agrees(
    tmp_path_factory: pytest.TempPathFactory,
    rankings: dict[str, list[tuple[str, float]]],
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("run")
    run = Run(
        {q: Ranking([d for d, _ in hits], [s for _, s in hits]) for q, hits in rankings.items()}
    )
    run.save(folder / "r.trec")
    loaded = Run.load(folder / "r.trec")
    assert {q: list(r.doc_ids) for q, r in loaded.items()} == {
        q: list(r.doc_ids) for q, r in run.items()
    }
    rng = np.random.default_rng(seed)
    qrels = {q: {f"d{i}": int(rng.integers(-1, 4)) for i in range(9)} for q in run}
    ours = evaluate(run, qrels, ["nDCG@3", "AP"])
    assert ours.per_query == evaluate(loaded, qrels, ["nDCG@3", "AP"]).per_query
    with (folder / "r.trec").open() as stream:
        saved = pytrec_eval.parse_run(stream)
    for source in (saved, run.to_dict()):
        theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.3", "map"}).evaluate(source)
        for query, values in theirs.items():
            assert ours.per_query["nDCG@3"][query] == pytest.approx(values["ndcg_cut_3"], abs=1e-9)
            assert ours.per_query["AP"][query] == pytest.approx(values["map"], abs=1e-9)


def test_real_runs_and_qrels_read_as_pytrec_eval_reads_them(collections: Path) -> None:
    for folder, run_name, qrels_name in [
        ("ranx", "results.test", "qrels.test"),
        ("ir_measures", "compat.run", "compat.qrels"),
    ]:
        path = collections / "eval_fixtures" / folder
        with (path / run_name).open() as stream:
            theirs = pytrec_eval.parse_run(stream)
        ours = Run.load(path / run_name)
        assert ours.keys() == theirs.keys()
        for query, hits in theirs.items():
            assert ours[query] == Run({query: hits})[query]
        with (path / qrels_name).open() as stream:
            assert read_qrels(path / qrels_name) == pytrec_eval.parse_qrel(stream)


def test_ids_that_only_together_have_the_right_number_of_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="white space"):
        Run({"q": {"": 2.0, "a b": 1.0}}).save(tmp_path / "x.trec")
    assert not (tmp_path / "x.trec").exists()
