"""Mutated inputs of every kind through the command line and Python.

Wrong is a traceback, a crash, a command that hangs or takes all memory; an answer of a changed
folder that is not the original's; a score that is not pytrec_eval's; what is left behind exit 2.
"""

from __future__ import annotations

import gzip
import importlib
import json
import pkgutil
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mutation_seeds as seeds
import numpy as np
from forging import forge
from fuzzing import Case, Fuzzer, Outcome, forked, sluice, within
from mutating import mutate_bytes, mutate_values, mutated
from mutation_seeds import LONG_QUERY, QUERY, seed

MEMORY = 3 << 30  # bytes that a command may take beside what is loaded
SLOW = 60.0  # seconds, for what trains or evaluates
ANSWERS: dict[Path, Any] = {}  # of folders that nobody changed
# Files of a retriever whose checksums are forged; the others are checked by their contents.
ARRAYS = (".npy", ".faiss", ".bin", ".txt", ".safetensors")
SEARCH = ("search", "r", QUERY, "-k", 10, "--json")


def call(case: Case, *words: object, fork: bool = False, timeout: float = 20.0) -> Outcome:
    """Run a command in the case's folder, and record what is wrong with its end."""
    done = sluice(*words, cwd=case.folder, memory=MEMORY, fork=fork, timeout=timeout)
    return checked(case, done, *words)


def python(case: Case, job: Callable[[], object], fork: bool = False) -> Outcome:
    """Run a function in which errors of ours are exit 2, and record what is wrong with its end."""
    from sluice.encoders.foundation.errors import SluiceError

    def ended() -> int:
        try:
            job()
        except SluiceError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0

    return checked(case, (forked if fork else within)(ended, cwd=case.folder, memory=MEMORY))


def checked(case: Case, done: Outcome, *words: object) -> Outcome:
    """Record what is wrong with how a command ended."""
    if fault := done.fault():
        shown = " ".join(map(str, words))
        case.wrong(fault, words=shown, changed=changes(case), err=done.err[-1500:])
    return done


def changes(case: Case) -> list[str]:
    """Name the files that were changed."""
    return CHANGED


CHANGED: list[str] = []  # of this case


def change(case: Case, file: Path) -> None:
    """Change one file."""
    CHANGED[:] = [str(file.relative_to(case.folder))]
    file.write_bytes(mutated(file.read_bytes(), file.name, case.chance))


def copied(case: Case, source: Path, name: str = "") -> Path:
    """Copy a file or a folder of the seeds into the case's folder."""
    target = case.folder / (name or source.name)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return target


def files_of(folder: Path) -> list[Path]:
    """Return the files that hold anything, the hidden ones apart."""
    return [
        file for file in sorted(folder.rglob("*"))
        if file.is_file() and file.stat().st_size and not file.name.startswith(".")
    ]  # fmt: skip


def corpus(case: Case) -> None:
    """A dataset's file is changed: it is described or indexed, or refused and nothing is left."""
    folder = copied(case, seed(case.world, seeds.data))
    name = case.chance.choice(("corpus.jsonl", "corpus.jsonl", "queries.jsonl", "qrels/test.tsv"))
    change(case, file := folder / name)
    if case.chance.random() < 0.2 and name.endswith("jsonl"):
        packed = gzip.compress(file.read_bytes(), 1)
        file.unlink()
        damage = case.chance.random() < 0.5
        (folder / f"{name}.gz").write_bytes(mutate_bytes(packed, case.chance) if damage else packed)
    verb = case.chance.choice(("index", "index", "data", "data", "evaluate"))
    config = seed(case.world, seeds.lexical) / "x.yaml"
    words = (verb, config, "dataset=data", "output=out", "evaluate.report=false")
    done = call(case, *(("data", folder) if verb == "data" else words))
    if verb == "index" and not name.startswith("q"):
        left = list(case.folder.glob("out/retrievers/*/retriever.json"))
        if done.code == 2 and left:
            case.wrong("a retriever is left behind exit 2", err=done.err[-300:])
        if done.code == 0:
            call(case, "verify", "out")


