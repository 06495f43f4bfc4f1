"""Mistakes on the command line, and word for word what is said of each: ``mistakes.txt``.

A block is a command behind ``$`` and all that it writes to stderr. Nothing else happens: no work,
no log line before the error, no output, no traceback, exit code 2.
"""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from command_line import Call
from places import ROOT
from small_world import write_beir

import sluice
from sluice.encoders.foundation.errors import SluiceError
from sluice.retrieval.config.reading import load_values
from sluice.retrieval.jobs import index
from sluice.retrieval.planning.problems import problems

TRANSCRIPT = (ROOT / "tests" / "mistakes.txt").read_text(encoding="utf-8")
MISTAKES = dict(
    re.fullmatch(r"\$ sluice (.*)\n(error: (?s:.*))", block.rstrip()).groups()  # type: ignore[union-attr]
    for block in re.split(r"\n\n(?=\$ )", TRANSCRIPT)
)
WIDEST = 110  # characters of a first line

EXPERIMENT = {
    "dataset": "data",
    "output": "out",
    "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
    "rerankers": {"cross": {"type": "cross_encoder", "model": "cross"}},
    "pipelines": {"bm25": "bm25", "top5": "bm25 % 5"},
    "evaluate": {"latency_queries": 0, "report": False},
}
FILES = {
    "tab.yaml": "dataset: data\nretrievers:\n\tbm25: x\n",
    "dup.yaml": "seed: 1\nseed: 2\n",
    "list.yaml": "- a\n",
    "empty.yaml": "",
    "train.yaml": "output: t\nencoder: {type: dense, model: m}\nloss: info_nce\n",
    "pairs.yaml": "output: t\nencoder: {type: dense, model: some/model}\nloss: info_nce\n"
    "examples: pairs.csv\ntrainer: {max_steps: 2}\n",
    "pairs.csv": "query,positive\nhow to wash gold,a sluice washes gold\nwhat is gravel,stones\n",
    "plain.txt": "x",
    "short.trec": "q20 Q0 d1 1\n",
    "empty.trec": "",
    "other.trec": "x1 Q0 d1 1 2.0 t\n",
    "run.trec": "q20 Q0 d1 1 2.0 t\n",
    "grade.tsv": "q1 0 d1 high\n",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a dataset, an experiment that is indexed, and files with faults."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_beir(folder / "data")
    for name, text in {**FILES, "x.yaml": yaml.safe_dump(EXPERIMENT, sort_keys=False)}.items():
        (folder / name).write_text(text, encoding="utf-8")
    index({**EXPERIMENT, "dataset": str(folder / "data"), "output": str(folder / "out")})
    return folder


@pytest.fixture(autouse=True)
def _there(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world)
    monkeypatch.delenv("SLUICE_DATA", raising=False)


def test_there_are_enough() -> None:
    assert len(MISTAKES) >= 110
    assert len({words.split()[0] for words in MISTAKES}) >= 12  # verbs


@pytest.mark.parametrize("words", MISTAKES)
def test_the_message(words: str, shell: Call, world: Path) -> None:
    before = sorted(world.rglob("*"))
    code, out, err = shell(*shlex.split(words))
    assert err == f"{MISTAKES[words]}\n"
    assert (code, out) == (2, "")
    first, *others = err.splitlines()
    assert first.startswith("error: ")
    assert len(first) <= WIDEST
    assert all(line.startswith("  ") for line in others)
    assert sorted(world.rglob("*")) == before


@pytest.mark.parametrize("words", [w for w in MISTAKES if "pairs.yaml" in w and "$" not in w])
def test_a_check_finds_that_one_problem(words: str) -> None:
    """What follows from it is none of its own; that the model is not here is another."""
    _, file, *overrides = shlex.split(words)
    found = problems(load_values(file, overrides), Path(file))
    said = MISTAKES[words].removeprefix("error: ").removeprefix(f"{file}: ").splitlines()
    others = [each for each in found if ": model not found" not in each]
    assert others == ["; ".join(line.strip() for line in said)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sluice.load_pipeline("nowhere", "bm25"), "nowhere: neither experiment.yaml nor "),
        (lambda: sluice.load_pipeline("out", "bm52"), "no pipeline 'bm52'; known: bm25, top5; did"),
        (lambda: sluice.Retriever.open("nowhere"), "nowhere: no such folder; sluice index makes"),
        (lambda: sluice.Retriever.open("out"), "out: an experiment's output; choose one of its "),
        (lambda: sluice.load_dataset("data", "tset"), "dataset data: no split 'tset'; available"),
        (lambda: sluice.Run.load("short.trec"), "short.trec:1: 4 columns; expected 6 columns"),
        (lambda: sluice.run("x.ymal"), "x.ymal: no such file"),
        (lambda: sluice.run({"dataset": "data"}), "nothing to evaluate; add retrievers"),
        (lambda: sluice.train(EXPERIMENT), "an experiment, not one training run (it has"),
        (lambda: sluice.evaluate({}, {"q": {"d": 1}}, ["nDGC@10"]), "unknown measure 'nDGC@10'"),
        (lambda: sluice.DenseEncoder.from_pretrained("./nope"), "./nope: no such model folder; "),
    ],
)  # fmt: skip
def test_the_same_from_python(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(SluiceError) as raised:
        call()
    assert str(raised.value).startswith(message)
