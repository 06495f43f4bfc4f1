"""What every artefact says of its origin: settings, seeds, code, packages, machine, time."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("sluice-ir", "torch", "transformers", "faiss-cpu", "numpy", "scipy", "numba")


def provenance(config: Mapping[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
    """Return the facts that go into an artefact's manifest beside its own."""
    return {
        "config": dict(config),
        "seconds": None if seconds is None else round(seconds, 2),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "git_commit": _git_commit(),
        "packages": _versions(),
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
        },
    }


@functools.cache
def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def _git_commit() -> str | None:
    """Return the commit of the working copy Sluice runs from, None where it is installed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
