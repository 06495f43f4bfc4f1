"""Reads and writes a recorded baseline: a text file of one system's values, a line a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from sluice.encoders.foundation.bounded_input import read_whole
from sluice.encoders.foundation.disk.files import check_version, write_text
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.retrieval.studies.gate.system import DIGITS, Facts, Finite, System

FORMAT: Final = "sluice.gate"
VERSION: Final = 1
SUFFIX: Final = ".json"


class _File(Facts):
    """The file: a system's facts, and of each query its values and its first document."""

    measures: Annotated[list[str], Field(min_length=1)]
    queries: Annotated[dict[str, list[Finite | str]], Field(min_length=1)]


def record(system: System, path: str | Path) -> Path:
    """Write the values, costs and fingerprints of a system as JSON, one query on each line."""
    target, measures = Path(path), list(system.values)
    if target.suffix != SUFFIX:
        raise ConfigError(f"{target}: expected a file that ends in {SUFFIX}, as baseline.json")
    means = {m: round(sum(v.values()) / len(v), DIGITS) for m, v in system.values.items()}
    head = {"format": FORMAT, "version": VERSION, **system.facts.model_dump()}
    head |= {"measures": measures, "means": means}
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
    if not isinstance(found, dict) or found.get("format") != FORMAT:
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
    return System(str(path), file, values, first)
