"""The tasks in which a teacher scores pairs, here or in other processes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.disk.files import (
    fingerprint_of,
    read_json,
    replaced_file,
    write_text,
)
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.progress import Advance, counted_by
from sluice.encoders.vectors.pool import check_reopened, transfer_form
from sluice.retrieval.execution.executor import (
    LOCAL,
    Executor,
    Facts,
    Plan,
    Task,
    begin_alone,
    end_planning,
    run_plan,
)
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.teachers.teachers import (
    Ensemble,
    ModelTeacher,
    RunTeacher,
    Teacher,
)
from sluice.training.negatives.false_negatives import JudgedPair, judged

COLUMNS = ("query_id", "doc_id", "score")


def read_scores(path: Path) -> Iterator[tuple[list[str], list[str], np.ndarray]]:
    """Stream query ids, document ids and scores (float64) of a file of scores, by blocks.

    Raises ``DataError`` for a file that is not parquet, lacks a column, or holds a null or a score
    that is not finite.
    """
    import pyarrow as pa

    file = open_scores(path)
    row = 0
    try:
        for batch in file.iter_batches(65_536, columns=list(COLUMNS)):
            for column in COLUMNS:
                if batch[column].null_count:
                    raise DataError(f"{path}: a null in column {column!r}, after row {row:,}")
            scores = batch["score"].cast(pa.float64()).to_numpy(zero_copy_only=False)
            bad = np.flatnonzero(~np.isfinite(scores))
            if len(bad):
                raise DataError(
                    f"{path}: row {row + int(bad[0]):,}: the score is {scores[bad[0]]}, expected a "
                    "finite number; leave out pairs without one"
                )
            queries, documents = (batch[name].cast(pa.string()).to_pylist() for name in COLUMNS[:2])
            yield queries, documents, scores
            row += len(batch)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: row {row:,}: not readable ({error}); score again") from None


def open_scores(path: Path) -> Any:
    """Open a parquet file of scores; ``DataError`` if it is another file or lacks a column."""
    file = open_parquet(path)
    names = file.schema_arrow.names
    for column in COLUMNS:
        if column not in names:
            raise DataError(
                f"{path}: no column {column!r} among {', '.join(names)}; a file of teacher's "
                f"scores has {', '.join(COLUMNS)}, as `sluice teach distil` writes it"
            )
    return file


def open_parquet(path: Path) -> Any:
    """Open a parquet file; ``DataError`` for another one."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not readable as parquet ({error})") from None


def run_of_scores(path: Path) -> Run:
    """Return the scores of a file of `sluice teach distil` as a run."""
    lists: dict[str, dict[str, float]] = {}
    for queries, documents, scores in read_scores(path):
        for query, document, score in zip(queries, documents, scores.tolist(), strict=True):
            lists.setdefault(query, {})[document] = score
    return Run(lists, name=path.name)


def table_of(pairs: Sequence[JudgedPair], scores: np.ndarray) -> Any:
    """Return pairs and their scores as an Arrow table."""
    import pyarrow as pa

    columns = [
        pa.array([pair.query_id for pair in pairs], pa.string()),
        pa.array([pair.document_id for pair in pairs], pa.string()),
        pa.array(np.asarray(scores, np.float64), pa.float64()),
    ]
    return pa.table(columns, names=list(COLUMNS))


INSTEAD = "executor: local"


class SentTeacher:
    """A teacher that other processes open: what it needs is saved below ``folder`` by ``save``.

    ``form`` says in JSON what it is made of. ``ConfigError`` for a model that cannot be sent.
    """

    def __init__(self, teacher: Teacher, folder: Path, *, own_devices: bool = False) -> None:
        self._folder = folder.absolute()
        self._own_devices = own_devices
        self._models: dict[str, Any] = {}
        self._runs: dict[str, Run] = {}
        self._saved = False
        self.form = {**self._form(teacher), "fingerprint": teacher.fingerprint}

    def _form(self, teacher: Any) -> dict[str, Any]:
        if isinstance(teacher, Ensemble):
            weights, normalise, scale = teacher.mixture.facts
            return {
                "teachers": [self._form(member) for member in teacher.teachers],
                "weights": weights, "normalise": normalise, "scale": scale,
            }  # fmt: skip
        if isinstance(teacher, RunTeacher):
            file = f"run-{fingerprint_of(teacher.name, teacher.fingerprint)[:16]}.parquet"
            self._runs[file] = teacher.run
            return {
                "run": str(self._folder / file), "name": teacher.name, "as": teacher.fingerprint
            }  # fmt: skip
        own, options = transfer_form(
            teacher.model, where="executor", instead=INSTEAD, own_devices=self._own_devices
        )
        folder = f"model-{teacher.fingerprint[:16]}"
        self._models[folder] = teacher.model
        return {
            "model": str(self._folder / folder), "own": own, "options": options,
            "name": teacher.name,
        }  # fmt: skip

    def save(self) -> None:
        """Save the models and runs, unless this object has done so."""
        if self._saved:
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        for folder, model in self._models.items():
            model.save_pretrained(self._folder / folder)
        for file, run in self._runs.items():
            _write_run(self._folder / file, run)
        self._saved = True


def stays_here(teacher: Teacher) -> str:
    """Return why no other process can, or need, ask a teacher; empty where one can."""
    if isinstance(teacher, Ensemble):
        reasons = [stays_here(member) for member in teacher.teachers]
        runs = all(isinstance(member, RunTeacher) for member in teacher.teachers)
        others = (why for why, m in zip(reasons, teacher.teachers, strict=True)
                  if why and not isinstance(m, RunTeacher))  # fmt: skip
        return reasons[0] if runs else next(others, "")
    if isinstance(teacher, RunTeacher):
        return "the scores of a run are looked up"
    if not isinstance(teacher, ModelTeacher):
        return f"{teacher.name} is a language model or an object, which one process asks"
    if not hasattr(teacher.model, "save_pretrained"):
        return f"{teacher.name} cannot be saved for other processes"
    return ""


@lru_cache(maxsize=1)
def open_sent(form: str) -> Teacher:
    """Open what ``SentTeacher.form`` describes, as JSON; the last one stays open."""
    facts = json.loads(form)
    teacher = _reopen(facts)
    check_reopened(
        teacher.name, teacher.fingerprint, facts["fingerprint"], where="executor", instead=INSTEAD
    )
    return teacher


def _reopen(facts: Mapping[str, Any]) -> Teacher:
    from sluice.encoders.vectors.worker import reopened

    if "teachers" in facts:
        members = [_reopen(each) for each in facts["teachers"]]
        return Ensemble(
            members, facts["weights"], normalise=facts["normalise"], scale=facts["scale"]
        )
    if "run" in facts:
        return RunTeacher(run_of_scores(Path(facts["run"])), facts["name"], facts["as"])
    model = reopened(facts["model"], facts["own"], facts["options"])
    return ModelTeacher(model, facts["name"])


def _write_run(path: Path, run: Run) -> None:
    """Write a run's float32 scores as a file of scores, query by query."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = ("query_id", pa.string()), ("doc_id", pa.string()), ("score", pa.float32())
    with replaced_file(path) as stream, parquet.ParquetWriter(stream, pa.schema(columns)) as writer:
        for query, ranking in run.items():
            names = list(ranking.doc_ids)
            rows = [[query] * len(names), names, np.asarray(ranking.scores)]
            writer.write_batch(pa.record_batch(rows, schema=writer.schema))


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
