"""A small evaluated dataset as ``sluice evaluate`` writes it, with hostile texts, ids and names."""

import json
from pathlib import Path

import yaml

from sluice.encoders import BM25Encoder
from sluice.retrieval import Document, Retriever, Run, compare, evaluate
from sluice.retrieval.runs.run import Ranking

SCRIPT = "<script>window.hacked=1</script>"
HOSTILE = f'</script>{SCRIPT}<img src="x" onerror="window.hacked=1"> & "quoted" {{{{data}}}} \u2028'
SYSTEMS = ["bm25", "<b>bold</b>", "<img src=x onerror=window.hacked=1>", "reranked"]
MEASURES = ["nDCG@10", "R@100"]
QUERIES = 30


def documents() -> list[Document]:
    made = [
        Document(f"d{n:02}", f"title {n}", f"gold river word{n} stone{n % 7} " * (1 + n % 5))
        for n in range(60)
    ]
    made[0] = Document("d00", f"gold {HOSTILE}", f"word0 text {HOSTILE}")
    made[1] = Document('d01"><svg/onload=window.hacked=1>', "", f"word1 {HOSTILE}")
    return made


def query_id(number: int) -> str:
    return f"q{number:02}" if number else "q00'><script>window.hacked=1</script>"


def world(folder: Path, *, name: str = "data") -> Path:
    """Write a dataset, its runs and results; return the output folder."""
    data, output = folder / name, folder / f"{name}-out"
    (data / "qrels").mkdir(parents=True)
    corpus = documents()
    queries = {query_id(n): f"word{n} gold stone{n % 7}" for n in range(QUERIES)}
    queries[query_id(0)] += f" {HOSTILE}"
    qrels = {q: {corpus[n].id: 2, corpus[n + 20].id: 1, corpus[n + 25].id: 0}
             for n, q in enumerate(queries)}  # fmt: skip
    lines = [json.dumps({"_id": d.id, "title": d.title, "text": d.text}) for d in corpus]
    (data / "corpus.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = [json.dumps({"_id": query, "text": text}) for query, text in queries.items()]
    (data / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    lines = [f"{q}\t{d}\t{grade}" for q, given in qrels.items() for d, grade in given.items()]
    text = "query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n"
    (data / "qrels" / "test.tsv").write_text(text, encoding="utf-8")
    bm25 = Retriever.build(BM25Encoder(), corpus, path=output / "retrievers" / "bm25")
    runs = dict(zip(SYSTEMS, _runs(bm25.run(queries, k=40), list(queries)), strict=True))
    for system, run in runs.items():
        (output / "runs").mkdir(exist_ok=True)
        run.save(output / "runs" / f"{system}.trec.gz", tag="x")
    table = compare(runs, qrels, MEASURES, baseline="bm25")
    systems = [
        {
            "name": system,
            "pipeline": "bm25 >> cross(depth=20)" if system == "reranked" else "bm25",
            "measures": dict(evaluate(run, qrels, MEASURES).mean),
            "latency_ms": {"p50": 1.5 + place, "p95": 3.0 + place},
            "index_bytes": 10_000 * (1 + place),
            "documents": len(corpus),
        }
        for place, (system, run) in enumerate(runs.items())
    ]
    results = {
        "dataset": name, "split": "test", "systems": systems,
        "comparisons": table.to_dict()["comparisons"],
        "origin": {"written": "2026-01-02T03:04:05Z"},
    }  # fmt: skip
    (output / "results.json").write_text(json.dumps(results), encoding="utf-8")
    settings = {
        "dataset": str(data), "output": str(output),
        "retrievers": {"bm25": {"encoder": {"type": "bm25"}}},
        "evaluate": {"measures": MEASURES, "baseline": "bm25"},
    }  # fmt: skip
    (output / "experiment.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    training = output / "training" / "splade"
    training.mkdir(parents=True)
    rows = [
        {"step": 10 * step, "loss": 2 / step, "eval_nDCG@10": 0.1 * step} for step in range(1, 6)
    ]
    (training / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return output


def _runs(bm25: Run, queries: list[str]) -> list[Run]:
    """Return BM25's run, two that are worse, and one whose first 20 are turned around."""
    shifted = {q: bm25[q][3:] for q in queries}
    missing = {q: bm25[q][:5] for q in queries[3:]}
    turned = {}
    for query in queries:
        ids, scores = list(bm25[query].doc_ids), bm25[query].scores
        turned[query] = Ranking(ids[:20][::-1] + ids[20:], scores)
    return [bm25, Run(shifted), Run(missing), Run(turned)]
