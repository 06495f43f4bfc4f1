"""Scores pairs with a teacher into a parquet file, and attaches such scores to examples.

The file has the columns ``query_id``, ``doc_id`` and ``score`` (float32); its metadata says under
``sluice`` who scored what. It is written shard by shard, so that a kill loses little.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import (
    fingerprint_of,
    read_json,
    replaced_file,
    writable,
    write_json,
)
from sluice.encoders.foundation.disk.generations import writer_lock
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.execution.executor import LOCAL, Executor
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.teachers.scoring_tasks import (
    INPUTS,
    TEACHER,
    Ids,
    Shards,
    Texts,
    open_parquet,
    read_scores,
    score_shards,
    table_of,
)
from sluice.retrieval.training_data.teachers.spec import Context, ScoreFileSpec, teacher_spec
from sluice.retrieval.training_data.teachers.teachers import Teacher, Texts as CorpusTexts
from sluice.training.negatives.false_negatives import JudgedPair

if TYPE_CHECKING:
    from sluice.training import Example

log = logging.getLogger("sluice")

SHARD = 2_048  # pairs that a kill may lose
METADATA = b"sluice"
PARTS = ("job.json", "documents", TEACHER, INPUTS)  # beside the shards


class Distilled(NamedTuple):
    """Pairs scored into the file, pairs without a score, and shards reused from a killed call."""

    path: Path
    scored: int
    unscored: int
    reused: int

    def __str__(self) -> str:
        without = f", {self.unscored:,} without a score left out" if self.unscored else ""
        before = f" ({self.reused:,} of the shards reused)" if self.reused else ""
        return f"{self.path}: {self.scored:,} pairs scored{without}{before}"


def distil(
    teacher: Teacher,
    pairs: Iterable[tuple[str, Sequence[str]]],
    texts: Texts,
    output: Path,
    *,
    key: str,
    facts: Mapping[str, Any],
    shard: int = SHARD,
    executor: Executor = LOCAL,
) -> Distilled:
    """Score each query's documents into ``output``.

    Shards of whole queries, ``shard`` pairs or a few more, are the tasks of ``executor``. They are
    written to ``<output>.parts``; the same call after a kill, with the same ``key``, continues from
    there. ``key`` hashes everything that decides the pairs and their scores; ``facts`` go into the
    file's metadata. ``pairs`` is read twice. Memory: one shard.
    """
    done = read_facts(output) if output.is_file() else {}
    if done.get("key") == key:
        log.info("%s: reusing the saved scores", output)
        _remove_parts(parts_of(output))  # of a call that was killed when the file was complete
        return Distilled(output, int(done["scored"]), int(done["unscored"]), 0)
    writable(output)  # an output that is a folder is refused before any work
    parts = parts_of(output)
    with writer_lock(parts):
        _begin(parts, key)
        shards = Shards(pairs, shard)
        reused = score_shards("distil", teacher, shards, texts, parts, executor)
        count = sum(shards.sizes)
        scored = _merge(shards.files(parts), output, {**facts, "key": key}, count)
        _remove_parts(parts)
    return Distilled(output, scored, count - scored, reused)


def parts_of(output: Path) -> Path:
    """Return the folder of the shards of an unfinished file."""
    return output.with_name(f"{output.name}.parts")


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts in a file of scores; empty if another program wrote it."""
    metadata = open_parquet(path).schema_arrow.metadata or {}
    try:
        facts = json.loads(metadata.get(METADATA, b"{}"))
    except ValueError:
        facts = None
    return facts if isinstance(facts, dict) else {}


def _remove_parts(parts: Path) -> None:
    """Remove the folder of the shards, unless it holds what is not one."""
    if parts.is_dir() and not _foreign(parts):
        shutil.rmtree(parts, ignore_errors=True)


def _foreign(parts: Path) -> list[str]:
    names = sorted(entry.name for entry in parts.iterdir())
    return [name for name in names if name not in PARTS and not name.startswith(("shard-", "."))]


def _begin(parts: Path, key: str) -> None:
    """Keep the shards of a killed call with the same key; remove others."""
    note = parts / "job.json"
    if note.exists() and read_json(note).get("key") == key:
        return
    foreign = _foreign(parts)
    if foreign and not note.exists():
        raise ConfigError(
            f"{parts}: is for shards, but holds {foreign[0]!r}, which is not one; move it, "
            "or give another output"
        )
    entries = [entry for entry in parts.iterdir() if not entry.name.startswith(".")]
    if entries:
        log.info("%s: the settings changed; scoring starts again", parts)
        for entry in entries:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    write_json(note, {"key": key})


