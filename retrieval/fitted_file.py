"""What was fitted on judged queries, as a small JSON file that a pipeline names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from encoders.errors import ConfigError
from encoders.files import write_json

VERSION = 1


def write_fitted(path: str | Path, kind: str, values: Mapping[str, Any]) -> None:
    """Write fitted ``values`` as the file ``path``, in one step."""
    write_json(Path(path), {"format": f"sluice.{kind}", "version": VERSION, **values})


def read_fitted(path: str | Path, kind: str) -> dict[str, Any]:
    """Return what ``write_fitted`` wrote; ``ConfigError`` if the file is none of this kind."""
    file = Path(path).expanduser()
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; sluice fit makes one") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not readable as JSON ({error}); fit it again") from None
    name = found.get("format") if isinstance(found, dict) else type(found).__name__
    if name != f"sluice.{kind}":
        raise ConfigError(f"{file}: holds {name!r}, expected 'sluice.{kind}'")
    if found.get("version") != VERSION:
        raise ConfigError(
            f"{file}: version {found.get('version')!r}, this Sluice reads {VERSION}; fit it again"
        )
    return dict(found)


def number(value: Any) -> float:
    """Return a finite number as it is; ``ValueError`` for anything else."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return value
    except OverflowError:  # a whole number that no float holds
        raise ValueError("a number too large") from None
    raise ValueError(f"{value!r} is no finite number")
