"""Scores pairs with a teacher as tasks: each some pairs of a file, in whatever process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.disk.files import read_json, replaced_file, write_text
from sluice.encoders.foundation.progress import Advance, counted_by
from sluice.retrieval.execution.executor import LOCAL, Executor, Facts, Task
from sluice.retrieval.execution.plan import Plan, begin_alone, end_planning, run_plan
from sluice.retrieval.training_data.teachers.ensemble import Teacher
from sluice.retrieval.training_data.teachers.sent_teacher import (
    SentTeacher,
    open_sent,
    stays_here,
)
from sluice.training.negatives.judge import JudgedPair, judged

COLUMNS = ("query_id", "doc_id", "score")
TEACHER, INPUTS = "teacher", "inputs"  # folders beside the shards

Ids = list[tuple[str, str]]  # (query id, document id) of a shard's pairs
Texts = Callable[[Ids], Sequence[JudgedPair]]  # the pairs with their texts, as many or fewer


class Shards:
    """Pairs parted into shards of whole queries, of ``size`` pairs or a few more.

    Only their ``sizes`` are in memory: the pairs are read again, shard after shard.
    """

    def __init__(self, pairs: Iterable[tuple[str, Sequence[str]]], size: int) -> None:
        self._pairs, self._size = pairs, size
        self.sizes = [len(ids) for ids in self._cut()]
        self._next, self._rest = 0, self._cut()

    def ids(self, number: int) -> Ids:
        """Return the pairs of a shard; one after the other is quickest."""
        if number < self._next:
            self._next, self._rest = 0, self._cut()
        while True:
            ids = next(self._rest)
            self._next += 1
            if self._next > number:
                return ids

    def files(self, folder: Path) -> list[Path]:
        """Return the file of each shard's scores."""
        return [folder / f"shard-{number:06d}.parquet" for number in range(len(self.sizes))]

    def _cut(self) -> Iterator[Ids]:
        shard: Ids = []
        for query, documents in self._pairs:
            shard += [(query, document) for document in documents]
            if len(shard) >= self._size:
                yield shard
                shard = []
        if shard:
            yield shard


def score_shards(
    label: str, teacher: Teacher, shards: Shards, texts: Texts, parts: Path, executor: Executor
) -> int:
    """Write the scores of every shard into a file of ``parts``; return how many were there.

    A teacher that only this process can ask scores them here.
    """
    why = stays_here(teacher)
    if why:
        if executor.remote:
            begin_alone(label, executor, why)
        executor = LOCAL
    sent = None
    if executor.remote:
        sent = SentTeacher(teacher, parts / TEACHER, own_devices=executor.gives_devices)
    files = shards.files(parts)
    tasks = [
        _task(f"{label} {number}", number, teacher, sent, shards, texts, file)
        for number, file in enumerate(files)
    ]
    before = sum(task.is_done for task in tasks)
    run_plan(Plan(label, tasks, "pairs"), executor)
    end_planning(label)
    return before


def _task(
    name: str,
    number: int,
    teacher: Teacher,
    sent: SentTeacher | None,
    shards: Shards,
    texts: Texts,
    file: Path,
) -> Task:
    inputs = (file.parent / INPUTS / f"{number:06d}.json").absolute()

    def prepare() -> None:
        if sent is not None:
            sent.save()
            inputs.parent.mkdir(exist_ok=True)
            write_text(inputs, json.dumps(texts(shards.ids(number))))

    def here(advance: Advance) -> Facts:
        start = time.perf_counter()
        with counted_by(lambda amount=1: None):  # a model counts texts, this job pairs
            write_scores(teacher, texts(shards.ids(number)), file)
        return {"seconds": time.perf_counter() - start}

    args = {
        "teacher": {} if sent is None else sent.form, "inputs": str(inputs),
        "output": str(file.absolute()),
    }  # fmt: skip
    return Task(
        "score", name, args, file, here, shards.sizes[number],
        prepare=prepare, finish=lambda: inputs.unlink(missing_ok=True),
    )  # fmt: skip


def score_task(*, teacher: Mapping[str, Any], inputs: str, output: str) -> Facts:
    """Score the pairs of the file ``inputs`` with a sent teacher into the file ``output``."""
    opened = open_sent(json.dumps(teacher, sort_keys=True))
    pairs = [JudgedPair(*pair) for pair in read_json(Path(inputs))]
    write_scores(opened, pairs, Path(output))
    return {}


def write_scores(teacher: Teacher, pairs: Sequence[JudgedPair], file: Path) -> None:
    """Write the scores of pairs, float64, without those that have none."""
    from pyarrow import parquet

    scores = judged(teacher, pairs)
    finite = np.flatnonzero(np.isfinite(scores)).tolist()
    with replaced_file(file) as stream:
        table = table_of([pairs[place] for place in finite], scores[finite])
        parquet.write_table(table, stream, compression="zstd")


def table_of(pairs: Sequence[JudgedPair], scores: np.ndarray) -> Any:
    """Return pairs and their scores as an Arrow table."""
    import pyarrow as pa

    columns = [
        pa.array([pair.query_id for pair in pairs], pa.string()),
        pa.array([pair.document_id for pair in pairs], pa.string()),
        pa.array(np.asarray(scores, np.float64), pa.float64()),
    ]
    return pa.table(columns, names=list(COLUMNS))
