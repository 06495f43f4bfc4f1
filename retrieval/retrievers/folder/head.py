"""``retriever.json``, the state of a retriever's folder and its changes since the build."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import (
    check_version,
    fingerprint_of,
    read_json,
    write_json,
)
from sluice.encoders.foundation.errors import IndexFormatError, suggest
from sluice.retrieval.pipelines.saving import PIPELINE

CHANGES = "changes"  # in the origin of ``retriever.json``
KINDS = ("added", "replaced", "deleted")


@dataclass(frozen=True, slots=True)
class Changes:
    """Counts of documents since the build; a rebuild from the dataset would undo them.

    ``last`` is the time of the latest change and ``mark`` the change of a whole experiment that it
    was part of, both texts. ``counted`` is False for a folder that an earlier version changed,
    which noted no counts.
    """

    added: int = 0
    replaced: int = 0
    deleted: int = 0
    last: str = ""
    mark: str = ""
    counted: bool = True

    def __str__(self) -> str:
        counts = [f"{getattr(self, kind):,} {kind}" for kind in KINDS if getattr(self, kind)]
        if not self.counted:
            counts.append("others changed")
        return ", ".join(counts)

    def plus(self, counts: Mapping[str, int], mark: str) -> Changes:
        """Return the changes after another one, given its counts by kind."""
        sums = {kind: getattr(self, kind) + counts.get(kind, 0) for kind in KINDS}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return Changes(**sums, last=now, mark=mark, counted=self.counted)


def changes_in(origin: Mapping[str, Any]) -> Changes | None:
    """Return the changes that the origin of a ``retriever.json`` notes, None if there are none.

    Earlier versions noted a change by taking away the key of the config.
    """
    config = origin.get("config")
    counted = not (isinstance(config, Mapping) and config.get("key", "") is None)
    noted = origin.get(CHANGES)
    if noted is None:
        return None if counted else Changes(counted=False)
    known = {each.name for each in fields(Changes)} - {"counted"}
    sound = isinstance(noted, Mapping) and noted.keys() <= known
    if not sound or not all(isinstance(noted.get(kind, 0), int) for kind in KINDS):
        raise IndexFormatError(
            f"{CHANGES}: {noted!r} is not as this Sluice writes it; upgrade sluice-ir, or rebuild"
        )
    return Changes(**noted, counted=counted)


def noted_in(origin: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Return an origin that notes ``changes``."""
    noted = {each.name: getattr(changes, each.name) for each in fields(Changes)}
    del noted["counted"]
    return {**origin, CHANGES: noted}


FORMAT = "sluice.retriever"
VERSION = 2  # 2: in shards; a retriever without any is written as 1
HEAD = "retriever.json"
INDEX = "index"
DOCUMENTS = "documents"
SHARDS = "shards"
REPLICAS = "replicas"  # copies of shards, by their names, for where a shard fails
ENCODING = ".encoding"  # vectors on their way into the index; a killed build continues with them
ENCODER_FOLDER = re.compile(r"encoder(-[0-9a-f]{8})?")
GENERATION = re.compile(r"g\d+")
SHARD_SET, SHARD = re.compile(r"s\d{6}"), re.compile(r"shard-\d{1,3}")
LOOKED_AT = 500  # files of a folder without a retriever that are looked at for a better message


@dataclass(slots=True)
class Head:
    """The content of ``retriever.json``.

    ``encoder`` is a folder beside it; ``encoder_generation`` is set for encoders that change with
    the documents (BM25). ``encoder_type`` is set for a user's own class. ``passages`` are the
    settings by which documents are cut, None if they are indexed uncut. ``shards`` are, of a
    retriever in shards, the ``set`` that is current and the ``heads`` of its shards by name; the
    index generation is then that of the rows' places.
    """

    name: str
    encoder: str
    encoder_fingerprint: str
    index_generation: str
    documents_generation: str
    encoder_generation: str | None = None
    encoder_type: str | None = None
    documents: int = 0
    index_bytes: int = 0
    origin: dict[str, Any] = field(default_factory=dict)
    passages: dict[str, Any] | None = None
    shards: dict[str, Any] | None = None

    @property
    def changes(self) -> Changes | None:
        """What was added, replaced and deleted since the build, None if nothing was."""
        return changes_in(self.origin)

    @property
    def section(self) -> Mapping[str, Any]:
        """What an experiment noted of how the retriever is made; empty for one made in Python."""
        config = self.origin.get("config")
        section = config.get("retriever") if isinstance(config, Mapping) else None
        return section if isinstance(section, Mapping) else {}

    @property
    def state(self) -> str | None:
        """A hash of what changes made of the documents, None if nothing was changed."""
        if self.changes is None:
            return None
        return fingerprint_of(
            self.index_generation,
            self.documents_generation,
            self.encoder_fingerprint,
            self.origin.get(CHANGES),
        )


