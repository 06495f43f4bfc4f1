"""The parts of a retriever's folder: written, restored, copied and verified; its encoder opened.

``retriever.json`` is replaced last and pins the generation of each part, so a kill at any instant
leaves the old retriever or the new one. The next write undoes what a killed one left.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import factory, type_name
from sluice.encoders.foundation.disk.files import link_or_copy, read_json
from sluice.encoders.foundation.disk.generations import (
    MANIFEST,
    pin_generation,
    replaced_folder,
    settle,
    verify,
    writer_lock,
)
from sluice.encoders.foundation.errors import IndexFormatError, ModelError, SluiceError
from sluice.encoders.model_files.probes import PROBES, Verified, verify_probes
from sluice.encoders.model_files.registry import REMOTE, kind_of, open_encoder
from sluice.encoders.table import ENCODERS, GIVEN
from sluice.indexing.folder import open_index
from sluice.retrieval.retrievers.folder.head import (
    DOCUMENTS,
    ENCODER_FOLDER,
    ENCODING,
    GENERATION,
    HEAD,
    INDEX,
    SHARD_SET,
    SHARDS,
    Head,
    pinned_shards,
    read_head,
    read_shard,
    write_head,
)

if TYPE_CHECKING:
    from sluice.retrieval.documents.store import DocumentStore


def place_encoder(path: Path, encoder: Any) -> dict[str, Any]:
    """Store the encoder in the folder; return the head's encoder fields.

    A folder in use is never written over: another encoder gets a folder of another name. An
    encoder that changes with the documents (BM25) keeps its folder and adds a generation.
    """
    fingerprint = str(encoder.fingerprint)
    changing = hooks_of(encoder).learner is not None
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
    kind = type_name(encoder, {**ENCODERS, **GIVEN})
    if ":" in kind:  # a user's own class
        fields["encoder_type"] = kind
    return fields


def open_placed_encoder(
    path: Path,
    head: Head,
    *,
    allow: Collection[str] = (),
    options: Mapping[str, Any] | None = None,
    quick: bool = False,
) -> Any:
    """Load the encoder of a retriever and check that it is the one the index was built with.

    ``quick``: for a few queries, which ``opened_quickly`` encodes without loading torch.
    """
    encoder = opened_unchecked(path, head, allow=allow, options=options, quick=quick)
    check_encoder(path, head, encoder)
    return encoder


def opened_unchecked(
    path: Path,
    head: Head,
    *,
    allow: Collection[str] = (),
    options: Mapping[str, Any] | None = None,
    quick: bool = False,
) -> Any:
    """Load the encoder of a retriever, whichever it is."""
    source = path / head.encoder
    given = dict(options or {})
    if head.encoder_type:
        place = f"{path / HEAD}: encoder"
        kind = factory(head.encoder_type, {}, where=place, allow=allow)
        if not hasattr(kind, "from_pretrained"):
            raise IndexFormatError(
                f"{place}: {head.encoder_type!r} is not an encoder: it lacks from_pretrained"
            )
        return kind.from_pretrained(source, **given)
    if head.encoder_generation:
        return open_encoder(source, generation=head.encoder_generation)
    if quick and kind_of(source) != REMOTE:
        from sluice.encoders.backends.quick import opened_quickly

        return opened_quickly(kind_of(source), source, given, partial(open_encoder, source))
    return open_encoder(source, allow=allow, **given)


def check_encoder(path: Path, head: Head, encoder: Any) -> None:
    """Raise ``IndexFormatError`` unless ``encoder`` is the one the index was built with."""
    fingerprint = str(encoder.fingerprint)
    if fingerprint != head.encoder_fingerprint:
        raise IndexFormatError(
            f"{path / HEAD}: encoder_fingerprint: the index was built with encoder "
            f"{head.encoder_fingerprint[:12]} ({head.encoder}), this one is {fingerprint[:12]}: "
            "open it without encoder=, rebuild it with the new encoder, or, where that was trained "
            "to search it, give it the new queries: sluice model upgrade"
        )


def usual_name(encoder: Any) -> str:
    """Return the name of a retriever that was given none: its encoder's type."""
    return type_name(encoder, {**ENCODERS, **GIVEN}).rpartition(":")[2]


