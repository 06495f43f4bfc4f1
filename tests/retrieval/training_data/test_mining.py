"""Mining from retrievers, runs and several of them; judges by name; what `sluice mine` writes."""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_line import Call
from small_world import LengthScorer, documents, write_beir

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import Dataset, Document, Rerank, Retriever, Run
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.reuse import Dependencies
from sluice.retrieval.jobs import audit, mine
from sluice.retrieval.retrievers.candidate_lists import Sources
from sluice.retrieval.training_data.mining import audit_negatives, mine_negatives
from sluice.retrieval.training_data.teachers.judges import open_judge
from sluice.training import JudgedPair, read_provenance
from sluice.training.negatives.false_negatives import judged

DOCUMENTS = documents()
NAIVE = {"mode": "naive", "per_query": 3}


@pytest.fixture(scope="module")
def bm25() -> Retriever:
    return Retriever.build(BM25Encoder(), DOCUMENTS, name="bm25")


@pytest.fixture
def dataset() -> Dataset:
    queries = {f"q{n}": DOCUMENTS[n].text for n in range(6)}
    qrels = {f"q{n}": {DOCUMENTS[n].id: 1, DOCUMENTS[n + 10].id: 1} for n in range(6)}
    return Dataset.from_memory(DOCUMENTS, queries, qrels)


def test_paraphrases_are_dropped_by_default(dataset: Dataset) -> None:
    """Every positive stands in the corpus twice, in other letters; no query gets its copy."""
    copies = [Document(f"copy-{d.id}", d.title.upper(), f" {d.text.upper()} ") for d in DOCUMENTS]
    both = Dataset.from_memory([*DOCUMENTS, *copies], dataset.queries, dataset.qrels)
    retriever = Retriever.build(BM25Encoder(), both.corpus, name="bm25")
    lists = retriever.run(both.queries, None, 50)
    for source in (retriever, retriever % 40, lists, retriever | retriever):
        mined = mine_negatives(source, both, NAIVE, seed=1)
        for query, found in mined.negatives.items():
            known = set(both.qrels[query])
            assert not known & {name.removeprefix("copy-") for name in found}
            assert len({name.removeprefix("copy-") for name in found}) == len(found) == 3
        assert mined.report.dropped["positive_text"] > 0
        assert mined.report.positive_share == 0


def test_several_sources_are_mined_from_apart(bm25: Retriever, dataset: Dataset) -> None:
    run = Run(
        {q: [(DOCUMENTS[39 - n].id, 9.0), ("d20", 1.0)] for n, q in enumerate(dataset.queries)}
    )
    sources = Sources([("bm25", bm25), ("other", run)])
    mined = mine_negatives(sources, dataset, NAIVE, seed=1)
    assert set(mined.report.found_by) == {"bm25", "other"}
    assert all(DOCUMENTS[39 - n].id in found for n, found in enumerate(mined.negatives.values()))
    rows = [row for row in mined.rows if row.source == "other" and row.rank == 0]
    assert [row.score for row in rows] == [9.0] * 6
    fused = sources.run(dataset.queries, None, 5)
    assert all(len(ranking) <= 5 for ranking in fused.values())
    assert sources.documents is bm25.documents
    with pytest.raises(DataError, match="'other' answers none"):
        mine_negatives(Sources([("bm25", bm25), ("other", Run({}))]), dataset, NAIVE, seed=1)
    with pytest.raises(ConfigError, match="'a' is named twice"):
        Sources([("a", run), ("a", run)])