def documents(case: Case) -> None:
    """One's own documents in any form are read, or refused."""
    from sluice.retrieval.documents.readers.source import as_documents

    source = copied(case, case.chance.choice(sorted(seed(case.world, seeds.own).iterdir())))
    change(case, case.chance.choice(files_of(source)) if source.is_dir() else source)
    compiled = source.suffix in (".parquet", ".sqlite")
    python(case, lambda: [list(as_documents(str(source)))], fork=compiled)


def additions(case: Case) -> None:
    """Documents are added, replaced or deleted from a damaged file, or all stays as it was."""
    lexical = seed(case.world, seeds.lexical)
    copied(case, lexical / "out" / "retrievers" / "bm25", "r")
    verb = case.chance.choice(("add", "update", "delete"))
    file = copied(case, lexical / ("ids.txt" if verb == "delete" else "new.jsonl"))
    change(case, file)
    before = call(case, *SEARCH).out
    done = call(case, verb, "r", *(("--file", file) if verb == "delete" else (file,)))
    if done.code == 2 and call(case, *SEARCH).out != before:
        case.wrong(f"{verb}: exit 2, but the answers changed", err=done.err[-300:])
    if done.code == 0 and case.chance.random() < 0.2:
        call(case, "verify", "r")


def queries(case: Case) -> None:
    """Queries are searched and the run can be scored, or there is none."""
    data, bm25 = (
        seed(case.world, seeds.data),
        seed(case.world, seeds.lexical) / "out/retrievers/bm25",
    )
    change(case, file := copied(case, data / "queries.jsonl"))
    done = call(case, "search", bm25, "--queries", file, "--output", "run.trec")
    left = (case.folder / "run.trec").exists()
    if done.code == 2 and left:
        case.wrong("a run is left behind exit 2", err=done.err[-300:])
    if done.code == 0 and left:
        again = call(case, "score", "run.trec", data / "qrels" / "test.tsv")
        if again.code and not {"empty", "none of"} & {
            w for w in ("empty", "none of") if w in again.err
        }:
            case.wrong("the run that was written cannot be read", err=again.err[-300:])


def judged(case: Case, *, run: bool) -> None:
    """A damaged run or qrels is refused, or scored as pytrec_eval scores it."""
    data, lexical = seed(case.world, seeds.data), seed(case.world, seeds.lexical)
    source = case.chance.choice((data / "qrels" / "test.tsv", data / "trec.qrels"))
    qrels = copied(case, source)
    hits = copied(case, lexical / case.chance.choice(("a.trec", "a.trec", "b.trec.gz")))
    change(case, hits if run else qrels)
    if case.chance.random() < 0.1:
        form = case.chance.choice(("json", "csv", "latex", "html", "text"))
        call(case, "compare", hits, lexical / "b.trec.gz", "--qrels", qrels, "--format", form,
             "--per-query", "per-query.csv")  # fmt: skip
        return
    done = call(case, "score", hits, qrels, "-m", "nDCG@10", "-m", "R@100", "-q")
    if done.code:
        return
    try:
        theirs = reference_scores(unpacked(hits), unpacked(qrels))
    except (ValueError, KeyError, OSError, TypeError) as error:
        case.wrong("accepted what the reference refuses", why=error, run=hits.read_bytes()[-300:])
        return
    for line in done.out.split("\n") if theirs is not None else ():
        measure, _, rest = line.partition("\t")
        query, _, value = rest.rpartition("\t")
        if query and query != "all":
            name = {"nDCG@10": "ndcg_cut_10", "R@100": "recall_100"}[measure]
            expected = (theirs or {}).get(query, {}).get(name, 0.0)
            if abs(expected - float(value)) > 1e-3:
                case.wrong(f"{measure} of {query!r} is {value}, pytrec_eval's {expected:.4f}")
                return


