"""Caches vectors on disk by the hash of their text, in immutable shards, within a size limit."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.encoder import Side, Vectors, hooks_of
from sluice.encoders.foundation.build import type_name
from sluice.encoders.foundation.disk.files import (
    cache_folder,
    fingerprint_of,
    lock,
    lock_file,
    read_json,
    remove_abandoned,
    write_json,
)
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, DataError, IndexFormatError
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.table import ENCODERS, KNOWN
from sluice.encoders.vectors.forms import (
    ROW_BITS,
    SUFFIX,
    HashDirectory,
    Hashes,
    Places,
    Shard,
    Store,
    dense_rows,
    put_together,
    sparse_rows,
    stored_form,
    token_rows,
    write_shard,
)

log = logging.getLogger("sluice")

FORMAT = "sluice.vectors"
TOKENS = "tokens"  # of each text: the name of a shard's array, which older ones lack
RAGGED = "ragged"  # a fact of shards of token vectors, several a text
VERSION = 1

BOUND = "SLUICE_CACHE_BYTES"
DEFAULT_BYTES = 20_000_000_000


def vector_identity(encoder: Any, store: Store, side: Side = "document") -> dict[str, str]:
    """Return what vectors on disk depend on: the encoder, its arithmetic, the side, the form.

    Not the device, batches or number of threads, which change only the last bits.
    """
    hooks = hooks_of(encoder)
    return {
        "encoder": _type_in_key(encoder),
        "fingerprint": str(encoder.fingerprint),
        "dtype": str(hooks.dtype).removeprefix("torch."),
        "backend": hooks.engine,
        "store": store,
        "side": side,
    }


def _type_in_key(encoder: Any) -> str:
    """Return an encoder's type for keys: a name that does not change when a module moves.

    Keys once held the path of its class: package, type, class. For the types of that time they
    still do, so that vectors cached then are found. Do not rename; new types need no ``cached``.
    """
    name = type_name(encoder, ENCODERS)
    former = KNOWN[name].cached if name in KNOWN else ""
    return f"encoders.{name}:{former}" if former else name


class VectorCache:
    """The stored vectors of one identity (encoder, dtype, form), in a folder of its own.

    ``locate`` finds texts' vectors, ``put`` adds some as one file, ``gather`` reads them. Reading
    always returns the stored form, so a first run and a later one see the same bits. Several
    processes may write at once; each sees its own shards and those that existed when it opened. A
    damaged shard is removed, and its texts count as missing. Memory: 24 bytes a text.

    Use as a context manager: inside it the folder is not evicted.
    """

    def __init__(self, root: Path, identity: Mapping[str, str]) -> None:
        self.identity = dict(identity)
        self.store: Store = cast(Store, identity["store"])
        self.key = fingerprint_of(FORMAT, VERSION, self.identity)
        self.root, self.folder = root, root / self.key
        self._directory = HashDirectory()
        self._shards: list[Shard] = []
        self._verified: set[int] = set()
        self._held = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._enter()
        self.read()
        return self

    @contextlib.contextmanager
    def adding(self) -> Iterator[Self]:
        """Keep the folder in use without reading it, for one that adds vectors and seeks none."""
        with self._held:
            self._enter()
            yield self

    def _enter(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._held.enter_context(used_key(self.root, self.key))
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            self._held.close()
            raise ConfigError(
                f"{self.root}: vectors cannot be cached there ({error.strerror}); set another "
                "folder with $SLUICE_CACHE or cache:"
            ) from error
        os.utime(self.folder)  # the least recently used go first
        self._check_manifest()

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def __len__(self) -> int:
        return len(self._directory)

    def read(self) -> None:
        """Read which vectors the folder has; without ``with``, this works without the lock."""
        texts, places = [], []
        for path in sorted(self.folder.glob(f"[!.]*{SUFFIX}")):
            try:
                shard = Shard(path)
                if shard.facts.get("key") != self.key:
                    raise IndexFormatError(f"{path}: belongs to another encoder or form")
                hashes = np.array(shard.array("hashes"))
            except (IndexFormatError, FileNotFoundError) as error:
                _discard(path, error)
                continue
            texts.append(hashes)
            places.append(self._placed(shard, len(hashes)))
        if texts:
            self._directory.add(np.concatenate(texts), np.concatenate(places))

    def _placed(self, shard: Shard, count: int) -> Places:
        self._shards.append(shard)
        return ((len(self._shards) - 1) << ROW_BITS) + np.arange(count, dtype=np.int64)

    def _check_manifest(self) -> None:
        path = self.folder / MANIFEST
        expected = {"format": FORMAT, "version": VERSION, **self.identity}
        if not path.exists():
            write_json(path, expected)
            return
        try:
            identity = read_json(path)
        except IndexFormatError as error:
            log.warning("%s; the manifest is rewritten", error)
            write_json(path, expected)
            return
        found = identity if isinstance(identity, dict) else {}
        if any(found.get(name) != value for name, value in expected.items()):
            raise IndexFormatError(
                f"{path}: the vectors of {identity}, expected {expected}; the folder was edited or "
                "moved: delete it"
            )

    def locate(self, hashes: Hashes) -> Places:
        """Return where the vector of each text is, -1 if it is missing."""
        while True:
            places = self._directory.find(hashes)
            touched = set(np.unique(places[places >= 0] >> ROW_BITS).tolist())
            damaged = [number for number in sorted(touched - self._verified) if self._bad(number)]
            if not damaged:
                return places

    def _bad(self, number: int) -> bool:
        shard = self._shards[number]
        try:
            shard.verify()
        except (IndexFormatError, OSError) as error:
            _discard(shard.path, error)
            self._directory.forget(number)
            return True
        self._verified.add(number)
        return False

    def put(
        self, hashes: Hashes, vectors: Vectors, tokens: NDArray[np.int32] | None = None
    ) -> None:
        """Add texts' vectors as one file; a kill leaves all of them or none.

        ``tokens`` ``[n]`` are those that the texts have, whatever the encoder reads of them.
        """
        facts: dict[str, Any] = {"key": self.key, "width": int(vectors.shape[1])}
        facts["dense"] = not sp.issparse(vectors)
        if isinstance(vectors, TokenVectors):
            facts[RAGGED] = True
        arrays = {"hashes": hashes, **stored_form(vectors, self.store)}
        if tokens is not None:
            arrays[TOKENS] = tokens
        try:
            write_shard(self.path_of(hashes), facts, arrays)
        except FileNotFoundError:
            raise _gone(self.folder) from None
        self.take_in(hashes)

    def path_of(self, hashes: Hashes) -> Path:
        """Return the file that these texts' vectors have together."""
        name = hashlib.blake2b(hashes.tobytes(), digest_size=16).hexdigest()
        return self.folder / f"{name}{SUFFIX}"

    def take_in(self, hashes: Hashes) -> None:
        """Find these texts' vectors from now on in their file, which any process has written."""
        path = self.path_of(hashes)
        shard = Shard(path)
        if shard.array("hashes").tobytes() != hashes.tobytes():
            raise IndexFormatError(f"{path}: its texts do not match its name; delete it")
        self._directory.add(hashes, self._placed(shard, len(hashes)))

    def gather(self, places: Places) -> Vectors:
        """Return the vectors of places from ``locate``, float32, in their order."""
        numbers, rows = places >> ROW_BITS, places & ((1 << ROW_BITS) - 1)
        touched = np.unique(numbers).tolist()
        facts = [self._shards[number].facts for number in touched]
        widths = {int(each["width"]) for each in facts}
        kinds = {(bool(each["dense"]), RAGGED in each) for each in facts}
        if len(kinds) > 1 or (len(widths) > 1 and (False, False) not in kinds):
            raise DataError(
                f"{self.folder}: vectors of widths {sorted(widths)} under one fingerprint; an "
                "encoder's fingerprint has to change with its dimensions"
            )
        parts, order = [], []
        for number in touched:
            here = np.flatnonzero(numbers == number)
            parts.append(self._rows(number, rows[here], max(widths)))
            order.append(here)
        return parts[0] if len(parts) == 1 else put_together(parts, order)

    def tokens(self, places: Places) -> NDArray[np.int32]:
        """Return how many tokens the texts of places have, -1 where it was not noted."""
        numbers, rows = places >> ROW_BITS, places & ((1 << ROW_BITS) - 1)
        tokens = np.full(len(places), -1, np.int32)
        for number in np.unique(numbers).tolist():
            if TOKENS in self._shards[number]:
                here = numbers == number
                tokens[here] = self._shards[number].array(TOKENS)[rows[here]]
        return tokens

    def lengths(self, places: Places) -> NDArray[np.int64]:
        """Return how many vectors the texts of places have: 1 unless they are token vectors."""
        numbers, rows = places >> ROW_BITS, places & ((1 << ROW_BITS) - 1)
        lengths = np.ones(len(places), np.int64)
        for number in np.unique(numbers).tolist():
            if RAGGED in self._shards[number].facts:
                here = numbers == number
                lengths[here] = np.diff(self._shards[number].array("bounds"))[rows[here]]
        return lengths

    def _rows(self, number: int, rows: Places, width: int) -> Vectors:
        """Read rows of one shard; its mapping ends here, so that it does not fill the memory."""
        shard = self._shards[number]
        ragged = RAGGED in shard.facts
        names = ["values", *(["scales"] if self.store == "int8" else [])]
        if ragged:
            names.append("bounds")
        elif not shard.facts["dense"]:
            names += ["starts", "terms"]
        try:
            arrays = {name: shard.array(name) for name in names}
        except FileNotFoundError:
            raise _gone(shard.path) from None
        if ragged:
            return token_rows(arrays, rows)
        return (
            dense_rows(arrays, rows) if shard.facts["dense"] else sparse_rows(arrays, rows, width)
        )


