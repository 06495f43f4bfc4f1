"""What an evaluation says to try next runs as it is printed."""

import contextlib
import io
import json
import shlex
from pathlib import Path

import pytest
import yaml
from command_line import Call
from small_world import write_beir

from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.experiments.evaluation import best_system


def test_every_command_runs_as_printed(sluice: Call, tmp_path: Path) -> None:
    folder = tmp_path / "it's mine"
    data = write_beir(folder / "data")
    queries = (data / "queries.jsonl").read_text(encoding="utf-8")
    quoted = queries.replace("gold", json.dumps('a "b" c\'s gold')[1:-1])
    (data / "queries.jsonl").write_text(quoted, encoding="utf-8")
    config = {
        "dataset": str(data),
        "output": str(folder / "out"),
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "rerankers": {"asked": {"type": "http", "url": "http://127.0.0.1:9/v1", "model": "m"}},
        "pipelines": {"bm25": "bm25", "top": "bm25 % 2"},
        "evaluate": {"latency_queries": 2, "report": False},
    }
    file = tmp_path / "x.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    code, out, _ = sluice("evaluate", file)
    assert code == 0
    steps = [shlex.split(line) for line in out.partition("Try next:\n")[2].splitlines()]
    assert [words[:2] for words in steps] == [
        ["sluice", "search"], ["sluice", "explain"], ["python", "-c"], ["sluice", "compare"],
        ["sluice", "evaluate"],
    ]  # fmt: skip
    for program, *words in steps:
        if program == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(words[1], {})
            assert "Hit" in printed.getvalue()
            continue
        code, out, err = sluice(*words)
        assert code == 0, (words, err)
        assert out.strip()


@pytest.mark.parametrize(("worse", "best"), [(0.1, "b"), (0.9, "a"), (0.5, "a"), (None, "b")])
def test_the_best_system_is_that_of_the_first_measure(worse: float | None, best: str) -> None:
    table = Table(columns={"AP": ".4f"}, rows={"a": {"AP": worse}, "b": {"AP": 0.5}})
    assert best_system(table) == best