def _holds_documents(path: Path) -> bool:
    """Return whether a path is a file, or a folder with a file, that ``as_documents`` reads."""
    from sluice.retrieval.documents.readers.files.kinds import kind_of_file
    from sluice.retrieval.documents.readers.tables import form_of_table

    if (path / "experiment.yaml").exists():
        return False
    files = [path] if path.is_file() else islice(path.rglob("*"), LOOKED_AT)
    return any(kind_of_file(f) or form_of_table(f) not in (None, "json") for f in files)


def read_head(path: Path) -> Head:
    """Read and check ``retriever.json``; anything but a retriever is an ``IndexFormatError``."""
    if not (path / HEAD).exists():
        if (path / PIPELINE).exists():
            raise IndexFormatError(f"{path}: a saved pipeline; load_pipeline opens it")
        if _holds_documents(path):
            raise IndexFormatError(
                f"{path}: documents, not a retriever folder; index them, and search that: "
                f"sluice index {path} --output my"
            )
        raise IndexFormatError(_no_retriever(path))
    facts = read_json(path / HEAD)
    if not isinstance(facts, dict) or facts.pop("format", None) != FORMAT:
        raise IndexFormatError(
            f"{path / HEAD}: not the file of a retriever; rebuild it with sluice index"
        )
    check_version(facts.get("version"), VERSION, path / HEAD)
    return checked_head(facts, path / HEAD)


def read_shard(folder: Path) -> Head:
    """Read the ``retriever.json`` of a shard, see ``read_head``."""
    if not (folder / HEAD).exists():
        raise IndexFormatError(
            f"{folder}: the shard is missing; put it back, as from a copy, or rebuild the retriever"
        )
    return read_head(folder)


def checked_head(facts: Any, where: Path) -> Head:
    """Return the head of facts that a file has; ``IndexFormatError`` for others."""
    known = {each.name for each in fields(Head)}
    try:
        # What a later version notes beside, under the same format number, may be ignored.
        head = Head(**{name: value for name, value in facts.items() if name in known})
        generations = (head.index_generation, head.documents_generation, head.encoder_generation)
        sound = (
            ENCODER_FOLDER.fullmatch(head.encoder)
            and all(name is None or GENERATION.fullmatch(name) for name in generations)
            and isinstance(head.encoder_fingerprint, str)
            and isinstance(head.origin, dict)
            and isinstance(head.passages, dict | None)
            and (head.shards is None or _sound_shards(head.shards, where))
        )
    except (TypeError, AttributeError):
        sound = None
    if not sound:
        raise IndexFormatError(f"{where}: not as Sluice writes it; rebuild the retriever")
    return head


def _sound_shards(shards: Any, where: Path) -> bool:
    names = list(shards["heads"])
    numbered = [f"shard-{number}" for number in range(len(names))]
    sound = bool(names) and names == numbered and bool(SHARD_SET.fullmatch(shards["set"]))
    own = [checked_head(facts, where) for facts in shards["heads"].values()]
    return sound and all(head.shards is None for head in own)


def pinned_shards(path: Path, head: Head) -> dict[str, tuple[Path, Head]]:
    """Return the folder and the pinned head of each shard by name, none of an undivided one."""
    if head.shards is None:
        return {}
    folder = path / SHARDS / head.shards["set"]
    return {
        name: (folder / name, checked_head(facts, path / HEAD))
        for name, facts in head.shards["heads"].items()
    }


def _no_retriever(path: Path) -> str:
    """Say what a path that holds no retriever is instead."""
    if not path.exists():
        near = suggest(path.name, [p.name for p in path.parent.glob("*") if p.is_dir()])
        return f"{path}: no such folder{near}; sluice index makes a retriever's folder"
    if not path.is_dir():
        return f"{path}: a file; expected a retriever folder, which sluice index makes"
    names = sorted(head.parent.name for head in path.glob(f"retrievers/*/{HEAD}"))
    if names:
        return (
            f"{path}: an experiment's output; choose one of its retrievers: "
            f"{path}/retrievers/NAME ({', '.join(names)})"
        )
    return f"{path}: no {HEAD} here; expected a retriever folder, which sluice index makes"


def write_head(path: Path, head: Head) -> None:
    """Make ``head`` the retriever's current state, then remove encoders it does not use."""
    facts = asdict(head)
    if head.passages is None:
        del facts["passages"]  # earlier versions of Sluice do not know the key
    if head.shards is None:
        del facts["shards"]
    version = 1 if head.shards is None else VERSION
    write_json(path / HEAD, {"format": FORMAT, "version": version, **facts})
    current = None if head.shards is None else head.shards["set"]
    unused = [each for each in path.glob(f"{SHARDS}/*") if each.name != current]
    unused += [] if current is None else [path / DOCUMENTS]
    for folder in path.iterdir():
        if ENCODER_FOLDER.fullmatch(folder.name) and folder.name != head.encoder:
            unused.append(folder)
    for folder in unused:
        shutil.rmtree(folder, ignore_errors=True)
