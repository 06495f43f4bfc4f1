"""Figures from folders, in Python and by ``sluice plot``: what they show, and what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Call
from report_world import world

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.experiments.tuning.experiment import sweeps
from sluice.retrieval.experiments.tuning.tuner import Trial
from sluice.retrieval.studies.plots import (
    plot_cascades,
    plot_depths,
    plot_differences,
    plot_tradeoff,
    plot_training,
)

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return world(tmp_path_factory.mktemp("plots"))


def trial(pipeline: str, value: float, p95: float) -> dict[str, Any]:
    return {"pipeline": pipeline, "value": value, "p50_ms": 1.0, "p95_ms": p95, "price": 0.0,
            "pairs": 0.0}  # fmt: skip


TRIALS = [
    trial("bm25", 0.3, 1.0),
    *(trial(f"bm25 >> cross(depth={d}, weight=0.5)", 0.3 + d / 100, 1.0 + d) for d in (5, 20, 10)),
    *(trial(f"bm25 >> cross(depth={d}, weight=0.1)", 0.2, 1.0 + d) for d in (5, 10, 20)),
    *(trial(f"dense >> cross(depth={d})", 0.9, 1.0 + d) for d in (5, 10)),
]  # fmt: skip


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    folder = tmp_path / "out" / "tune"
    folder.mkdir(parents=True)
    with (folder / "trials.csv").open("w", newline="") as stream:
        rows = csv.DictWriter(stream, list(TRIALS[0]))
        rows.writeheader()
        rows.writerows(TRIALS)
    front = {"measure": "nDCG@10", "cost": "p95_ms", "front": TRIALS[:2], "chosen": TRIALS[1]}
    (folder / "front.json").write_text(json.dumps(front))
    return folder.parent


def test_training_of_a_folder(evaluated: Path) -> None:
    assert [axes.get_title() for axes in plot_training(evaluated).axes] == ["Loss", "Dev measures"]
    one = plot_training(evaluated, panel="Loss")
    (axes,) = one.axes
    assert axes.lines[0].get_xydata().tolist() == [[10 * n, 2 / n] for n in range(1, 6)]
    with pytest.raises(ConfigError, match="no room for 2 panels; choose one with panel='Loss'"):
        plot_training(evaluated, ax=axes)
    with pytest.raises(ConfigError, match="did you mean 'Loss'"):
        plot_training(evaluated, panel="Los")
    with pytest.raises(DataError, match="no folder is given"):
        plot_training()


def test_systems_by_cost(evaluated: Path, tmp_path: Path) -> None:
    results = json.loads((evaluated / "results.json").read_text())
    (axes,) = plot_tradeoff(evaluated, "R@100", "index MB").axes
    drawn = [line.get_xydata()[0].tolist() for line in axes.lines]
    assert drawn == [
        [each["index_bytes"] / 1e6, each["measures"]["R@100"]] for each in results["systems"]
    ]
    assert axes.get_ylabel() == "R@100, data"
    with pytest.raises(ConfigError, match=r"cost: 'p50' is not in results.json; there are p50 ms"):
        plot_tradeoff(evaluated, cost="p50")
    with pytest.raises(ConfigError, match=r"measure: 'AP' is not in results.json; there are nDCG"):
        plot_tradeoff(evaluated, "AP")
    (tmp_path / "datasets").mkdir()
    (tmp_path / "results.json").write_text(json.dumps({"datasets": ["a", "b"]}))
    with pytest.raises(ConfigError, match=r"holds 2 datasets; give the folder of one, as .*/a"):
        plot_tradeoff(tmp_path)
    for each in results["systems"]:
        del each["latency_ms"], each["index_bytes"]
    (tmp_path / "results.json").write_text(json.dumps(results))
    with pytest.raises(DataError, match=r"no cost was recorded; set evaluate\.latency_queries"):
        plot_tradeoff(tmp_path)


def test_settings_of_one_index_are_a_line(tmp_path: Path) -> None:
    index = {"type": "faiss", "factory": "IVF8,Flat"}
    retrievers = {
        f"ivf-{n}": {"encoder": "bm25", "index": index, "search": {"nprobe": n}} for n in (8, 1)
    }
    retrievers["ivf"] = {"encoder": "bm25", "index": index}
    config = {"dataset": "d", "retrievers": {**retrievers, "flat": {"encoder": "bm25"}},
              "pipelines": {name: name for name in (*retrievers, "flat")}}  # fmt: skip
    systems = [
        {"name": name, "measures": {"R@10": value}, "latency_ms": {"p50": cost}}
        for name, value, cost in (
            ("ivf-8", 0.9, 2.0),
            ("ivf-1", 0.4, 1.0),
            ("ivf", 0.5, 1.5),
            ("flat", 1.0, 3.0),
        )
    ]
    results = {"dataset": "d", "split": "test", "systems": systems, "origin": {"config": config}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    (axes,) = plot_tradeoff(tmp_path).axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert drawn == {"ivf": [[1.0, 0.4], [1.5, 0.5], [2.0, 0.9]], "flat": [[3.0, 1.0]]}
    assert sorted(text.get_text() for text in axes.texts) == ["default", "nprobe 1", "nprobe 8"]


def test_cascades_by_depth(tuned: Path) -> None:
    trials = [Trial(**each) for each in TRIALS]
    found = sweeps(trials)  # the better weight of bm25's; dense has two depths only
    assert {name: [each.value for each in group] for name, group in found.items()} == {
        "bm25 >> cross(depth=…, weight=0.5)": [0.35, 0.5, 0.4]
    }
    for folder in (tuned, tuned / "tune"):
        (axes,) = plot_cascades(folder).axes
    line = next(line for line in axes.lines if "depth=…" in str(line.get_label()))
    assert line.get_xydata().tolist() == [[6.0, 0.35], [11.0, 0.4], [21.0, 0.5]]
    assert [text.get_text() for text in axes.texts] == ["5", "20", "10"]
    assert axes.get_xlabel() == "p95 latency, ms"
    assert len(axes.collections[0].get_offsets()) == len(TRIALS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("front.json", "{}"), ("front.json", "[]"), ("trials.csv", "pipeline,value\nx,1\n"),
        ("trials.csv", "pipeline,value,p50_ms,p95_ms,price,pairs\nx,nan,1,1,1,1\n"),
    ],
)  # fmt: skip
def test_a_damaged_tuning_is_refused(tuned: Path, name: str, text: str) -> None:
    (tuned / "tune" / name).write_text(text)
    with pytest.raises(DataError, match=r"are not as sluice tune writes them .*; tune again"):
        plot_cascades(tuned)


def test_differences_of_systems(evaluated: Path) -> None:
    results = json.loads((evaluated / "results.json").read_text())
    best = max(results["systems"][1:], key=lambda each: each["measures"]["nDCG@10"])["name"]
    (axes,) = plot_differences(evaluated).axes
    assert axes.get_ylabel() == f"nDCG@10: {best} minus bm25"
    known = {(each["system"], each["measure"]): each for each in results["comparisons"]}
    found = known["reranked", "R@100"]
    (axes,) = plot_differences(evaluated, "reranked", measure="R@100").axes
    assert axes.get_title() == (
        f"{found['wins']} wins, {found['ties']} ties, {found['losses']} losses"
    )
    assert axes.lines[1].get_ydata()[0] == pytest.approx(found["difference"])
    with pytest.raises(ConfigError, match="system: 'bm25' is the baseline; name another of"):
        plot_differences(evaluated, "bm25")
    with pytest.raises(ConfigError, match="did you mean 'reranked'"):
        plot_differences(evaluated, "rerankd")


def test_depths_of_runs(evaluated: Path) -> None:
    (axes,) = plot_depths(evaluated).axes
    assert len(axes.lines) == 4
    assert max(axes.lines[0].get_xdata()) == 30  # forty documents: the last depth within


@pytest.mark.thorough
def test_command_line(sluice: Call, evaluated: Path, tuned: Path, tmp_path: Path) -> None:
    for verb, words in (
        ("training", [evaluated, evaluated, "--panel", "Loss"]), ("tradeoff", [evaluated]),
        ("differences", [evaluated, "--system", "reranked"]), ("depths", [evaluated]),
    ):  # fmt: skip
        code, out, err = sluice("plot", verb, *words)
        assert code == 0, err
        path = evaluated / "plots" / f"{verb}.svg"
        assert out == f"{path}: {path.stat().st_size:,} bytes\n"
    code, out, _ = sluice("plot", "cascades", tuned, "--output", tmp_path / "a" / "b.png")
    assert (code, (tmp_path / "a" / "b.png").read_bytes()[:4]) == (0, b"\x89PNG")
    for words, said in (
        (["tradeoff", evaluated, "--output", "x.gif"], "expected a name that ends in svg, png"),
        (["cascades", evaluated], "no front.json here; expected the output folder of sluice tune"),
        (["depths", tmp_path / "none"], "no results.json here"),
    ):
        code, _, err = sluice("plot", *words)
        assert (code, said in err) == (2, True), err


def test_a_folder_that_leads_elsewhere_is_not_written_to(sluice: Call, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "given" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    (tmp_path / "given" / "plots").symlink_to(tmp_path / "elsewhere")
    code, _, err = sluice("plot", "training", tmp_path / "given")
    assert (code, list((tmp_path / "elsewhere").iterdir())) == (2, []), err
    assert sluice("plot", "training", tmp_path / "given", "--output", tmp_path / "x.svg")[0] == 0
