"""Mutated files that people give to a command: data, runs, settings, vectors, training files."""

from __future__ import annotations

import gzip
from pathlib import Path

import mutation_seeds as seeds
import numpy as np
from fuzzing import Case
from mutating import mutate_bytes
from mutation_case import SLOW, call, change, copied, files_of, python
from mutation_seeds import seed

SEARCH = ("search", "r", seeds.QUERY, "-k", 10, "--json")


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
        right = ("empty", "no query of")  # nothing is left that was judged
        if again.code and not any(words in again.err for words in right):
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
            grades.setdefault(fields[0].decode(), {})[fields[-2].decode()] = int(
                fields[-1].decode()
            )
    measures = {"ndcg_cut.10", "recall.100"}
    scored: dict[str, dict[str, float]] = pytrec_eval.RelevanceEvaluator(grades, measures).evaluate(
        hits
    )
    return scored


def configuration(case: Case, *, name: str, verb: str) -> None:
    """A YAML file of one's own is checked, estimated or run, or refused."""
    folder = seed(case.world, seeds.lexical if name == "x.yaml" else seeds.models)
    change(case, copied(case, folder / name))
    words = {"check": ("config", "check", name, "--fast"), "plan": ("index", name, "--dry-run")}
    call(case, *words.get(verb, (verb, name)), fork=verb != "check", timeout=SLOW)
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
