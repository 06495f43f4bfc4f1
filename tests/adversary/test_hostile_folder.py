"""Every verb and every opener over a hostile folder: no code runs, nothing outside changes.

A verb without a case, and an opener without one, fail the test.
"""

import ast
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from fuzzing import Outcome, forked
from hostile import EVERYTHING, POISONS, SECRET, World, contents, links_out, watched

from sluice.encoders.foundation.errors import SluiceError
from sluice.retrieval.config.sections import ExperimentConfig

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
PACKAGES = ("encoders", "indexing", "training", "retrieval")
NAMES = ("open", "load", "from_pretrained")
# Functions called open_... or load_... that take an open file, parts of a manifest or a config that
# was read, not a folder of somebody's.
NOT_OPENERS = {
    "open_backend", "open_generation", "open_array", "open_inner", "open_segment", "open_segments",
    "open_bytes", "open_columns", "open_section", "open_placed_encoder", "open_lists", "open_judge",
    "open_pipeline", "load_yaml", "load_state", "load_examples", "open_database", "Engine.open",
    "FittedFile.load", "ShardWorkers.open",
    "ModelSpec.open", "open_sent", "open_judging", "open_sharded_index", "open_sharded_store",
}  # fmt: skip
Commands = dict[str, list[list[object]]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("trust"))
    os.environ[SECRET] = "0123456789"
    return made


