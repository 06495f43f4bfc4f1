"""Fills the shards of an index as tasks: each from the vectors' files into a folder of its own."""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import commit, fingerprint_of, new_draft
from sluice.encoders.foundation.errors import DataError, IndexFormatError
from sluice.encoders.foundation.progress import Advance
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.vectors.cache import VectorCache
from sluice.encoders.vectors.forms import Shard, checked_vectors, write_shard
from sluice.indexing import open_index
from sluice.indexing.index import saved_type
from sluice.indexing.table import INDEXES, KNOWN
from sluice.indexing.wrappers.sharded import ShardedIndex
from sluice.retrieval.execution.executor import Executor, Facts, Plan, Task, run_plan
from sluice.retrieval.retrievers.corpus.vectors.corpus_vectors import EncodedCorpus

if TYPE_CHECKING:
    from sluice.encoders.vectors.forms import Hashes
    from sluice.indexing.index import Index


def holds_tokens(index: Index) -> bool:
    """Return whether an index holds a vector for each token of a text, and scores by MaxSim."""
    known = KNOWN.get(index.form.type_name)
    return known is not None and known.holds == ("tokens",)


def as_matrices(vectors: Any) -> Iterable[Any]:
    """Return the vectors of a corpus in parts: float32 numpy, ``csr_array`` or ``TokenVectors``.

    ``vectors`` is one matrix ``[n, dim]`` (numpy, scipy, torch, a list of lists) or the
    ``TokenVectors`` of n texts, or an iterable of such in corpus order, which is left unread.
    """
    if hasattr(vectors, "shape") or hasattr(vectors, "detach"):
        return [_matrix(vectors)]
    if isinstance(vectors, (list, tuple)) and vectors and _is_row(vectors[0]):
        return [_matrix(vectors)]
    if not isinstance(vectors, Iterable):
        raise DataError(f"vectors: a {type(vectors).__name__}; expected an array [n, dim]")
    return map(_matrix, vectors)


@contextmanager
def kept_vectors(vectors: Iterable[Any], work: Path) -> Iterator[EncodedCorpus]:
    """Write vectors that can be read only once into files, and yield them for repeated reading."""
    identity = {"encoder": "given", "store": "float32", "run": f"{os.getpid()}-{uuid.uuid4().hex}"}
    with VectorCache(work, identity) as cache:
        count = 0
        for chunk in vectors:
            size = int(chunk.shape[0])
            cache.put(_numbers(count, size), checked_vectors(chunk, size, "vectors"))
            count += size
        yield EncodedCorpus(cache, cache.locate(_numbers(0, count)))


def one_query(vector: Any, *, tokens: bool) -> Any:
    """Return what a query was encoded as, in the form of several queries.

    That is one vector ``[dim]``, or with ``tokens`` one for each token, ``[tokens, dim]``;
    ``DataError`` for another shape.
    """
    if not tokens:
        return _one_vector(vector)
    if isinstance(vector, TokenVectors):
        if len(vector) != 1:
            raise DataError(f"vector: {len(vector)} texts; search one at a time")
        return vector
    plain: Any = np.asarray(None) if sp.issparse(vector) else _plain(vector)
    if plain.ndim != 2 or plain.dtype.kind not in "fiu" or not plain.size:
        shape = "a sparse matrix" if sp.issparse(vector) else f"shape {plain.shape}"
        raise DataError(
            f"vector: {shape}; this index holds a vector for each token: expected [tokens, dim]"
        )
    return TokenVectors.of([plain], plain.shape[1])


def _one_vector(vector: Any) -> Any:
    matrix = _matrix(vector if sp.issparse(vector) else np.atleast_2d(_plain(vector)))
    if matrix.shape[0] != 1:
        raise DataError(
            f"vector: shape {tuple(matrix.shape)}, expected one vector [dim]; search one at a time"
        )
    return matrix


def _is_row(first: Any) -> bool:
    """Return whether a list that begins so is one matrix, and not several."""
    return not isinstance(first, TokenVectors) and np.ndim(first) < 2


def _matrix(vectors: Any) -> Any:
    if isinstance(vectors, TokenVectors):
        return vectors
    if sp.issparse(vectors):
        rows: Any = vectors
        return sp.csr_array(rows).astype(np.float32, copy=False)
    plain = _plain(vectors)
    if plain.ndim == 2 and plain.dtype.kind in "fiu":
        return plain.astype(np.float32, copy=False)
    return plain  # the index says what it expects


def _plain(vectors: Any) -> Any:
    """Return anything array-like as a numpy array, tensors from wherever they are."""
    if hasattr(vectors, "detach"):
        vectors = vectors.detach().cpu().float().numpy()
    try:
        return np.asarray(vectors)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"vectors: {error}; expected an array [n, dim]") from None


def _numbers(start: int, count: int) -> NDArray[np.bytes_]:
    """Return keys for vectors without texts: their numbers."""
    return np.array([b"%016d" % number for number in range(start, start + count)], "S16")


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
