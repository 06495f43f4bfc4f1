"""Adds, replaces and deletes documents in every retriever of an experiment: in all or in none.

A journal, ``<output>/.change/journal.json``, is written before the first retriever changes and goes
after the last. It holds what each ``retriever.json`` was, and an error puts these back. After a
kill the next change or build does so; a search in between says what is half done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sluice.encoders.foundation.disk.files import fingerprint_of, read_json, write_json
from sluice.encoders.foundation.disk.generations import writer_lock
from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.processes import is_alive
from sluice.encoders.foundation.trust import refuse_links
from sluice.retrieval.documents.document import Document
from sluice.retrieval.documents.store import DocumentStore, write_documents
from sluice.retrieval.experiments.output.folder import RETRIEVERS, open_built, retrievers_in
from sluice.retrieval.pipelines.expression import NAME
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.folder import HEAD, Head, checked_head, read_head, restore
from sluice.retrieval.retrievers.retriever import Retriever, retriever_of

log = logging.getLogger("sluice")

FOLDER = ".change"
JOURNAL = "journal.json"
OVERTAKEN = "its documents were changed again since"
GONE = "the state before it is gone"
CHUNK = 10_000  # ids looked up at a time


@dataclass(frozen=True, slots=True)
class Changed:
    """What a change did to one retriever, and how many ``documents`` it has now."""

    path: Path
    documents: int
    added: int = 0
    replaced: int = 0
    deleted: int = 0
    unchanged: int = 0


Apply = Callable[[Retriever], Mapping[str, int]]


def add_documents(
    folder: str | Path,
    documents: Iterable[Document],
    *,
    allow: Collection[str] = (),
    models: Mapping[str, Any] | None = None,
) -> list[Changed]:
    """Add documents to a retriever's folder, or to all retrievers of an experiment's output.

    ``DataError`` for an id that a retriever has already; nothing is added then. ``allow`` lists
    what the folder may do beside reading, see ``sluice.encoders.foundation.trust``; ``models`` are
    encoders that are loaded, by fingerprint.
    """

    def apply(retriever: Retriever, store: Iterable[Document]) -> Mapping[str, int]:
        return {"added": retriever.add(store)}

    return _change(Path(folder), "add", documents, apply, allow, models)


def update_documents(
    folder: str | Path,
    documents: Iterable[Document],
    *,
    sync: bool = False,
    delete_most: bool = False,
    dry_run: bool = False,
    allow: Collection[str] = (),
    models: Mapping[str, Any] | None = None,
) -> list[Changed]:
    """Replace the documents whose ids exist and add the others, as ``add_documents`` does.

    Afterwards every retriever has these documents, also where some had them and some had not, and
    with ``sync`` no others. ``delete_most`` and ``dry_run`` are as for ``Retriever.update``.
    """

    def apply(retriever: Retriever, store: Iterable[Document]) -> Mapping[str, int]:
        options = {"sync": sync, "delete_most": delete_most, "dry_run": dry_run}
        return retriever.update(store, **options)._asdict()

    return _change(
        Path(folder), "update --sync" if sync else "update", documents, apply, allow, models,
        dry_run=dry_run,
    )  # fmt: skip


def delete_documents(
    folder: str | Path,
    ids: Sequence[str],
    *,
    compact: bool = False,
    allow: Collection[str] = (),
    models: Mapping[str, Any] | None = None,
) -> list[Changed]:
    """Delete documents by id from a retriever's folder, or from all of an experiment's output.

    An id that none has is a ``DataError``, and nothing is deleted; a retriever of a pruned corpus
    may lack some. ``compact`` then frees their space.
    """
    folder, distinct = Path(folder), list(dict.fromkeys(ids))

    def apply(retriever: Retriever, names: Sequence[str]) -> Mapping[str, int]:
        present = names if _is_one(folder) else [name for name in names if name in retriever.store]
        return {"deleted": retriever.delete(present) if present else 0}

    changed = _change(folder, "delete", distinct, apply, allow, models)
    if compact:  # changes no document, so a kill in between leaves nothing to repair
        for each in changed:
            open_built(each.path, allow, models).compact()
    return changed


def _is_one(folder: Path) -> bool:
    return (folder / HEAD).exists()


def _change(
    folder: Path,
    verb: str,
    content: Any,
    apply: Callable[[Retriever, Any], Mapping[str, int]],
    allow: Collection[str],
    models: Mapping[str, Any] | None,
    *,
    dry_run: bool = False,
) -> list[Changed]:
    """Apply a change: ``content`` are the documents, or the ids to delete."""
    refuse_links(folder, allow)
    if _is_one(folder):
        output = folder.absolute().parent.parent
        if folder.absolute().parent.name == RETRIEVERS and (output / FOLDER).exists():
            refuse_links(output, allow)
            undo_interrupted(output)
        retriever = open_built(folder, allow, models)
        counts = apply(retriever, content)
        return [Changed(folder, len(retriever), **counts)]
    paths = retrievers_in(folder)
    with writer_lock(folder):
        finished = _settled(folder)
        try:
            if verb != "delete":
                content = write_documents(folder / FOLDER / "documents", content)
            digest = content.fingerprint if verb != "delete" else fingerprint_of(sorted(content))
            if finished is not None and (finished["verb"], finished["digest"]) == (verb, digest):
                return [Changed(path, read_head(path).documents) for path in paths]
            retrievers = [open_built(path, allow, models) for path in paths]
            _check_ids(folder, verb, content, retrievers)
            quiet = contextlib.nullcontext()
            with quiet if dry_run else _journal(folder, verb, digest, retrievers):
                counts_of = [apply(retriever, content) for retriever in retrievers]
        finally:
            if not (folder / FOLDER / JOURNAL).exists():
                shutil.rmtree(folder / FOLDER, ignore_errors=True)
    return [
        Changed(path, len(retriever), **counts)
        for path, retriever, counts in zip(paths, retrievers, counts_of, strict=True)
    ]


def _check_ids(folder: Path, verb: str, content: Any, retrievers: Sequence[Retriever]) -> None:
    """Find, before any retriever changes, the ids with which ``add`` or ``delete`` would fail."""
    for names in _chunks(content) if verb in ("add", "delete") else ():
        present = np.array([retriever.store.rows(names) >= 0 for retriever in retrievers])
        wrong = present.any(axis=0) if verb == "add" else ~present.any(axis=0)
        if not wrong.any():
            continue
        at = int(np.argmax(wrong))
        if verb == "delete":
            raise DataError(f"{folder}: no document {names[at]!r}; nothing was deleted")
        having = [r.name for r, has in zip(retrievers, present[:, at], strict=True) if has]
        where = "there" if present[:, at].all() else f"in {', '.join(having)}, not in the others"
        raise DataError(
            f"{folder}: document {names[at]!r} is already {where}; nothing was added. To replace "
            "it and add the rest, use sluice update"
        )


def _chunks(content: DocumentStore | list[str]) -> Iterator[list[str]]:
    total = content.rows_total if isinstance(content, DocumentStore) else len(content)
    for start in range(0, total, CHUNK):
        rows = range(start, min(start + CHUNK, total))
        if isinstance(content, DocumentStore):
            yield content.ids(rows)
        else:
            yield content[rows.start : rows.stop]


@contextlib.contextmanager
def _journal(
    output: Path, verb: str, digest: str, retrievers: Sequence[Retriever]
) -> Iterator[None]:
    """Note what the retrievers are while the block changes them; put them back if it fails."""
    mark = secrets.token_hex(8)
    before = {retriever.path.name: asdict(retriever.head) for retriever in retrievers}
    facts = {"verb": verb, "digest": digest, "mark": mark, "process": os.getpid(), "before": before}
    write_json(output / FOLDER / JOURNAL, facts)
    try:
        for retriever in retrievers:
            retriever.mark = mark
        yield
    except BaseException:
        _undo(output, facts)
        raise
    (output / FOLDER / JOURNAL).unlink()


def undo_interrupted(output: Path, rebuilt: Collection[str] = ()) -> None:
    """Undo a change of the experiment that was killed half-way, and say so.

    ``rebuilt`` names retrievers that are built again after it: one of them that cannot be put back
    is discarded. ``IndexFormatError`` for another one, and while another process makes a change.
    """
    if (output / FOLDER / JOURNAL).exists():
        with writer_lock(output):
            _settled(output, rebuilt)


def _settled(output: Path, rebuilt: Collection[str] = ()) -> Mapping[str, Any] | None:
    """Undo a killed change, or return what its journal notes if it was complete."""
    if not (output / FOLDER / JOURNAL).exists():
        return None
    facts = _read_journal(output)
    waiting = _without_mark(output, facts)
    if waiting:
        overtaken = _changed_since(output, facts)
        _undo(output, facts, rebuilt)
        if not overtaken:  # else their discarding was said
            log.warning(
                "%s: undid an interrupted %s, which had not reached %s; run it again to apply it",
                output, facts["verb"], ", ".join(waiting),
            )  # fmt: skip
        return None
    (output / FOLDER / JOURNAL).unlink()
    log.warning("%s: the interrupted %s had reached every retriever", output, facts["verb"])
    return facts


def unfinished(output: Path) -> str | None:
    """Return what is half done in an experiment's output, None if nothing is."""
    if not (output / FOLDER / JOURNAL).exists():
        return None
    facts = _read_journal(output)
    waiting = _without_mark(output, facts)
    verb, names = facts["verb"], ", ".join(waiting)
    if not waiting:
        return None
    for name in _changed_since(output, facts):
        return str(_not_undone(output / RETRIEVERS / name, verb, OVERTAKEN))
    if is_alive(facts["process"]):
        return f"{output}: sluice {verb} is running and has not reached {names} yet"
    return (
        f"{output}: an interrupted sluice {verb} has not reached {names}, so its retrievers hold "
        f"different documents. Run the same sluice {verb} again"
    )


