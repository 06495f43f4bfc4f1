#!/usr/bin/env python
"""Measure real checkpoints against published figures: the work of scripts/real.

    SLUICE_DATA=FOLDER scripts/real [--clones FOLDER] [--only TEXT ...] [--write]

Brings the checkpoints (``sluice model get``), converts the collections that lie in public
repositories from clones in --clones (a missing one is skipped, with the command that brings it),
and takes the others from $SLUICE_DATA. Each row is searched exactly and scored as trec_eval does;
a row that was measured before with the same checkpoint and collection is kept, so a killed run
goes on where it was. --write makes docs/published.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import options, processor
from real_data import SOURCES, converted
from real_rows import MTEB, ROWS, Row

from sluice.encoders.foundation.disk.files import file_hash, write_json, write_text
from sluice.encoders.foundation.errors import ModelError, SluiceError
from sluice.encoders.model_files.locate import model_folder

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = 0.003
MEASURES = ["nDCG@10", "R@100"]
NAMES = {
    "minilm": "all-MiniLM-L6-v2", "mpnet": "all-mpnet-base-v2", "splade-tiny": "SPLADE-tiny",
    "bm25": "BM25", "bm25-fields": "BM25 over fields",
}  # fmt: skip


class Lab:
    """Opens encoders and collections, and measures rows."""

    def __init__(self, output: Path, clones: Path, checkpoints: dict[str, str]) -> None:
        self.output, self.clones, self.checkpoints = output, clones, checkpoints
        self._encoders: dict[tuple[str, str], Any] = {}

    def dataset(self, name: str) -> Any:
        """Return a collection; raises ``SluiceError`` that says how to bring it."""
        from sluice import load_dataset

        if name in SOURCES:
            return load_dataset(str(converted(name, self.clones, self.output / "data")))
        return load_dataset(name)

    def model(self, system: str) -> str:
        """Return a checkpoint's folder or name, after bringing it."""
        if system not in self.checkpoints:
            command = [str(Path(sys.executable).with_name("sluice")), "model", "get", system]
            self.checkpoints[system] = "" if subprocess.run(command).returncode else system
        if not self.checkpoints[system]:
            raise ModelError(f"{system}: not brought, see above; or --checkpoints {system}=FOLDER")
        return self.checkpoints[system]

    def encoder(self, row: Row) -> tuple[Any, str]:
        """Return a row's encoder and the sha256 of its weights."""
        import sluice

        if row.system == "bm25":
            return sluice.BM25Encoder(), ""
        if row.system == "bm25-fields":
            return sluice.BM25Encoder(fields={"title": 1.0, "text": 1.0}), ""
        key = row.system, row.dtype
        if key not in self._encoders:
            self._encoders.clear()  # one in memory at a time
            model = self.model(row.system)
            kind = sluice.SpladeEncoder if row.system == "splade-tiny" else sluice.DenseEncoder
            encoder = kind.from_pretrained(model, dtype=row.dtype, device="cpu")
            self._encoders[key] = encoder, file_hash(model_folder(model) / "model.safetensors")
        return self._encoders[key]

    def file(self, row: Row) -> Path:
        """Return where a row's result lies."""
        return self.output / "rows" / f"{row.name}.json"

    def measured(self, row: Row) -> dict[str, Any]:
        """Return a row's result, from its file if checkpoint and collection are the same."""
        from sluice import Retriever, evaluate
        from sluice.retrieval.retrievers.corpus.encoding import Encoding

        dataset, (encoder, weights) = self.dataset(row.collection), self.encoder(row)
        key = {"weights": weights, "data": _content(dataset)}
        file = self.file(row)
        if file.is_file() and (kept := _read(file))["key"] == key:
            return kept
        wall, spent = time.perf_counter(), time.process_time()
        encoding = Encoding(shard=512, cache=True) if weights else None
        retriever = Retriever.build(encoder, dataset.corpus, encoding=encoding)
        scores = evaluate(retriever, dataset, MEASURES)
        result = {
            "key": key,
            "documents": len(retriever),
            "queries": len(dataset.queries),
            "measures": {measure: float(scores.mean[measure]) for measure in MEASURES},
            "seconds": round(time.perf_counter() - wall),
            "processor_seconds": round(time.process_time() - spent),
            "processor": processor(),
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, result)
        return result


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _content(dataset: Any) -> str:
    """Return a hash of what a collection holds, of any origin."""
    documents = ((each.id, each.title, each.text) for each in dataset.corpus)
    digest = hashlib.sha256()
    for part in (*documents, dataset.queries, dataset.qrels):
        digest.update(json.dumps(part).encode())
    return digest.hexdigest()


