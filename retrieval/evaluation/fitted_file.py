"""Reads and writes small fitted values as JSON files.

Every file has ``format``, ``sluice.<kind>``, and ``version``; a folder of fitted arrays has one as
its head.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import check_version, write_json
from sluice.encoders.foundation.errors import ConfigError, SluiceError

VERSION = 1


@dataclass(frozen=True, slots=True)
class FittedFile:
    """What judged queries have fitted: a dataclass whose fields are a JSON file of its ``KIND``."""

    KIND: ClassVar[str]
    TITLE: ClassVar[str]  # in a message
    MAKER: ClassVar[str] = "sluice fit"
    EARLIER: ClassVar[str | None] = None

    def save(self, path: str | Path) -> None:
        """Write it as JSON, in one step; an option of a pipeline's expression names the file."""
        values = asdict(self)
        names = [each.name for each in fields(self) if each.init]
        write_fitted(path, self.KIND, {name: values[name] for name in names})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what ``save`` wrote; ``ConfigError`` for a file that is missing or another one."""
        values = read_fitted(path, cls.KIND, maker=cls.MAKER, earlier=cls.EARLIER)
        names = [each.name for each in fields(cls) if each.init and each.name in values]
        with damage_named(path, cls.TITLE):
            return cls(**cls._parsed({name: values[name] for name in names}))

    @classmethod
    def _parsed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that values of JSON are; raise where they cannot be."""
        return values


@contextmanager
def damage_named(path: str | Path, title: str) -> Iterator[None]:
    """Raise ``ConfigError`` with the file's name where its values are not those of ``title``."""
    try:
        yield
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise ConfigError(
            f"{path}: not the file of a fitted {title} ({error}); fit it again"
        ) from None


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
