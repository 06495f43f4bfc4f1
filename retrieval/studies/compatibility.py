"""Measures whether new encoders can search the indexes of older ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.evaluation.measures import Measure, depth_of, parse_measure
from sluice.retrieval.evaluation.scores import evaluate
from sluice.retrieval.evaluation.table import Table
from sluice.retrieval.retrievers.candidate_lists import asked
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.queries import DEPTH


@dataclass(frozen=True, slots=True)
class Compatibility:
    """``matrix[i][j]``: the measure with query encoder i on the document index of retriever j.

    A cell is None if the two do not fit; ``impossible`` has the reasons by (query encoder, index).
    ``average`` is AC, the share of pairs i > j with M[i][j] > M[j][j].
    """

    names: tuple[str, ...]
    measure: str
    matrix: tuple[tuple[float | None, ...], ...]
    average: float
    impossible: Mapping[tuple[str, str], str]

    def table(self) -> Table:
        """Return the matrix, a row for each query encoder and a column for each index."""
        table = Table(columns={f"on {name}": ".4f" for name in self.names})
        table.rows = {
            name: {f"on {other}": value for other, value in zip(self.names, row, strict=True)}
            for name, row in zip(self.names, self.matrix, strict=True)
        }
        reasons = [
            f"{query} on {index}: {reason}" for (query, index), reason in self.impossible.items()
        ]
        table.caption = "; ".join(
            [
                f"{self.measure} of query encoders (rows) on document indexes (columns), oldest "
                f"first; average compatibility {self.average:.2f}",
                *reasons,
            ]
        )
        return table


def compatibility_matrix(
    retrievers: Mapping[str, Retriever], dataset: Dataset, measure: str | Measure = "nDCG@10"
) -> Compatibility:
    """Search every retriever's index with every retriever's query encoder, and score.

    ``retrievers`` go from the oldest model to the newest. Encoder i > j is compatible with index j
    if it does better there than encoder j itself, M[i][j] > M[j][j] (Shen et al., 2020); AC, the
    average compatibility, is the share of such pairs that are (Biondi et al., 2023). Identical
    models have AC 0, because the inequality is strict.

    A cell is None, and its pair not compatible, if the query vectors differ in kind or width from
    those of the index's own encoder. Vectors of the same width are taken to be comparable; whether
    they are is what is measured. Each encoder encodes the queries once.
    """
    if len(retrievers) < 2:
        raise ConfigError(
            "compatibility_matrix: expected at least two retrievers, the oldest first"
        )
    parsed = parse_measure(measure)
    depth = max(DEPTH, depth_of([parsed]) or DEPTH)
    names = tuple(retrievers)
    states = {name: retriever.state for name, retriever in retrievers.items()}
    texts = [name for name, text in dataset.queries.items() if text.strip()]
    vectors: dict[str, Any] = {
        name: state.encoder.encode_queries([dataset.queries[query] for query in texts])
        for name, state in states.items()
    }
    impossible: dict[tuple[str, str], str] = {}
    matrix: list[tuple[float | None, ...]] = []
    for encoder in names:
        row: list[float | None] = []
        for index in names:
            reason = _misfit(vectors[encoder], vectors[index])
            if reason:
                impossible[encoder, index] = reason
                row.append(None)
                continue
            queries = asked(dataset, retrievers[index])
            run = states[index].nearest(queries, texts, vectors[encoder], depth)
            row.extend(evaluate(run, dataset, [parsed]).mean.values())
        matrix.append(tuple(row))
    pairs = [(matrix[i][j], matrix[j][j]) for i in range(len(names)) for j in range(i)]
    better = [new is not None and old is not None and new > old for new, old in pairs]
    return Compatibility(names, str(parsed), tuple(matrix), sum(better) / len(better), impossible)


def _misfit(vectors: Any, own: Any) -> str:
    """Return why query vectors do not fit an index whose own encoder produces ``own``, or ""."""
    if type(vectors) is not type(own):
        return f"{type(vectors).__name__} for an index of {type(own).__name__}"
    widths = [getattr(each, "shape", (0, 0))[1] for each in (vectors, own)]
    return "" if widths[0] == widths[1] else f"width {widths[0]:,} for {widths[1]:,}"
