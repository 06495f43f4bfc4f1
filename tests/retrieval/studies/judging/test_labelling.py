"""Holes found, labelled, kept apart from people's labels, and put together on request only."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from command_line import Call
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.runs.run import Run
from sluice.retrieval.runs.trec_files import read_qrels
from sluice.retrieval.studies.judging.judge_runs import circular, rankers_in, rankers_of_run
from sluice.retrieval.studies.judging.labelling import (
    filled,
    filled_scores,
    label_pairs,
    pairs_to_label,
    read_note,
    write_labels,
)
from sluice.training.negatives.false_negatives import JudgedPair

HUMAN = {"q": {"a": 2, "b": 0}, "r": {"a": 1}, "none": {}}
RUNS = [
    Run({"q": {"a": 3.0, "x": 2.0, "y": 1.0}, "none": {"x": 1.0}}, name="one"),
    Run({"q": {"z": 3.0, "x": 2.0, "b": 1.0}, "r": {"w": 1.0}, "s": {"a": 1.0}}, name="two"),
]


class Named:
    """Grades a document by the number in its text; none where there is no number."""

    name, needs_texts, fingerprint, highest = "named", True, "named-1", 3
    models = ("named-1", "models/named")

    def scores(self, pairs: Sequence[JudgedPair]) -> list[float]:
        found = [each.document.rpartition(" ")[2] for each in pairs]
        return [float(text) if text else math.nan for text in found]


def texts_of(documents: Sequence[str]) -> Mapping[str, str]:
    known = {"x": "about 3", "y": "about 0.5", "z": "about 1.4", "a": "about ", "w": "about 9"}
    return {doc: known[doc] for doc in documents if doc in known}


def test_which_pairs_are_labelled() -> None:
    assert pairs_to_label(RUNS, HUMAN, 2) == {"q": ["x", "z"], "r": ["w"]}
    assert pairs_to_label(RUNS, HUMAN, 3) == {"q": ["x", "y", "z"], "r": ["w"]}
    assert pairs_to_label(RUNS, HUMAN, 3, "judged") == {"q": ["a", "b"]}
    assert pairs_to_label(RUNS, HUMAN, 1, "all") == {"q": ["a", "z"], "r": ["w"]}
    assert pairs_to_label([], HUMAN, 1, "judged") == {"q": ["a", "b"], "r": ["a"]}
    with pytest.raises(ConfigError, match="needs at least one run"):
        pairs_to_label([], HUMAN)
    with pytest.raises(ConfigError, match="expected one of holes, judged, all"):
        pairs_to_label(RUNS, HUMAN, 3, "some")  # type: ignore[arg-type]


def test_labels_are_rounded_and_everything_is_counted() -> None:
    wanted = {"q": ["x", "y", "z", "a", "lost"], "unknown": ["x"]}
    found = label_pairs(Named(), wanted, {"q": "query"}, texts_of)
    assert found.labels == {"q": {"x": 3, "y": 1, "z": 1}}
    assert (found.asked, found.unanswered, found.textless, found.size) == (6, 1, 2, 3)
    assert found.grades == {1: 2, 3: 1}
    with pytest.raises(DataError, match="its scale, 0 to 3"):
        label_pairs(Named(), {"q": ["w"]}, {"q": "query"}, texts_of)


def test_labels_of_people_are_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "labels.tsv"
    write_labels(path, {"q": {"x": 3}}, {"judge": "named"})
    assert read_qrels(path) == {"q": {"x": 3}}
    write_labels(path, {"q": {"x": 2, "y": 0}}, {"judge": "named"})  # its own are
    assert read_qrels(path) == {"q": {"x": 2, "y": 0}}
    assert read_note(path) == {"judge": "named"}
    human = tmp_path / "human.tsv"
    human.write_text("q 0 x 1\n")
    assert read_note(human) is None
    with pytest.raises(ConfigError, match="never replace others"):
        write_labels(human, {"q": {"x": 2}}, {"judge": "named"})
    assert human.read_text() == "q 0 x 1\n"
    with pytest.raises(DataError, match="white space"):
        write_labels(tmp_path / "new.tsv", {"q": {"x y": 2}}, {"judge": "named"})
    assert not list(tmp_path.glob("new*"))


def test_labels_fill_holes_in_memory() -> None:
    machine = {"q": {"a": 0, "x": 3}, "none": {"x": 1}, "s": {"a": 1}}
    both = filled(HUMAN, machine)
    assert both.qrels == {"q": {"a": 2, "b": 0, "x": 3}, "r": {"a": 1}, "none": {}}
    assert (both.human, both.machine, both.overruled) == (3, 1, 1)
    assert HUMAN["q"] == {"a": 2, "b": 0}
    table = filled_scores({run.name: run for run in RUNS}, HUMAN, machine, ["nDCG@3", "Judged@3"])
    for run in RUNS:
        alone, more = (evaluate(run, truth, ["nDCG@3"]).mean for truth in (HUMAN, both.qrels))
        assert table.rows[run.name]["nDCG@3"] == alone["nDCG@3"]
        assert table.rows[run.name]["nDCG@3 filled"] == more["nDCG@3"]
    assert table.rows["two"]["nDCG@3 filled"] > table.rows["two"]["nDCG@3"]  # type: ignore[operator]
    assert "3 human labels, and 1 of a judge" in table.caption


class Scorer:
    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        return np.zeros(len(pairs))


class Asking:
    """A scorer that asks another one, as a cached or a generative one does."""

    fingerprint = "asking"

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        return self.scorer.score(pairs)


def test_a_judge_that_ranks_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    own, other = Rerank(Scorer("named-1")), Rerank(Scorer("else"))
    systems = {
        "own": own, "cut": own % 5, "kept": other >> Rerank(Asking(Scorer("named-1"))),
        "other": other, "by name": ["models/named"], "unknown": [],
    }  # fmt: skip
    assert circular(Named(), systems) == ["own", "cut", "kept", "by name"]
    assert "own is ranked by the model that judges it" in caplog.text
    assert circular(["models/other"], systems) == []
    assert rankers_in(Rerank(Asking(Scorer("x")))) == {"asking", "x"}


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """What an experiment leaves behind: settings, results, and a run of a pipeline."""
    output = tmp_path / "out"
    (output / "runs").mkdir(parents=True)
    (output / "models" / "cross").mkdir(parents=True)
    settings = {
        "train": {"cross": {}},
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "dense": {"encoder": {"model": "hub/e"}},
        },
        "rerankers": {"cross": {"type": "cross_encoder", "model": "cross"}},
        "pipelines": {"first": "bm25 % 50", "both": "first >> cross(depth=10)"},
    }
    (output / "experiment.yaml").write_text(yaml.safe_dump(settings))
    results = {"systems": [{"name": "first", "fingerprints": {"bm25": "f1"}}]}
    (output / "results.json").write_text(json.dumps(results))
    for name in ("first", "both", "dense"):
        Run({"q1": {"d00": 1.0}}).save(output / "runs" / f"{name}.trec.gz")
    return output


def test_the_models_behind_an_experiments_run(experiment: Path, tmp_path: Path) -> None:
    cross = str((experiment / "models" / "cross").resolve())
    runs = experiment / "runs"
    assert rankers_of_run(runs / "first.trec.gz") == {"f1"}
    assert cross in rankers_of_run(runs / "both.trec.gz")
    assert rankers_of_run(runs / "dense.trec.gz") == {"hub/e"}
    assert rankers_of_run(tmp_path / "elsewhere.trec") == set()


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A dataset, a run with holes, and a file of labels for all of its pairs."""
    folder = write_beir(tmp_path / "beir")
    data = load_dataset(folder)
    documents = [document.id for document in data.corpus]
    run = {q: {doc: 40.0 - n for n, doc in enumerate(documents)} for q in data.queries}
    Run(run).save(tmp_path / "run.trec")
    lines = [f"{q}\t{doc}\t{n % 3}\n" for q in data.queries for n, doc in enumerate(documents[:8])]
    (tmp_path / "offline.tsv").write_text("".join(lines))
    return folder, tmp_path / "run.trec", tmp_path / "offline.tsv"


