"""Print what constraints.txt pins: locked.py EXTRAS as pip's requirements, locked.py --pins all.

The first has the hashes of everything but torch, whose build differs from machine to machine. The
second has none and suits pip's option -c, with which pip would ask for hashes of wheels that were
built here. Needs nothing but Python: scripts/install calls it before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "constraints.txt"


class Pin(NamedTuple):
    """One package of the lock: ``needed`` by these extras, or by ``base``, the library itself."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    needed: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")


def read_pins(text: str) -> Iterator[Pin]:
    """Yield the packages of a lock, or of what uv writes (which does not say ``needed``)."""
    pattern = r"^([^\s#=]+)==([^\s;\\]+)(?: ; ([^\\\n]+?))?(?: \\)?\n((?:    .*\n)*)"
    for name, version, marker, below in re.findall(pattern, text, flags=re.M):
        needed = re.search(r"^ +# (.*)$", below, flags=re.M)
        words = tuple(needed[1].split(", ")) if needed else ()
        yield Pin(name, version, marker, tuple(re.findall(r"--hash=(\S+)", below)), words)


def requirements(wanted: Collection[str]) -> Iterator[str]:
    """Yield the lines of what the library and these extras need; torch is left out."""
    for pin in read_pins(LOCK.read_text(encoding="utf-8")):
        if pin.name != "torch" and {"base", *wanted} & set(pin.needed):
            yield " \\\n    ".join([str(pin), *(f"--hash={each}" for each in pin.hashes)])


def extras() -> dict[str, list[str]]:
    """Return the requirements of the library (``base``) and of each extra, as they are written."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {"base": project["dependencies"], **project["optional-dependencies"]}


def asked_by(*left_out: str) -> set[str]:
    """Return the names of the packages that pyproject.toml asks for, but in some extras."""
    lines = [line for extra, lines in extras().items() if extra not in left_out for line in lines]
    return {normal(re.split(r"[^\w.-]", line)[0]) for line in lines}


def normal(written: str) -> str:
    """Return a package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", written).lower()


def main() -> None:
    if sys.argv[1:] == ["--pins"]:
        print("\n".join(map(str, read_pins(LOCK.read_text(encoding="utf-8")))))
        return
    wanted = sys.argv[1].split(",")
    if unknown := set(wanted) - set(extras()):
        known = ", ".join(list(extras())[1:])
        print(
            f"error: no extra {min(unknown)!r} in pyproject.toml; it has {known}", file=sys.stderr
        )
        sys.exit(2)
    print("\n".join(requirements(wanted)))


if __name__ == "__main__":
    main()