def unpacked(file: Path) -> bytes:
    """Return a file's bytes, decompressed."""
    data = file.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def reference_scores(run: bytes, qrels: bytes) -> dict[str, dict[str, float]] | None:
    """Read as leniently as trec_eval does and score by pytrec_eval; None where it could not say."""
    import pytrec_eval

    if b"\0" in run + qrels:  # the end of a text to trec_eval
        return None
    hits: dict[str, dict[str, float]] = {}
    grades: dict[str, dict[str, int]] = {}
    for line in run.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        fields = line.split()
        if fields:
            whole = len(fields) >= 6  # the name of a system may have blanks
            if not whole and len(fields) != 3:
                raise ValueError(line)
            query, document, score = (
                fields[0],
                fields[2 if whole else 1],
                fields[4 if whole else 2],
            )
            value = float(np.float32(float(score)))
            hits.setdefault(query.decode(), {})[document.decode()] = value
    for line in qrels.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        fields = line.split()
        if fields and fields[0].lower() not in (b"query-id", b"query_id"):
            if len(fields) not in (3, 4):
                raise ValueError(line)
            grades.setdefault(fields[0].decode(), {})[fields[-2].decode()] = int(fields[-1])
    measures = {"ndcg_cut.10", "recall.100"}
    scored: dict[str, dict[str, float]] = pytrec_eval.RelevanceEvaluator(grades, measures).evaluate(
        hits
    )
    return scored


def configuration(case: Case, *, name: str, verb: str, fork: bool) -> None:
    """A YAML file of one's own is checked, estimated or run, or refused."""
    folder = seed(case.world, seeds.lexical if name == "x.yaml" else seeds.models)
    change(case, copied(case, folder / name))
    words = {"check": ("config", "check", name, "--fast"), "plan": ("index", name, "--dry-run")}
    call(case, *words.get(verb, (verb, name)), fork=fork, timeout=SLOW)
    if (case.folder / "pwned").exists():
        case.wrong("code of the file ran")


def drafts(case: Case) -> None:
    """A YAML file drafted from damaged data is valid, or there is none."""
    own, pairs = seed(case.world, seeds.own), seed(case.world, seeds.training)
    job, option, folder = case.chance.choice(
        ((["hybrid"], "--documents", own), (["train", "dense"], "--pairs", pairs))
    )
    choices = [
        each for each in sorted(folder.iterdir()) if each.suffix in (".csv", ".tsv", ".jsonl")
    ]
    change(case, file := copied(case, case.chance.choice(choices)))
    done = call(case, "config", "init", *job, option, file, "--output", "new.yaml")
    if done.code == 2 and (case.folder / "new.yaml").exists():
        case.wrong("a file is left behind exit 2", err=done.err[-300:])
    if done.code == 0 and (case.folder / "new.yaml").exists():
        call(case, "config", "check", "new.yaml", "--fast")


def experiment(case: Case) -> None:
    """A file of an output folder is changed: what reads it answers, or says so."""
    out = copied(case, seed(case.world, seeds.lexical) / "out")
    files = [file for file in files_of(out) if "retrievers" not in file.parts]
    results = [file for file in files if file.name == "results.json"]
    change(case, case.chance.choice(results if case.chance.random() < 0.4 else files))
    words = case.chance.choice((
        ("search", out, "gold river", "--pipeline", "hybrid"), ("report", out), ("report", out),
        ("explain", out, "gold river"), ("verify", out), ("add", out, "none.jsonl"),
        ("evaluate", seed(case.world, seeds.lexical) / "x.yaml"),
    ))  # fmt: skip
    call(case, *words, timeout=SLOW)