def parts_of(path: Path, head: Head) -> tuple[str, str]:
    """Return the types of a retriever's encoder and index, empty where nobody can tell."""
    encoder = head.encoder_type or ""
    index = ""
    shards = list(pinned_shards(path, head).values())
    try:
        encoder = encoder or kind_of(path / head.encoder)
        if shards:
            return encoder, parts_of(*shards[0])[1]
        index = str(read_json(path / INDEX / MANIFEST)["type"])
    except (OSError, KeyError, TypeError, SluiceError):
        pass
    return encoder, index


log = logging.getLogger("sluice")


def verify_retriever(path: Path, allow: Collection[str] = ()) -> int:
    """Check every checksum of index and documents, and what the encoder computes; count files.

    An encoder whose probe texts have other vectors than when it was saved is an
    ``IndexFormatError`` that names what was changed. Nothing is written, so a retriever in use may
    be verified.
    """
    head = read_head(path)
    files = verify(path / INDEX, generation=head.index_generation)
    for folder, own in pinned_shards(path, head).values():
        if read_shard(folder) != own:
            raise IndexFormatError(
                f"{folder}: changed by itself, and a shard is changed through the whole, {path}; "
                "the next sluice add, update or delete there undoes it"
            )
        files += verify_retriever(folder, allow)
    if head.shards is None:
        files += verify(path / DOCUMENTS, generation=head.documents_generation)
    if head.shards is None:  # a shard's index has all it is in its folder
        index = open_index(path / INDEX, generation=head.index_generation, allow=allow)
        if checked := index.verify():
            log.info("%s: as saved in the database: %s", path, ", ".join(checked))
    encoder = opened_unchecked(path, head, allow=allow)
    refuse_moved(path / head.encoder, encoder)
    check_encoder(path, head, encoder)
    return files + 1


def verify_model(folder: Path, allow: Collection[str] = ()) -> Verified:
    """Compute the vectors, or scores, of a saved model's probe texts again; return what they are.

    Raises ``ModelError`` that names what differs, or for a folder without any.
    """
    verified = refuse_moved(folder, open_encoder(folder, allow=allow), ModelError)
    if verified is None:
        raise ModelError(
            f"{folder}: no {PROBES} to compare with, which Sluice writes beside the models of most "
            "types that it saves; of others verify the retriever that was made with the model"
        )
    return verified


def refuse_moved(
    folder: Path, encoder: Any, error: type[SluiceError] = IndexFormatError
) -> Verified | None:
    """Raise ``error`` if the probe texts of a model's folder have other vectors than they had.

    Returns what was compared, None in a folder without any.
    """
    verified = verify_probes(folder, encoder)
    if verified is not None and verified.differences:
        raise error(
            f"{folder}: is not as it was saved; {'; '.join(verified.differences)}; put the files "
            "back, or save the model and build what was made with it again"
        )
    return verified


def refuse_foreign(path: Path) -> None:
    """Raise ``IndexFormatError`` if a folder without a retriever holds what Sluice did not write.

    A killed first build leaves only parts with manifests and generations and, once the documents
    are complete, an encoder.
    """
    if not path.is_dir() or (path / HEAD).exists():
        return
    begun = (path / DOCUMENTS / MANIFEST).exists() or (path / SHARDS).is_dir()
    for item in path.iterdir():
        ours = item.name.startswith(".") or (begun and ENCODER_FOLDER.fullmatch(item.name))
        if item.name in (INDEX, DOCUMENTS) and item.is_dir():
            ours = all(
                part.name == MANIFEST
                or part.name.startswith(".")
                or (part.is_dir() and GENERATION.fullmatch(part.name))
                for part in item.iterdir()
            )
        if item.name == SHARDS and item.is_dir():
            ours = all(SHARD_SET.fullmatch(part.name) for part in item.iterdir())
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
    for folder, own in pinned_shards(path, head).values():
        if read_shard(folder) != own:
            restore(folder, own)
        else:
            roll_back(folder)
    pin_generation(path / INDEX, head.index_generation)
    if head.shards is None:
        pin_generation(path / DOCUMENTS, head.documents_generation)
    if head.encoder_generation:
        pin_generation(path / head.encoder, head.encoder_generation)


