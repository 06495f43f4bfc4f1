"""What ``sluice mine`` writes: negatives as JSON lines, the report, where candidates are from."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.files import packed_file, write_json

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset
    from sluice.training.negatives.report import MinedNegatives

log = logging.getLogger("sluice")


def write_mined(output: Path, dataset: Dataset, mined: MinedNegatives) -> None:
    """Write ``x.jsonl``, ``x.report.json`` and ``x.provenance.parquet``.

    A line is ``{query_id, query, pos, neg, pos_ids, neg_ids, pos_scores, neg_scores}``: the last
    two are the judge's scores, else those of the one list mined from, and left out where any of
    the line's documents has none. Queries without text are left out, as are documents that are not
    in the corpus; pairs that the ranking-consistency filter drops have no place among ``pos``.
    """
    from sluice.training.negatives.provenance_file import write_provenance

    with packed_file(output) as stream:
        stream.writelines(
            json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n"
            for line in _lines(dataset, mined)
        )
    write_json(output.with_suffix(".report.json"), mined.report.as_dict())
    write_provenance(output.with_suffix(".provenance.parquet"), mined)


def _lines(dataset: Dataset, mined: MinedNegatives) -> Iterator[dict[str, Any]]:
    positives = {
        query: [
            doc
            for doc, grade in dataset.qrels[query].items()
            if grade > 0 and doc not in mined.inconsistent.get(query, ())
        ]
        for query in mined.negatives
    }
    wanted = {doc for docs in (*positives.values(), *mined.negatives.values()) for doc in docs}
    texts = {d.id: d.full_text for d in dataset.corpus if d.id in wanted}
    absent = sorted(wanted - texts.keys())
    if absent:
        log.warning(
            "%s: %d documents named by the lists or the qrels are not in the corpus, and are left "
            "out (%s)", dataset.name, len(absent), ", ".join(absent[:3]),
        )  # fmt: skip
    table = mined.table
    for place, query in enumerate(table.queries):
        here = [doc for doc in positives[query] if doc in texts]
        there = [doc for doc in mined.negatives[query] if doc in texts]
        if query in dataset.queries and here:
            line = {
                "query_id": query,
                "query": dataset.queries[query],
                "pos": [texts[doc] for doc in here],
                "neg": [texts[doc] for doc in there],
                "pos_ids": here,
                "neg_ids": there,
            }
            yield {**line, **_scores(table.scores_of(place), here, there)}


def _scores(
    scores: Mapping[str, float], positives: Sequence[str], negatives: Sequence[str]
) -> dict[str, list[float]]:
    sides = {"pos_scores": positives, "neg_scores": negatives}
    return {
        key: [scores[doc] for doc in side]
        for key, side in sides.items()
        if all(doc in scores for doc in side)
    }
