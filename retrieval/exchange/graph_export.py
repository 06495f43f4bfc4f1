"""A model's folder to ONNX: the graph, how far it is from torch, what that costs on a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.exchange.graph_loss import GraphLoss, graph_loss

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
    quantise: str | None = None,
    dataset: str | None = None,
    split: str = "test",
    documents: int | None = None,
    queries: int | None = None,
) -> GraphExport:
    """Write ``encoders.export_onnx``'s folder, and measure nDCG@10 with it where told to.

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
            f"{model}: is a retriever; ONNX holds a model: give {Path(model) / 'encoder'}"
        )
    if dataset is None and (documents is not None or queries is not None):
        raise ConfigError("documents and queries: are of a dataset, and none is given")
    documents = DOCUMENTS if documents is None else documents
    queries = QUERIES if queries is None else queries
    opened = None if dataset is None else load_dataset(dataset, split)
    if opened is not None:  # what is wrong with it is said before the model is traced
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