def line(row: Row, result: Mapping[str, Any]) -> str:
    """Return a row of the table."""
    ours, depth = (result["measures"][measure] for measure in MEASURES)
    sha = result["key"]["weights"]
    theirs, apart, met = "none found", "", ""
    if row.published is not None:
        theirs, apart = f"{row.published:.4f}", f"{ours - row.published:+.4f}"
        met = "yes" if abs(ours - row.published) <= ALLOWED else "**no**"
    cells = (
        NAMES[row.system], f"`{sha[:12]}`" if sha else "", row.dtype if sha else "",
        row.collection, f"{result['documents']:,} / {result['queries']:,}",
        theirs, f"{ours:.4f}", apart, met, f"{depth:.4f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def page(found: Sequence[tuple[Row, Mapping[str, Any]]]) -> str:
    """Return docs/published.md."""
    published = [(row, each) for row, each in found if row.published is not None]
    met = [row for row, each in published
           if abs(each["measures"][MEASURES[0]] - row.published) <= ALLOWED]  # fmt: skip
    sources = list(dict.fromkeys(row.source for row, _ in published))
    notes = dict.fromkeys(f"- {row.collection}: {row.note}" for row, _ in found if row.note)
    return "\n".join([
        "# Published figures, met",
        "",
        "Made by `scripts/real --write`: checkpoints that others published, brought from packages",
        "with every file checked by its hash, searched exactly, scored as trec_eval does.",
        f"nDCG@10 of the test split. **{len(met)} of {len(published)} published figures are met",
        f"within {ALLOWED}.** On {found[0][1]['processor']}; bfloat16 where the line says so.",
        "The hash is the beginning of the sha256 of `model.safetensors`. R@100 is ours.",
        "",
        "| checkpoint | sha256 | dtype | collection | documents / queries | published | here "
        "| difference | met | R@100 here |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(line(row, each) for row, each in found),
        "",
        *(["## What differs, and why", "", *notes, ""] if notes else []),
        "## Sources",
        "",
        f"Those with a path are files of {MTEB}; a folder names the model's revision.",
        "",
        *(f"- {source}" for source in sources),
        "",
        "## Collections",
        "",
        "SciFact, NFCorpus, FeedbackQA and CoSQA are BEIR folders under `$SLUICE_DATA`. The others",
        "are converted by `scripts/real_data.py` from clones in `--clones`, each file checked by",
        "its sha256:",
        "",
        *dict.fromkeys(f"- {s.repository} at `{s.commit[:12]}`" for s in SOURCES.values()),
        "",
        "XQuAD has MTEB's counts and characters in every language. Which 284 of the 290 summaries",
        "MTEB's LegalSummarization holds is nowhere written; they are identified from its",
        "statistics, as [experiments](experiments.md#published-figures-repeated) tells.",
        "",
    ])  # fmt: skip


def main() -> int:
    """Measure the rows; return 1 if a published figure is missed, 2 if a row was skipped."""
    arguments = options(__doc__, {
        "--output": (ROOT / "runs/real", "finished rows, and converted collections"),
        "--clones": (ROOT / "runs/real/clones", "where the repositories' clones lie"),
        "--only": ({"nargs": "+", "default": []}, "rows whose name has one of these texts"),
        "--checkpoints": ({"nargs": "+", "default": []}, "NAME=FOLDER: a copy of your own"),
        "--write": (False, "make docs/published.md of all finished rows"),
    })  # fmt: skip
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    lab = Lab(
        arguments.output, arguments.clones, dict(e.split("=", 1) for e in arguments.checkpoints)
    )
    skipped: dict[str, str] = {}
    for row in ROWS:
        if arguments.only and not any(each in row.name for each in arguments.only):
            continue
        try:
            print(line(row, lab.measured(row)), flush=True)
        except SluiceError as error:
            skipped[row.name] = str(error)
            print(f"{row.name}: skipped: {error}", file=sys.stderr)
    found = [(row, _read(lab.file(row))) for row in ROWS if lab.file(row).is_file()]
    if arguments.write and found:
        write_text(ROOT / "docs/published.md", page(found))
    missed = any(row.published is not None and not row.note
                 and abs(each["measures"][MEASURES[0]] - row.published) > ALLOWED
                 for row, each in found)  # fmt: skip
    return 2 if skipped else int(missed)


if __name__ == "__main__":
    sys.exit(main())