def _read_journal(output: Path) -> dict[str, Any]:
    path = output / FOLDER / JOURNAL
    facts: dict[str, Any] = read_json(path)
    keys = {"verb", "digest", "mark", "process", "before"}
    sound = isinstance(facts, dict) and facts.keys() == keys and isinstance(facts["before"], dict)
    sound = sound and isinstance(facts["process"], int)
    # The names become paths, and what is put back is written there.
    if not sound or not all(re.fullmatch(NAME, name) for name in facts["before"]):
        raise IndexFormatError(
            f"{path}: not as Sluice writes it; delete it, and build the retrievers again with "
            "sluice index --rebuild"
        )
    for head in facts["before"].values():
        checked_head(head, path)
    return facts


def _without_mark(output: Path, facts: Mapping[str, Any]) -> list[str]:
    """Return the names of the retrievers that a change has not reached."""
    waiting = []
    for name in facts["before"]:
        path = output / RETRIEVERS / name
        changes = read_head(path).changes if (path / HEAD).exists() else None
        if changes is None or changes.mark != facts["mark"]:
            waiting.append(name)
    return waiting


def _changed_since(output: Path, facts: Mapping[str, Any]) -> list[str]:
    """Return the retrievers that another change has reached after the one of the journal.

    It has overwritten the mark, so nobody knows whether the first one had reached them. One that
    was built anew, and one that was only compacted, are not among them.
    """
    names = []
    for name in _without_mark(output, facts):
        path = output / RETRIEVERS / name
        changes = read_head(path).changes if (path / HEAD).exists() else None
        if changes is not None and changes != Head(**facts["before"][name]).changes:
            names.append(name)
    return names


