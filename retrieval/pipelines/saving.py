"""Writes a pipeline as a folder: its expression, its retrievers, and its rerankers' models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from keyword import iskeyword
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sluice.encoders.foundation.build import type_name
from sluice.encoders.foundation.disk.files import write_json
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.table import SAVED, STAGES, UNWRITTEN

PIPELINE = "pipeline.json"
FORMAT = "sluice.pipeline"
VERSION = 1
GIVEN = "given"  # the type of a reranker that is not saved: a function, a class of one's own
HALF = "bfloat16"  # the arithmetic of a scorer, where it is not float32

NameOf = Callable[[Any], str]  # the name, in an expression, of a retriever or a scorer


class Written(Protocol):
    """What a pipeline's folder is written from."""

    def written(self, name_of: NameOf) -> str:
        """Return the expression of a stage, in which ``name_of`` names its parts."""
        ...


@runtime_checkable
class Searched(Protocol):
    """A part that is a retriever, maybe behind a filter."""

    @property
    def base_retriever(self) -> Any:
        """The retriever, which is saved."""
        ...

    @property
    def base_where(self) -> Mapping[str, Any] | None:
        """The filter."""
        ...


def save_pipeline(stage: Written, path: Path) -> None:
    """Write ``pipeline.json`` and the parts beside it, replacing the folder in one step.

    Retrievers are copied (linked where the file system can), those that a scorer reads too;
    cross-encoders, and the encoders of MaxSim, are saved. Neither code nor pickles are written: a
    function is noted by name, and given again to ``load_pipeline``.
    ``ConfigError`` for a stage that has no expression, and for a folder whose ``pipeline.json`` is
    not a pipeline's of ours: nothing is deleted then.
    """
    text, parts = named_parts(stage)
    _refuse_other_file(path / PIPELINE)
    with replaced_folder(path, markers=(PIPELINE,)) as draft:
        retrievers: dict[str, Any] = {}
        rerankers: dict[str, Any] = {}
        for name, part in parts.items():
            if isinstance(part, Searched):
                folder = f"retrievers/{name}"
                part.base_retriever.save(draft / folder)
                retrievers[name] = {"folder": folder, "where": _plain(part.base_where, name)}
            else:
                rerankers[name] = _saved_scorer(part, draft, name)
        facts = {"format": FORMAT, "version": VERSION, "expression": text}
        write_json(draft / PIPELINE, {**facts, "retrievers": retrievers, "rerankers": rerankers})


def named_parts(stage: Written) -> tuple[str, dict[str, Any]]:
    """Return a stage's expression, and its retrievers and scorers by their names in it."""
    names = _Names()
    return stage.written(names.name), names.parts


def _refuse_other_file(file: Path) -> None:
    """Raise ``ConfigError`` if a file that only shares our file's name would be replaced."""
    if not file.exists():
        return
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ConfigError(
            f"{file.parent}: its {file.name} is not a saved pipeline's; only a folder saved in the "
            "same form is replaced: give a new folder, or empty this one"
        )


def _saved_scorer(scorer: Any, draft: Path, name: str) -> dict[str, Any]:
    kind = type_name(scorer, SAVED)
    if kind not in SAVED or not getattr(scorer, "is_saved", True):
        return {"type": GIVEN, "of": kind}
    folder = f"rerankers/{name}"
    scorer.save_pretrained(draft / folder)
    half = str(getattr(scorer, "dtype", "")).endswith(HALF)
    settings = {setting: getattr(scorer, setting) for setting in UNWRITTEN.get(kind, ())}
    return {"type": kind, "folder": folder, **({"dtype": HALF} if half else {}), **settings}


def _plain(where: Mapping[str, Any] | None, name: str) -> Any:
    try:
        return json.loads(json.dumps(where))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name}: its where cannot be saved ({error}); use plain lists") from None


class _Names:
    """Gives each part a name that an expression can have, the same part always the same."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}

    def name(self, part: Any) -> str:
        """Return the part's name: its own, with a number behind where that is taken."""
        for name, known in self.parts.items():
            if known is part:
                return name
        own = str(getattr(part, "name", "") or type(part).__name__)  # of a user's scorer its class
        plain = re.sub(r"[^A-Za-z0-9_]+", "_", own).strip("_")
        if not re.match(r"[A-Za-z]", plain) or iskeyword(plain) or plain in STAGES:
            plain = f"part_{plain}".rstrip("_")
        name, number = plain, 2
        while name in self.parts:
            name, number = f"{plain}_{number}", number + 1
        self.parts[name] = part
        return name


def options_text(options: Mapping[str, Any]) -> str:
    """Return the options of a call as text: tuples as lists, numpy's values as Python's."""
    return ", ".join(f"{key}={_constant(value)!r}" for key, value in options.items())


def _constant(value: Any) -> Any:
    """Return an equal value that is written as a constant: a number, a text, a list of these."""
    if isinstance(value, list | tuple):
        return [_constant(each) for each in value]
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)
