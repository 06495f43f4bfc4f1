"""The verbs that write, each with what it starts from and what is looked at before and after.

Kills, faults and the model of power loss share them: whatever happens on the way, each part that is
looked at is as before or as after, and the same command run again ends as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import importlib
import json
import os
import pkgutil
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fuzzing import QUIET, Outcome, forked
from small_world import documents, write_beir

State = Mapping[str, Any]  # of each part of the output, None where there is none

ENCODERS = {"bm25": "", "sharded": "", "dense": "bert", "faiss": "bert", "splade": "masked"}
INDEXES = {
    "bm25": {"type": "inverted"}, "dense": {"type": "flat"}, "splade": {"type": "inverted"},
    "sharded": {"type": "inverted"},
    "faiss": {"type": "faiss", "factory": "HNSW8"},
}  # fmt: skip
MODELS = {"bert": "Model", "masked": "ForMaskedLM", "pairs": "ForSequenceClassification"}
QUERIES = {
    f"q{number}": text
    for number, text in enumerate(
        ("gold word3 river", "stone of number 12", "vector index", "turned gold", "new4 things")
    )
}
REPEATED = ("add", "delete", "compact")  # refused (2) where they are done already
CLASSES = {"splade": "splade", "bm25": "bm25", "sharded": "bm25"}
SHARDS = {"sharded": {"shards": 3}}


class Task(NamedTuple):
    """A verb's words, run in a folder of its own; ``start`` are retrievers that are there."""

    words: Sequence[object]
    look: Callable[[Path], State]
    start: Sequence[str] = ()
    program: Sequence[str] = ()  # run as another program, not in a fork


class Undisturbed(NamedTuple):
    """What a task leaves when nothing happens."""

    before: State
    after: State
    seconds: float
    events: int  # changes of files
    names: frozenset[str]