def restore(path: Path, head: Head) -> None:
    """Make an earlier ``head`` the current state again: undo the one change that came after it.

    ``IndexFormatError`` if the folder no longer holds that state.
    """
    with writer_lock(path):
        parts = [(INDEX, head.index_generation)]
        if head.shards is None:
            parts.append((DOCUMENTS, head.documents_generation))
        if head.encoder_generation:
            parts.append((head.encoder, head.encoder_generation))
        for part, generation in parts:
            if not (path / part / generation / MANIFEST).exists():
                raise IndexFormatError(
                    f"{path}: the state before the change is gone ({part}/{generation} is "
                    "missing); rebuild it"
                )
        write_head(path, head)
        roll_back(path)


def discard_unfinished(path: Path) -> None:
    """Undo a killed write before a new build; an unreadable head counts as missing."""
    try:
        roll_back(path)
    except IndexFormatError as error:
        if (path / HEAD).exists():
            log.warning("%s; it is rebuilt", error)
            (path / HEAD).unlink()
        encoders = [part.name for part in path.iterdir() if ENCODER_FOLDER.fullmatch(part.name)]
        for part in (*encoders, SHARDS, INDEX, DOCUMENTS):  # the documents last: see refuse_foreign
            shutil.rmtree(path / part, ignore_errors=True)


def discard_leftovers(path: Path) -> None:
    """Remove what a write left that was killed after its last step; not while another one runs."""
    head = read_head(path)
    names = [part.name for part in path.iterdir()]
    unused = [name for name in names if ENCODER_FOLDER.fullmatch(name) and name != head.encoder]
    left = [path / name for name in (*unused, ENCODING) if name in names]
    if left:
        with contextlib.suppress(IndexFormatError, OSError), writer_lock(path):
            for part in left if read_head(path) == head else ():
                shutil.rmtree(part, ignore_errors=True)


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


def copy_retriever(path: Path, target: Path, head: Head) -> None:
    """Put a copy of the state in ``head`` in the place of ``target``, in one step.

    Files are linked where possible: those of a generation, and models, are never written again.
    """
    if target.resolve() == path.resolve():
        return
    settle(target)
    with replaced_folder(target, markers=(HEAD,)) as draft:
        copy_part(path / INDEX, draft / INDEX, head.index_generation)
        for folder, own in pinned_shards(path, head).values():
            copy_retriever(folder, draft / folder.relative_to(path), own)
        if head.shards is None:
            copy_part(path / DOCUMENTS, draft / DOCUMENTS, head.documents_generation)
        copy_part(path / head.encoder, draft / head.encoder, head.encoder_generation)
        write_head(draft, head)


def copy_part(source: Path, target: Path, generation: str | None) -> None:
    """Copy a part's folder: of its generations only the named one, which becomes current."""

    def others(folder: str, names: list[str]) -> list[str]:
        top = Path(folder) == source
        return [
            name
            for name in names
            if name.startswith(".")
            or (top and generation and GENERATION.fullmatch(name) and name != generation)
        ]

    try:
        shutil.copytree(source, target, ignore=others, copy_function=link_or_copy)
    except (OSError, shutil.Error) as error:
        raise IndexFormatError(f"{source}: cannot be copied ({error})") from None
    if generation:
        pin_generation(target, generation)
