"""Fills the shards of an index as tasks: each from the vectors' files into a folder of its own."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.encoders.foundation.disk.files import commit, fingerprint_of, new_draft
from sluice.encoders.foundation.errors import IndexFormatError
from sluice.encoders.foundation.progress import Advance
from sluice.encoders.vectors.cache import VectorCache
from sluice.encoders.vectors.forms import Shard, write_shard
from sluice.indexing import open_index
from sluice.indexing.index import saved_type
from sluice.indexing.table import INDEXES
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.execution.executor import Executor, Facts, Task
from sluice.retrieval.execution.plan import Plan, run_plan

if TYPE_CHECKING:
    from sluice.encoders.vectors.forms import Hashes
    from sluice.indexing.index import Index
    from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import EncodedCorpus

log = logging.getLogger("sluice")

EMPTY, FILLED, ROWS = "empty", "shards", "rows"  # folders below that of the tasks
INDEX = "index"  # of a filled shard


def fill_shards(
    index: ShardedIndex, vectors: EncodedCorpus, work: Path, executor: Executor
) -> ShardedIndex | None:
    """Return the shards filled by the executor's workers, with the bits of ``ShardedIndex.add``.

    ``index`` is empty; what it learns from a sample is learnt here, once. A worker reads from the
    files of vectors those of its shard. ``work`` keeps filled shards, for a build that continues,
    until the retriever is saved. None for vectors that are not files as they are: pruned ones.
    """
    hashes = vectors.hashes
    if hashes is None:
        log.info("index: vectors are pruned as they are read; this process fills the shards")
        return None
    first = index.parts[0]
    wanted = index.training_rows(len(vectors))
    if wanted:
        first.train(vectors.sample(wanted, index.seed))
    shutil.rmtree(work / EMPTY, ignore_errors=True)
    first.save(work / EMPTY)
    recipe = _contents(work / EMPTY)
    kinds = {saved_type(each) for each in (first, first.innermost)} - INDEXES.keys()
    bounds = np.array(vectors.bounds(), dtype=np.int64)
    tasks = [
        _task(name, hashes[rows], np.diff(np.searchsorted(rows, bounds)), vectors, work, recipe,
              sorted(kinds))
        for name, rows in zip(index.names, index.shard_rows.rows, strict=True)
    ]  # fmt: skip
    run_plan(Plan("index", tasks, "documents"), executor)
    parts = [open_index(task.output / INDEX, allow=kinds) for task in tasks]
    filled = type(index)(parts, index.shard_rows, names=index.names)
    filled.changed = set(range(len(parts)))
    return filled


def _task(
    name: str,
    hashes: Hashes,
    counts: Any,
    vectors: EncodedCorpus,
    work: Path,
    recipe: str,
    allow: Sequence[str],
) -> Task:
    """Return the task of one shard: its texts' hashes in row order, ``counts`` added at a time."""
    cache = vectors.cache
    key = fingerprint_of(cache.key, recipe, hashes.tobytes().hex(), counts.tolist())
    rows = (work / ROWS / key[:32]).absolute()
    output = (work / FILLED / key[:32]).absolute()

    def prepare() -> None:
        rows.parent.mkdir(parents=True, exist_ok=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        write_shard(rows, {}, {"hashes": hashes, "counts": counts})

    def here(advance: Advance) -> Facts:
        raise AssertionError("this process fills shards without tasks")

    args = {
        "empty": str((work / EMPTY).absolute()), "allow": list(allow),
        "root": str(cache.root.absolute()), "identity": cache.identity,
        "rows": str(rows), "output": str(output),
    }  # fmt: skip
    return Task(
        "index_shard", f"index {name}", args, output, here, len(hashes),
        prepare=prepare, finish=lambda: rows.unlink(missing_ok=True),
    )  # fmt: skip


def index_task(
    *, empty: str, allow: Sequence[str], root: str, identity: Mapping[str, str], rows: str,
    output: str,
) -> Facts:  # fmt: skip
    """Fill the index of one shard from the cache of vectors, and save it as ``output/index``."""
    file = Shard(Path(rows))
    file.verify()
    hashes, counts = file.array("hashes"), file.array("counts")
    cache = VectorCache(Path(root), identity)
    cache.read()
    places = cache.locate(np.asarray(hashes))
    if (places < 0).any():
        raise IndexFormatError(
            f"{cache.folder}: the vectors of {int((places < 0).sum()):,} texts are gone; run the "
            "command again, and they are computed again"
        )
    index: Index = open_index(Path(empty), allow=allow)
    target, start = Path(output), 0
    with new_draft(target, folder=True) as draft:
        spool = draft / "spool"
        spool.mkdir()
        index.spool(spool)
        for count in np.asarray(counts)[np.asarray(counts) > 0].tolist():
            index.add(cache.gather(places[start : start + count]))
            start += count
        index.save(draft / INDEX)
        shutil.rmtree(spool)
        if not target.exists():
            commit(draft, target)
    return {}


def _contents(folder: Path) -> str:
    """Return a hash of a saved index, of what it holds."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return fingerprint_of(
        *[(str(path.relative_to(folder)), path.read_bytes().hex()) for path in files]
    )
