"""The folder of a retriever: encoder, index and documents bound together by ``retriever.json``.

``retriever.json`` is replaced last and pins the generation of each part, so a kill at any instant
leaves the old retriever or the new one. The next write undoes what a killed one left.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.build import factory, type_name
from sluice.encoders.foundation.disk.files import (
    check_version,
    fingerprint_of,
    link_or_copy,
    read_json,
    write_json,
)
from sluice.encoders.foundation.disk.folder_swap import replaced_folder, settle
from sluice.encoders.foundation.disk.generations import (
    MANIFEST,
    pin_generation,
    verify,
    writer_lock,
)
from sluice.encoders.foundation.errors import (
    IndexFormatError,
    ModelError,
    SluiceError,
    suggest,
)
from sluice.encoders.model_files.probes import PROBES, verify_probes
from sluice.encoders.model_files.registry import REMOTE, kind_of, open_encoder
from sluice.encoders.table import ENCODERS, GIVEN
from sluice.retrieval.pipelines.saving import PIPELINE
from sluice.retrieval.retrievers.changes import CHANGES, Changes, changes_in

if TYPE_CHECKING:
    from sluice.retrieval.documents.store import DocumentStore

log = logging.getLogger("sluice")

FORMAT = "sluice.retriever"
VERSION = 2  # 2: in shards; a retriever without any is written as 1
HEAD = "retriever.json"
INDEX = "index"
DOCUMENTS = "documents"
SHARDS = "shards"
REPLICAS = "replicas"  # copies of shards, by their names, that are asked where a shard fails
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
        if read_head(folder) != own:
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
    encoder = _placed_encoder(path, head, allow=allow, options=options, quick=quick)
    check_encoder(path, head, encoder)
    return encoder


def _placed_encoder(
    path: Path,
    head: Head,
    *,
    allow: Collection[str] = (),
    options: Mapping[str, Any] | None = None,
    quick: bool = False,
) -> Any:
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
        from sluice.encoders.quick import opened_quickly

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


def verify_retriever(path: Path, allow: Collection[str] = ()) -> int:
    """Check every checksum of index and documents, and what the encoder computes; count files.

    An encoder whose probe texts have other vectors than when it was saved is an
    ``IndexFormatError`` that names what was changed. Nothing is written, so a retriever in use may
    be verified.
    """
    head = read_head(path)
    files = verify(path / INDEX, generation=head.index_generation)
    for folder, own in pinned_shards(path, head).values():
        if read_head(folder) != own:
            raise IndexFormatError(
                f"{folder}: changed by itself, and a shard is changed through the whole, {path}; "
                "the next sluice add, update or delete there undoes it"
            )
        files += verify_retriever(folder, allow)
    if head.shards is None:
        files += verify(path / DOCUMENTS, generation=head.documents_generation)
    encoder = _placed_encoder(path, head, allow=allow)
    refuse_moved(path / head.encoder, encoder)
    check_encoder(path, head, encoder)
    return files + 1


def verify_model(folder: Path, allow: Collection[str] = ()) -> int:
    """Compute the probe texts of a saved model again; return how many there are.

    Raises ``ModelError`` that names what differs, or for a folder without any.
    """
    texts = refuse_moved(folder, open_encoder(folder, allow=allow), ModelError)
    if not texts:
        raise ModelError(
            f"{folder}: no {PROBES} to compare with, which Sluice writes beside the models of most "
            "types that it saves; of others verify the retriever that was made with the model"
        )
    return texts


def refuse_moved(folder: Path, encoder: Any, error: type[SluiceError] = IndexFormatError) -> int:
    """Raise ``error`` if the probe texts of a model's folder have other vectors than they had.

    Returns how many texts there are, 0 in a folder without any.
    """
    verified = verify_probes(folder, encoder)
    if verified is None:
        return 0
    if verified.differences:
        raise error(
            f"{folder}: is not as it was saved; {'; '.join(verified.differences)}; put the files "
            "back, or save the model and build what was made with it again"
        )
    return verified.texts


def usual_name(encoder: Any) -> str:
    """Return the name of a retriever that was given none: its encoder's type."""
    return type_name(encoder, {**ENCODERS, **GIVEN}).rpartition(":")[2]


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