def _commands(world: World, folder: Path, output: Path) -> Commands:
    """Return what is done with each verb, over the folder, its parts and models.

    ``output`` is such a folder in which a YAML file of the reader's own builds.
    """
    made = world.folder / "made"
    made.mkdir(exist_ok=True)
    document = made / "new.jsonl"
    document.write_text('{"_id": "new", "text": "gold in the river", "title": ""}\n')
    foreign = made / "foreign.txt"
    foreign.write_text("how is a tax return filed\nwho won the cup final\n")
    own = made / "own.yaml"
    model = folder / "model"
    config = {**world.config, "output": str(output)}
    own.write_text(yaml.safe_dump(config))
    inside = made / "inside.yaml"  # my own, of a hostile model
    config = {
        **world.config, "output": str(made / "out"),
        "retrievers": {"dense": {"encoder": {"type": "dense", "model": str(model)}}},
        "pipelines": {"dense": "dense"}, "rerankers": {},
    }  # fmt: skip
    inside.write_text(yaml.safe_dump(config))
    train = made / "train.yaml"
    training = {
        "dataset": str(world.data), "output": str(made / "trained"), "loss": "info_nce",
        "encoder": {"type": "dense", "model": str(model)}, "trainer": {"max_steps": 1},
    }  # fmt: skip
    train.write_text(yaml.safe_dump(training))
    bm25, dense = (folder / "retrievers" / name for name in ("bm25", "dense"))
    run, data = folder / "runs" / "both.trec.gz", world.data
    qrels = data / "qrels" / "test.tsv"
    few = ["--queries", 2, "--targets", 1, "--perturbation", "query:typo-swap"]
    return {
        "run": [[own], [inside]],
        "train": [[train]],
        "index": [[inside], [folder, "--bm25", "--output", made / "indexed"]],
        "evaluate": [[own, "evaluate.report=false"]],
        "tune": [[inside]],
        "reproduce": [[folder, "--output", made / "again"], [folder]],
        "report": [[folder], [folder, world.honest], [folder, "--csv", made / "curves.csv"]],
        "config init": [["--list"]],
        "config check": [[own], [inside]],
        "config list": [["losses"]],
        "config schema": [[]],
        "search": [
            [folder, "gold"], [folder, "gold", "--pipeline", "bm25"], [bm25, "gold"],
            [dense, "gold"], [folder / "pipeline", "gold"],
        ],
        "explain": [[folder, "gold"], [bm25, "gold", "d00"], [folder, "gold", "-k", 1]],
        "add": [[folder, document], [bm25, document]],
        "update": [[folder, document], [dense, document]],
        "delete": [[folder, "d01"], [bm25, "d02", "--compact"]],
        "verify": [[folder], [bm25]],
        "serve": [[folder, "--mcp", "stdio"], [bm25, "--mcp", "stdio"]],
        "key": [[made / "keys.json", "reader", "--scope", "search"]],
        "score": [[run, qrels]],
        "compare": [[run, folder / "runs" / "bm25.trec.gz", "--qrels", qrels]],
        "gate": [
            [folder, world.honest, "--system", "both", "--budget", "nDCG@10=.2"],
            ["record", folder, "--system", "bm25", "--output", made / "baseline.json"],
            [made / "baseline.json", own, "evaluate.report=false", "--budget", "nDCG@10=.2"],
        ],
        "diagnose hubness": [[dense, "--dataset", data]],
        "diagnose compatibility": [[dense, bm25, "--dataset", data]],
        "diagnose robust": [[folder, *few]],
        "diagnose calibration": [[run, qrels]],
        "labels judge": [
            [run, "--dataset", data, "--judge", model, "--output", made / "labels.tsv", "--fit", 2]
        ],
        "labels agreement": [[qrels, qrels, "--run", run]],
        "labels grades": [[run, qrels]],
        "labels assessors": [[folder / "results.json"]],
        "labels export": [[folder / "results.json", "--output", made / "judged.tsv"]],
        "mine": [[bm25, data, "--output", made / "mined.jsonl", "--judge", model]],
        "teach distil": [
            [data, "--teacher", model, "--candidates", bm25, "--output", made / "scores.parquet"]
        ],
        "teach clicks": [[qrels, "--output", made / "looked.json"]],
        "teach rewrite": [[model, data, "--output", made / "other.jsonl", "--documents", 1]],
        "teach describe": [[model, data, "--output", made / "described.jsonl", "--documents", 1]],
        "teach rank": [[model, data, "--candidates", bm25, "--output", made / "ranked.jsonl"]],
        "teach generate": [[model, data, "--output", made / "queries.jsonl", "--documents", 1]],
        "teach prompt": [[model, data, "--output", made / "prompt", "--pairs", 2]],
        "reshard": [[bm25, 2]],
        "plot training": [[folder, "--output", made / "training.svg"]],
        "plot tradeoff": [[folder, "--output", made / "tradeoff.svg"]],
        "plot cascades": [[folder, "--output", made / "cascades.svg"]],
        "plot differences": [[folder, "--output", made / "differences.svg"]],
        "plot depths": [[folder, "--output", made / "depths.svg"]],
        "fit fusion": [[own, "bm25", "dense", "--output", made / "fusion.json"]],
        "fit rerank": [[own, "both", "--output", made / "rerank.json"]],
        "fit cut-off": [[own, "bm25", "--output", made / "cut.json"]],
        "fit adapter": [[dense, data, "--steps", 1, "--output", made / "adapter"]],
        "fit exit": [[own, "both", "--output", made / "exit.json"]],
        "fit no-answer": [
            [own, "both", "--unanswerable", foreign, "--output", made / "no-answer.json"]
        ],
        "fit ranker": [[own, "ranker.candidates=bm25"]],
        "fit quality": [
            [data, "--retriever", dense, "--output", made / "quality.parquet"],
            [data, "--by", "norm", "--model", model, "--output", made / "norms.parquet"],
        ],
        "model soup": [[model, world.bert, "--output", made / "soup"]],
        "model export": [[model, made / "graph"]],
        "model upgrade": [[dense, model, "--dataset", data, "--output", made / "upgraded"]],
        "model get": [[model]],
        "model import": [[model], [model, "--trust-pickle"]],
        "data describe": [[data], [folder]],
        "data dedupe": [[data, "--output", made / "kept.jsonl"], [folder]],
        "data contamination": [[run, data], [data, data]],
        "cache": [[]],
        "import": [
            [folder / "retrievers" / "dense" / "vectors.npy", made / "in", "--format", "npy"],
            [*list(folder.glob("retrievers/dense/index/g*/*.npy"))[:1], made / "in",
             "--format", "npy"],
        ],
        "export": [
            [dense, made / "out.npy", "--format", "npy"],
            [bm25, made / "out.ciff", "--format", "ciff"],
        ],
    }  # fmt: skip


def _jobs(commands: Commands) -> Iterator[tuple[str, Callable[[], int | None]]]:
    for verb, calls in commands.items():
        for words in calls:
            yield f"{verb} {' '.join(map(str, words))}", partial(_call, verb, words)


