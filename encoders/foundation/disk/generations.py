"""Generation folders: data in immutable subfolders, and a manifest that names the current one.

``manifest.json`` is replaced last (``os.replace`` after fsync), so a kill at any instant leaves the
old state or the new one; readers keep the files they opened. One generation back is kept, so that a
reader between manifest and files, or an outer manifest that pins it, still finds it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import (
    check_version,
    commit,
    file_hash,
    lock,
    lock_file,
    name_file,
    new_draft,
    read_json,
    sync,
    sync_tree,
    write_json,
)
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError

MANIFEST = "manifest.json"
CHECKSUM_LIMIT = 64 * 1024 * 1024  # below this many bytes, opening checks every checksum


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Make this process the folder's only writer; a second one gets an ``IndexFormatError``."""
    path.mkdir(parents=True, exist_ok=True)
    with lock_file(path / ".lock") as handle:
        if not lock(handle, wait=False):
            raise IndexFormatError(
                f"{path}: another process is writing to it; wait until it ends, or stop it"
            )
        yield


@contextmanager
def new_generation(
    path: Path, format_name: str, version: int, facts: Mapping[str, Any]
) -> Iterator[Path]:
    """Yield an empty folder to write into; leaving the block makes it the folder's current state.

    An exception inside the block leaves the previous state current. ``facts`` go into the manifest
    (they are read when the block ends, so a dict may be filled inside it).
    """
    with writer_lock(path):
        current = _current_name(path)
        numbers = [int(p.name[1:]) for p in path.glob("g[0-9]*") if p.name[1:].isdigit()]
        for stale in path.glob("g[0-9]*"):  # what the last write, or a killed one, left behind
            if stale.name != current:
                shutil.rmtree(stale, ignore_errors=True)
        name = f"g{max(numbers, default=0) + 1:06d}"
        folder = path / name
        folder.mkdir(parents=True)
        known = _known_checksums(path, current)
        try:
            yield folder
            manifest = {
                "format": format_name,
                "version": version,
                "generation": name,
                **facts,
                "files": _described(folder, known),
            }
            write_json(folder / MANIFEST, manifest)
            sync(path)  # the folder's name, before the manifest gives it
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError):
                name_file(error, folder)
            raise
        write_json(path / MANIFEST, manifest)


def _described(folder: Path, known: Mapping[tuple[int, int], str]) -> dict[str, dict[str, Any]]:
    """Return the size and checksum of every file; ``known`` holds those of linked files."""
    files = {}
    for file in sorted(folder.rglob("*")):
        if file.is_dir():
            sync(file)
        elif file.is_file() and file.name != MANIFEST:
            status = file.stat()
            checksum = known.get((status.st_dev, status.st_ino))
            if checksum is None:
                sync(file)
                checksum = file_hash(file)
            name = file.relative_to(folder).as_posix()
            files[name] = {"bytes": status.st_size, "sha256": checksum}
    return files


def _known_checksums(path: Path, generation: str | None) -> dict[tuple[int, int], str]:
    """Return the checksums of a generation's files by device and inode.

    Files of a generation never change, so a link to one is not read again.
    """
    if generation is None:
        return {}
    manifest = read_json(path / MANIFEST)
    known = {}
    for name, entry in dict(manifest.get("files") or {}).items():
        file = path / generation / name
        if file.is_file():
            status = file.stat()
            if status.st_size == entry["bytes"]:
                known[status.st_dev, status.st_ino] = str(entry["sha256"])
    return known


def _current_name(path: Path) -> str | None:
    manifest = path / MANIFEST
    return str(read_json(manifest).get("generation")) if manifest.exists() else None


def pin_generation(path: Path, name: str) -> None:
    """Make generation ``name`` current again, undoing a write that its outer manifest missed."""
    if _current_name(path) != name:
        write_json(path / MANIFEST, read_json(path / name / MANIFEST))


def open_generation(
    path: Path, format_name: str, version: int, *, generation: str | None = None
) -> tuple[dict[str, Any], Path]:
    """Return ``(manifest, folder)`` of the current (or the named) generation, checked.

    Sizes are always checked, checksums only if all files together are below 64 MB; ``verify``
    checks them at any size. Raises ``IndexFormatError`` for a missing, damaged or newer folder.
    """
    manifest = read_json(path / (generation or ".") / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != format_name:
        other = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise IndexFormatError(f"{path / MANIFEST}: format is {other!r}, expected {format_name!r}")
    check_version(manifest.get("version"), version, path / MANIFEST)
    folder = path / _generation(manifest, path)
    total = sum(int(entry["bytes"]) for entry in manifest["files"].values())
    _check_files(folder, manifest["files"], checksums=total < CHECKSUM_LIMIT)
    return manifest, folder


def verify(path: Path, *, generation: str | None = None) -> int:
    """Check every size and checksum of the current (or named) generation; return the file count."""
    manifest = read_json(path / (generation or ".") / MANIFEST)
    _check_files(path / _generation(manifest, path), manifest["files"], checksums=True)
    return len(manifest["files"])


def _generation(manifest: Any, path: Path) -> str:
    """Return the generation's folder name; a manifest is an untrusted file."""
    try:
        name, files = manifest["generation"], manifest["files"]
        valid = re.fullmatch(r"g\d+", name) and all(
            isinstance(entry["bytes"], int)
            and isinstance(entry["sha256"], str)
            and not Path(file).is_absolute()
            and ".." not in Path(file).parts
            for file, entry in files.items()
        )
    except (KeyError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise IndexFormatError(f"{path / MANIFEST}: not as Sluice writes it; rebuild the folder")
    return str(name)


def _check_files(folder: Path, files: Mapping[str, Mapping[str, Any]], *, checksums: bool) -> None:
    for name, entry in files.items():
        file = folder / name
        if not file.is_file():
            raise IndexFormatError(f"{file}: listed in the manifest but missing; rebuild")
        if file.stat().st_size != entry["bytes"]:
            raise IndexFormatError(
                f"{file}: {file.stat().st_size:,} bytes, the manifest says {entry['bytes']:,}; "
                "the file was truncated or edited: rebuild"
            )
        if checksums and file_hash(file) != entry["sha256"]:
            raise IndexFormatError(
                f"{file}: its checksum differs from the manifest's; the file was edited or "
                "damaged: rebuild"
            )


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