def _gone(path: Path) -> IndexFormatError:
    return IndexFormatError(
        f"{path}: was removed from the cache while it was in use; run the command again, and its "
        "vectors are computed again"
    )


def _discard(path: Path, error: Exception) -> None:
    log.warning("%s; its texts will be encoded again", error)
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def used_key(root: Path, key: str) -> Iterator[None]:
    """Keep a key's folder from eviction, and remove the drafts of killed writers."""
    remove_abandoned(root / key)
    with lock_file(root / f".{key}.lock") as handle:
        lock(handle, shared=True)
        yield


@contextlib.contextmanager
def unused_key(root: Path, key: str) -> Iterator[bool]:
    """Yield whether no process uses a key's folder; none can start to inside the block."""
    with lock_file(root / f".{key}.lock") as handle:
        yield lock(handle, wait=False)


class CachedKey(NamedTuple):
    """One encoder's vectors in one form: folder, size, last use, and facts of the manifest."""

    path: Path
    bytes: int
    used: float  # seconds since 1970
    encoder: str
    fingerprint: str
    store: str


def cache_root() -> Path:
    """Return where vectors are cached: ``$SLUICE_CACHE/vectors``, else in the user's cache."""
    return cache_folder() / "vectors"


def cache_bound() -> int:
    """Return the largest size of the cache in bytes, from ``$SLUICE_CACHE_BYTES``."""
    text = os.environ.get(BOUND, "")
    if not text:
        return DEFAULT_BYTES
    try:
        bound = int(float(text))
    except (ValueError, OverflowError):
        bound = -1
    if bound < 0:
        raise ConfigError(f"{BOUND}: {text!r}; expected a number of bytes such as 20e9")
    return bound


