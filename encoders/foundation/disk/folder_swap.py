"""Replaces a whole folder in one step, and undoes a replacement that was killed halfway."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sluice.encoders.foundation.disk.files import commit, new_draft, sync_tree
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.disk.locks import lock, lock_file
from sluice.encoders.foundation.errors import ConfigError

MODEL_FILES = ("sluice.json", MANIFEST, "config.json", "modules.json")  # one is in every model


@contextmanager
def replaced_folder(path: Path, markers: Collection[str] = MODEL_FILES) -> Iterator[Path]:
    """Yield an empty folder that takes ``path``'s place when the block ends without an exception.

    For folders whose files must lie at the top (model folders). Only an empty folder, or one with
    one of ``markers`` (a model's files), is ever replaced: any other is a ``ConfigError``.
    Between the two renames ``path`` is absent for an instant; ``settle`` waits for it, or puts the
    previous folder back after a kill at that instant. Of two writers at once the later one wins.
    """
    path = path.resolve()  # the target of a link is replaced, not the link
    _refuse_current(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with swap_lock(path):
        _undo_swap(path)
        _refuse_foreign(path, markers)
    with new_draft(path, folder=True) as draft:
        yield draft
        with swap_lock(path):
            _undo_swap(path)
            _refuse_foreign(path, markers)
            previous = _previous(path)
            if path.exists():
                sync_tree(draft)  # before the instant in which there is neither
                path.rename(previous)
            try:
                commit(draft, path)
            except BaseException:
                _undo_swap(path)
                raise
            shutil.rmtree(previous, ignore_errors=True)


def settle(path: Path) -> None:
    """Undo a replacement that was killed halfway: put the previous folder back where it was.

    Waits for a replacement in progress. Without one, nothing is touched.
    """
    path = path.resolve()
    if path.name and _previous(path).exists():
        with swap_lock(path):
            _undo_swap(path)


def _undo_swap(path: Path) -> None:
    previous = _previous(path)
    if path.exists():
        shutil.rmtree(previous, ignore_errors=True)
    elif previous.exists():
        previous.rename(path)


def _previous(path: Path) -> Path:
    return path.with_name(f".{path.name}.previous")


def _refuse_current(path: Path) -> None:
    here = Path.cwd()
    if path in (here, *here.parents):
        raise ConfigError(f"{path}: is or contains the current folder; give another folder")


def _refuse_foreign(path: Path, markers: Collection[str]) -> None:
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path}: is a file; give a folder")
    names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    if names and not names & set(markers):
        raise ConfigError(
            f"{path}: contains {sorted(names)[0]!r} but no {' or '.join(sorted(markers))}; only a "
            "folder saved in the same form is replaced: give a new folder, or empty this one"
        )


@contextmanager
def swap_lock(path: Path) -> Iterator[None]:
    """Wait for the file lock beside ``path`` under which it is swapped, and remove it after."""
    file = path.with_name(f".{path.name}.lock")
    while True:
        with lock_file(file) as handle:
            lock(handle)
            if not _same_file(handle.fileno(), file):  # its holder removed it while we waited
                continue
            try:
                yield
            finally:
                with contextlib.suppress(PermissionError):  # Windows keeps a file that is open
                    file.unlink(missing_ok=True)
            return


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