def reproduction(case: Case) -> None:
    """Results that were changed are reproduced, or it is said why not."""
    out = copied(case, seed(case.world, seeds.lexical) / "out")
    change(case, out / "results.json")
    done = sluice(
        "reproduce", out, "--output", "again", cwd=case.folder, memory=MEMORY, timeout=SLOW
    )
    if fault := done.fault((0, 1, 2)):
        case.wrong(fault, changed=changes(case), err=done.err[-1500:])


def saved_pipeline(case: Case) -> None:
    """A saved pipeline answers as before, or says what is damaged."""
    folder = seed(case.world, seeds.pipeline)
    copied(case, folder / "saved", "r")
    change(case, case.folder / "r" / "pipeline.json")
    call(case, "search", "r", QUERY, "-k", 10, "--json")


def fitted(case: Case) -> None:
    """A file of fitted values is used, or refused."""
    from sluice.retrieval import Run
    from sluice.retrieval.stages.adaptive_depth import PredictedDepth
    from sluice.retrieval.stages.confidence_exit import exit_rule

    name = case.chance.choice(("fusion.json", "fusion.json", "depth.json", "exit.json"))
    change(case, file := copied(case, seed(case.world, seeds.pipeline) / name))
    ranking = Run({"q": {f"d{n}": 1.0 / (n + 1) for n in range(20)}})["q"]
    if name == "depth.json":
        python(case, lambda: PredictedDepth.load(file).depth(ranking))
        return
    if name == "exit.json":
        python(case, lambda: exit_rule(str(file)).depth(ranking))
        return
    out = copied(case, seed(case.world, seeds.lexical) / "out")
    text = (out / "experiment.yaml").read_text(encoding="utf-8")
    expression = f"fused(bm25, two, fitted='{file}') % 10"
    text = text.replace("(bm25 | two) % 10", expression)
    (out / "experiment.yaml").write_text(text, encoding="utf-8")
    call(case, "search", out, QUERY, "--pipeline", "hybrid")


def labels(case: Case) -> None:
    """Damaged labels are compared with sound ones, or refused."""
    data, lexical = seed(case.world, seeds.data), seed(case.world, seeds.lexical)
    change(case, file := copied(case, data / "qrels" / "test.tsv"))
    runs = ("--runs", lexical / "a.trec", "--runs", lexical / "b.trec.gz")
    call(case, "labels", "agreement", data / "qrels" / "test.tsv", file, "--samples", 5, *runs)


def training_file(case: Case) -> None:
    """Training examples are read, or refused."""
    from sluice.retrieval import load_dataset
    from sluice.retrieval.training_data.files.examples import FileExamples

    file = copied(case, case.chance.choice(sorted(seed(case.world, seeds.training).iterdir())))
    change(case, file)
    data = str(seed(case.world, seeds.data))
    compiled = file.suffix == ".parquet"
    python(case, lambda: FileExamples(str(file)).examples(load_dataset(data, "train"), 1), compiled)


def imported(case: Case, *, form: str, source: str) -> None:
    """Vectors of other tools become a retriever that verifies, or none."""
    sparse = form in ("ciff", "impact-json", "vectors")
    place = seed(case.world, seeds.lexical if sparse else seeds.vectors)
    target = copied(case, place / source)
    for beside in place.glob("x.ids*") if not sparse else ():
        copied(case, beside)
    choices = files_of(target) if target.is_dir() else files_of(case.folder)
    change(case, case.chance.choice([*choices, target] if target.is_file() else choices))
    done = call(case, "import", target, "r", "--format", form, fork=True, timeout=30)
    if done.code == 2 and (case.folder / "r" / "retriever.json").exists():
        case.wrong("a retriever is left behind exit 2", err=done.err[-300:])
    if done.code == 0:
        call(case, "verify", "r")


