"""The encoder in a retriever's folder: stored, opened, and the index's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import factory, type_name
from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import IndexFormatError, SluiceError
from sluice.encoders.model_files.registry import REMOTE, kind_of, open_encoder
from sluice.encoders.table import ENCODERS, GIVEN
from sluice.retrieval.retrievers.folder.head import HEAD, INDEX, Head, pinned_shards, read_head


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