def _undo(output: Path, facts: Mapping[str, Any], rebuilt: Collection[str] = ()) -> None:
    """Put every retriever back that the change has reached; the journal goes last."""
    waiting, overtaken = _without_mark(output, facts), _changed_since(output, facts)
    for name in overtaken:  # before any other is put back
        _discard(output / RETRIEVERS / name, facts["verb"], OVERTAKEN, rebuilt)
    for name, head in facts["before"].items():
        path = output / RETRIEVERS / name
        if name in waiting:
            continue
        try:
            restore(path, Head(**head))
        except IndexFormatError:
            _discard(path, facts["verb"], GONE, rebuilt)
    (output / FOLDER / JOURNAL).unlink()


def _discard(path: Path, verb: str, reason: str, rebuilt: Collection[str]) -> None:
    """Discard a retriever that cannot be put back but is rebuilt; raise if it is not."""
    if path.name not in rebuilt:
        raise _not_undone(path, verb, reason)
    log.warning("%s: discarded, since an interrupted %s cannot be undone in it", path, verb)
    (path / HEAD).unlink()


def _not_undone(path: Path, verb: str, reason: str) -> IndexFormatError:
    return IndexFormatError(
        f"{path}: an interrupted sluice {verb} cannot be undone ({reason}). Build the retriever "
        f"again with sluice index CONFIG --rebuild, or delete {path}"
    )


def retrievers_of(stage: Stage) -> list[Retriever]:
    """Return every retriever a pipeline searches, once each."""
    if not stage.inner:
        retriever = retriever_of(stage)
        return [] if retriever is None else [retriever]
    return list({each.path: each for part in stage.inner for each in retrievers_of(part)}.values())


def differing_corpora(stage: Stage) -> str | None:
    """Return how the documents of a pipeline's retrievers differ, None if they do not.

    Those of a pruned corpus are not compared.
    """
    retrievers = [each for each in retrievers_of(stage) if not each.head.section.get("prune")]
    counts = {each.name: each.head.documents for each in retrievers}
    if len(set(counts.values())) < 2:
        changed = {_counts(each.head) for each in retrievers}
        if len(changed) < 2 or len({_ids(each) for each in retrievers}) < 2:
            return None
    shown = ", ".join(f"{name} {plural(count, 'document')}" for name, count in counts.items())
    return (
        f"its retrievers hold different documents ({shown}). sluice update OUTPUT FILE gives all "
        "of them the same; sluice index --rebuild builds them again from the dataset"
    )


def _counts(head: Head) -> tuple[int, int]:
    changes = head.changes
    return (0, 0) if changes is None else (changes.added, changes.deleted)


def _ids(retriever: Retriever) -> str:
    return fingerprint_of(retriever.store.sorted_id_hashes().tobytes().hex())