def query_vectors(case: Case) -> None:
    """Vectors of queries are searched, or no run is left."""
    form = case.chance.choice(("jsonl", "npy", "parquet", "safetensors", "impact"))
    if form == "impact":
        place = seed(case.world, seeds.lexical)
        retriever, file = place / "out/retrievers/bm25", place / "x.jsonl.queries.jsonl"
    else:
        place = seed(case.world, seeds.vectors)
        retriever, file = seed(case.world, seeds.flat) / "flat", place / f"x.{form}"
    for beside in place.glob("x.ids*"):
        copied(case, beside)
    change(case, target := copied(case, file))
    done = call(case, "search", retriever, "--vectors", target, "--output", "run.trec", "-k", 5,
                fork=True)  # fmt: skip
    if done.code == 2 and (case.folder / "run.trec").exists():
        case.wrong("a run is left behind exit 2", err=done.err[-300:])


def answer(text: str) -> dict[str, float]:
    """Return ids and scores of what ``search --json`` writes."""
    return {hit["doc_id"]: hit["score"] for hit in map(json.loads, text.splitlines())}


def alike(one: dict[str, float], other: dict[str, float]) -> bool:
    """Return whether two answers are the same but for the last digits of float32."""
    return one.keys() == other.keys() and np.allclose(
        [*one.values()], [other[name] for name in one], rtol=1e-4
    )


def retriever(case: Case, *, make: Callable[[Path, Path], None], place: str) -> None:
    """A file of a retriever is changed: searching answers as before, or says so."""
    source = seed(case.world, make) / place
    folder = copied(case, source, "r")
    files = files_of(folder)
    weighty = [file for file in files if file.suffix in (*ARRAYS, ".json")]
    change(case, case.chance.choice(weighty if case.chance.random() < 0.8 else files))
    done = call(case, *SEARCH, fork=True)
    if done.code == 0:
        if source not in ANSWERS:
            words = ("search", source, *SEARCH[2:])
            ANSWERS[source] = answer(sluice(*words).out)
        if not alike(answer(done.out), ANSWERS[source]):
            case.wrong("another answer after a change", changed=changes(case), out=done.out[:300])


def forged(case: Case, *, make: Callable[[Path, Path], None], place: str) -> None:
    """An array is changed and the checksums are made to agree, as somebody hostile would."""
    folder = copied(case, seed(case.world, make) / place, "r")
    file = case.chance.choice([f for f in files_of(folder) if f.suffix in (*ARRAYS, "")])
    CHANGED[:] = [str(file.relative_to(case.folder))]
    data = file.read_bytes()
    head = data.find(b"\n") + 1 if file.suffix == ".npy" else 0
    if case.chance.random() < 0.7 and len(data) > head + 8:
        data = data[:head] + mutate_values(data[head:], case.chance)
    else:
        data = mutate_bytes(data, case.chance)
    file.write_bytes(data)
    forge(folder, file)
    change_of = case.chance.choice((
        ("delete", "r", "d03", "--compact"), ("verify", "r"), ("explain", "r", QUERY),
        ("search", "r", QUERY, "--where", "year>=2003", "--where", "tags=a"),
        ("add", "r", seed(case.world, seeds.lexical) / "new.jsonl"),
    ))  # fmt: skip
    for words in (("search", "r", LONG_QUERY, "-k", 30, "--json"), change_of):
        if call(case, *words, fork=True).fault():
            return


def model(case: Case) -> None:
    """A model's folder is damaged: it encodes, or says so."""
    from sluice.encoders.model_files.registry import open_encoder

    folder = copied(case, seed(case.world, seeds.models) / case.chance.choice(("bert", "masked")))
    change(case, case.chance.choice(files_of(folder)))
    python(case, lambda: open_encoder(folder).encode_queries(["gold river"]), fork=True)


