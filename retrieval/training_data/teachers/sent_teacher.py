"""Teachers that other processes open: their models and runs, saved as files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.disk.files import fingerprint_of, replaced_file
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.vectors.sending import sent_form
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.teachers.ensemble import Ensemble, Teacher
from sluice.retrieval.training_data.teachers.teachers import ModelTeacher, RunTeacher, score_file

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
        sent = sent_form(teacher.model, where="executor", instead=INSTEAD)
        options = dict(sent.options)
        if self._own_devices:
            options.pop("device", None)
        folder = f"model-{teacher.fingerprint[:16]}"
        self._models[folder] = teacher.model
        return {
            "model": str(self._folder / folder), "own": sent.own, "options": options,
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


def open_sent(form: str) -> Teacher:
    """Open what ``SentTeacher.form`` describes, as JSON; the last one stays open."""
    return _opened(form)


@lru_cache(maxsize=1)
def _opened(form: str) -> Teacher:
    import json

    facts = json.loads(form)
    teacher = _made(facts)
    if teacher.fingerprint != facts["fingerprint"]:
        raise ModelError(
            f"executor: {teacher.name} saved and reopened has the fingerprint "
            f"{teacher.fingerprint[:12]} instead of {facts['fingerprint'][:12]}; its "
            f"save_pretrained leaves something out: use {INSTEAD}"
        )
    return teacher


def _made(facts: Mapping[str, Any]) -> Teacher:
    from sluice.encoders.vectors.worker import reopened

    if "teachers" in facts:
        members = [_made(each) for each in facts["teachers"]]
        return Ensemble(
            members, facts["weights"], normalise=facts["normalise"], scale=facts["scale"]
        )
    if "run" in facts:
        return RunTeacher(score_file(Path(facts["run"])), facts["name"], facts["as"])
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
