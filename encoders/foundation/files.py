"""Folders that change in one step: hashes, manifests, generations, and whole-folder replacement.

A *generation folder* keeps its data in immutable subfolders and names the current one in
``manifest.json``, which is replaced last (``os.replace`` after fsync). A kill at any instant leaves
the old state or the new one; readers keep the files they opened. One generation back is kept, so
that a reader between manifest and files, or an outer manifest that pins it, still finds it.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, ModelError

MANIFEST = "manifest.json"
MODEL_FILES = ("sluice.json", MANIFEST, "config.json", "modules.json")  # one is in every model
CHECKSUM_LIMIT = 64 * 1024 * 1024  # below this many bytes, opening checks every checksum


def file_hash(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fingerprint_of(*parts: object) -> str:
    """Return 32 hexadecimal digits that change whenever any JSON-serialisable part changes."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def draft_of(path: Path) -> Path:
    """Return where to write what shall replace the file ``path``; its folder is made.

    ``ConfigError`` if ``path`` is a folder or names nothing.
    """
    if not path.name or path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def replaced_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream of bytes that takes ``path``'s place when the block ends without an exception.

    Bytes and name are on the disk by then: a kill at any instant leaves the old file or the new
    one. An exception leaves the old file, and no draft. ``ConfigError`` if ``path`` is a folder.
    """
    draft = draft_of(path)
    try:
        with draft.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def packed_file(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream as ``replaced_file`` does, compressed where the name ends in ``.gz``.

    Equal contents make equal files.
    """
    with replaced_file(path) as stream:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", 6, stream, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield stream