def score_cache(case: Case) -> None:
    """A damaged cache of scores gives the scores that were put into it, or is refused."""
    for file in seed(case.world, seeds.scores).iterdir():
        copied(case, file)
    file = case.chance.choice(files_of(case.folder))
    CHANGED[:] = [file.name]
    file.write_bytes(mutate_bytes(file.read_bytes(), case.chance))
    expected = seeds.Lengths().score(seeds.PAIRS)

    def job() -> None:
        if seeds.cached_scores(case.folder / "c.sqlite") != expected:
            raise RuntimeError("other scores came out of the cache")

    python(case, job, fork=True)


def prepare(world: Path) -> None:
    """Load what the forked commands need, so that they begin with it."""
    import pyarrow

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    seed(world, seeds.data)
    import sluice.retrieval.cli.app
    import sluice.retrieval.documents.store  # noqa: F401


def warmed(world: Path) -> None:
    """Import all of the package, torch and transformers: for a run of hours."""
    prepare(world)
    for make in (seeds.lexical, seeds.pipeline, seeds.vectors, seeds.flat, seeds.models):
        seed(world, make)
    for name in ("faiss", "pandas", "pyarrow.parquet", "safetensors.torch", "torch",
                 "transformers.models.bert.modeling_bert", "transformers.trainer"):  # fmt: skip
        importlib.import_module(name)
    import torch

    import sluice

    torch.set_num_threads(1)
    for found in pkgutil.walk_packages(sluice.__path__, "sluice."):
        if not found.name.endswith(("__main__", "_worker")) and "adapters" not in found.name:
            importlib.import_module(found.name)


Kind = tuple[Callable[[Case], None], int]
LIGHT: dict[str, Kind] = {  # those that need no torch
    "corpus": (corpus, 5), "documents": (documents, 6), "additions": (additions, 3),
    "queries": (queries, 4), "run": (partial(judged, run=True), 8),
    "qrels": (partial(judged, run=False), 8), "labels": (labels, 2), "drafts": (drafts, 4),
    "check": (partial(configuration, name="x.yaml", verb="check", fork=False), 6),
    "yaml": (partial(configuration, name="x.yaml", verb="index", fork=True), 2),
    "experiment": (experiment, 6), "reproduction": (reproduction, 1),
    "pipeline": (saved_pipeline, 2), "fitted": (fitted, 2), "training": (training_file, 7),
    "score-cache": (score_cache, 2), "query-vectors": (query_vectors, 3),
    **{
        (f"import-{form}" + source[len(source.removesuffix(".gz")) :]): (
            partial(imported, form=form, source=source), 2,
        )
        for form, source in (
            ("ciff", "x.ciff"), ("ciff", "x.ciff.gz"), ("impact-json", "x.jsonl"),
            ("vectors", "vectors"), ("npy", "x.npy"), ("parquet", "x.parquet"),
            ("safetensors", "x.safetensors"), ("jsonl", "x.jsonl"),
        )
    },
    **{
        f"{what.__name__}-{place.rpartition('/')[2]}": (partial(what, make=make, place=place), 3)
        for what in (retriever, forged)
        for make, place in (
            (seeds.lexical, "out/retrievers/bm25"), (seeds.lexical, "out/retrievers/two"),
            (seeds.flat, "flat"), (seeds.flat, "faiss"),
        )
    },
}  # fmt: skip
HEAVY: dict[str, Kind] = {
    "model": (model, 3),
    "check-models": (partial(configuration, name="dense.yaml", verb="check", fork=False), 2),
    "plan-models": (partial(configuration, name="dense.yaml", verb="plan", fork=True), 1),
    "train": (partial(configuration, name="train.yaml", verb="train", fork=True), 1),
    "check-training": (partial(configuration, name="train.yaml", verb="check", fork=False), 2),
    "retriever-splade": (
        partial(retriever, make=seeds.models, place="out/retrievers/splade"), 1,
    ),
    "forged-splade": (partial(forged, make=seeds.models, place="out/retrievers/splade"), 1),
}  # fmt: skip

FUZZER = Fuzzer("mutations", {**LIGHT, **HEAVY}, warmed, long=20_000)
