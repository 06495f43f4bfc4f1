"""What a training writes down about itself; series, panels and figures from journals."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from places import ROOT

from sluice.encoders.foundation.errors import ConfigError, DataError, MissingPackageError
from sluice.training.journal import as_csv, panels_of, plot_trainings, read_trainings
from sluice.training.loop.callbacks import Journal

Write = Callable[..., Path]
SPARSITY = {
    "query": {"type": "flops", "weight": 0.1, "target_terms": 20}, "target_doc_terms": 150,
}  # fmt: skip


def lines(steps: int = 6, **more: float) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        made.append({
            "step": step, "loss": 2.0 / step, "grad_norm": 1.0, "learning_rate": 1e-4 * step,
            "epoch": step / 3, **more,
        })  # fmt: skip
        if step % 2 == 0:
            made.append({"step": step, "eval_nDCG@10": 0.5 - 0.1 * (step - 4) ** 2, "epoch": 1})
    made.append({"step": steps, "train_runtime": 3.0, "total_flos": 1, "train_loss": 1})
    return made


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def made(name: str, rows: list[dict[str, Any]], sparsity: Any = None, tail: str = "") -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        text = "".join(json.dumps(row) + "\n" for row in rows) + tail
        (folder / "metrics.jsonl").write_text(text)
        if sparsity is not None:
            (folder / "training.json").write_text(json.dumps({"sparsity": sparsity}))
        return folder

    return made


def test_series_of_a_training(write: Write) -> None:
    rows = [*lines(), {"step": 7, "loss": None, "temperature": 0.05, "said": "x", "on": True}]
    folder = write("a", rows, SPARSITY, tail='{"step": 8, "lo')
    (training,) = read_trainings([folder])
    assert training.name == "a"
    assert training.series["loss"].steps == (1, 2, 3, 4, 5, 6)
    assert training.series["loss"].values[1] == 1.0
    assert training.series["eval_nDCG@10"].best == 1
    assert training.targets == {"active_terms_query": 20.0, "active_terms_document": 150.0}
    expected = {"loss", "grad_norm", "learning_rate", "eval_nDCG@10", "temperature"}
    assert set(training.series) == expected


def test_panels_are_those_with_data(write: Write) -> None:
    plain = read_trainings([write("a", lines())])
    titles = ["Loss", "Dev measures", "Learning rate", "Gradient norm"]
    assert [panel.title for panel in panels_of(plain)] == titles
    more = {
        "loss_ranking": 1.0, "loss_sparsity_query": 0.1, "loss_sparsity_document": 0.1,
        "active_terms_query": 20.0, "active_terms_document": 200.0, "sparsity_weight_query": 1e-3,
        "sparsity_strength": 0.4, "postings_cost": 12.0, "index_mb_per_million": 900.0,
        "negatives_age": 4, "temperature_log": 0.1,
    }  # fmt: skip
    full = panels_of(read_trainings([write("b", lines(**more))]))
    assert [panel.title for panel in full] == [
        "Loss", "Sparsity penalties", "Dev measures", "Learning rate", "Gradient norm",
        "Active terms", "Sparsity weights", "Sparsity strength", "Postings cost", "Index size",
        "Age of the negatives", "Temperature log",
    ]  # fmt: skip
    assert full[0].names == ("loss", "loss_ranking")


def test_names_tell_trainings_apart(write: Write, tmp_path: Path) -> None:
    write("one/training/splade", lines())
    write("one/training/middle", lines())
    write("two/training/splade", lines())
    named = [t.name for t in read_trainings([tmp_path / "one"])]
    assert named == ["middle", "splade"]
    both = read_trainings([tmp_path / "one/training/splade", tmp_path / "two", tmp_path / "one"])
    assert [t.name for t in both] == ["one/splade", "two/splade", "one/middle"]
    alone = read_trainings([write("three/training", lines())])  # of `sluice train`
    assert [t.name for t in alone] == ["three"]


def test_table_holds_every_value(write: Write) -> None:
    trainings = read_trainings([write("a", lines())])
    rows = list(csv.DictReader(as_csv(trainings).splitlines()))
    assert list(rows[0]) == ["training", "name", "step", "value"]
    found = [float(r["value"]) for r in rows if r["name"] == "loss"]
    assert found == list(trainings[0].series["loss"].values)


def test_folders_without_a_journal(write: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing: contains no metrics.jsonl"):
        read_trainings([tmp_path / "nothing"])
    with pytest.raises(DataError, match="no training step is logged"):
        read_trainings([write("empty", [])])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_figures_are_equal_for_equal_curves(write: Write, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    trainings = read_trainings([write("a", lines(active_terms_query=300.0), SPARSITY)])
    first = plot_trainings(trainings, tmp_path / "new" / f"one.{kind}")
    second = plot_trainings(trainings, tmp_path / f"two.{kind}")
    assert first.read_bytes() == second.read_bytes()
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert first.read_bytes().startswith(starts[kind])


def test_panels_of_compared_trainings(write: Write) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from sluice.training.journal import _draw

    folders = [
        write("a", lines(active_terms_query=300.0), SPARSITY),
        write("b", lines(active_terms_query=1.0)),
    ]
    trainings = read_trainings(folders)
    panels = {panel.title: panel for panel in panels_of(trainings)}
    drawn = {}
    for title, panel in panels.items():
        drawn[title] = Figure().add_subplot()
        _draw(drawn[title], panel, trainings)
    legend = drawn["Loss"].get_legend_handles_labels()[1]
    assert legend == ["a", "b"]
    dev = drawn["Dev measures"].lines
    assert [line.get_marker() for line in dev] == [".", "*", ".", "*"]
    assert [list(line.get_xdata()) for line in dev[1::2]] == [[4], [4]]
    terms = drawn["Active terms"]
    assert terms.get_yscale() == "log"
    assert [line.get_linestyle() for line in terms.lines] == ["-", ":", "-"]  # one has a target
    assert drawn["Loss"].get_xlabel() == "optimiser step"
    assert len({line.get_color() for line in dev}) == 2


def test_without_matplotlib(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    trainings = read_trainings([write("a", lines())])
    with pytest.raises(MissingPackageError, match=r"pip install 'sluice-ir\[plots\]'"):
        plot_trainings(trainings, tmp_path / "x.svg")
    assert as_csv(trainings)
    with pytest.raises(ConfigError, match="ends in svg, png, pdf; did you mean 'pdf'"):
        plot_trainings(trainings, tmp_path / "x.pdff")


def test_reading_needs_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, sluice.training.journal, sluice.training.journal\n"
        "print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"


def test_journal_lines_are_valid_json(tmp_path: Path) -> None:
    journal = Journal(tmp_path, lines=False)
    state = SimpleNamespace(global_step=3, max_steps=4)
    journal.on_log(None, state, None, {"loss": 0.5, "grad_norm": float("inf")})
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {
        "step": 3,
        "loss": 0.5,
        "grad_norm": None,
    }
