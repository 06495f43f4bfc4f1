import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Call
from small_world import LengthScorer, WordEncoder, write_beir

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.indexing import FlatIndex
from sluice.retrieval import Rerank, Retriever, Stage, evaluate, load_dataset
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.evaluation.significance import holm, paired_t_test
from sluice.retrieval.runs.several_runs import rank_biased_overlap
from sluice.retrieval.stages.rerankers.similarity import VectorDot
from sluice.retrieval.studies.robustness.perturbation import perturbed_query
from sluice.retrieval.studies.robustness.stress_test import PERTURBATIONS, robustness


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load_dataset(write_beir(tmp_path_factory.mktemp("beir")))


@pytest.fixture(scope="module")
def systems(dataset: Dataset) -> dict[str, Stage]:
    bm25 = Retriever.build(BM25Encoder(), dataset.corpus, name="bm25")
    index = FlatIndex("cosine")
    dense = Retriever.build(WordEncoder(), dataset.corpus, index=index, name="dense")
    return {"bm25": bm25, "dense": dense, "long": dense >> Rerank(LengthScorer(), depth=15)}


def test_query_rows_are_reruns_of_the_pipeline(dataset: Dataset, systems: dict[str, Stage]) -> None:
    names = [name for name in PERTURBATIONS if name.startswith("query:")]
    found = robustness({"bm25": systems["bm25"]}, dataset, ["RR@10"], perturbations=names, seed=4)
    clean = systems["bm25"].run(dataset.queries)
    before = evaluate(clean, dataset, ["RR@10"]).per_query["RR@10"]
    p_values = []
    for name in names:
        queries = {
            query: perturbed_query(text, name.removeprefix("query:"), 4)
            for query, text in dataset.queries.items()
        }
        run = systems["bm25"].run(queries)
        after = evaluate(run, dataset, ["RR@10"])
        row = found.table.rows[f"bm25 {name}"]
        assert row["RR@10"] == pytest.approx(after.mean["RR@10"], abs=1e-12)
        overlaps = [rank_biased_overlap(clean[q].doc_ids, run[q].doc_ids) for q in queries]
        assert row["RBO"] == pytest.approx(np.mean(overlaps))
        values = np.array([[before[q], after.per_query["RR@10"][q]] for q in queries])
        p_values.append(paired_t_test(values[:, 1], values[:, 0]))
        assert row["RR@10 change"] == pytest.approx((values[:, 1] - values[:, 0]).mean())
    assert [found.table.rows[f"bm25 {name}"]["RR@10 p"] for name in names] == holm(p_values)
    assert found.table.rows["bm25 query:upper"]["RBO"] == pytest.approx(1.0)  # BM25 lower-cases
    assert found.table.rows["bm25 query:typo-drop"]["RBO"] < 0.9  # type: ignore[operator]


def test_document_rows(dataset: Dataset, systems: dict[str, Stage]) -> None:
    names = [name for name in PERTURBATIONS if name.startswith("document:")]
    found = robustness(systems, dataset, ["nDCG@10"], perturbations=names, queries=6, targets=2)
    again = robustness(systems, dataset, ["nDCG@10"], perturbations=names, queries=6, targets=2)
    assert found.table.to_json() == again.table.to_json()
    for system, outcomes in found.outcomes.items():
        assert len(outcomes["clean"].queries) == 6
        for name in names:
            outcome = outcomes[name]
            drawn = [(shift.query, shift.doc_id) for shift in outcome.shifts]
            assert drawn == [(s.query, s.doc_id) for s in outcomes[names[0]].shifts]
            assert len(drawn) == len(set(drawn)) > 6
            for shift in outcome.shifts:
                assert shift.before > 10
                assert dataset.qrels[shift.query].get(shift.doc_id, 0) < 1
        row = found.table.rows[f"{system} document:stuffed"]
        assert row["median shift"] > 0  # type: ignore[operator]
    rows = found.table.rows
    assert rows["bm25 document:upper"]["median shift"] == 0
    assert rows["bm25 document:upper"]["RBO"] == pytest.approx(1.0)
    assert rows["bm25 document:stuffed"]["into top 10"] == 1.0
    # Longest first, among the first 15: what is cut falls, what grows rises to the top.
    longer = [s for s in found.outcomes["long"]["document:stuffed"].shifts if s.after <= 15]
    assert longer
    assert {shift.after for shift in longer} == {1}
    assert found.filtering["bm25"].stuffed > found.filtering["bm25"].false_positives