def write_bytes(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` in one step."""
    with replaced_file(path) as stream:
        stream.write(data)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` (UTF-8) in one step."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as indented JSON in one step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of ours; a missing or damaged one is an ``IndexFormatError``."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IndexFormatError(f"{path}: no such file; expected a folder Sluice wrote") from None
    except (ValueError, OSError, RecursionError) as error:
        raise IndexFormatError(
            f"{path}: not readable as JSON ({error}); rebuild the folder"
        ) from None


def read_model_json(path: Path) -> Any:
    """Read a JSON file of a model folder, None without it; a damaged one is a ``ModelError``."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise ModelError(f"{path}: not readable as JSON ({error})") from None


def _described(folder: Path, known: Mapping[tuple[int, int], str]) -> dict[str, dict[str, Any]]:
    """Return size and checksum of every file; ``known`` has the checksums of linked ones."""
    files = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != MANIFEST:
            status = file.stat()
            checksum = known.get((status.st_dev, status.st_ino))
            if checksum is None:
                sync(file)
                checksum = file_hash(file)
            name = file.relative_to(folder).as_posix()
            files[name] = {"bytes": status.st_size, "sha256": checksum}
    return files


def _known_checksums(path: Path, generation: str | None) -> dict[tuple[int, int], str]:
    """Return the checksums of a generation's files by device and inode: a link is not read again.

    Files of a generation are never written again, so a link to one has its checksum.
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


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the folder's only writer's place; a second writer gets an error instead of a race."""
    path.mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise IndexFormatError(
                f"{path}: another process is writing here; wait for it, or stop it, and try again"
            ) from None
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
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        write_json(path / MANIFEST, manifest)


def _current_name(path: Path) -> str | None:
    manifest = path / MANIFEST
    return str(read_json(manifest).get("generation")) if manifest.exists() else None


def pin_generation(path: Path, name: str) -> None:
    """Make generation ``name`` current again: undoes a write its outer manifest never saw."""
    if _current_name(path) != name:
        write_json(path / MANIFEST, read_json(path / name / MANIFEST))


def open_generation(
    path: Path, format_name: str, version: int, *, generation: str | None = None
) -> tuple[dict[str, Any], Path]:
    """Return ``(manifest, folder)`` of the current (or the named) generation, checked.

    Sizes are checked always, checksums when the files are below 64 MB together; ``verify`` checks
    them whatever the size. Raises ``IndexFormatError`` for a missing, damaged or newer folder.
    """
    manifest = read_json(path / (generation or ".") / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != format_name:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise IndexFormatError(f"{path / MANIFEST}: format is {found!r}, expected {format_name!r}")
    if not isinstance(manifest.get("version"), int) or manifest["version"] > version:
        raise IndexFormatError(
            f"{path / MANIFEST}: format version {manifest.get('version')!r}, but this "
            f"Sluice reads up to {version}; upgrade sluice-ir"
        )
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
    """Return the generation's folder name; a manifest is somebody's file and may say anything."""
    try:
        name, files = manifest["generation"], manifest["files"]
        good = re.fullmatch(r"g\d+", name) and all(
            isinstance(entry["bytes"], int)
            and isinstance(entry["sha256"], str)
            and not Path(file).is_absolute()
            and ".." not in Path(file).parts
            for file, entry in files.items()
        )
    except (KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise IndexFormatError(f"{path / MANIFEST}: not as Sluice writes it; rebuild the folder")
    return str(name)


def _check_files(folder: Path, files: Mapping[str, Mapping[str, Any]], *, checksums: bool) -> None:
    for name, entry in files.items():
        file = folder / name
        if not file.is_file():
            raise IndexFormatError(f"{file}: the manifest names it but it is missing; rebuild")
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


@contextmanager
def replaced_folder(path: Path, markers: Collection[str] = MODEL_FILES) -> Iterator[Path]:
    """Yield an empty folder that takes ``path``'s place when the block ends without an exception.

    For folders whose files must lie at the top (model folders). Only a folder that holds one of
    ``markers`` (a model's files) is ever replaced: anything else is a ``ConfigError``. Between the
    two renames ``path`` is absent for an instant; ``settle`` waits for it, or puts the previous
    folder back if a kill fell there. Of two writers at once the later one wins.
    """
    path = path.resolve()  # a link stays, what it points to is replaced
    _refuse_current(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _swap_lock(path):
        _undo_swap(path)
        _refuse_foreign(path, markers)
        _clean_drafts(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        for file in draft.rglob("*"):
            sync(file)
        with _swap_lock(path):
            _undo_swap(path)
            _refuse_foreign(path, markers)
            previous = _previous(path)
            if path.exists():
                path.rename(previous)
            draft.rename(path)
            sync(path.parent)
            shutil.rmtree(previous, ignore_errors=True)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def settle(path: Path) -> None:
    """Undo a replacement that was killed halfway: put the previous folder back where it was.

    One that is still going on is waited for. Where nothing was replaced, nothing is touched.
    """
    path = path.resolve()
    if path.name and _previous(path).exists():
        with _swap_lock(path):
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
        raise ConfigError(f"{path}: is the current folder or holds it; give a folder of its own")


def _refuse_foreign(path: Path, markers: Collection[str]) -> None:
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path}: is a file; give a folder")
    found = {entry.name for entry in path.iterdir()} if path.exists() else set()
    if found and not found & set(markers):
        raise ConfigError(
            f"{path}: holds {sorted(found)[0]!r} and no {', '.join(sorted(markers))}; only what "
            "was saved in the same form is replaced: give a new folder, or empty this one"
        )


def _clean_drafts(path: Path) -> None:
    """Remove the drafts of processes that were killed while writing."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(\d+)(\.\d+)?\.tmp")
    for entry in path.parent.iterdir():
        match = pattern.fullmatch(entry.name)
        if match and entry.is_dir() and not is_alive(int(match[1])):
            shutil.rmtree(entry, ignore_errors=True)


def is_alive(process: int) -> bool:
    """Say whether a process of that number runs."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # another user's
        return True
    return True


@contextmanager
def _swap_lock(path: Path) -> Iterator[None]:
    """Wait for the file lock beside ``path`` under which it is swapped; the file goes again."""
    lock = path.with_name(f".{path.name}.lock")
    while True:
        with lock.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not _same_file(handle.fileno(), lock):  # its holder removed it while we waited
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
