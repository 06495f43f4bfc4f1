"""An evaluation is made again from its results, and what cannot be is said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_world import write_beir

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval import run
from sluice.retrieval.experiments.reproduction import reproduce
from sluice.retrieval.jobs import suite

Call = Callable[..., tuple[int, str, str]]


def evaluated(tmp_path: Path, **parts: Any) -> Path:
    values = {
        "dataset": str(write_beir(tmp_path / "data")),
        "output": str(tmp_path / "out"),
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "pipelines": {"bm25": "bm25", "short": "bm25 % 3"},
        "evaluate": {"latency_queries": 0, "measures": ["nDCG@10", "RR"]},
        **parts,
    }
    if isinstance(values["dataset"], list):
        suite(values)
    else:
        run(values)
    return tmp_path / "out"


def edited(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def test_the_same_figures(tmp_path: Path, sluice: Call) -> None:
    folder = evaluated(tmp_path)
    code, out, _ = sluice("reproduce", folder)
    assert code == 0
    assert "All figures are the same" in out
    table = json.loads((folder / "reproduced" / "reproduction.json").read_text())
    assert {row["name"] for row in table["systems"]} == {
        f"{system}, {measure}" for system in ("bm25", "short") for measure in ("nDCG@10", "RR")
    }
    assert all(row["difference"] == 0 for row in table["systems"])
    code, _, error = sluice("reproduce", folder)
    assert (code, "holds a reproduction already" in error) == (2, True)
    assert sluice("reproduce", folder, "--output", tmp_path / "again")[0] == 0


def test_a_figure_that_differs(tmp_path: Path, sluice: Call) -> None:
    folder = evaluated(tmp_path)

    def change(values: dict[str, Any]) -> None:
        values["systems"][1]["measures"]["RR"] += 0.01
        values["systems"][0]["fingerprints"]["bm25"] = "another"
        values["systems"][0]["origin"]["packages"]["numpy"] = "0.1"

    edited(folder / "results.json", change)
    code, out, _ = sluice("reproduce", folder)
    assert code == 1
    assert "-0.0100*" in out
    assert "the encoder of bm25 has changed" in out
    assert "changed since: numpy 0.1 ->" in out
    found = reproduce(folder, tmp_path / "loose", tolerance=0.02)
    assert found.same


def test_a_suite(tmp_path: Path) -> None:
    data = [str(write_beir(tmp_path / name)) for name in ("one", "two")]
    found = reproduce(evaluated(tmp_path, dataset=data))
    assert found.same
    assert list(found.table.rows)[-1] == "two: short, RR"


def test_what_is_missing_is_said_before_any_work(tmp_path: Path) -> None:
    folder = evaluated(tmp_path)
    queries = tmp_path / "data" / "queries.jsonl"
    queries.write_text(queries.read_text().replace("word", "words"))

    def change(values: dict[str, Any]) -> None:
        made = values["origin"]["config"]
        made["rerankers"] = {"cross": {"type": "cross_encoder", "model": "./gone/model"}}
        made["pipelines"]["paired"] = "bm25 >> pair_head(bm25, model='/gone/too')"

    edited(folder / "results.json", change)
    with pytest.raises(DataError) as error:
        reproduce(folder)
    for words in ("the queries of data (test)", "rerankers.cross.model: ./gone/model", "/gone/too"):
        assert words in str(error.value)
    assert not (folder / "reproduced").exists()
    queries.unlink()
    with pytest.raises(DataError, match="queries"):
        reproduce(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"datasets": []}, {"datasets": 5}, {"systems": [1]}, {"systems": [{}]},
        {"systems": [{"name": "bm25"}]}, {"systems": [{"name": "bm25", "measures": None}]},
    ],
)  # fmt: skip
def test_what_is_half_a_result(change: dict[str, Any], tmp_path: Path, sluice: Call) -> None:
    folder = evaluated(tmp_path)
    edited(folder / "results.json", lambda values: values.update(change))
    for verb in ("reproduce", "report"):
        code, _, error = sluice(verb, folder)
        assert (code, "results.json" in error) == (2, True), (verb, error)


def test_what_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no results\.json here"):
        reproduce(tmp_path)
    folder = evaluated(tmp_path)
    with pytest.raises(ConfigError, match="is the folder to reproduce"):
        reproduce(folder, folder)
    edited(folder / "results.json", lambda values: values["origin"]["config"].update(later=1))
    with pytest.raises(DataError, match="another version wrote it"):
        reproduce(folder)
    edited(folder / "results.json", lambda values: values.pop("origin"))
    with pytest.raises(DataError, match=r"it holds no origin\.config"):
        reproduce(folder)


def test_the_dataset_is_found_where_it_was(
    tmp_path: Path, sluice: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_beir(tmp_path / "collections" / "mine")
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path / "collections"))
    folder = evaluated(tmp_path, dataset="mine")
    monkeypatch.delenv("SLUICE_DATA")
    assert reproduce(folder).same
    (tmp_path / "collections").rename(tmp_path / "moved")
    code, _, err = sluice("reproduce", folder, "--output", tmp_path / "third")
    place = tmp_path / "collections" / "mine"
    assert code == 2
    assert f"dataset 'mine': recorded from {place}, which is not reachable now; put the" in err
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path / "moved"))
    assert reproduce(folder, tmp_path / "third").same