def cached_keys(root: Path) -> list[CachedKey]:
    """Return the keys in the cache, least recently used first."""
    keys = []
    for folder in root.iterdir() if root.is_dir() else ():
        try:
            manifest = read_json(folder / MANIFEST)
            size = sum(file.stat().st_size for file in folder.iterdir())
            used = folder.stat().st_mtime
        except (IndexFormatError, OSError):  # not ours, or just being removed
            continue
        if isinstance(manifest, dict) and manifest.get("format") == FORMAT:
            names = (str(manifest.get(name, "")) for name in ("encoder", "fingerprint", "store"))
            keys.append(CachedKey(folder, size, used, *names))
    return sorted(keys, key=lambda each: (each.used, each.path.name))


def keep_within(root: Path, bound: int) -> list[CachedKey]:
    """Remove least recently used keys until ``bound`` bytes are left, and return them.

    A key in use stays, whatever its size.
    """
    keys = cached_keys(root)
    total, gone = sum(each.bytes for each in keys), []
    for each in keys:
        if total <= bound:
            break
        if removed(each):
            total -= each.bytes
            gone.append(each)
            log.info("%s: %s bytes of cached vectors removed", each.path, f"{each.bytes:,}")
    return gone


def removed(key: CachedKey) -> bool:
    """Remove a key's folder unless a process uses it; return whether it was removed."""
    with unused_key(key.path.parent, key.path.name) as unused:
        if unused:
            shutil.rmtree(key.path, ignore_errors=True)
        return unused
