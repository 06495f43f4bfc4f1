"""Late interaction from YAML: built, searched, evaluated, explained, changed, tuned, exported."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Call
from small_world import write_beir

from sluice.indexing import TokenIndex
from sluice.retrieval import load_pipeline
from sluice.retrieval.config.sections import ExperimentConfig, checked
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.reuse import Dependencies


def settings(folder: Path, bert: Path) -> dict[str, Any]:
    encoder = {"type": "tokens", "model": str(bert), "dim": 8, "query_length": 12}
    return {
        "dataset": str(write_beir(folder / "data")), "output": str(folder / "out"),
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "tokens": {"encoder": encoder, "index": {"type": "tokens", "store": "float16"}},
            "usual": {
                "encoder": encoder, "encoding": {"store": "float16", "cache": str(folder / "c")},
            },
        },
        "rerankers": {"late": {"type": "max_sim", "retriever": "tokens"}},
        "pipelines": {
            "bm25": "bm25", "tokens": "tokens",
            "gather": "bm25 % 7 >> max_sim(tokens, depth=7)",
            "named": "bm25 % 7 >> late(depth=7)",
        },
        "evaluate": {"measures": ["nDCG@10"], "baseline": "bm25", "latency_queries": 2},
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, bert: Path) -> Path:
    folder = tmp_path_factory.mktemp("late")
    file = folder / "x.yaml"
    file.write_text(yaml.safe_dump(settings(folder, bert), sort_keys=False), encoding="utf-8")
    return file


def output(made: Path) -> Path:
    return made.parent / "out"


@pytest.mark.thorough
def test_evaluate_reports_what_a_gather_finds(sluice: Call, made: Path) -> None:
    code, _, err = sluice("evaluate", made)
    assert code == 0, err
    results = json.loads((output(made) / "results.json").read_text())
    systems = {each["name"]: each for each in results["systems"]}
    assert systems["bm25"]["gathers"] == systems["tokens"]["gathers"] == []
    (recall,) = systems["gather"]["gathers"]
    assert recall["retriever"] == "tokens"
    assert 0 < recall["recall"]["10"] <= 1
    assert systems["named"]["gathers"][0]["recall"] == recall["recall"]
    assert systems["named"]["measures"] == systems["gather"]["measures"]
    # A pipeline's index is that of what its reranker reads too.
    sizes = {name: each["index_bytes"] for name, each in systems.items()}
    assert sizes["gather"] == sizes["named"] == sizes["bm25"] + sizes["tokens"]
    assert systems["tokens"]["index_bytes"] > 1000
    text = (output(made) / "report.md").read_text()
    assert "of the best 10" in text
    assert "by an exact search in tokens" in text
    code, _, err = sluice("evaluate", made)
    assert err.count("reusing the saved run") == 4
    code, _, err = sluice("report", output(made))
    assert code == 0, err
    page = (output(made) / "report.html").read_text()
    assert "of the best 100 by an exact search in tokens" in page


def test_search_explain_verify(sluice: Call, made: Path) -> None:
    sluice("index", made)
    folder = output(made) / "retrievers" / "tokens"
    code, out, err = sluice("search", folder, "gold in the river", "-k", 3)
    assert (code, out.count("\n") >= 3) == (0, True), err
    code, out, err = sluice("explain", folder, "gold in the river", "-k", 2)
    assert code == 0, err
    assert out.count("score ") == 2
    assert "  query" in out
    assert "[MASK]" in out
    code, out, _ = sluice("explain", folder, "gold in the river", "--json")
    facts = json.loads(out)
    assert sum(each["similarity"] for each in facts["matches"]) == pytest.approx(facts["score"], abs=1e-4)  # fmt: skip # noqa: E501
    code, out, err = sluice(
        "explain", output(made), "gold in the river", "--pipeline", "gather", "-k", 2
    )
    assert code == 0, err
    assert "of the exact best" in out
    assert " ~ " in out
    code, out, err = sluice("verify", folder)
    assert code == 0, err
    code, out, err = sluice("index", made, "--dry-run")
    assert code == 0, err


def test_the_plan_times_what_is_read_and_what_is_scored(
    sluice: Call, made: Path, bert: Path, tmp_path: Path
) -> None:
    facts = yaml.safe_load(made.read_text()) | {"output": str(tmp_path / "other")}
    facts["rerankers"]["light"] = {"type": "max_sim", "model": str(bert)}
    facts["pipelines"] |= {"scored": "bm25 % 7 >> light(depth=7)"}
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(facts))
    code, out, err = sluice("config", "check", file)
    assert code == 0, err
    assert "pairs to rerank" in out
    assert "unknown" not in out


def test_documents_are_added_to_all_retrievers(sluice: Call, made: Path) -> None:
    sluice("index", made)
    new = made.parent / "new.jsonl"
    new.write_text(json.dumps({"_id": "new", "text": "gold gold stone"}) + "\n")
    assert sluice("add", output(made), new)[0] == 0
    stage = load_pipeline(output(made), "gather")
    assert "new" in {hit.doc_id for hit in stage.search("gold gold stone", 20)}
    assert sluice("delete", output(made), "new")[0] == 0


def test_the_usual_index_and_the_cache(made: Path) -> None:
    experiment = Experiment(checked(yaml.safe_load(made.read_text()), ExperimentConfig))
    usual = experiment.retriever("usual")
    assert isinstance(usual.index, TokenIndex)
    assert list((made.parent / "c").glob("*/*.vectors"))
    assert usual.least_score == -12.0
    assert usual.search("gold") != []


def test_what_a_reranker_reads_is_made_before(made: Path, bert: Path) -> None:
    config = checked(yaml.safe_load(made.read_text()), ExperimentConfig)
    needs = Dependencies(config)
    assert list(needs.closure("pipelines.named")) == [
        "retrievers.bm25", "retrievers.tokens", "rerankers.late", "pipelines.named",
    ]  # fmt: skip
    assert needs.searched(["named"]) == ["bm25", "tokens"]
