"""Reads and writes a recorded baseline: a text file of one system's values, a line a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sluice.encoders.foundation.bounded_input import read_whole
from sluice.encoders.foundation.disk.files import check_version, write_text
from sluice.encoders.foundation.errors import DataError
from sluice.retrieval.studies.gate.system import DIGITS, System

FORMAT: Final = "sluice.gate"
VERSION: Final = 1
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _File(BaseModel):
    """The file: facts of the system, and of each query its values and its first document."""

    model_config = ConfigDict(strict=True, extra="ignore")

    system: str
    written: str = ""
    machine: dict[str, Any] = {}
    costs: dict[str, Finite] = {}
    reference: Finite | None = None
    fingerprints: dict[str, str] = {}
    unjudged: Finite | None = None
    judged_only: dict[str, Finite] = {}
    trained: dict[str, int] = {}
    measures: Annotated[list[str], Field(min_length=1)]
    queries: Annotated[dict[str, list[Finite | str]], Field(min_length=1)]


def is_record(path: str | Path) -> bool:
    """Return whether a file begins as a recorded baseline does, and no run; False without one."""
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as stream:
        return stream.read(64).lstrip()[:1] == b"{"


def record(system: System, path: str | Path) -> Path:
    """Write the values, costs and fingerprints of a system as JSON, one query on each line."""
    target, measures = Path(path), list(system.values)
    means = {m: round(sum(v.values()) / len(v), DIGITS) for m, v in system.values.items()}
    head = {
        "format": FORMAT, "version": VERSION, "system": system.name, "written": system.written,
        "machine": system.machine, "costs": system.costs, "reference": system.reference,
        "fingerprints": system.fingerprints, "unjudged": system.unjudged,
        "judged_only": system.judged_only, "trained": system.trained, "measures": measures,
        "means": means,
    }  # fmt: skip
    rows = []
    for query in sorted(system.values[measures[0]]):
        values = [system.values[measure][query] for measure in measures]
        short = [int(value) if value == int(value) else value for value in values]
        rows.append(f"  {_text(query)}: {_text([*short, *system.first.get(query, ())[:1]])}")
    lines = [f" {_text(key)}: {_text(value)}," for key, value in head.items()]
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, "\n".join(["{", *lines, ' "queries": {', ",\n".join(rows), " }\n}\n"]))
    return target


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def open_record(path: Path) -> System:
    """Read what ``record`` wrote; ``DataError`` for another version, and where it was damaged."""
    remedy = "write it again with sluice gate record"
    try:
        found = json.loads(read_whole(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error}); {remedy}") from None
    if found.get("format") != FORMAT:
        raise DataError(f"{path}: not a recorded baseline; {remedy}")
    check_version(found.get("version"), VERSION, path, DataError)
    try:
        file = _File.model_validate(found)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, fault["loc"]))
        raise DataError(
            f"{path}: {place}: {fault['msg']}, found {fault['input']!r:.60}; {remedy}"
        ) from None
    values: dict[str, dict[str, float]] = {measure: {} for measure in file.measures}
    for query, row in file.queries.items():
        numbers = [each for each in row if not isinstance(each, str)]
        if len(numbers) != len(values):
            raise DataError(
                f"{path}: queries.{query}: {len(numbers)} values, expected {len(values)}; {remedy}"
            )
        for by_query, value in zip(values.values(), numbers, strict=True):
            by_query[query] = value
    first = {q: [e for e in row if isinstance(e, str)] for q, row in file.queries.items()}
    facts = file.model_dump(exclude={"system", "measures", "queries"})
    return System(str(path), file.system, values, first, **facts)