def test_a_list_of_retrievers_in_yaml(tmp_path: Path) -> None:
    data = str(write_beir(tmp_path / "data"))
    other = {"encoder": {"type": "bm25", "k1": 2.0}}
    negatives = {"type": "mined", "retriever": ["bm25", other], "judge": "cross"}
    cross = {"type": "cross_encoder", "model": "someone/cross"}
    values = {
        "dataset": data,
        "output": str(tmp_path / "out"),
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "rerankers": {"cross": cross},
        "train": {
            "ft": {
                "encoder": {"type": "dense", "model": "someone/dense"},
                "loss": {"type": "info_nce"},
                "negatives": negatives,
            }
        },
    }

    def config(**changed: object) -> ExperimentConfig:
        train = {"ft": {**values["train"]["ft"], "negatives": {**negatives, **changed}}}
        return checked({**values, "train": train}, ExperimentConfig)

    experiment = Experiment(config())
    needs = Dependencies(experiment.config)
    assert list(needs.needs("train.ft")) == ["retrievers.bm25", "rerankers.cross"]
    recipe = needs.recipe("train.ft")
    assert recipe != Dependencies(config(retriever=["bm25"])).recipe("train.ft")
    assert recipe != Dependencies(config(judge=cross)).recipe("train.ft")
    assert recipe != Dependencies(config(mode="margin")).recipe("train.ft")
    found = experiment.lists(["bm25", other], "x")
    assert isinstance(found, Sources)
    assert next(iter(found.parts)) == "bm25"
    assert len(found.parts) == 2
    for changed, message in (
        ({"retriever": []}, "retriever: an empty list"),
        ({"retriever": ["bm25", "bm25"]}, "'bm25' is named twice"),
        ({"retriever": ["bm25", "dnse"]}, r"retriever\[1\]: 'dnse' does not exist"),
        ({"retriever": [{"encoder": {"type": "bm52"}}]}, r"retriever\[0\].*did you mean 'bm25'"),
        ({"judge": "crss"}, "judge: 'crss' not found; .*did you mean 'cross'"),
        ({"judge": {"type": "cros_encoder"}}, "judge.type: unknown type"),
        ({"judge": []}, "judge: an empty list"),
        ({"judge": None, "mode": "judge"}, "negatives: needs 'judge'"),
        ({"mode": "naiv"}, "did you mean 'naive'"),
        ({"adaptive_margin": [1]}, "adaptive_margin"),
    ):
        with pytest.raises(ConfigError, match=message):
            Experiment(config(**changed))