def test_a_query_of_several_documents_has_their_mean(
    dataset: Dataset, systems: dict[str, Stage]
) -> None:
    many = robustness(
        {"bm25": systems["bm25"]}, dataset, ["RR"], perturbations=["document:stuffed"], targets=30
    ).outcomes["bm25"]["document:stuffed"]
    values = dict(zip(many.queries, many.values["RR"].tolist(), strict=True))
    clean = systems["bm25"].run(dataset.queries)
    for query in many.queries:  # a stuffed document is first: the relevant one falls by a place
        before = 1 / evaluate(clean, {query: dataset.qrels[query]}, ["RR"]).mean["RR"]
        moved = [shift for shift in many.shifts if shift.query == query]
        ranks = [before + (s.after <= before) for s in moved]
        assert values[query] == pytest.approx(np.mean([1 / rank for rank in ranks]))


def test_a_system_whose_documents_cannot_be_replaced_is_said(
    dataset: Dataset, systems: dict[str, Stage]
) -> None:
    looking = systems["bm25"] >> Rerank(VectorDot(systems["dense"]))
    found = robustness(
        {"looking": looking}, dataset, perturbations=["query:upper", "document:upper"]
    )
    assert list(found.table.rows) == ["looking clean", "looking query:upper"]
    assert "looking: no document was perturbed" in found.table.caption
    assert "reads the index of 'dense'" in found.table.caption


def test_measures_that_are_no_means_and_grades_of_all_queries(
    dataset: Dataset, systems: dict[str, Stage]
) -> None:
    qrels = {query: dict(grades) for query, grades in dataset.qrels.items()}
    last = list(qrels)[-1]
    qrels[last] = dict.fromkeys(qrels[last], 3)
    graded = Dataset.from_memory(list(dataset.corpus), dataset.queries, qrels)
    found = robustness(
        {"bm25": systems["bm25"]}, graded, ["ERR@5", "NumRel", "GMAP"],
        perturbations=["query:upper"], queries=len(qrels) - 1,
    )  # fmt: skip
    row = found.table.rows["bm25 query:upper"]
    asked = found.outcomes["bm25"]["clean"].queries
    run = systems["bm25"].run({query: dataset.queries[query] for query in asked})
    part = {query: qrels[query] for query in asked}
    expected = evaluate(run, part, ["ERR(max=3)@5", "NumRel", "GMAP"]).mean
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_lists_too_short_to_draw_from_leave_the_row_empty(
    dataset: Dataset, systems: dict[str, Stage]
) -> None:
    found = robustness({"short": systems["bm25"] % 2}, dataset, perturbations=["document:stuffed"])
    row = found.table.rows["short document:stuffed"]
    assert set(row) == {"RBO"}
    assert row["RBO"] is None


def test_bad_settings_are_named(dataset: Dataset, systems: dict[str, Stage]) -> None:
    with pytest.raises(ConfigError, match="did you mean 'query:upper'"):
        robustness(systems, dataset, perturbations=["query:uper"])
    with pytest.raises(ConfigError, match="depth: 10; expected more than 10"):
        robustness(systems, dataset, depth=10)


def test_the_command(tmp_path: Path, sluice: Call) -> None:
    folder = write_beir(tmp_path / "beir")
    config = tmp_path / "x.yaml"
    config.write_text(
        f"dataset: {folder}\noutput: {tmp_path / 'out'}\n"
        "retrievers: {bm25: {encoder: {type: bm25}}, other: {encoder: {type: bm25, b: 0.7}}}\n"
        "pipelines: {one: bm25, two: bm25 | other}\n"
    )
    code, _, err = sluice("diagnose", "robust", tmp_path / "out")
    assert (code, "no experiment.yaml here" in err) == (2, False)
    code, out, err = sluice(
        "diagnose", "robust", config, "--pipeline", "two", "--format", "json", "-m", "RR@5"
    )
    assert code == 0, err
    rows = json.loads(out)["systems"]
    assert [row["name"] for row in rows] == [
        "two clean",
        *(f"two {name}" for name in PERTURBATIONS),
    ]
    assert rows[0]["RR@5"] > 0
    assert sluice("run", config)[0] == 0
    words = ("--perturbation", "query:typo-drop", "--format")
    code, opened, err = sluice("diagnose", "robust", tmp_path / "out", *words, "csv", "-m", "RR@5")
    assert code == 0, err
    assert [line.split(",")[0] for line in opened.splitlines()] == [
        "system", "one clean", "one query:typo-drop", "two clean", "two query:typo-drop"
    ]  # fmt: skip
    assert sluice("diagnose", "robust", config, *words, "markdown")[1].startswith(
        "| system | nDCG@10 |"
    )
    for arguments, message in (
        ((config, "--pipeline", "tow"), "did you mean 'two'"),
        ((config, "--format", "pdf"), "expected one of text, markdown"),
        ((tmp_path / "beir",), "no experiment.yaml here"),
        ((config, "--perturbation", "typo"), "unknown 'typo'"),
    ):
        code, _, err = sluice("diagnose", "robust", *arguments)
        assert code == 2
        assert message in err
