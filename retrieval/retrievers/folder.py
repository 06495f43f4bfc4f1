"""The folder of a retriever: encoder, index and documents bound together by ``retriever.json``.

``retriever.json`` is replaced last and pins the generation of each part, so a kill at any instant
leaves the old retriever or the new one. The next write undoes what a killed one left.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import resolve, type_name
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.encoders.foundation.files import read_json, write_json
from sluice.encoders.foundation.generations import MANIFEST, pin_generation, verify
from sluice.encoders.model_files.registry import open_encoder
from sluice.encoders.table import ENCODERS

if TYPE_CHECKING:
    from sluice.retrieval.documents.store import DocumentStore

log = logging.getLogger("sluice")

FORMAT = "sluice.retriever"
VERSION = 1
HEAD = "retriever.json"
INDEX = "index"
DOCUMENTS = "documents"
ENCODING = ".encoding"  # vectors on their way into the index; a killed build continues with them
ENCODER_FOLDER = re.compile(r"encoder(-[0-9a-f]{8})?")
GENERATION = re.compile(r"g\d+")


@dataclass(slots=True)
class Head:
    """The content of ``retriever.json``.

    ``encoder`` is a folder beside it; ``encoder_generation`` is set for encoders that change with
    the documents (BM25). ``encoder_type`` is set for a user's own class. ``passages`` are the
    settings by which documents are cut, None if they are indexed uncut.
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


def read_head(path: Path) -> Head:
    """Read and check ``retriever.json``; anything but a retriever is an ``IndexFormatError``."""
    if not (path / HEAD).exists():
        raise IndexFormatError(
            f"{path}: no {HEAD} here; expected a retriever folder (sluice index CONFIG makes one)"
        )
    facts = read_json(path / HEAD)
    if not isinstance(facts, dict) or facts.pop("format", None) != FORMAT:
        raise IndexFormatError(
            f"{path / HEAD}: not the file of a retriever; rebuild it with sluice index"
        )
    version = facts.pop("version", None)
    if not isinstance(version, int) or version > VERSION:
        raise IndexFormatError(
            f"{path / HEAD}: format version {version!r}, this Sluice reads up to {VERSION}; "
            "upgrade sluice-ir, or rebuild"
        )
    try:
        head = Head(**facts)
        generations = (head.index_generation, head.documents_generation, head.encoder_generation)
        sound = (
            ENCODER_FOLDER.fullmatch(head.encoder)
            and all(name is None or GENERATION.fullmatch(name) for name in generations)
            and isinstance(head.encoder_fingerprint, str)
            and isinstance(head.origin, dict)
            and isinstance(head.passages, dict | None)
        )
    except TypeError:
        sound = None
    if not sound:
        raise IndexFormatError(f"{path / HEAD}: not as Sluice writes it; rebuild the retriever")
    return head


def write_head(path: Path, head: Head) -> None:
    """Make ``head`` the retriever's current state, then remove encoders it does not use."""
    facts = asdict(head)
    if head.passages is None:
        del facts["passages"]  # earlier versions of Sluice do not know the key
    write_json(path / HEAD, {"format": FORMAT, "version": VERSION, **facts})
    for folder in path.iterdir():
        if ENCODER_FOLDER.fullmatch(folder.name) and folder.name != head.encoder:
            shutil.rmtree(folder, ignore_errors=True)


def refuse_foreign(path: Path) -> None:
    """Raise ``IndexFormatError`` if a folder without a retriever holds what Sluice did not write.

    A killed first build leaves only parts with manifests and generations and, once the documents
    are complete, an encoder.
    """
    if not path.is_dir() or (path / HEAD).exists():
        return
    begun = (path / DOCUMENTS / MANIFEST).exists()
    for item in path.iterdir():
        ours = item.name.startswith(".") or (begun and ENCODER_FOLDER.fullmatch(item.name))
        if item.name in (INDEX, DOCUMENTS) and item.is_dir():
            ours = all(
                part.name == MANIFEST
                or part.name.startswith(".")
                or (part.is_dir() and GENERATION.fullmatch(part.name))
                for part in item.iterdir()
            )
        if not ours:
            raise IndexFormatError(
                f"{path}: contains {item.name!r}, which is not part of a retriever; choose a new "
                "folder, or one that holds a retriever"
            )


