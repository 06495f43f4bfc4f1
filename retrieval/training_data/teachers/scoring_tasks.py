"""Teachers and judges by name, component or folder, and the tasks in which they score pairs."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.encoder import encodes
from sluice.encoders.foundation.disk.files import (
    fingerprint_of,
    read_json,
    replaced_file,
    write_text,
)
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.progress import Advance, counted_by
from sluice.encoders.vectors.transfer import check_reopened, transfer_form
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
from sluice.retrieval.pipelines.rerank import Rerank
from sluice.retrieval.pipelines.scorer import ScorerHooks
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.generative.pointwise import Pointwise
from sluice.retrieval.stages.generative.rerankers import WordLogit
from sluice.retrieval.training_data.teachers.ensemble import Ensemble, Teacher
from sluice.retrieval.training_data.teachers.language import LanguageTeacher
from sluice.retrieval.training_data.teachers.score_files import run_of_scores, table_of
from sluice.retrieval.training_data.teachers.spec import (
    Context,
    ScoreFileSpec,
    teacher_spec,
)
from sluice.retrieval.training_data.teachers.teachers import ModelTeacher, RunTeacher
from sluice.training.negatives.judge import Judge, JudgedPair, judged

if TYPE_CHECKING:
    from sluice.retrieval.config.components import Allow


JUDGE = (
    "a reranker's name, an inline {type: cross_encoder, model: ...} (or generative, http), a "
    "model's folder, a run file, a file of `sluice teach distil`, or a list of these"
)


def open_judge(
    named: Any,
    where: str,
    *,
    scorer: Callable[[str], Any] | None = None,
    known: Sequence[str] = (),
    model: Callable[[str], str] = str,
) -> Judge:
    """Return the judge that ``judge`` in a config, or from Python, names.

    An inline ``{type: cross_encoder, ...}``, a language model (``{type: generative, ...}``,
    ``{type: http, ...}``), ``{type: ensemble, ...}``, one of the rerankers
    ``known`` (which ``scorer`` makes by name), a run file, a file of scores as
    ``sluice teach distil`` writes it, a model's folder or id, or a list of these, whose scores are
    averaged; or an object: a run, a scorer, a reranking stage, a judge. ``model`` maps the names of
    models trained in an experiment to their folders.
    """
    check_judge(named, where, known=known)
    if isinstance(named, (list, tuple)):
        inner = [
            open_judge(each, f"{where}[{place}]", scorer=scorer, known=known, model=model)
            for place, each in enumerate(named)
        ]
        return Ensemble(inner) if len(inner) > 1 else inner[0]  # type: ignore[arg-type]
    if isinstance(named, Run):  # before mappings: it is one
        return RunTeacher(named, named.name, "")
    if isinstance(named, str) and named in known and scorer is not None:
        opened = scorer(named)
        kind = LanguageTeacher if isinstance(opened, Pointwise | WordLogit) else ModelTeacher
        return kind(opened, named)
    if isinstance(named, (str, Mapping)):
        spec = teacher_spec(named, where)
        if isinstance(spec, ScoreFileSpec):
            return RunTeacher(run_of_scores(Path(spec.value)), Path(spec.value).name, "")
        return spec.make(Context(model))
    if isinstance(named, Rerank):
        return ModelTeacher(named.scorer, named.name)
    if _judges(named):
        judge: Judge = named
        return judge
    return ModelTeacher(named, type(named).__name__)


def _judges(named: Any) -> bool:
    return callable(getattr(named, "scores", None))


def check_judge(named: Any, where: str, *, known: Sequence[str] = (), allow: Allow = None) -> None:
    """Raise ``ConfigError`` unless ``named`` can be a judge; nothing is loaded."""
    if isinstance(named, (list, tuple)):
        if not named:
            raise ConfigError(f"{where}: an empty list; name at least one judge")
        for place, each in enumerate(named):
            check_judge(each, f"{where}[{place}]", known=known, allow=allow)
    elif isinstance(named, Mapping) and not isinstance(named, Run):
        spec = teacher_spec(named, where)
        spec.check(allow)
        for part in spec.parts():  # mining has no corpus or examples
            if part.needs:
                raise ConfigError(
                    f"{where}: {part.needs} cannot judge candidates; name a model, or a run of its "
                    "scores"
                )
    elif isinstance(named, str):
        file = isinstance(teacher_spec(named), ScoreFileSpec) or named.endswith((".trec", ".gz"))
        plain = known and named not in known and "/" not in named  # no hub id
        if not named or ((file or plain) and not Path(named).exists()):
            near = suggest(named, known)
            raise ConfigError(f"{where}: {named!r} not found; expected {JUDGE}{near}")
    elif not isinstance(named, (Run, Rerank)) and not (
        _judges(named) or ScorerHooks(named).scores_pairs or encodes(named)
    ):
        raise ConfigError(f"{where}: {named!r}; expected {JUDGE}")


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
