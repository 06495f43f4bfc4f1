"""Records the origin of an artefact: settings, code, packages, machine, time."""

from __future__ import annotations

import functools
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("sluice-ir", "torch", "transformers", "faiss-cpu", "numpy", "scipy", "numba")


def provenance(config: Mapping[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
    """Return the facts of origin for an artefact's manifest."""
    return {
        "config": dict(config),
        "seconds": None if seconds is None else round(seconds, 3),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "git_commit": _git_commit(),
        "packages": versions(),
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
        },
    }


def command_line() -> str | None:
    """Return the command that runs now, None where Sluice is used from another program."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py" and program.parent.name == "sluice":
        return shlex.join(["python", "-m", "sluice", *sys.argv[1:]])
    return shlex.join(["sluice", *sys.argv[1:]]) if program.stem == "sluice" else None


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of the installed packages that decide results."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def _git_commit() -> str | None:
    """Return the commit of the working copy that Sluice runs from, None if it is installed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        git = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return git.stdout.strip() or None
