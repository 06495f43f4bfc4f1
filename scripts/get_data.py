#!/usr/bin/env python
"""Brings a public collection of BEIR, from the first address that answers with the right bytes.

    SLUICE_DATA=FOLDER scripts/get_data.py scifact nfcorpus [--mirror ADDRESS ...]

``scripts/datasets.yaml`` has the addresses, sizes and hashes. A mirror is the address of a folder
that holds NAME.zip; mirrors are tried first. An address is left for the next one where it refuses,
answers anything but 200, redirects to another host or to plain HTTP, ends early, sends another size
or another hash, or is slower than 10 kB a second. The collection appears in $SLUICE_DATA/NAME as a
whole, when its archive was read to the end, or not at all. What is there is not fetched again.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from harness import options, refuse

BLOCK = 1 << 20
SLOWEST = 10_000  # bytes a second
EXPANDED = 60  # times its archive that a collection may take on disk
KEPT = (".jsonl", ".tsv", ".md", ".txt")


class Archive(NamedTuple):
    """A row of the manifest; ``bytes`` and ``md5`` are None where nobody published them."""

    folder: str
    addresses: tuple[str, ...]
    bytes: int | None
    md5: str | None


class RefusedError(Exception):
    """Why an address is left for the next one."""


def manifest() -> Mapping[str, Archive]:
    from sluice.encoders.foundation.bounded_input import load_yaml

    table = load_yaml(Path(__file__).with_name("datasets.yaml").read_text(encoding="utf-8"))
    found = {}
    for name, row in table["archives"].items():
        known = {key: None if row[key] == "unknown" else row[key] for key in ("bytes", "md5")}
        usual = table["usual"].format(name=name)
        addresses = tuple(row.get("addresses", [usual]))
        found[name] = Archive(row.get("folder", name), addresses, **known)
    return found


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to the same host, never from https to http."""

    def redirect_request(self, request: Any, fp: Any, code: int, *more: Any) -> Any:
        """Return the request of the new address; raise ``RefusedError`` for one elsewhere."""
        before, after = urlsplit(request.full_url), urlsplit(more[-1])
        if after.netloc != before.netloc or after.scheme != before.scheme:
            raise RefusedError(f"redirects to {after.scheme}://{after.netloc}")
        return super().redirect_request(request, fp, code, *more)


def download(address: str, file: Path, archive: Archive, patience: float) -> None:
    """Fetch an archive into a file; raise ``RefusedError`` for whatever is not it."""
    from sluice.encoders.foundation.disk.files import DISK
    from sluice.encoders.foundation.progress import progress

    digest, received = hashlib.md5(usedforsecurity=False), 0
    opener = urllib.request.build_opener(_SameHost)
    agent = {"User-Agent": "sluice", "Accept-Encoding": "identity"}
    with contextlib.ExitStack() as stack:
        try:
            asked = urllib.request.Request(address, headers=agent)
            answer = stack.enter_context(opener.open(asked, timeout=patience))
            said = answer.headers.get("Content-Length")
            size = int(said) if said and said.isdigit() else None
            if None not in (size, archive.bytes) and size != archive.bytes:
                raise RefusedError(f"has {size:,} bytes, expected {archive.bytes:,}")
            stream = stack.enter_context(file.open("wb"))
            advance = stack.enter_context(progress(f"fetch {file.name}", size, "bytes"))
            begun, counted = time.monotonic(), 0
            while block := answer.read1(BLOCK):
                stream.write(block)
                digest.update(block)
                advance(len(block))
                received += len(block)
                counted += len(block)
                if archive.bytes is not None and received > archive.bytes:
                    raise RefusedError(f"sends more than the {archive.bytes:,} bytes expected")
                seconds = time.monotonic() - begun
                if seconds > patience:
                    if counted < SLOWEST * seconds:
                        raise RefusedError(f"too slow: {counted / seconds:,.0f} bytes a second")
                    begun, counted = time.monotonic(), 0
        except urllib.error.HTTPError as error:
            raise RefusedError(f"answers {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if getattr(error, "errno", None) in DISK:  # this machine's fault
                raise
            raise RefusedError(f"{getattr(error, 'reason', None) or error}") from None
    expected = archive.bytes if size is None else size
    if expected is not None and received != expected:
        raise RefusedError(f"ends after {received:,} of {expected:,} bytes")
    if archive.md5 is not None and digest.hexdigest() != archive.md5:
        raise RefusedError(f"has md5 {digest.hexdigest()}, expected {archive.md5}")


def unpack(file: Path, folder: Path, name: str) -> None:
    """Write what an archive has below its folder NAME, and nothing elsewhere."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = [
                (each, path.relative_to(name))
                for each in archive.infolist()
                if (path := PurePosixPath(each.filename)).parts[:1] == (name,)
                and ".." not in path.parts and not each.is_dir() and path.suffix in KEPT
            ]  # fmt: skip
            if not any(path.name == "corpus.jsonl" for _, path in members):
                raise RefusedError(f"holds no {name}/corpus.jsonl")
            if sum(each.file_size for each, _ in members) > EXPANDED * file.stat().st_size + BLOCK:
                raise RefusedError(f"would take more than {EXPANDED} times its size")
            for each, path in members:
                place = folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(each) as source, place.open("wb") as target:
                    while block := source.read(BLOCK):
                        target.write(block)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise RefusedError(f"is no archive that can be read ({error})") from None


def get(
    name: str, home: Path, archive: Archive, mirrors: Sequence[str] = (), patience: float = 30.0
) -> Path:
    """Return the folder of a collection, fetched if it is not there.

    ``DataError`` says of every address why it was left.
    """
    from sluice.encoders.foundation.disk.files import commit, new_draft
    from sluice.encoders.foundation.errors import DataError

    place = home / name
    if any(place.glob("**/corpus.jsonl")):
        return place
    if place.exists():
        raise DataError(f"{place}: is there and holds no corpus.jsonl; move it away")
    home.mkdir(parents=True, exist_ok=True)
    tried = []
    for address in (*(f"{each.rstrip('/')}/{name}.zip" for each in mirrors), *archive.addresses):
        with new_draft(home / f"{name}.zip") as draft, new_draft(place, folder=True) as opened:
            try:
                download(address, draft, archive, patience)
                unpack(draft, opened, archive.folder)
            except RefusedError as error:
                tried.append(f"  {address}: {error}")
                print(f"{name}: left {address}: {error}", file=sys.stderr)
                continue
            commit(opened, place)
            if archive.md5 is None:
                print(f"{name}: its hash is unknown, and was not checked", file=sys.stderr)
            return place
    raise DataError(
        f"{name}: no address has it:\n" + "\n".join(tried) + "\ntry again later, name a --mirror, "
        f"or unpack an archive of your own into {place}"
    )


def main(words: Sequence[str] | None = None) -> None:
    from sluice.encoders.foundation.errors import SluiceError

    rows = manifest()
    asked = options(__doc__, {
        "names": ({"nargs": "+", "metavar": "NAME"}, ", ".join(rows)),
        "--mirror": ({"nargs": "+", "default": [], "metavar": "ADDRESS"}, "tried first"),
    }, words)  # fmt: skip
    home = os.environ.get("SLUICE_DATA")
    if not home:
        refuse("$SLUICE_DATA: not set; it names the folder of the collections")
    unknown = [name for name in asked.names if name not in rows]
    if unknown:
        refuse(f"{unknown[0]!r}: unknown; names are {', '.join(rows)}")
    try:
        for name in asked.names:
            print(get(name, Path(home).expanduser(), rows[name], asked.mirror))
    except SluiceError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
