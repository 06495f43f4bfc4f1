"""Reads and writes small fitted values as JSON files.

Every file has ``format``, ``sluice.<kind>``, and ``version``; a folder of fitted arrays has one as
its head.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import check_version, write_json
from sluice.encoders.foundation.errors import ConfigError, SluiceError
from sluice.encoders.foundation.input.bounded import expanded

VERSION = 1


def write_fitted(path: str | Path, kind: str, values: Mapping[str, Any]) -> None:
    """Write fitted ``values`` as the file ``path``, in one step."""
    write_json(Path(path), {"format": f"sluice.{kind}", "version": VERSION, **values})


def read_fitted(
    path: str | Path,
    kind: str,
    *,
    maker: str = "sluice fit",
    error: type[SluiceError] = ConfigError,
    earlier: str | int | None = None,
) -> dict[str, Any]:
    """Return the values that ``write_fitted`` wrote; ``error`` if the file is not of this kind.

    ``maker`` names in the error what writes such files. ``earlier`` is the ``format`` of those that
    were written before they had a version; their values are the same.
    """
    file = expanded(path)
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{file}: no such file; {maker} makes one") from None
    except (OSError, ValueError, RecursionError) as reason:
        raise error(
            f"{file}: not readable as JSON ({reason}); write it again with {maker}"
        ) from None
    if not isinstance(values, dict):
        raise error(
            f"{file}: a JSON {type(values).__name__}, expected an object of format "
            f"'sluice.{kind}'; write it again with {maker}"
        )
    form, version = values.pop("format", None), values.pop("version", None)
    if earlier is not None and (form, version) == (earlier, None):
        return values
    if form != f"sluice.{kind}":
        raise error(
            f"{file}: holds {form!r}, expected 'sluice.{kind}'; give a file that {maker} wrote"
        )
    check_version(version, VERSION, file, error)
    return values


def number(value: Any) -> float:
    """Return a finite number as it is; ``ValueError`` for anything else."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return value
    except OverflowError:  # a whole number that no float holds
        raise ValueError("a number too large") from None
    raise ValueError(f"{value!r} is not a finite number")