def roll_back(path: Path) -> None:
    """Undo what a killed write left: parts go back to the generations ``retriever.json`` pins.

    The caller holds the folder's lock.
    """
    head = read_head(path)
    pin_generation(path / INDEX, head.index_generation)
    pin_generation(path / DOCUMENTS, head.documents_generation)
    if head.encoder_generation:
        pin_generation(path / head.encoder, head.encoder_generation)


def discard_unfinished(path: Path) -> None:
    """Undo a killed write before a new build; an unreadable head counts as missing."""
    try:
        roll_back(path)
    except IndexFormatError as error:
        if (path / HEAD).exists():
            log.warning("%s; it is rebuilt", error)
            (path / HEAD).unlink()
        for part in (INDEX, DOCUMENTS, "encoder"):
            shutil.rmtree(path / part, ignore_errors=True)


def head_of(
    path: Path,
    name: str,
    encoder: Any,
    documents: DocumentStore,
    origin: dict[str, Any],
    passages: dict[str, Any] | None = None,
) -> Head:
    """Store the encoder in the folder and return the head of its new content."""
    manifest = read_json(path / INDEX / MANIFEST)
    return Head(
        name=name,
        index_generation=str(manifest["generation"]),
        documents_generation=documents.generation,
        documents=len(documents),
        index_bytes=sum(int(entry["bytes"]) for entry in manifest["files"].values()),
        origin=origin,
        passages=passages,
        **place_encoder(path, encoder),
    )


def place_encoder(path: Path, encoder: Any) -> dict[str, Any]:
    """Store the encoder in the folder; return the head's encoder fields.

    A folder in use is never written over: another encoder gets a folder of another name. An
    encoder that changes with the documents (BM25) keeps its folder and adds a generation.
    """
    fingerprint = str(encoder.fingerprint)
    changing = hooks_of(encoder).fits_documents
    name = "encoder"
    if (path / HEAD).exists():
        head = read_head(path)
        same = head.encoder_fingerprint == fingerprint and not changing
        kept = same or (changing and head.encoder_generation is not None)
        name = head.encoder if kept else f"encoder-{fingerprint[:8]}"
        if not same:
            encoder.save_pretrained(path / name)
    else:
        encoder.save_pretrained(path / name)
    fields: dict[str, Any] = {"encoder": name, "encoder_fingerprint": fingerprint}
    if changing:
        fields["encoder_generation"] = read_json(path / name / MANIFEST)["generation"]
    kind = type_name(encoder, ENCODERS)
    if ":" in kind:  # a user's own class
        fields["encoder_type"] = kind
    return fields


def open_placed_encoder(
    path: Path, head: Head, *, allow: Collection[str] = (), options: Mapping[str, Any] | None = None
) -> Any:
    """Load the encoder of a retriever and check that it is the one the index was built with."""
    source = path / head.encoder
    given = dict(options or {})
    if head.encoder_type:
        if head.encoder_type not in allow:
            raise IndexFormatError(
                f"{path}: its encoder is {head.encoder_type}, which is not built in, and a saved "
                f"folder may not import code; pass allow=[{head.encoder_type!r}] if you trust it"
            )
        encoder = resolve(head.encoder_type).from_pretrained(source, **given)
    elif head.encoder_generation:
        encoder = open_encoder(source, generation=head.encoder_generation)
    else:
        encoder = open_encoder(source, **given)
    check_encoder(path, head, encoder)
    return encoder


def check_encoder(path: Path, head: Head, encoder: Any) -> None:
    """Raise ``IndexFormatError`` unless ``encoder`` is the one the index was built with."""
    fingerprint = str(encoder.fingerprint)
    if fingerprint != head.encoder_fingerprint:
        raise IndexFormatError(
            f"{path}: the index was built with encoder {head.encoder_fingerprint[:12]} "
            f"({head.encoder}), this one is {fingerprint[:12]}; their vectors cannot be compared: "
            "open it without encoder=, or rebuild the index with the new encoder"
        )


def verify_retriever(path: Path) -> int:
    """Check every checksum of index and documents, and the encoder's fingerprint; count files.

    Nothing is written, so a retriever in use may be verified.
    """
    head = read_head(path)
    files = verify(path / INDEX, generation=head.index_generation)
    files += verify(path / DOCUMENTS, generation=head.documents_generation)
    open_placed_encoder(path, head)
    return files + 1