def test_judges_by_name_run_and_object(
    tmp_path: Path, bm25: Retriever, dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [JudgedPair("q", "ask", "d1", "long text"), JudgedPair("q", "ask", "d2", "short")]
    run = Run({"q": {"d1": 0.5}})
    run.save(tmp_path / "scores.trec")
    by_name = open_judge("cross", "x", scorer=lambda name: LengthScorer(), known=["cross"])
    assert judged(by_name, pairs).tolist() == [9.0, 5.0]
    for named in (run, str(tmp_path / "scores.trec"), [run]):
        judge = open_judge(named, "x")
        assert not judge.needs_texts
        assert str(judged(judge, pairs).tolist()) == "[0.5, nan]"
    mean = open_judge([LengthScorer(), LengthScorer()], "x")
    assert judged(mean, pairs).tolist() == [9.0, 5.0]
    stage = Rerank(LengthScorer(), depth=5)
    assert judged(open_judge(stage, "x"), pairs).tolist() == [9.0, 5.0]
    assert open_judge(mean, "x") is mean
    for named in (3, "none.trec", ""):
        with pytest.raises(ConfigError, match="expected a reranker's name"):
            open_judge(named, "x")
    spec = {"mode": "judge", "per_query": 2, "sampling": "top"}
    mined = mine_negatives(bm25, dataset, spec, seed=1, judge=open_judge(LengthScorer(), "x"))
    texts = {d.id: d.full_text for d in DOCUMENTS}
    for query, found in mined.negatives.items():
        shortest = min(len(texts[name]) for name in dataset.qrels[query])
        assert all(len(texts[name]) < shortest - 0.01 for name in found)
    lists = bm25.run(dataset.queries, None, 20)  # a run's texts come from the corpus
    again = mine_negatives(lists, dataset, spec, seed=1, judge=open_judge(LengthScorer(), "x"))
    assert again.report.dropped.keys() >= {"judge"}
    same = mine_negatives(lists, dataset, {**NAIVE, "judge": lists}, seed=1)
    assert same.report.kept == 6 * 3


def test_no_negative_at_all_is_an_error_and_few_are_a_warning(
    bm25: Retriever, dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataError, match=r"no query got a negative.*raise max_score"):
        mine_negatives(bm25, dataset, {"mode": "absolute", "max_score": -9.0}, seed=1)
    with pytest.raises(DataError, match=r"negatives.consistency: .* none of the 12 positives"):
        lists = Run({q: [("d39", 1.0), ("d38", 0.5)] for q in dataset.queries})
        mine_negatives(lists, dataset, {**NAIVE, "consistency": 1}, seed=1)
    with caplog.at_level(logging.WARNING, "sluice"):
        mine_negatives(bm25, dataset, {"mode": "naive", "per_query": 60}, seed=1)
    assert "6 of 6 queries have fewer than 60 negatives" in caplog.text


def test_what_mine_writes(tmp_path: Path) -> None:
    data = write_beir(tmp_path / "data")
    Retriever.build(BM25Encoder(), DOCUMENTS, path=tmp_path / "bm25", name="bm25")
    output = tmp_path / "n.jsonl"
    report = mine(str(tmp_path / "bm25"), str(data), output, {**NAIVE, "consistency": 30})
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    rows = read_provenance(tmp_path / "n.provenance.parquet")
    scores = {(row.query, row.document): row.score for row in rows}
    assert len(lines) == 12
    for line in lines:
        assert [len(line[key]) for key in ("neg", "neg_ids", "neg_scores")] == [3, 3, 3]
        for side in ("pos", "neg"):
            pairs = zip(line[f"{side}_ids"], line[f"{side}_scores"], strict=True)
            assert all(scores[line["query_id"], name] == score for name, score in pairs)
        assert line["neg_scores"] == sorted(line["neg_scores"], reverse=True)
    kept = [row for row in rows if row.reason == "kept"]
    assert len(kept) == report.kept == 36
    assert {row.source for row in rows} == {"bm25"}
    written = json.loads((tmp_path / "n.report.json").read_text())
    assert sum(written["ranks"]["counts"]) == 36
    run = Retriever.open(tmp_path / "bm25").run({"q0": "gold", "q1": "river"}, None, 9)
    run.save(tmp_path / "own.trec")
    both = [str(tmp_path / "bm25"), str(tmp_path / "own.trec")]
    mine(both, str(data), output, NAIVE)
    first = json.loads(output.read_text().splitlines()[0])
    assert "neg_scores" not in first  # of two lists, whose scores do not compare
    assert {row.source for row in read_provenance(tmp_path / "n.provenance.parquet")} == set(both)


def test_random_documents_are_mined_by_their_share(tmp_path: Path, sluice: Call) -> None:
    data = write_beir(tmp_path / "data")
    Retriever.build(BM25Encoder(), DOCUMENTS, path=tmp_path / "bm25", name="bm25")
    output = tmp_path / "n.jsonl"
    words = ("mine", tmp_path / "bm25", data, "--output", output, "--mode", "naive")
    code, _, err = sluice(*words, "--also", "random", "--shares", "3,1", "--per-query", 4)
    assert code == 0, err
    rows = read_provenance(tmp_path / "n.provenance.parquet")
    kept = {(row.query, row.document): row.source for row in reversed(rows) if row.reason == "kept"}
    assert Counter(kept.values()) == {str(tmp_path / "bm25"): 36, "random": 12}  # some are of both
    first = output.read_text()
    assert sluice(*words, "--also", "random", "--shares", "3,1", "--per-query", 4)[0] == 0
    assert output.read_text() == first
    for more, message in (
        (("--shares", "3,1"), "mine.shares: 2 for 1 retrievers"),
        (("--shares", "1"), "mine.shares: there is a single retriever"),
        (("--shares", "a"), "--shares: 'a'; expected numbers separated by commas"),
        (("--also", "random", "--min-score", 1), "mine.min_score: random documents have no scores"),
    ):
        code, _, err = sluice(*words, *more)
        assert (code, message in err) == (2, True), err


def test_lines_are_read_back_as_examples(tmp_path: Path, bm25: Retriever) -> None:
    formats = pytest.importorskip("sluice.retrieval.training_data.files.formats")
    data = write_beir(tmp_path / "data")
    lists = bm25.run({f"q{n}": DOCUMENTS[3 * n].text for n in range(12)}, None, 20)
    lists.save(tmp_path / "lists.trec")
    mine(str(tmp_path / "lists.trec"), str(data), tmp_path / "n.jsonl", NAIVE)
    line = json.loads((tmp_path / "n.jsonl").read_text().splitlines()[0])
    assert formats._bge("here", line)


def test_the_audit(tmp_path: Path, bm25: Retriever, dataset: Dataset) -> None:
    found = audit_negatives(bm25, dataset, {"per_query": 2, "margin": 0.3}, share=0.3, seed=1)
    assert [mode.mode for mode in found.modes] == [
        "naive", "shifted", "absolute", "margin", "percentage", "window", "adaptive", "as set",
    ]  # fmt: skip
    assert found.hidden == 4

    class Judge:
        name, needs_texts = "own", True

        def scores(self, pairs: Sequence[JudgedPair]) -> list[float]:
            known = dataset.qrels
            assert all(pair.document for pair in pairs)
            return [float(p.document_id in known[p.query_id]) for p in pairs]

    judged_too = audit_negatives(bm25, dataset, {}, share=0.3, seed=1, judge=Judge())
    assert judged_too.modes[-1].mode == "judge"
    assert judged_too.modes[-1].rejected == 1.0
    data = write_beir(tmp_path / "data")
    bm25.run({f"q{n}": DOCUMENTS[3 * n].text for n in range(12)}, None, 40).save(
        tmp_path / "x.trec"
    )
    assert audit(str(tmp_path / "x.trec"), str(data), {}, share=0.1).hidden >= 1
