"""Results in MTEB's format, read by its own reader."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from small_world import write_beir

from sluice.retrieval import run
from sluice.retrieval.experiments.output.mteb_files import name_of, task_of
from sluice.retrieval.jobs import suite

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not find_spec("mteb"), reason="mteb is not installed"),
]


def test_the_reader_of_mteb_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "MTEB_CACHE", str(tmp_path / "cache"))
    import mteb
    from mteb.results import TaskResult

    names = ["scifact", "NanoNQ", "mine"]
    values = {
        "dataset": [str(write_beir(tmp_path / name)) for name in names],
        "output": str(tmp_path / "out"),
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "evaluate": {
            "measures": ["nDCG@10", "R@100", "AP@100", "RR@10", "AP"], "latency_queries": 0
        },
    }  # fmt: skip
    found = suite(values)
    assert found is not None
    cache = mteb.ResultCache(tmp_path / "out" / "mteb")
    for name, task, split in (
        ("scifact", "SciFact", "test"), ("NanoNQ", "NanoNQRetrieval", "train"),
        ("mine", "mine", "test"),
    ):  # fmt: skip
        own = tmp_path / "out" / "datasets" / name / "mteb"
        (file,) = own.glob(f"results/sluice__bm25/*/{task}.json")
        strict = TaskResult.from_disk(file, load_historic_data=False)
        assert strict == cache.load_task_result(task, "sluice/bm25", file.parent.name)
        means = found.results[name]["systems"][0]["measures"]
        (entry,) = strict.scores[split]
        assert strict.get_score() == entry["main_score"] == means["nDCG@10"]
        assert [entry[key] for key in ("recall_at_100", "map_at_100", "mrr_at_10", "AP")] == [
            means[key] for key in ("R@100", "AP@100", "RR@10", "AP")
        ]
    loaded = cache.load_results(tasks=["SciFact", "NanoNQRetrieval"], include_remote=False)
    assert [result.model_name for result in loaded.model_results] == ["sluice/bm25"]
    frame = loaded.to_dataframe()
    assert dict(zip(frame["task_name"], frame["sluice/bm25"], strict=True)) == {
        task: pytest.approx(found.tables["nDCG@10"].rows["bm25"][name], abs=1e-5)
        for name, task in (("scifact", "SciFact"), ("NanoNQ", "NanoNQRetrieval"))
    }


def test_names_that_mteb_has() -> None:
    from mteb.get_tasks import get_task

    ours = ["scifact", "beir/nfcorpus", "beir/cqadupstack/android", "cqadupstack-gis",
            "beir/webis-touche2020/v2", "NanoClimateFEVER", "NanoQuoraRetrieval", "quora",
            "trec-covid", "NanoDBPedia"]  # fmt: skip
    for name in ours:
        task, known = task_of(name)
        assert known
        assert get_task(task).metadata.name == task
    assert task_of("hf:me/mine") == ("hf-me-mine", False)
    assert [name_of(each) for each in ("P@5", "Success@1", "AP(rel=2)@10", "nDCG_exp@10")] == [
        "precision_at_5", "hit_rate_at_1", "AP(rel=2)@10", "nDCG_exp@10"
    ]  # fmt: skip


def test_a_single_dataset_has_them_too(tmp_path: Path) -> None:
    data = write_beir(tmp_path / "nfcorpus")
    retrievers = {"bm25": {"encoder": {"type": "bm25"}}}
    run({"dataset": str(data), "output": str(tmp_path / "out"), "retrievers": retrievers})
    assert list((tmp_path / "out" / "mteb").glob("results/sluice__bm25/*/NFCorpus.json"))
