"""``sluice teach distil``: scores a dataset's known positives and candidates with a teacher."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.config.file_keys import corpus_contents, path_contents
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.documents.store import DocumentStore, open_documents, write_documents
from sluice.retrieval.execution.executor import LOCAL, Executor
from sluice.retrieval.retrievers.candidate_lists import open_lists, run_on
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.teachers.distillation import (
    SHARD,
    Distilled,
    distil,
    parts_of,
)
from sluice.retrieval.training_data.teachers.scoring_tasks import Ids
from sluice.retrieval.training_data.teachers.spec import Context, teacher_spec
from sluice.retrieval.training_data.teachers.teachers import Ensemble, Mixture, Teacher
from sluice.training.negatives.false_negatives import JudgedPair

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset

log = logging.getLogger("sluice")

TRAINING_FILES = (".jsonl", ".csv", ".parquet", ".jsonl.gz", ".csv.gz")


def distil_dataset(
    teachers: Sequence[str],
    dataset: str,
    candidates: str,
    output: Path,
    *,
    depth: Annotated[int, "Score the first N candidates of a run or retriever."] = 50,
    split: Annotated[str, "The split whose queries are scored."] = "train",
    weights: Sequence[float] | None = None,
    normalise: Annotated[
        str,
        "METHOD",
        "Each teacher's scores by query: min-max, z-score or none, as they are.",
    ] = "none",
    scale: Annotated[float, "What the weighted mean is multiplied by."] = 1.0,
    shard: Annotated[int, "Pairs saved at a time; an interruption loses one shard."] = SHARD,
    allow: Collection[str] = (),
    executor: Executor = LOCAL,
) -> Distilled:
    """Score a split's positives and its ``candidates`` into ``output``, see ``distil``.

    ``candidates`` is a run file or a retriever's folder (both cut to ``depth``), or a file of
    training examples, whose pairs are scored instead. Several teachers form an ``Ensemble``.
    ``allow`` lists what a retriever's folder may do beside reading. ``executor`` scores the shards.
    """
    if depth < 1 or shard < 1:
        raise ConfigError(f"depth {depth}, shard {shard}: expected 1 or more of each")
    if not expanded(candidates).exists():
        raise ConfigError(
            f"candidates: no file or folder {candidates}; expected a run, a retriever's folder, or "
            "a file of examples as sluice mine writes"
        )
    data = load_dataset(dataset, split)
    mixture = Mixture(len(teachers), weights, normalise, scale)

    def corpus() -> Iterator[str]:
        return (document.full_text for document in data.corpus)

    opened = [teacher_spec(name).make(Context(corpus=corpus)) for name in teachers]
    if len(opened) == 1 and mixture.facts == Mixture(1).facts:
        teacher: Teacher = opened[0]
    else:
        teacher = Ensemble(opened, weights, normalise=normalise, scale=scale)
    facts = {
        "teachers": [{"name": one.name, "fingerprint": one.fingerprint} for one in opened],
        "weights": mixture.weights,
        "normalise": normalise,
        "scale": mixture.scale,
        "dataset": data.name,
        "split": data.split,
        "candidates": candidates,
        "depth": depth,
    }
    if candidates.endswith(TRAINING_FILES):
        from sluice.retrieval.training_data.files.examples import FileExamples
        from sluice.retrieval.training_data.teachers.distillation import score_examples

        return score_examples(
            teacher, FileExamples(candidates).examples(data, 0), output, facts=facts, shard=shard,
            executor=executor,
        )  # fmt: skip
    source = open_lists(candidates, "candidates", allow=allow)
    run = run_on(source, data, depth).top(depth)
    if not any(query in run for query in data.queries):
        raise DataError(
            f"candidates: {candidates} has lists for none of the {len(data.queries):,} queries of "
            f"{data.name} ({data.split}); is it a run on another split?"
        )
    pairs = _Pairs(data, run)
    key = fingerprint_of(
        teacher.fingerprint, data.name, data.split, corpus_contents(dataset), data.qrels,
        data.queries, path_contents(candidates), depth, shard,
    )  # fmt: skip
    texts = _Texts(data, pairs, parts_of(output) / "documents")
    return distil(
        teacher,
        pairs,
        texts.pairs if teacher.needs_texts else _without_texts,
        output,
        key=key,
        facts=facts,
        shard=shard,
        executor=executor,
    )


class _Pairs:
    """A dataset's queries, each with the ids of its positives, then those of its candidates."""

    def __init__(self, dataset: Dataset, run: Run) -> None:
        self._dataset = dataset
        self._run = run

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        for query in self._dataset.queries:
            grades = self._dataset.qrels[query].items()
            documents = [doc for doc, grade in grades if grade > 0]
            if query in self._run:
                documents += self._run[query].doc_ids
            yield query, list(dict.fromkeys(documents))


class _Texts:
    """The documents of the pairs, written to disk once and read from there shard by shard."""

    def __init__(self, dataset: Dataset, pairs: _Pairs, path: Path) -> None:
        self._dataset = dataset
        self._pairs = pairs
        self._path = path
        self._store: DocumentStore | None = None

    def pairs(self, ids: Ids) -> list[JudgedPair]:
        """Return the pairs with their texts, without those whose document is not in the corpus."""
        if self._store is None:
            complete = (self._path / MANIFEST).exists()  # by a killed call
            self._store = open_documents(self._path) if complete else self._written()
        documents = list(dict.fromkeys(document for _, document in ids))
        rows = self._store.rows(documents)
        known = [name for name, row in zip(documents, rows.tolist(), strict=True) if row >= 0]
        texts = dict(zip(known, self._store.texts(known), strict=True))
        queries = self._dataset.queries
        return [JudgedPair(q, queries[q], d, texts[d]) for q, d in ids if d in texts]

    def _written(self) -> DocumentStore:
        needed = {document for _, documents in self._pairs for document in documents}
        store = write_documents(self._path, (d for d in self._dataset.corpus if d.id in needed))
        if len(store) < len(needed):
            absent = sorted(needed - {document.id for document in store})
            log.warning(
                "%s: left out %s of %s documents of qrels or candidates: not in the corpus (%s)",
                self._dataset.name, f"{len(absent):,}", f"{len(needed):,}", ", ".join(absent[:3]),
            )  # fmt: skip
        return store


def _without_texts(ids: Ids) -> list[JudgedPair]:
    return [JudgedPair(query, "", document, "") for query, document in ids]


def teacher_weights(weights: Sequence[float] | None, teachers: Sequence[str]) -> list[float] | None:
    """Return the weights of the command line, one for each teacher, or None for equal ones."""
    if weights and len(weights) != len(teachers):
        raise ConfigError(
            f"--weight: given {len(weights)} times for {len(teachers)} teachers; give one each"
        )
    return list(weights) if weights else None