def test_the_command_labels_holes(
    sluice: Call, world: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    folder, run, labels = world
    output = tmp_path / "labels.tsv"
    words = [
        "labels",
        "judge",
        run,
        "--dataset",
        folder,
        "--judge",
        labels,
        "--output",
        output,
        "-m",
        "P@10",
    ]
    code, out, err = sluice(*words)
    assert code == 0, err
    human, made = load_dataset(folder).qrels, read_qrels(output)
    tops = {query: list(ranking.doc_ids[:10]) for query, ranking in Run.load(run).items()}
    offline = read_qrels(labels)
    assert made == {
        q: own
        for q in human
        if (own := {d: offline[q][d] for d in tops[q] if d not in human[q] and d in offline[q]})
    }
    note = read_note(output)
    assert note is not None
    assert note["judge"] == "offline.tsv"
    assert note["labels"] == sum(map(len, made.values()))
    assert note["unanswered"] > 0
    assert f"{note['labels']:,} labels by offline.tsv" in out
    assert f"{sum(map(len, human.values())):,} human labels" in out
    assert "P@10 filled" in out
    code, _, err = sluice(*words[:-2], "--qrels", output)
    assert code == 2
    assert "human labels" in err
    code, _, err = sluice(
        "labels", "judge", "--dataset", folder, "--judge", labels, "--output", output
    )
    assert code == 2
    assert "needs at least one run" in err
    code, _, err = sluice(*words, "--fit", 2)
    assert code == 2
    assert "has no thresholds" in err


def test_a_cross_encoder_is_fitted_on_other_queries_and_scores_no_pair_twice(
    sluice: Call, world: tuple[Path, Path, Path], tmp_path: Path, pair_bert: Path
) -> None:
    folder, run, _ = world
    output, human = tmp_path / "labels.tsv", load_dataset(folder).qrels
    words = ["labels", "judge", "--dataset", folder, "--judge", pair_bert, "--output", output,
             "--fit", 4, "-k", 3, "--cache", tmp_path / "c.sqlite"]  # fmt: skip
    Run({query: {"unjudged": 1.0} for query in human}).save(tmp_path / "none.trec")
    code, out, err = sluice(*words, tmp_path / "none.trec", "--pairs", "judged")
    assert code == 2
    assert "nothing to label" in err
    assert not output.exists()
    code, out, err = sluice(*words, "--pairs", "judged")
    assert code == 0, err
    assert "0 from the cache" in out
    note, made = read_note(output), read_qrels(output)
    assert note is not None
    assert len(note["fitted_on"]) == 4
    assert len(note["thresholds"]) == 1
    assert set(made) == set(human) - set(note["fitted_on"])
    assert {q: set(grades) for q, grades in made.items()} == {q: set(human[q]) for q in made}
    first = output.read_bytes()
    code, out, _ = sluice(*words, "--pairs", "judged")
    assert f"{note['labels']} from the cache" in out
    assert output.read_bytes() == first
    code, out, err = sluice(*words, run, "--ranker", pair_bert, "--queries", 8)
    assert code == 0, err  # of holes, all queries are labelled, those fitted on too
    assert set(read_qrels(output)) == set(human)
    assert f"circular: the judge also ranks in {run}" in out


def test_the_commands_of_agreement_and_grades(
    sluice: Call, world: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    folder, run, _ = world
    qrels = folder / "qrels" / "test.tsv"
    other = tmp_path / "other.trec"
    ranked = load_dataset(folder).qrels
    Run({q: {d: float(g) for d, g in grades.items()} for q, grades in ranked.items()}).save(other)
    code, out, err = sluice(
        "labels", "agreement", qrels, qrels, "--runs", run, "--runs", other, "-m", "AP"
    )
    assert code == 0, err
    assert "kappa                1.0000  [1.0000, 1.0000]" in out
    assert "Kendall's tau-b 1.0000, RBO (p=0.9) 1.0000" in out
    code, out, _ = sluice("labels", "agreement", qrels, qrels, "--json", "--samples", 5)
    told = json.loads(out)
    assert told["labels"]["alpha"]["ordinal"] == 1.0
    assert told["systems"] == []
    code, _, err = sluice("labels", "agreement", qrels, qrels, "--runs", run)
    assert code == 2
    assert "expected at least two runs to rank" in err
    code, out, _ = sluice("labels", "grades", run, qrels, "-k", 5)
    assert code == 0
    assert "share@5" in out
    assert "grade 1" in out
