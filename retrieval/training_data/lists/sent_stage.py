"""Retrievers and pipelines that other processes open: by their folder, or saved for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import file_hash, fingerprint_of, read_json
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.saving import GIVEN, PIPELINE, named_parts
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.folder import HEAD
from sluice.retrieval.retrievers.retriever import Retriever, retriever_of


class SentStage:
    """A stage that other processes open; ``form`` says in JSON how, ``stays_here`` why not.

    A retriever is opened from its folder. One in a temporary folder, and a pipeline, are saved to
    ``folder`` (retrievers are linked where the file system can).
    """

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._folder = folder.absolute()
        self.form: dict[str, Any] = {}
        self.stays_here = ""
        try:
            self.form = self._saved(stage)
        except (ConfigError, TypeError, ValueError) as error:
            self.stays_here = str(error)

    def _saved(self, stage: Stage) -> dict[str, Any]:
        if isinstance(stage, Retriever):
            if stage.temporary:
                _renew(stage, self._folder)
            opening = _opening(stage)
            return {"retriever": opening | ({"path": str(self._folder)} if stage.temporary else {})}
        _, parts = named_parts(stage)
        _renew(stage, self._folder)
        kinds = read_json(self._folder / PIPELINE)["rerankers"]
        given = next((name for name, facts in kinds.items() if facts["type"] == GIVEN), None)
        if given is not None:
            raise ConfigError(f"{stage.name}: {given} cannot be saved for other processes")
        bases = {name: retriever_of(part) for name, part in parts.items()}
        openings = {name: _opening(base) for name, base in bases.items() if base is not None}
        allow = sorted({word for each in openings.values() for word in each["allow"]})
        params = {name: each["params"] for name, each in openings.items()}
        return {"pipeline": str(self._folder), "allow": allow, "params": params}


def stage_identity(stage: Stage) -> str:
    """Return a hash of what decides a stage's lists; empty where that is not known."""
    try:
        text, parts = named_parts(stage)
        facts = {name: _identity(part) for name, part in parts.items()}
    except (ConfigError, AttributeError):
        return ""
    return fingerprint_of(text, facts)


def _identity(part: Any) -> Any:
    retriever = retriever_of(part) if isinstance(part, Stage) else None
    if retriever is None:
        return str(part.fingerprint)
    return [file_hash(retriever.path / HEAD), retriever.params, part.base_where]


def _opening(retriever: Retriever) -> dict[str, Any]:
    """Return the arguments of ``Retriever.open`` in JSON; raises for an encoder that was given."""
    facts = retriever.state.sent()
    if facts.pop("encoder") is not None:
        raise ConfigError(f"{retriever.name}: its encoder is a function or object of a program")
    plain: dict[str, Any] = {**facts, "path": str(facts["path"]), "allow": list(facts["allow"])}
    json.dumps(plain)
    return plain


def _renew(stage: Stage, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    stage.save(folder)
