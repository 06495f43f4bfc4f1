"""Reads and validates ``results.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import DataError
from sluice.encoders.foundation.files import read_json

RESULTS = "results.json"


def read_results(folder: Path) -> dict[str, Any]:
    """Return the results of an evaluation in ``folder``, of one dataset or of a suite.

    A suite has ``datasets``, a list of names; one dataset has ``dataset``, ``split`` and
    ``systems``, each with its ``name`` and ``measures``. Raises ``DataError`` for a folder without
    results, or with a file of another form.
    """
    path = folder / RESULTS
    if not path.is_file():
        raise DataError(
            f"{folder}: no {RESULTS} here; expected the output folder of sluice run or evaluate"
        )
    results = read_json(path)
    if not isinstance(results, dict):
        raise DataError(f"{path}: expected an object; evaluate again to write it")
    names = results.get("datasets")
    if names is not None:
        if not (isinstance(names, list) and names and all(isinstance(n, str) for n in names)):
            raise DataError(f"{path}: datasets: expected names; evaluate again to write it")
        return results
    systems = results.get("systems")
    complete = {"dataset", "split"} <= results.keys() and isinstance(systems, list)
    if not complete or not systems or not all(map(_is_system, systems)):
        raise DataError(
            f"{path}: expected dataset, split, and systems with a name and measures (or datasets); "
            "evaluate again to write it"
        )
    return results


def _is_system(system: Any) -> bool:
    if not (isinstance(system, Mapping) and isinstance(system.get("name"), str)):
        return False
    measures = system.get("measures")
    return isinstance(measures, Mapping) and all(
        isinstance(value, int | float) for value in measures.values()
    )