def _call(verb: str, words: list[object]) -> int | None:
    from sluice.retrieval.cli import main

    sys.argv = ["sluice", *verb.split(), *map(str, words)]
    return main()


def _check(outcome: Outcome, world: World, before: dict[str, bytes]) -> None:
    faults = [line for line in outcome.err.splitlines() if line.startswith("HOSTILE")]
    assert not faults, "\n".join(faults)
    assert not world.marker.exists()
    assert contents(world.outside) == before
    assert not outcome.hung
    assert outcome.code == 0, outcome.err[-3000:]


def _verbs() -> set[str]:
    from sluice.retrieval.cli.app import app

    names = set[str]()
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        names |= {f"{name} {each}" for each in getattr(command, "commands", {})} or {name}
    return names


def test_every_verb_has_a_case(world: World) -> None:
    assert set(_commands(world, world.honest, world.honest)) == _verbs()


def test_verbs_over_everything_at_once(world: World) -> None:
    folder = world.poisoned("everything", *EVERYTHING, links_out)
    output = world.poisoned("output", *EVERYTHING)  # links of one's own output are followed
    commands = _commands(world, folder, output)
    _walk(world, folder, commands)


def _walk(world: World, folder: Path, commands: Commands) -> None:
    before = contents(world.outside)
    outcome = forked(lambda: watched(world, _jobs(commands)), timeout=120, cwd=folder)
    _check(outcome, world, before)
    assert outcome.err.count("DONE ") == sum(map(len, commands.values()))


@pytest.mark.parametrize("poison", POISONS, ids=lambda poison: poison.__name__)
def test_verbs_over_one_poison(world: World, poison: Callable[[World, Path], None]) -> None:
    folder = world.poisoned("one", poison)
    commands = _commands(world, folder, folder)
    _walk(world, folder, {verb: commands[verb] for verb in POISONS[poison]})


def _openers() -> dict[str, str]:
    """Return what opens a path, by name: class methods and functions, as module:name."""
    found = {}
    for file in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        module = ".".join(["sluice", *file.relative_to(ROOT).with_suffix("").parts])
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith(("open_", "load_")):
                found[node.name] = f"{module}:{node.name}"
            for each in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(each, ast.FunctionDef) and each.name in NAMES and _is_public(node):
                    found[f"{node.name}.{each.name}"] = f"{module}:{node.name}.{each.name}"
    return found


def _is_public(node: ast.ClassDef) -> bool:
    return not node.name.startswith("_")


def _open(target: str, path: Path) -> None:
    module, _, name = target.partition(":")
    opener: Any = importlib.import_module(module)
    for part in name.split("."):
        opener = getattr(opener, part)
    opener(path, ExperimentConfig) if name == "load_config" else opener(path)


def test_openers_over_everything_at_once(world: World) -> None:
    openers = {name: target for name, target in _openers().items() if name not in NOT_OPENERS}
    folder = world.poisoned("opened", *EVERYTHING)
    parts = [
        folder, folder / "model", folder / "pipeline", folder / "ranker", folder / "scores.pkl",
        folder / "retrievers" / "dense", folder / "retrievers" / "dense" / "encoder",
        folder / "retrievers" / "bm25" / "index", folder / "retrievers" / "bm25" / "documents",
        folder / "retrievers" / "bm25" / "encoder", *list(folder.rglob("*.npy"))[:1],
        folder / "model" / "pytorch_model.bin", folder / "results.json", folder / "experiment.yaml",
    ]  # fmt: skip

    def attempt(target: str, path: Path) -> int:
        try:
            _open(target, path)
        except (SluiceError, OSError):
            return 2
        except Exception as error:
            sys.stderr.write(f"WRONG {target} {path.name}: {type(error).__name__}: {error}\n")
        return 0

    jobs = [
        (f"{name} {path.name}", partial(attempt, target, path))
        for name, target in openers.items()
        for path in parts
    ]
    before = contents(world.outside)
    outcome = forked(lambda: watched(world, iter(jobs)), timeout=120, cwd=folder)
    _check(outcome, world, before)
    assert outcome.err.count("DONE ") == len(jobs)
    wrong = [line for line in outcome.err.splitlines() if line.startswith("WRONG")]
    assert not wrong, "\n".join(wrong)
