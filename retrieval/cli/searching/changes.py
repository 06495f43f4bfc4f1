"""The verbs that change what a retriever holds, or check that it is intact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.searching.search import Searched
from sluice.retrieval.cli.terminal.printing import echo
from sluice.retrieval.cli.terminal.verbs import (
    COLUMNS,
    Allow,
    Command,
    allowed,
    plural,
    takes,
)

if TYPE_CHECKING:
    from sluice.retrieval.experiments.output.changes import Changed

Documents = Annotated[
    str,
    "DOCUMENTS",
    'JSON lines {"_id", "title", "text"}, "metadata" optional; or a folder, a table '
    "or a pipe, as for `sluice index`, with the columns that the index was made with.",
]


@takes(COLUMNS)
def add(path: Searched, documents: Documents, *, allow: Allow = None, **columns: Any) -> None:
    """Add documents.

    All retrievers of an experiment get them, or none does. If one of the ids exists already, that
    is an error and nothing is added. Repeat a command that was interrupted.

    Examples:
      sluice add runs/x new.jsonl
      sluice add runs/x/retrievers/bm25 new.jsonl
    """
    from sluice.retrieval.experiments.output.changes import add_documents
    from sluice.retrieval.experiments.own_documents import documents_like

    new = documents_like(path, documents, columns, allow=allow or ())
    _print_changes(path, add_documents(path, new, allow=allowed(allow)), {"added": "added"})


@takes(COLUMNS)
def update(
    path: Searched,
    documents: Documents,
    *,
    sync: Annotated[
        bool, "Delete the documents that DOCUMENTS does not have: it is the whole."
    ] = False,
    dry_run: Annotated[bool, "Count what would change; change nothing."] = False,
    delete_most: Annotated[bool, "Let --sync delete more than half of the documents."] = False,
    allow: Allow = None,
    **columns: Any,
) -> None:
    """Replace or add documents by id.

    A document whose id exists already replaces the old one, unless title, text and metadata are the
    same; others are added. All retrievers of an experiment get them, or none does.

    With --sync those that are gone from DOCUMENTS are deleted, and searches find what a new index
    of DOCUMENTS would. Repeat a command that was interrupted.

    Examples:
      sluice update runs/x changed.jsonl
      sluice update my notes --sync --dry-run
    """
    from sluice.retrieval.experiments.output.changes import update_documents
    from sluice.retrieval.experiments.own_documents import documents_like

    if delete_most and not sync:
        raise ConfigError("--delete-most: goes with --sync, which alone deletes documents")
    changed = update_documents(
        path, documents_like(path, documents, columns, whole=sync, allow=allow or ()),
        sync=sync, delete_most=delete_most, dry_run=dry_run, allow=allowed(allow),
    )  # fmt: skip
    words = ("new", "changed", "gone") if dry_run else ("added", "replaced", "deleted")
    kinds = ("added", "replaced", "deleted")[: 3 if sync else 2]
    counted = dict(zip(kinds, words, strict=False))
    _print_changes(path, changed, {**counted, "unchanged": "unchanged"}, total=not dry_run)


def delete(
    path: Searched,
    ids: Annotated[list[str] | None, "DOC_ID", "Ids of documents."] = None,
    *,
    file: Annotated[Path | None, "A file with one document id per line."] = None,
    compact: Annotated[bool, "Free the space of deleted documents too."] = False,
    allow: Allow = None,
) -> None:
    """Delete documents by id.

    They go from all retrievers of an experiment, or from none. If one of the ids does not exist,
    that is an error and nothing is deleted.

    Examples:
      sluice delete runs/x doc17 doc18
      sluice delete runs/x/retrievers/bm25 --file old.txt --compact
    """
    from sluice.retrieval.experiments.output.changes import delete_documents

    doc_ids = list(ids or [])
    if file is not None:
        from sluice.retrieval.documents.json_files import all_lines

        lines = (line.removesuffix("\n") for _, line in all_lines(file))
        doc_ids += [line for line in lines if line]  # ids may hold other white space
    if not doc_ids and not compact:
        raise ConfigError("delete: give document ids, or --file with one per line")
    changed = delete_documents(path, doc_ids, compact=compact, allow=allowed(allow))
    _print_changes(path, changed, {"deleted": "deleted"})


def reshard(
    path: Annotated[Path, "FOLDER", "A retriever's folder."],
    shards: Annotated[int, "The number of shards."],
    *,
    allow: Allow = None,
) -> None:
    """Change a retriever's number of shards.

    The documents are spread evenly over that many shards, in one step; a retriever without shards
    is split. Vectors come from the cache of the build, and deleted documents are left behind, as
    by `sluice delete --compact`. Searches find the same as before.

    Examples:
      sluice reshard runs/x/retrievers/bm25 8
    """
    from sluice.retrieval.experiments.output.folder import reshard_folder

    before, retriever = reshard_folder(path, shards, allow=allowed(allow))
    count = plural(retriever.head.documents, "document")
    echo(f"{path}: {count}, from {plural(before, 'shard')} to {shards}")


def verify(path: Searched, *, allow: Allow = None) -> None:
    """Check that retrievers and models are intact.

    Reads every file of a retriever, or of all retrievers and models of an experiment, and compares
    checksums. Models are saved with twenty texts and their vectors, or scores, which are computed
    again: a changed tokenizer, length or pooling is named, and so are libraries that compute
    otherwise.

    Examples:
      sluice verify runs/x
      sluice verify runs/x/models/dense
    """
    from sluice.encoders.foundation.disk.generations import MODEL_FILES
    from sluice.encoders.model_files.probes import PROBES
    from sluice.retrieval.retrievers.folder import HEAD, verify_model, verify_retriever

    heads = [path] if (path / HEAD).exists() else sorted(path.glob(f"retrievers/*/{HEAD}"))
    alone = not heads and any((path / name).exists() for name in MODEL_FILES)
    saved = (model for model in sorted(path.glob("models/*")) if any(model.rglob(PROBES)))
    models = [path] if alone else list(saved)
    if not heads and not models:
        raise ConfigError(
            f"{path}: neither a retriever's folder nor a model's nor an experiment's output"
        )
    for model in models:
        verified = verify_model(model, allowed(allow))
        echo(f"{model}: gives {verified} that it gave when saved")
    for item in heads:
        folder = item if item.is_dir() else item.parent
        echo(f"{folder}: {verify_retriever(folder, allowed(allow))} files are intact")


def _print_changes(
    path: Path, changed: Sequence[Changed], words: Mapping[str, str], *, total: bool = True
) -> None:
    """Print what a change did to the retrievers, once where it did the same to all.

    ``words`` names the counts; ``total`` adds how many documents there are.
    """
    lines = [
        ", ".join(
            [f"{getattr(each, kind):,} {word}" for kind, word in words.items()]
            + [plural(each.documents, "document")] * total
        )
        for each in changed
    ]
    if len(set(lines)) == 1 < len(lines):
        echo(f"{path}: {lines[0]}")
        return
    for each, line in zip(changed, lines, strict=True):
        echo(f"{each.path}: {line}")


COMMANDS: dict[str, Command] = {
    "add": add, "update": update, "delete": delete, "reshard": reshard, "verify": verify,
}  # fmt: skip
