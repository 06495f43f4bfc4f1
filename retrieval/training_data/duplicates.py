"""Finds documents that repeat others, and writes a corpus without them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from annotated_types import Interval

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.disk.files import packed_file, writable
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.progress import progress
from sluice.retrieval.datasets.dataset import Dataset
from sluice.retrieval.datasets.report import open_corpus
from sluice.retrieval.documents.likeness import repeated, sketch, word_hashes
from sluice.retrieval.pipelines.asking import Dropped
from sluice.retrieval.training_data.written.written_corpus import corpus_line

SHOWN: Final = 10  # repetitions of a report


class Deduplicated(NamedTuple):
    """How many documents a corpus has, which repeat an earlier one, and what judgements lose.

    ``relevant`` of the repetitions are relevant to a query of some split.
    """

    documents: int
    least: float
    relevant: int
    repeated: list[Dropped]

    def __str__(self) -> str:
        lines = [
            f"{self.documents:>9,}  documents",
            f"{len(self.repeated):>9,}  of them repeat an earlier one ({self.least:g} alike)",
            f"{self.relevant:>9,}  of these are relevant to a query; judgements are not changed",
            *(f"{doc}: {of} ({alike:.2f})" for doc, of, alike in self.repeated[:SHOWN]),
        ]
        more = len(self.repeated) - SHOWN
        return "\n".join([*lines, f"and {more:,} more"] if more > 0 else lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON has it."""
        each = [repetition._asdict() for repetition in self.repeated]
        return {**self._asdict(), "repeated": each}


@checked()
def deduplicate(
    dataset: Dataset | str | Path | Mapping[str, Any],
    *,
    duplicates: Annotated[
        float,
        Interval(gt=0, le=1),
        "Documents at least so like an earlier one repeat it, by the share of common words.",
    ] = 0.8,
    output: Path | None = None,
) -> Deduplicated:
    """Find near-duplicates; with ``output`` also write the others as lines of ``corpus.jsonl``.

    The first of documents that are alike stays. Likeness is that of ``diverse``, of title and text;
    documents without a word are alike. Memory: 600 bytes a document. ``DataError`` for no document.
    """
    opened = dataset if isinstance(dataset, Dataset) else open_corpus(dataset)
    if output is not None:
        writable(output)  # before a large corpus is read
    ids, sketches = list[str](), []
    with progress(f"reading {opened.name}", opened.corpus.size, "documents") as advance:
        for document in opened.corpus:
            ids.append(document.id)
            sketches.append(sketch(word_hashes(document.full_text)))
            advance()
    if not ids:
        raise DataError(f"{opened.name}: no documents; expected at least one")
    found = repeated(sketches, duplicates)
    if output is not None:
        dropped = {each.place for each in found}
        with packed_file(output) as stream:
            for place, document in enumerate(opened.corpus):
                if place not in dropped:
                    stream.write(corpus_line(document, document.text))
    judged = {
        name
        for split in opened.splits
        for grades in opened.source.qrels(split).values()
        for name, grade in grades.items()
        if grade > 0
    }
    alike = [Dropped(ids[place], ids[of], likeness) for place, of, likeness in found]
    return Deduplicated(
        len(ids), duplicates, len(judged.intersection(each.doc_id for each in alike)), alike
    )