def prepare(world: Path) -> None:
    """Write the data; models and retrievers are made when a task needs them."""
    warm()
    if (world / "ids.txt").exists():
        return
    write_beir(world / "data")
    added = [{"_id": f"n{n}", "title": "t", "text": f"gold new{n} things"} for n in range(12)]
    changed = [
        {"_id": d.id, "title": d.title, "text": f"{d.text} turned"} for d in documents()[::2]
    ]
    for name, rows in (("new", added), ("changed", changed)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (world / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (world / "ids.txt").write_text("".join(f"d{n:02d}\n" for n in range(0, 40, 3)), "utf-8")


def made(path: Path, *words: object) -> Path:
    """Make what a task starts from, once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        outcome = ran(words, path.parent)
        if outcome.code:
            raise RuntimeError(f"{words}: {outcome}")
    return path


def model(world: Path, name: str) -> str:
    """Return a tiny model, made once."""
    warm_models()
    if not (world / name / "config.json").exists():
        from tiny_models import save_model

        save_model(world / name, MODELS[name], **({"num_labels": 1} if name == "pairs" else {}))
    return str(world / name)


@functools.cache
def warm() -> None:
    """Import and compile in this process what the forked ones need."""
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import sluice.retrieval.cli
    import sluice.retrieval.experiments  # noqa: F401
    from sluice.encoders import BM25Encoder
    from sluice.retrieval import Retriever

    retriever = Retriever.build(BM25Encoder(), documents()[:20])
    retriever.run(QUERIES)
    retriever.add(documents()[20:])
    retriever.delete(["d01"])
    retriever.compact()


@functools.cache
def warm_models() -> None:
    """Import in this process what the forked ones need of torch and its company."""
    import torch
    import transformers

    import sluice

    torch.set_num_threads(1)
    assert transformers.Trainer
    for module in pkgutil.walk_packages(sluice.__path__, "sluice."):
        if not module.name.endswith(("__main__", "worker")):
            with contextlib.suppress(Exception):  # what is not installed
                importlib.import_module(module.name)


def config(world: Path, name: str, **values: object) -> Path:
    """Write a YAML file over the data."""
    import yaml

    facts = {"dataset": str(world / "data"), "output": "out", **values}
    path = world / f"{name}.yaml"
    path.write_text(yaml.safe_dump(facts, sort_keys=False), encoding="utf-8")
    return path


def section(world: Path, name: str, **encoder: object) -> dict[str, Any]:
    """Return a retriever's section."""
    of = {"model": model(world, ENCODERS[name])} if ENCODERS[name] else {}
    kind = CLASSES.get(name, "dense")
    return {
        "encoder": {"type": kind, **of, **encoder}, "index": INDEXES[name], **SHARDS.get(name, {}),
    }  # fmt: skip


def retriever(world: Path, name: str) -> Path:
    """Return a retriever over the data, made once."""
    source = config(world, name, retrievers={name: section(world, name)})
    folder = world / "out" / "retrievers" / name
    return made(folder, "index", source, f"output={world}/out")


def ran(
    words: Sequence[object],
    box: Path,
    before: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
    *,
    program: Sequence[str] = (),
    timeout: float = 120.0,
) -> Outcome:
    """Run the command line in a fork, its cache and temporary files in the box."""

    def job() -> int | None:
        os.environ.update(QUIET, SLUICE_CACHE=str(box / "cache"), TMPDIR=str(box / "tmp"))
        (box / "tmp").mkdir(exist_ok=True)
        tempfile.tempdir = None
        if program:
            root = str(Path(__file__).resolve().parents[2])
            os.environ["PYTHONPATH"] = root
            before()
            os.execv(sys.executable, [sys.executable, *program, *map(str, words)])
        from sluice.retrieval.cli import main

        sys.argv = ["sluice", *map(str, words)]
        before()
        try:
            return main()
        finally:
            after()

    return forked(job, timeout=timeout, cwd=box)


def filled(box: Path, task: Task, world: Path) -> None:
    """Put into the folder what the task starts from."""
    shutil.rmtree(box, ignore_errors=True)
    box.mkdir(parents=True)
    for name in task.start:
        copied(name, world, box)


def copied(name: str, world: Path, box: Path) -> None:
    """Put a retriever into the folder."""
    shutil.copytree(retriever(world, name), box / "out" / "retrievers" / name)


def answers(folder: Path) -> object:
    """Return what a retriever answers and holds; its error; or None where there is none."""
    if not (folder / "retriever.json").exists():
        return None

    def job() -> None:
        from sluice.encoders.foundation.errors import ModelError, SluiceError
        from sluice.retrieval import Retriever
        from sluice.retrieval.retrievers.folder import verify_retriever

        try:
            opened = Retriever.open(folder)
            try:
                hits = {
                    query: [(document, round(score, 4)) for document, score in ranking]
                    for query, ranking in opened.run(QUERIES, None, 30).items()
                }
            except ModelError:  # vectors without an encoder
                hits = {}
            texts = sorted((document.id, document.text) for document in opened.store)
            try:
                verify_retriever(folder)
            except SluiceError as error:  # of a shard that a kill left ahead of the whole
                if "the next sluice add, update or delete there undoes it" not in str(error):
                    raise
            print("ANSWER", json.dumps([hits, texts, len(opened)]))
        except SluiceError as error:
            print("ERROR", error)

    outcome = forked(job, timeout=60)
    answer = re.search("ANSWER (.*)", outcome.out)
    return json.loads(answer[1]) if answer else f"error: {outcome.out[:300]} {outcome.err[-300:]}"


def content(path: Path) -> object:
    """Return what tells a file's or a folder's content, None where there is none."""
    if not path.exists():
        return None
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return {str(file.relative_to(path)): content(file) for file in files}
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return str(parquet.read_table(path).to_pydict())
    data = path.read_bytes()
    return hashlib.sha256(gzip.decompress(data) if path.suffix == ".gz" else data).hexdigest()


def measures(path: Path) -> object:
    """Return each system's figures of results.json, None where there is none."""
    if not path.exists():
        return None
    systems = json.loads(path.read_text(encoding="utf-8"))["systems"]
    return {each["name"]: each["measures"] for each in systems}


def looks_at(*names: str, by: Callable[[Path], object] = content) -> Callable[[Path], State]:
    """Return a look at parts of the output, each by itself."""
    return lambda box: {name: by(box / name) for name in names}


def _changes(name: str, verb: str) -> Callable[[Path], Task]:
    folder = f"out/retrievers/{name}"

    def task(world: Path) -> Task:
        words = {
            "add": ["add", folder, world / "new.jsonl"],
            "update": ["update", folder, world / "changed.jsonl"],
            "delete": ["delete", folder, "--file", world / "ids.txt"],
            "compact": ["delete", folder, "--file", world / "ids.txt", "--compact"],
        }[verb]
        return Task(words, looks_at(folder, by=answers), [name])

    return task


def _built(name: str, start: bool = False, **changes: object) -> Callable[[Path], Task]:
    encoding = {"encoding": {"workers": 2}} if changes.pop("workers", None) else {}

    def task(world: Path) -> Task:
        one = {**section(world, name, **changes), **encoding}
        file = "-".join([name, *changes, *encoding])
        source = config(world, file, retrievers={name: one})
        look = looks_at(f"out/retrievers/{name}", by=answers)
        return Task(["index", source], look, [name] if start else [])

    return task


def _whole(verb: str) -> Callable[[Path], Task]:
    """Change all retrievers of an output, with its journal."""

    def task(world: Path) -> Task:
        words = {"add": [world / "new.jsonl"], "delete": ["--file", world / "ids.txt"]}[verb]
        folders = [f"out/retrievers/{name}" for name in ("bm25", "dense")]
        return Task([verb, "out", *words], looks_at(*folders, by=answers), ["bm25", "dense"])

    return task


def _trained(
    kind: str, base: str, loss: str, program: Sequence[str] = ()
) -> Callable[[Path], Task]:
    def task(world: Path) -> Task:
        values = {
            "encoder": {"type": kind, "model": model(world, base)},
            "loss": {"type": loss},
            "negatives": {
                "type": "mined", "retriever": {"encoder": {"type": "bm25"}}, "per_query": 2,
            },
            "trainer": {
                "max_steps": 12, "per_device_train_batch_size": 4, "save_steps": 4,
                "learning_rate": 1.0e-3,
            },
        }  # fmt: skip
        if kind == "splade":
            values["sparsity"] = {
                side: {"type": "flops", "weight": 1e-4} for side in ("query", "document")
            }
        source = config(world, f"train-{kind}", **values)
        return Task(["train", source], looks_at("out/model", by=_weights), program=program)

    return task


def _weights(folder: Path) -> object:
    files = sorted(folder.rglob("*.safetensors"))
    return {file.name: content(file) for file in files} or None


def _experiment(world: Path) -> dict[str, Any]:
    return {
        "retrievers": {name: section(world, name) for name in ("bm25", "dense")},
        "rerankers": {"cross": {"type": "cross_encoder", "model": model(world, "pairs")}},
    }


EVALUATE = {"measures": ["nDCG@10", "R@100"], "latency_queries": 1, "report": True}


def _evaluated(world: Path) -> Task:
    pipelines = {
        "bm25": "bm25", "hybrid": "bm25 | dense",
        "cascade": "bm25 % 10 >> cached(cross, file='scores.sqlite', depth=8)",
    }  # fmt: skip
    values = {**_experiment(world), "pipelines": pipelines, "evaluate": EVALUATE}
    words = ["evaluate", config(world, "evaluate", **values)]
    return Task(words, looks_at("out/results.json", by=measures))


def _suite(world: Path) -> Task:
    if not (world / "data2").exists():
        write_beir(world / "data2", 30)
    values = {"retrievers": {"bm25": section(world, "bm25")}, "evaluate": EVALUATE}
    data = [str(world / "data"), str(world / "data2")]
    source = config(world, "suite", **{**values, "dataset": data})
    names = [f"out/datasets/{name}/results.json" for name in ("data", "data2")]
    return Task(["evaluate", source], looks_at(*names, by=measures))


def _run(world: Path) -> Task:
    words, _, _, _ = _trained("dense", "bert", "info_nce")(world)
    import yaml

    training = yaml.safe_load(Path(str(words[1])).read_text(encoding="utf-8"))
    training = {k: v for k, v in training.items() if k not in ("dataset", "output")}
    training["trainer"]["max_steps"] = 4
    values = {
        "train": {"ft": training},
        "retrievers": {
            "ft": {"encoder": {"type": "dense", "model": "ft"}}, "bm25": section(world, "bm25"),
        },
        "evaluate": EVALUATE,
    }  # fmt: skip
    look = looks_at("out/results.json", by=measures)
    return Task(["run", config(world, "run", **values)], look)


def _tuned(world: Path) -> Task:
    tune = {
        "measure": "nDCG@10", "split": "dev", "queries": 8, "timed_queries": 3,
        "budget": {"p95_ms": 500},
        "pipelines": ["weighted(bm25, dense, weights=[{w}, 1]) % 10 >> cross(depth={depth})"],
        "choices": {"w": [0.3, 0.6], "depth": [2, 5]},
    }  # fmt: skip
    source = config(world, "tune", **_experiment(world), tune=tune)
    exists = looks_at("out/tune/tuned.yaml", by=lambda path: path.exists() or None)
    return Task(["tune", source], exists)  # what is chosen depends on measured times


def _ranker(world: Path) -> Task:
    retrievers = {name: section(world, name) for name in ("bm25", "dense")}
    ranker = {
        "stages": ["bm25", "dense"], "candidates": "hybrid", "depth": 20,
        "model": {"type": "linear"}, "output": "out/ranker",
    }  # fmt: skip
    pipelines = {"hybrid": "(bm25 | dense) % 20"}
    source = config(world, "ltr", retrievers=retrievers, pipelines=pipelines, ranker=ranker)
    look = looks_at("out/ranker", by=lambda path: (path / "ranker.json").exists() or None)
    return Task(["fit", "ranker", source], look)


def _fusion(world: Path) -> Task:
    retrievers = {name: section(world, name) for name in ("bm25", "dense")}
    source = config(world, "fusion", retrievers=retrievers)
    words = ["fit", "fusion", source, "bm25", "dense", "--output", "fusion.json"]
    return Task(words, looks_at("fusion.json"), ["bm25", "dense"])


def _run_file(world: Path, name: str = "bm25") -> Path:
    queries = world / "data" / "queries.jsonl"
    words = ["search", retriever(world, name), "--queries", queries, "-k", 20]
    return made(world / f"{name}.trec", *words, "--output", world / f"{name}.trec")


def _searched(world: Path) -> Task:
    words = ["search", "out/retrievers/bm25", "--queries", world / "data" / "queries.jsonl"]
    words += ["--output", "o.trec.gz", "-k", 20]
    return Task(words, looks_at("o.trec.gz"), ["bm25"])


def _compared(world: Path) -> Task:
    words = ["compare", _run_file(world), _run_file(world, "dense")]
    words += ["--qrels", world / "data" / "qrels" / "test.tsv", "--per-query", "queries.csv"]
    return Task(words, looks_at("queries.csv"))


def _distilled(world: Path) -> Task:
    words = ["teach", "distil", world / "data", "--teacher", model(world, "pairs")]
    words += ["--candidates", _run_file(world), "--output", "s.parquet", "--depth", 5]
    return Task([*words, "--shard", 10], looks_at("s.parquet"))


def _generated(world: Path) -> Task:
    words = ["teach", "generate", "key-sentences", world / "data", "--output", "queries.jsonl"]
    words += ["--consistency", 20, "--expanded", "corpus.jsonl"]
    return Task(words, looks_at("queries.jsonl", "corpus.jsonl"))


def _mined(world: Path) -> Task:
    words = ["mine", "out/retrievers/bm25", world / "data", "--output", "neg.jsonl"]
    return Task([*words, "--per-query", 2], looks_at("neg.jsonl"), ["bm25"])


def _own_documents(world: Path) -> Task:
    folder = world / "notes"
    if not folder.exists():
        folder.mkdir()
        for document in documents():
            (folder / f"{document.id}.txt").write_text(f"{document.text}\n", encoding="utf-8")
    words = ["index", folder, "--output", "out", "--only", "bm25"]
    return Task(words, looks_at("out/retrievers/bm25", by=answers))


def _exported(form: str, output: str, name: str = "bm25", *more: str) -> Callable[[Path], Task]:
    folder = f"out/retrievers/{name}"
    words = ["export", folder, output, "--format", form, *more]
    return lambda _: Task(words, looks_at(output), [name])


def _imported(form: str, name: str) -> Callable[[Path], Task]:
    def task(world: Path) -> Task:
        source = world / f"x.{form}"
        made(source, "export", retriever(world, name), source, "--format", form)
        look = looks_at("imported", by=answers)
        return Task(["import", source, "imported", "--format", form], look)

    return task


TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m", "sluice")
TASKS: dict[str, Callable[[Path], Task]] = {
    **{f"index {name}": _built(name) for name in ENCODERS},
    **{f"{verb} {name}": _changes(name, verb)
       for name in ENCODERS for verb in ("add", "update", "delete", "compact")
       if (name, verb) != ("faiss", "compact")},  # between its two steps a graph answers otherwise
    "index workers": _built("dense", workers=2),
    "index documents": _own_documents,
    "rebuild bm25": _built("bm25", start=True, k1=2.0, b=0.1),
    "rebuild dense": _built("dense", start=True, document_length=8),
    "add whole": _whole("add"),
    "delete whole": _whole("delete"),
    "train dense": _trained("dense", "bert", "info_nce"),
    "train splade": _trained("splade", "masked", "info_nce"),
    "train cross": _trained("cross_encoder", "pairs", "bce"),
    "train torchrun": _trained("dense", "bert", "info_nce", TORCHRUN),
    "evaluate": _evaluated,
    "evaluate suite": _suite,
    "run": _run,
    "tune": _tuned,
    "fit ranker": _ranker,
    "fit fusion": _fusion,
    "search": _searched,
    "distil": _distilled,
    "generate": _generated,
    "mine": _mined,
    "compare": _compared,
    **{f"export {form}": _exported(form, f"o.{form}") for form in ("ciff", "vectors")},
    "export impact-json": _exported("impact-json", "o.impact.gz"),
    "export ciff.gz": _exported("ciff", "o.ciff.gz"),
    "export texts": _exported("parquet", "o.parquet", "dense", "--texts"),
    **{f"export {form}": _exported(form, f"o.{form}", "dense")
       for form in ("npy", "parquet", "safetensors")},
    **{f"import {form}": _imported(form, name)
       for form, name in (("ciff", "bm25"), ("impact-json", "bm25"), ("vectors", "bm25"),
                          ("npy", "dense"), ("parquet", "dense"), ("safetensors", "dense"))},
}  # fmt: skip

CHANGES = (
    "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate", "shutil.rmtree",
    "os.symlink",
)  # fmt: skip


def on_changes(box: Path, act: Callable[[str, Any], object], *, reads: bool = False) -> None:
    """Call ``act`` in this process before each change of a file in the box: event, path or handle.

    ``reads`` are reported too: files that are opened or mapped.
    """
    root, real = str(box), os.fsync

    def inside(path: object) -> bool:
        return isinstance(path, str | bytes | os.PathLike) and (
            os.fsdecode(path).startswith(root) or not os.fsdecode(path).startswith("/")
        )

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writing = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if (writing or reads) and inside(path):
                act(event, path)
        elif event in CHANGES and inside(arguments[0]):
            act(event, arguments[0])
        elif event == "mmap.__new__" and reads:
            act(event, None)

    def fsync(handle: int) -> None:
        act("fsync", handle)
        real(handle)

    os.fsync = fsync
    sys.addaudithook(hook)


_known: dict[tuple[Path, str], Undisturbed] = {}


def undisturbed(name: str, world: Path, box: Path) -> Undisturbed:
    """Run a task as it should go, once for a world, and return what it leaves."""
    key = world, name
    if key not in _known:
        task = TASKS[name](world)
        filled(box, task, world)
        before = task.look(box)

        def count() -> None:
            on_changes(box, lambda *_: os.write(counted, b"."))

        file = world / "events"
        counted = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        outcome = ran(task.words, box, count, program=task.program)
        os.close(counted)
        if outcome.code:
            raise RuntimeError(f"{name}, undisturbed: {outcome}")
        after = task.look(box)
        _known[key] = Undisturbed(
            before, after, outcome.seconds, file.stat().st_size, frozenset(names(box))
        )
    return _known[key]


def names(box: Path) -> set[str]:
    """Return the names of all files but those of generations, whose numbers and parts differ.

    SQLite's journals are its own: the next that opens the database takes them in. Locks stay.
    """
    paths = {path.relative_to(box).as_posix() for path in box.rglob("*")}
    own = re.compile(r"^tmp/|/g\d{6}(/|$)|\.sqlite-(wal|shm)$|/\.lock$")
    return {path for path in paths if not own.search(path)}


def mixed(state: State, known: Undisturbed) -> str:
    """Say which part is neither as before nor as after, or nothing."""
    for part, value in state.items():
        if value not in (known.before[part], known.after[part]):
            return f"{part} is neither old nor new: {str(value)[:200]}"
    return ""


def repeated(name: str, task: Task, box: Path, known: Undisturbed) -> str:
    """Run the command again, undisturbed, and say what is wrong with what it leaves, or nothing."""
    state = task.look(box)
    outcome = ran(task.words, box, program=task.program)
    done = outcome.code == 2 and state == known.after and name.split()[0] in REPEATED
    if outcome.code and not done:
        return f"run again: exit {outcome.code}: {outcome.err[-300:]}"
    if task.look(box) != known.after:
        return f"run again it differs: {str(task.look(box))[:200]}"
    litter = sorted(names(box) - known.names) if not done else []  # the next writer's to remove
    return f"left behind: {litter[:4]}" if litter else ""
