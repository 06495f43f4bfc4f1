"""What a mutation does with its case: copies a seed, changes a file, runs what reads it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from fuzzing import Case, Outcome, forked, sluice, within
from mutating import mutated

MEMORY = 3 << 30  # bytes that a command may take beside what is loaded
SLOW = 60.0  # seconds, for what trains or evaluates
CHANGED: list[str] = []  # the files of the case that were changed


def call(case: Case, *words: object, fork: bool = False, timeout: float = 20.0) -> Outcome:
    """Run a command in the case's folder, and record what is wrong with its end."""
    done = sluice(*words, cwd=case.folder, memory=MEMORY, fork=fork, timeout=timeout)
    return checked(case, done, *words)


def python(case: Case, job: Callable[[], object], fork: bool = False) -> Outcome:
    """Run a function in which errors of ours are exit 2, and record what is wrong with its end."""
    from sluice.encoders.foundation.errors import SluiceError

    def ended() -> int:
        try:
            job()
        except SluiceError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0

    return checked(case, (forked if fork else within)(ended, cwd=case.folder, memory=MEMORY))


def checked(case: Case, done: Outcome, *words: object) -> Outcome:
    """Record what is wrong with how a command ended."""
    if fault := done.fault():
        shown = " ".join(map(str, words))
        case.wrong(fault, words=shown, changed=CHANGED, err=done.err[-1500:])
    return done


def change(case: Case, file: Path) -> None:
    """Change one file."""
    CHANGED[:] = [str(file.relative_to(case.folder))]
    file.write_bytes(mutated(file.read_bytes(), file.name, case.chance))


def copied(case: Case, source: Path, name: str = "") -> Path:
    """Copy a file or a folder of the seeds into the case's folder."""
    target = case.folder / (name or source.name)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return target


def files_of(folder: Path) -> list[Path]:
    """Return the files that hold anything, the hidden ones apart."""
    return [
        file for file in sorted(folder.rglob("*"))
        if file.is_file() and file.stat().st_size and not file.name.startswith(".")
    ]  # fmt: skip
