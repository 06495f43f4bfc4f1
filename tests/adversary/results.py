"""Wrong values anywhere in ``results.json``, before the verbs that read it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from fuzzing import Case, Fuzzer, sluice
from small_world import write_beir

WRONG = (5, -1, 1.5, True, None, "x", "", [], ["x"], {}, {"x": 5}, "../../x", 10**30)


def prepare(world: Path) -> None:
    """Evaluate two retrievers, and write the YAML that did it."""
    if (world / "out" / "results.json").exists():
        return
    config = {
        "dataset": str(write_beir(world / "data", 20)),
        "output": str(world / "out"),
        "retrievers": {"bm25": "bm25", "short": {"encoder": {"type": "bm25", "k1": 0.5}}},
        "evaluate": {"measures": ["nDCG@10"], "latency_queries": 4},
    }
    (world / "own.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    outcome = sluice("evaluate", world / "own.yaml", timeout=120)
    assert outcome.code == 0, outcome.err


def _changed(case: Case) -> Path:
    """Return a copy of the evaluation, with one to three values of its results replaced."""
    output = case.folder / "out"
    shutil.copytree(case.world / "out", output)
    path = output / "results.json"
    value = json.loads(path.read_text(encoding="utf-8"))
    for _ in range(case.chance.randint(1, 3)):
        places = list(_places(value))
        holder, key = case.chance.choice(places)
        if case.chance.random() < 0.2:
            del holder[key]
        else:
            holder[key] = case.chance.choice(WRONG)
    path.write_text(json.dumps(value), encoding="utf-8")
    return output


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _run(case: Case, *words: object) -> None:
    outcome = sluice(*words, timeout=60, cwd=case.folder)
    if fault := outcome.fault((0, 1, 2)):
        case.wrong(fault, words=words, err=outcome.err[-1500:])


def report(case: Case) -> None:
    """Write the report."""
    _run(case, "report", _changed(case))


def compared(case: Case) -> None:
    """Compare with the undamaged evaluation."""
    _run(case, "report", _changed(case), case.world / "out", "--output", case.folder / "c.html")


def reproduced(case: Case) -> None:
    """Repeat the evaluation."""
    _run(case, "reproduce", _changed(case), "--output", case.folder / "again")


def judged(case: Case) -> None:
    """Look for the models of a run among those of a judge."""
    output, data = _changed(case), case.world / "data"
    qrels = data / "qrels" / "test.tsv"
    _run(case, "labels", "judge", output / "runs" / "bm25.trec.gz", "--dataset", data, "--judge",
         qrels, "--output", case.folder / "labels.tsv")  # fmt: skip


def evaluated(case: Case) -> None:
    """Evaluate another dataset into the folder."""
    output = _changed(case)
    (output / "experiment.yaml").unlink()
    _run(case, "evaluate", case.world / "own.yaml", f"output={output}", "dataset=other")


KINDS = {
    "report": (report, 4), "compared": (compared, 2), "reproduced": (reproduced, 2),
    "judged": (judged, 1), "evaluated": (evaluated, 1),
}  # fmt: skip
FUZZER = Fuzzer("results", KINDS, prepare, long=5_000)