def _merge(files: Sequence[Path], output: Path, facts: Mapping[str, Any], pairs: int) -> int:
    """Write the shards into one file; return how many of the pairs have a score."""
    import pyarrow as pa
    from pyarrow import parquet

    scored = sum(int(parquet.read_metadata(file).num_rows) for file in files)
    if not scored:
        raise DataError(
            f"{output}: the teacher scored none of {pairs:,} pairs; is it a run of other queries, "
            "or are the documents not in the corpus?"
        )
    stated = {**facts, "scored": scored, "unscored": pairs - scored}
    plain = table_of([], np.zeros(0)).schema
    plain = plain.set(plain.get_field_index("score"), pa.field("score", pa.float32()))
    schema = plain.with_metadata({METADATA: json.dumps(stated).encode()})
    with (
        replaced_file(output) as stream,
        parquet.ParquetWriter(stream, schema, compression="zstd") as writer,
    ):
        for file in files:
            writer.write_table(parquet.read_table(file).cast(schema, safe=False))
    return scored


FILE = "teacher.parquet"  # in the work folder of a training run


def taught(
    examples: list[Example],
    teacher: str | Mapping[str, Any],
    *,
    work_path: Path,
    model: Callable[[str], str] = str,
    corpus: CorpusTexts | None = None,
    where: str = "teacher",
    executor: Executor = LOCAL,
) -> list[Example]:
    """Return the examples with the scores of a section ``teacher``.

    A parquet file is read; anything else scores the examples' pairs into ``work_path``, once, by
    ``executor``: the scores of a killed call are reused. ``corpus`` streams the texts that
    ``bm25`` is fitted on.
    """
    spec = teacher_spec(teacher, where)
    if isinstance(spec, ScoreFileSpec):
        return attach_scores(examples, expanded(spec.value))
    scorer = spec.make(Context(model, corpus, stored=lambda: own_scores(examples)))
    distilled = score_examples(scorer, examples, work_path / FILE, executor=executor)
    log.info("teacher %s: %s", scorer.name, distilled)
    return attach_scores(examples, distilled.path)


def own_scores(examples: Iterable[Example]) -> Run:
    """Return the scores that examples bring as a run; ``DataError`` where there are none."""
    lists: dict[str, dict[str, float]] = {}
    for example in examples:
        for document, score in zip(example.documents, example.scores, strict=False):
            if not math.isnan(score):
                lists.setdefault(example.query.id, {})[document.id] = score
    if not lists:
        raise DataError(
            "teacher: examples: no training example brings a score; leave examples out of the "
            "teachers, or give a file with scores"
        )
    return Run(lists, name="examples")


def score_examples(
    teacher: Teacher,
    examples: Sequence[Example],
    output: Path,
    *,
    facts: Mapping[str, Any] | None = None,
    shard: int = SHARD,
    executor: Executor = LOCAL,
) -> Distilled:
    """Score each distinct (query, document) pair of the examples into a parquet file.

    Each query's documents have the texts that its own examples give them: pairs that are made from
    one document may each have another part of it.
    """
    queries: dict[str, str] = {}
    pairs: dict[str, dict[str, str]] = {}  # texts by query and document
    for example in examples:
        queries[example.query.id] = example.query.text
        own = pairs.setdefault(example.query.id, {})
        own.update((document.id, document.text) for document in example.documents)

    def texts(ids: Ids) -> list[JudgedPair]:
        return [JudgedPair(q, queries[q], d, pairs[q][d]) for q, d in ids]

    digest = hashlib.sha256()
    for query, own in pairs.items():
        entry = [query, queries[query], list(own.items())]
        digest.update(json.dumps(entry).encode())
    return distil(
        teacher,
        [(query, list(own)) for query, own in pairs.items()],
        texts,
        output,
        key=fingerprint_of("examples", teacher.fingerprint, digest.hexdigest(), shard),
        facts=facts or {"teachers": [{"name": teacher.name, "fingerprint": teacher.fingerprint}]},
        shard=shard,
        executor=executor,
    )


def attach_scores(examples: list[Example], path: Path) -> list[Example]:
    """Return the examples with a file's scores for their pairs, NaN for those it lacks.

    Scores that the examples had are replaced: two teachers score on two scales. Pairs that the file
    lacks are counted in a warning. Raises ``DataError`` if it has none of them.
    """
    score_of = {
        (example.query.id, document.id): math.nan
        for example in examples
        for document in example.documents
    }
    for queries, documents, scores in read_scores(path):
        for query, document, score in zip(queries, documents, scores.tolist(), strict=True):
            if (query, document) in score_of:
                score_of[query, document] = score
    missing, pairs = sum(map(math.isnan, score_of.values())), len(score_of)
    if missing == pairs:
        raise DataError(
            f"{path}: has a score for none of the {pairs:,} training pairs (such as query "
            f"{examples[0].query.id!r}, document {examples[0].documents[0].id!r}); it was made for "
            "other queries or documents: run sluice teach distil on this dataset and these "
            "negatives"
        )
    scored = [
        replace(e, scores=tuple(score_of[e.query.id, document.id] for document in e.documents))
        for e in examples
    ]
    if missing:
        few = sum(sum(not math.isnan(score) for score in e.scores) < 2 for e in scored)
        log.warning(
            "%s: no score for %s of %s training pairs (%.1f %%); %s of %s examples have fewer than "
            "two scored documents, too few to compare", path, f"{missing:,}", f"{pairs:,}",
            100 * missing / pairs, f"{few:,}", f"{len(scored):,}",
        )  # fmt: skip
    return scored
