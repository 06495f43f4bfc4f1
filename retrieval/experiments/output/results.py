"""Reads and validates ``results.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.trust import Allow, refuse_class
from sluice.retrieval.evaluation.measures import own_measure

RESULTS = "results.json"


def _plain(name: str) -> str:
    """Refuse a name of a file that leads out of the folder."""
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError("a name that leads elsewhere")
    return name


Name = Annotated[str, AfterValidator(_plain)]
Number = float | None
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None


class _Part(BaseModel):
    """An object of the file; what it does not name may be there too."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Machine(_Part):
    platform: str | None = None
    python: str | None = None
    cpus: int | None = None
    gpus: list[str] | None = None


class _Origin(_Part):
    config: dict[str, Any] | None = None
    written: str | None = None
    command: str | None = None
    git_commit: str | None = None
    packages: dict[str, str | None] | None = None
    machine: _Machine | None = None


class _Test(_Part):
    system: str
    baseline: str
    measure: str
    difference: float
    p: float
    p_corrected: float
    significant: bool
    wins: int
    ties: int
    losses: int
    effect_size: Number = None
    low: Number = None
    high: Number = None
    dataset: str = ""


class _Latency(_Part):
    p50: Number = None
    p95: Number = None
    p99: Number = None
    queries: int | None = None
    stages: dict[str, dict[str, Number]] | None = None
    bounds: dict[str, list[Amount]] = Field(default_factory=dict)
    reference: Amount = None


class _Gather(_Part):
    stage: str
    retriever: str
    queries: int
    recall: dict[str, float]
    note: str = ""


class _System(_Part):
    name: Name
    measures: dict[str, float]
    pipeline: str = ""
    documents: int = 0
    index_bytes: Number = None
    bytes_per_document: Number = None
    documents_per_second: Number = None
    queries_per_second: Number = None
    peak_memory_bytes: Number = None
    latency_ms: _Latency | None = None
    fingerprints: dict[str, str] = Field(default_factory=dict)
    changes: dict[str, str] = Field(default_factory=dict)
    origin: _Origin | None = None
    fitted: list[dict[str, str]] = Field(default_factory=list)
    gathers: list[_Gather] = Field(default_factory=list)


class _Made(_Part):
    part: str
    seconds: Amount = None
    peak_memory_bytes: Amount = None


class _Row(BaseModel):
    """A row of a table: a name, and numbers by column."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, Number]
    name: str


class _Table(_Part):
    systems: Annotated[list[_Row], Field(min_length=1)]
    comparisons: list[_Test] = Field(default_factory=list)
    caption: str = ""


class _One(_Part):
    dataset: str
    split: str
    systems: Annotated[list[_System], Field(min_length=1)]
    parts: list[_Made] | None = None
    comparisons: list[_Test] | None = None
    contents: dict[str, str] | None = None
    place: str | None = None
    origin: _Origin | None = None


class _Suite(_Part):
    datasets: Annotated[list[Name], Field(min_length=1)]
    failed: dict[str, str] | None = None
    tables: dict[str, _Table] | None = None
    origin: _Origin | None = None


def read_results(folder: Path, allow: Allow = ()) -> dict[str, Any]:
    """Return the results of an evaluation in ``folder``, of one dataset or of a suite.

    A suite has ``datasets``, a list of names; one dataset has ``dataset``, ``split`` and
    ``systems``, each with its ``name`` and ``measures``. Raises ``DataError`` for a folder without
    results, or with a file of another form, and ``ConfigError`` for measures of somebody's own that
    ``allow`` does not name.
    """
    path = folder / RESULTS
    if not path.is_file():
        raise DataError(
            f"{folder}: no {RESULTS} here; expected the output folder of sluice run or evaluate"
        )
    results: Any = read_json(path)
    if not isinstance(results, dict):
        raise DataError(f"{path}: expected an object; evaluate again to write it")
    form = _One if results.get("datasets") is None else _Suite
    try:
        form.model_validate(results)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, fault["loc"]))
        wrong = "" if fault["type"] == "missing" else f", found {fault['input']!r:.60}"
        raise DataError(
            f"{path}: {place}: {fault['msg']}{wrong}; expected dataset, split, and systems with a "
            "name and measures (or datasets); evaluate again to write it"
        ) from None
    for system in results.get("systems") or ():
        for name in filter(None, map(own_measure, system["measures"])):
            refuse_class(name, f"{path}: measures", allow)
    return results
