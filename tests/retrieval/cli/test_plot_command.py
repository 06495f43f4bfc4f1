"""``sluice report --curves``: a figure, a table, and what it refuses."""

import json
from pathlib import Path

import pytest
from command_line import Call


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in ("middle", "splade"):
        folder = tmp_path / "run" / "training" / name
        folder.mkdir(parents=True)
        rows = [{"step": step, "loss": 1.0 / step, "learning_rate": 0.1} for step in (1, 2, 3)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "run"


def test_figure_and_table(sluice: Call, run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure, table = tmp_path / "out" / "curves.svg", tmp_path / "other" / "curves.csv"
    code, out, _ = sluice("report", run, "--curves", figure, "--csv", table)
    assert code == 0
    assert out.splitlines() == [f"{figure}: middle, splade", f"{table}: middle, splade"]
    assert "<svg" in figure.read_text()
    assert table.read_text().splitlines()[:2] == ["training,name,step,value", "middle,loss,1,1.0"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--csv", "x.csv", "--output", "x.html"], "--output: is for the HTML report"),
        (["--curves", "curves.gif"], "expected a name that ends in svg, png, pdf"),
    ],
)
def test_refusals(sluice: Call, run: Path, arguments: list[str], said: str) -> None:
    code, _, err = sluice("report", run, *arguments)
    assert code == 2
    assert said in err


def test_several_folders_without_curves_are_refused(sluice: Call, run: Path) -> None:
    code, _, err = sluice("report", run, run, run)
    assert (code, "3 folders; expected one" in err) == (2, True)


def test_folder_without_training(sluice: Call, tmp_path: Path) -> None:
    code, _, err = sluice("report", tmp_path, "--csv", tmp_path / "x.csv")
    assert code == 2
    assert "contains no metrics.jsonl" in err
