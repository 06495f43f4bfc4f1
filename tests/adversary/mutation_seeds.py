"""What the mutations change: files and folders that the untouched program writes once."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from fuzzing import sluice
from small_world import documents, write_beir

QUERY = "gold word3 river"
LONG_QUERY = "gold word3 river stone water"
DIM = 8


def seed(world: Path, make: Callable[[Path, Path], None]) -> Path:
    """Return the folder that ``make(folder, world)`` fills, made at the first request."""
    folder = world / make.__name__
    if not (world / f"{make.__name__}.made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        make(folder, world)
        (world / f"{make.__name__}.made").touch()
    return folder


def run(*words: object, cwd: Path | None = None) -> None:
    """Run a command that must end well."""
    done = sluice(*words, timeout=300, fork=False, cwd=cwd)
    if done.code:
        raise RuntimeError(f"{words}: exit {done.code}: {done.err[-500:]}")


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def rows() -> list[dict[str, Any]]:
    """The documents with metadata of every kind."""
    return [
        {"_id": each.id, "title": each.title, "text": each.text,
         "metadata": {"year": 2000 + n, "lang": "en" if n % 3 else "de", "share": n / 8,
                      "tags": ["a", f"t{n % 4}"], **({"old": n < 9} if n % 5 else {})}}
        for n, each in enumerate(documents())
    ]  # fmt: skip


def data(folder: Path, world: Path) -> None:
    """A dataset in BEIR layout, and judgements in TREC's."""
    write_lines(write_beir(folder) / "corpus.jsonl", rows())
    lines = (folder / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    trec = (f"{query} 0 {document} {grade}\n" for query, document, grade in map(str.split, lines))
    (folder / "trec.qrels").write_text("".join(trec), encoding="utf-8")


def lexical(folder: Path, world: Path) -> None:
    """An experiment over BM25 with its output, exports and runs."""
    corpus = seed(world, data)
    two = {"type": "bm25", "fields": {"title": 1.0, "text": 2.0}}
    config = {
        "dataset": str(corpus), "output": "out", "seed": 13,
        "retrievers": {"bm25": {"encoder": {"type": "bm25", "k1": 0.9, "b": 0.4}},
                       "two": {"encoder": two, "index": {"type": "inverted"}}},
        "pipelines": {"bm25": "bm25", "hybrid": "(bm25 | two) % 10",
                      "mixed": "weighted(bm25, two, weights=[0.3, 1]) % 7"},
        "evaluate": {"measures": ["nDCG@10", "R@100"], "baseline": "bm25", "latency_queries": 2},
    }  # fmt: skip
    text = yaml.safe_dump(config, sort_keys=False)
    (folder / "x.yaml").write_text(text, encoding="utf-8")
    run("evaluate", folder / "x.yaml", f"output={folder}/out")
    retrievers, queries = folder / "out" / "retrievers", corpus / "queries.jsonl"
    bm25 = retrievers / "bm25"
    for name, form in (("x.ciff", "ciff"), ("x.ciff.gz", "ciff"), ("vectors", "vectors")):
        run("export", bm25, folder / name, "--format", form)
    run("export", bm25, folder / "x.jsonl", "--format", "impact-json", "--queries", queries)
    run("search", bm25, "--queries", queries, "--output", folder / "a.trec", "-k", 20)
    run("search", retrievers / "two", "--queries", queries, "--output", folder / "b.trec.gz")
    (folder / "ids.txt").write_text("d03\nd04\n", encoding="utf-8")
    new = [{"_id": f"n{n}", "text": f"gold new{n}", "metadata": {"year": n}} for n in range(6)]
    write_lines(folder / "new.jsonl", new)


def pipeline(folder: Path, world: Path) -> None:
    """A saved pipeline of two retrievers, a fitted fusion of them, and other fitted files."""
    from sluice.retrieval import load_pipeline
    from sluice.retrieval.evaluation.fitted_file import write_fitted
    from sluice.retrieval.stages.adaptive_depth import PredictedDepth
    from sluice.retrieval.stages.confidence_exit import FILE as EXIT

    made = seed(world, lexical)
    load_pipeline(made / "out", "hybrid").save(folder / "saved")
    words = ("fit", "fusion", "x.yaml", "bm25", "two", "--output", folder / "fusion.json")
    run(*words, "--split", "train", cwd=made)
    PredictedDepth((0.5, 0.2), 1.0, 1, 9).save(folder / "depth.json")
    rule = {"threshold": 0.5, "kind": "margin", "width": 10}
    write_fitted(folder / "exit.json", EXIT, {**rule, "fitted": {"queries": 9}})


def vectors(folder: Path, world: Path) -> None:
    """Dense vectors in every form, without a model."""
    from sluice.retrieval.exchange.vector_files import write_dense_vectors

    chance = np.random.default_rng(0)
    values = chance.normal(size=(40, DIM)).astype(np.float32)
    names = [each.id for each in documents()]
    for form in ("npy", "parquet", "safetensors"):
        write_dense_vectors(folder / f"x.{form}", names, [values], form)
    lines = [
        {"id": name, "embedding": [round(float(v), 4) for v in row]}
        for name, row in zip(names, values, strict=True)
    ]
    write_lines(folder / "x.jsonl", lines)


def flat(folder: Path, world: Path) -> None:
    """Retrievers over given vectors: an exact index and one of FAISS."""
    from sluice.encoders.dense.precomputed import PrecomputedEncoder
    from sluice.indexing import FlatIndex
    from sluice.indexing.faiss import FaissIndex
    from sluice.retrieval import Document, Retriever

    chance = np.random.default_rng(1)
    values = chance.normal(size=(40, DIM)).astype(np.float32)
    texts = [QUERY, LONG_QUERY, *(f"text {n}" for n in range(6))]
    encoder = PrecomputedEncoder(texts, chance.normal(size=(len(texts), DIM)).astype(np.float32))
    corpus = [Document(row["_id"], row["title"], row["text"], row["metadata"]) for row in rows()]
    for name, index in (("flat", FlatIndex()), ("faiss", FaissIndex("HNSW8"))):
        Retriever.build(encoder, corpus, vectors=[values], index=index, path=folder / name)


def models(folder: Path, world: Path) -> None:
    """Tiny models of three kinds, and retrievers and a cascade over them."""
    from tiny_models import save_model

    save_model(folder / "bert", "Model")
    save_model(folder / "masked", "ForMaskedLM")
    save_model(folder / "pairs", "ForSequenceClassification", num_labels=1)
    config = {
        "dataset": str(seed(world, data)), "output": "out",
        "retrievers": {"dense": {"encoder": {"type": "dense", "model": str(folder / "bert")}},
                       "splade": {"encoder": {"type": "splade", "model": str(folder / "masked")}}},
        "rerankers": {"cross": {"type": "cross_encoder", "model": str(folder / "pairs")}},
        "pipelines": {"cascade": "dense % 10 >> cross(depth=5)", "splade": "splade"},
    }  # fmt: skip
    train = {
        "dataset": str(seed(world, data)), "output": "trained",
        "encoder": {"type": "dense", "model": str(folder / "bert")},
        "loss": {"type": "info_nce", "temperature": 0.05},
        "negatives": {"type": "mined", "retriever": {"encoder": {"type": "bm25"}}, "per_query": 2},
        "trainer": {"max_steps": 1, "per_device_train_batch_size": 4, "save_strategy": "no"},
    }  # fmt: skip
    for name, value in (("dense.yaml", config), ("train.yaml", train)):
        text = yaml.safe_dump(value, sort_keys=False)
        (folder / name).write_text(text, encoding="utf-8")
    run("index", folder / "dense.yaml", f"output={folder}/out")


def training(folder: Path, world: Path) -> None:
    """Training files of every format."""
    import pyarrow as pa
    from pyarrow import parquet

    lines = {
        "triples.tsv": [f"gold river {n}\tgold word{n}\triver stone {n}" for n in range(8)],
        "columns.csv": ["anchor,positive,negative_1,score"]
        + [f'gold {n},"gold, word{n}",river {n},0.{n}' for n in range(8)],
    }
    for name, texts in lines.items():
        (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    bge = [
        {"query": f"gold {n}", "pos": [f"gold word{n}"], "neg": [f"river {n}", "x"],
         "pos_scores": [1.0], "neg_scores": [0.1, 0.2]}
        for n in range(8)
    ]  # fmt: skip
    write_lines(folder / "bge.jsonl", bge)
    tevatron = [
        {"query_id": f"t{n}", "query": f"gold {n}",
         "positive_passages": [{"docid": f"d{n:02d}", "title": "", "text": f"gold {n}"}],
         "negative_passages": [{"docid": f"d{n + 9:02d}", "title": "", "text": "river"}]}
        for n in range(8)
    ]  # fmt: skip
    write_lines(folder / "tevatron.jsonl", tevatron)
    graded = {"query": [f"gold {n}" for n in range(8)], "document": [f"word{n}" for n in range(8)],
              "grade": [1 + n % 2 for n in range(8)]}  # fmt: skip
    parquet.write_table(pa.table(graded), folder / "graded.parquet")


def own(folder: Path, world: Path) -> None:
    """One's own documents: a folder of Markdown, and tables of every kind."""
    import pyarrow as pa
    from pyarrow import parquet

    table = [{"path": row["_id"], "headline": row["title"], "body": row["text"],
              "year": row["metadata"]["year"]} for row in rows()]  # fmt: skip
    for name, separator in (("docs.csv", ","), ("docs.tsv", "\t")):
        with (folder / name).open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, table[0], delimiter=separator)
            writer.writeheader()
            writer.writerows(table)
    write_lines(folder / "docs.jsonl", table)
    parquet.write_table(pa.Table.from_pylist(table), folder / "docs.parquet")
    base = sqlite3.connect(folder / "docs.sqlite")
    base.execute("CREATE TABLE docs (path TEXT, headline TEXT, body TEXT, year INTEGER)")
    base.executemany("INSERT INTO docs VALUES (:path, :headline, :body, :year)", table)
    base.commit()
    base.close()
    (folder / "notes").mkdir()
    for row in table[:6]:
        text = f"---\ntitle: {row['headline']}\nyear: {row['year']}\n---\n# One\n{row['body']}\n"
        (folder / "notes" / f"{row['path']}.md").write_text(text, encoding="utf-8")


def scores(folder: Path, world: Path) -> None:
    """A cache of scores."""
    cached_scores(folder / "c.sqlite")


def compile_kernels(world: Path) -> None:
    """Run what compiles kernels where numba has none: a case has no time for it."""
    bm25 = seed(world, lexical)
    for place in (bm25 / "out/retrievers/bm25", seed(world, flat) / "flat"):
        run("search", place, QUERY)
    run("import", bm25 / "x.ciff", world / "compiled", "--format", "ciff")


class Lengths:
    """A scorer whose scores are known."""

    fingerprint = "lengths"

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return a score of each pair."""
        return [len(query) + len(document) / 2 for query, document in pairs]


PAIRS = [(f"query {n % 4}", f"document text {'x' * n}") for n in range(60)]


def cached_scores(file: Path) -> list[float]:
    """Return the scores of ``PAIRS`` through the cache ``file``."""
    from sluice.retrieval.stages.rerankers.score_cache import Cached, ScoreCache

    cache = ScoreCache(file)
    values: list[float] = Cached(Lengths(), cache).score(PAIRS).tolist()
    cache.close()
    return values
