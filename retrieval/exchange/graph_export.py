"""Exports a model as ONNX, and measures how far its rankings are from torch's on a dataset."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from sluice.encoders.foundation.bounded_input import Reservoir
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.table import KNOWN
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.documents.document import Document
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.runs.run import Run

if TYPE_CHECKING:
    from sluice.encoders.backends.export import ExportReport

DOCUMENTS = 2000
QUERIES = 300


@dataclass(frozen=True, slots=True)
class GraphExport:
    """What was written and measured; ``loss`` is None without a dataset."""

    report: ExportReport
    loss: GraphLoss | None = None

    def __str__(self) -> str:
        return str(self.report) if self.loss is None else f"{self.report}\n{self.loss}"


def export_model(
    model: str | Path,
    output: str | Path,
    *,
    quantise: Annotated[str | None, "TYPE", "int8: also write the graph in 8 bits."] = None,
    dataset: Annotated[str | None, "Measure nDCG@10 on it, with the graph and with torch."] = None,
    split: str = "test",
    documents: Annotated[int | None, "Documents searched, all judged ones among them."] = None,
    queries: Annotated[int | None, "Test queries searched."] = None,
) -> GraphExport:
    """Write ``encoders.export_onnx``'s folder, and measure nDCG@10 with it if a dataset is given.

    ``documents`` (2,000) and ``queries`` (300) bound the sample of the dataset, which is opened
    before anything is written. See ``graph_loss`` for what is measured.
    """
    from sluice.encoders.backends.export import QUANTISED_FILES, export_onnx
    from sluice.retrieval.datasets.dataset import load_dataset

    if quantise is not None and quantise not in QUANTISED_FILES:
        raise ConfigError(
            f"--quantise: {quantise!r}; known: {', '.join(QUANTISED_FILES)}"
            f"{suggest(quantise, QUANTISED_FILES)}"
        )
    if (Path(model) / "retriever.json").is_file():
        raise ConfigError(
            f"{model}: a retriever, but ONNX holds a model: give {Path(model) / 'encoder'}"
        )
    if dataset is None and (documents is not None or queries is not None):
        raise ConfigError("documents and queries: sizes of a sample, but no dataset is given")
    documents = DOCUMENTS if documents is None else documents
    queries = QUERIES if queries is None else queries
    opened = None if dataset is None else load_dataset(dataset, split)
    if opened is not None:  # its faults are reported before the model is traced
        whole_number(documents, "documents", 1)
        whole_number(queries, "queries", 1)
        _ = opened.queries
    report = export_onnx(model, output, quantise=quantise)  # type: ignore[arg-type]
    if opened is None:
        return GraphExport(report)
    loss = graph_loss(
        report.folder, list(report.differences), opened, documents=documents, queries=queries
    )
    return GraphExport(report, loss)


log = logging.getLogger("sluice")

MEASURE = "nDCG@10"
KEPT = 20  # documents of a ranking: ten, and room for one that is dropped
DEPTH = 20  # documents of BM25 that a cross-encoder reads for a query


@dataclass(frozen=True, slots=True)
class GraphLoss:
    """nDCG@10 by torch in float32, and by each file; over the sampled documents only.

    Not comparable with the full dataset: fewer documents are easier to rank.
    """

    dataset: str
    documents: int
    queries: int
    torch: float
    files: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        head = f"{self.dataset}: {self.queries:,} queries over {self.documents:,} documents"
        lines = [f"{head}, {MEASURE} by torch {self.torch:.4f}"]
        for file, value in self.files.items():
            lines.append(f"  by {file} {value:.4f} ({value - self.torch:+.4f})")
        return "\n".join(lines)


def graph_loss(
    folder: str | Path,
    files: Sequence[str],
    dataset: Dataset,
    *,
    documents: int = 2000,
    queries: int = 300,
    seed: int = 13,
) -> GraphLoss:
    """Rank a sample of a dataset with a model folder's exported ``files`` and with torch.

    The sample has at most ``queries`` of the split's, every document judged for one of them, and
    others up to ``documents``, both by ``seed``. Dense and SPLADE models rank all of these; a
    cross-encoder reranks BM25's first 20. Everything runs in float32.
    """
    from sluice.encoders.backends.backend import OUTPUTS, open_backend, through
    from sluice.encoders.model_files.registry import open_encoder

    whole_number(documents, "documents", 1)
    whole_number(queries, "queries", 1)
    texts, sample = sampled(dataset, documents=documents, queries=queries, seed=seed)
    encoder = open_encoder(folder)
    output = OUTPUTS[encoder.kind]
    systems = {"torch": through(encoder, None)}
    for file in files:
        systems[file] = through(encoder, open_backend(folder, "onnx", output, file=file))
    rank = _reranked(texts, sample) if KNOWN[encoder.kind].scores else _ranked
    same = dataset.identical_ids({document.id: document for document in sample}.get)
    qrels = {name: dataset.qrels[name] for name in texts}
    values = {}
    for name, system in systems.items():
        log.info("%s: nDCG@10 with %s", dataset.name, name)
        run = rank(system, texts, sample)
        scores = evaluate(run, qrels, [MEASURE], ignore_identical_ids=same.drop)
        values[name] = scores.mean[MEASURE]
    reference = values.pop("torch")
    return GraphLoss(dataset.name, len(sample), len(texts), reference, values)


def sampled(
    dataset: Dataset, *, documents: int, queries: int, seed: int
) -> tuple[dict[str, str], list[Document]]:
    """Return query texts by id, and documents in the corpus's order; one pass, bounded memory.

    See ``graph_loss``; more than ``documents`` are returned if more are judged.
    """
    rng = random.Random(seed)
    names = list(dataset.queries)
    if len(names) > queries:
        drawn = set(rng.sample(names, queries))
        names = [name for name in names if name in drawn]
    judged = {document for name in names for document in dataset.qrels[name]} | set(names)
    kept: list[tuple[int, Document]] = []
    sample: Reservoir[tuple[int, Document]] = Reservoir(documents, rng)
    for place, document in enumerate(dataset.corpus):
        if document.id in judged:
            kept.append((place, document))
        else:
            sample.add((place, document))
    others = sample.items
    room = max(0, documents - len(kept))
    if len(others) > room:
        others = rng.sample(others, room)
    if not kept and not others:
        raise DataError(f"dataset {dataset.name}: its corpus is empty")
    chosen = [document for _, document in sorted([*kept, *others], key=lambda entry: entry[0])]
    return {name: dataset.queries[name] for name in names}, chosen


def _ranked(system: Any, texts: Mapping[str, str], sample: Sequence[Document]) -> Run:
    """Rank every document for every query, by the product of their vectors."""
    queries = system.encode_queries(list(texts.values()))
    documents = system.encode_documents([document.full_text for document in sample])
    products = queries @ documents.T
    scores = products if isinstance(products, np.ndarray) else products.toarray()
    sparse = scores is not products
    hits = {}
    for query, row in zip(texts, scores, strict=True):
        best = np.argsort(-row, kind="stable")[:KEPT]
        chosen = best[row[best] > 0] if sparse else best
        hits[query] = [(sample[at].id, float(row[at])) for at in chosen.tolist()]
    return Run(hits)


def _reranked(texts: Mapping[str, str], sample: Sequence[Document]) -> Any:
    """Return a function that reranks BM25's candidates, which are searched for once."""
    from sluice.encoders import BM25Encoder
    from sluice.retrieval.retrievers.retriever import Retriever

    first = Retriever.build(BM25Encoder(), list(sample)).run(texts, k=DEPTH)
    bodies = {document.id: document.full_text for document in sample}
    places = [(query, document) for query in first for document in first[query].doc_ids]
    pairs = [(texts[query], bodies[document]) for query, document in places]

    def rank(system: Any, texts: Mapping[str, str], sample: Sequence[Document]) -> Run:
        scores = system.score(pairs)
        hits: dict[str, list[tuple[str, float]]] = {query: [] for query in texts}
        for (query, document), score in zip(places, scores.tolist(), strict=True):
            hits[query].append((document, score))
        return Run(hits)

    return rank
