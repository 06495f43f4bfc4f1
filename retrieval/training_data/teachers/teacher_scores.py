"""Examples with a teacher's scores: from a file of them, or scored on the spot into one."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.files import fingerprint_of
from sluice.retrieval.training_data.teachers.distillation import (
    SHARD,
    Distilled,
    Ids,
    distil,
    read_scores,
)
from sluice.retrieval.training_data.teachers.teachers import Teacher, is_score_file, make_teacher
from sluice.training.negatives.judge import JudgedPair

if TYPE_CHECKING:
    from sluice.training import Example

log = logging.getLogger("sluice")

FILE = "teacher.parquet"  # in a training's work folder


def taught(
    examples: list[Example],
    teacher: str | Mapping[str, Any],
    *,
    work_path: Path,
    model: Callable[[str], str] = str,
    where: str = "teacher",
) -> list[Example]:
    """Return the examples with the scores that ``teacher:`` of a training asks for.

    A parquet file is read; anything else scores the examples' pairs into ``work_path``, once: what
    a killed call has scored is kept.
    """
    if isinstance(teacher, str) and is_score_file(teacher):
        return attach_scores(examples, Path(teacher).expanduser())
    made = make_teacher(teacher, where=where, model=model)
    found = score_examples(made, examples, work_path / FILE)
    log.info("teacher %s: %s", made.name, found)
    return attach_scores(examples, found.path)


def score_examples(
    teacher: Teacher,
    examples: Sequence[Example],
    output: Path,
    *,
    facts: Mapping[str, Any] | None = None,
    shard: int = SHARD,
) -> Distilled:
    """Score each distinct (query, document) pair of the examples into a parquet file."""
    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    pairs: dict[str, dict[str, None]] = {}
    for example in examples:
        queries[example.query.id] = example.query.text
        documents.update((document.id, document.text) for document in example.documents)
        own = pairs.setdefault(example.query.id, {})
        own.update((document.id, None) for document in example.documents)

    def texts(ids: Ids) -> list[JudgedPair]:
        return [JudgedPair(q, queries[q], d, documents[d]) for q, d in ids]

    digest = hashlib.sha256()
    for query, own in pairs.items():
        entry = [query, queries[query], [(name, documents[name]) for name in own]]
        digest.update(json.dumps(entry).encode())
    return distil(
        teacher,
        ((query, list(own)) for query, own in pairs.items()),
        texts,
        output,
        key=fingerprint_of("examples", teacher.fingerprint, digest.hexdigest(), shard),
        facts=facts or {"teachers": [{"name": teacher.name, "fingerprint": teacher.fingerprint}]},
        total=sum(map(len, pairs.values())),
        shard=shard,
    )


def attach_scores(examples: list[Example], path: Path) -> list[Example]:
    """Return the examples with the scores a file has for their pairs, NaN for those it lacks.

    Scores that the examples brought themselves are replaced: two teachers lie on two scales. Pairs
    that the file lacks are counted in a warning. Raises ``DataError`` if it has none at all.
    """
    wanted = {
        (example.query.id, document.id): math.nan
        for example in examples
        for document in example.documents
    }
    for queries, documents, scores in read_scores(path):
        for query, document, score in zip(queries, documents, scores.tolist(), strict=True):
            if (query, document) in wanted:
                wanted[query, document] = score
    made = [
        replace(e, scores=tuple(wanted[e.query.id, document.id] for document in e.documents))
        for e in examples
    ]
    _check_found(wanted.values(), made, path)
    return made


def _check_found(scores: Iterable[float], examples: Sequence[Example], path: Path) -> None:
    values = list(scores)
    missing = sum(map(math.isnan, values))
    if missing == len(values):
        raise DataError(
            f"{path}: has a score for none of the {len(values):,} training pairs (such as query "
            f"{examples[0].query.id!r}, document {examples[0].documents[0].id!r}); it was made for "
            "other queries or documents: run sluice teach distil on this dataset and "
            "these negatives"
        )
    if missing:
        compared = sum(sum(not math.isnan(x) for x in e.scores) >= 2 for e in examples)
        log.warning(
            "%s: has no score for %s of %s training pairs (%.1f %%); %s of %s examples have fewer "
            "than two scored documents, too few to compare",
            path, f"{missing:,}", f"{len(values):,}", 100 * missing / len(values),
            f"{len(examples) - compared:,}", f"{len(examples):,}",
        )  # fmt: skip
