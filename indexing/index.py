"""What every index is: rows, tombstones, checked input, hits, and a folder to open again."""

from __future__ import annotations

import functools
import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from sluice.encoders.foundation.disk.generations import new_generation
from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.familiar import Familiar, K, renamed
from sluice.indexing.hits import Hits, LiveRows, Mask, Rows
from sluice.indexing.storage.exact_scores import Metric
from sluice.indexing.storage.rows import write_array

Parameters = Mapping[str, Any]

FORMAT = "sluice.index"  # of a saved folder
VERSION = 2  # 2: inverted indexes are segments
DELETED = "deleted.npy"
MOST_PLACES = 2**31  # of one result: 24 GiB


@dataclass(frozen=True, slots=True)
class SearchParameters:
    """The ``names`` that ``params`` of a search may have, and what refuses their ``values``.

    ``by_mode``: with ``mode: exhaustive`` the others are not read.
    """

    names: tuple[str, ...] = ()
    values: Callable[[Parameters], object] | None = None
    by_mode: bool = False

    def check(self, params: Parameters) -> None:
        """Raise ``ConfigError`` for a search parameter that the index does not take."""
        for name in params:
            if name not in self.names:
                raise ConfigError(
                    f"params: unknown search parameter {name!r}; this index takes "
                    f"{self._taken(name)}{suggest(name, self.names)}"
                )
        if self.values is not None:
            self.values(params)

    def _taken(self, unknown: str) -> str:
        return ", ".join(self.names) or "none"


class Index(Familiar, ABC):
    """Vectors in rows, found again by similarity; higher scores are better.

    Rows are numbered in the order of adding and stay until ``compact``. A new kind of index fills
    in the abstract methods, ``type_name`` if it is in the table, and ``metric`` if its vectors are
    dense; all else has a default. This class owns rows, tombstones and checks. Searches may run in
    several threads; changes need the caller's own lock.
    """

    type_name: ClassVar[str] = ""  # name in the table of types; empty for a user's own class
    metric: Metric | None = None  # of dense vectors; None: inner products of sparse ones
    seed: int = 13  # draws the sample that ``train`` is given

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse a class that still fills in what nothing calls any more."""
        super().__init_subclass__(**options)
        for name in ("_search_parameters", "_check_parameters"):
            if name in vars(cls):
                raise ConfigError(
                    f"{cls.__name__}: has {name}, which nothing calls; let a property _parameters "
                    "return SearchParameters(names, check)"
                )

    def __init__(self) -> None:
        self.encoder_fingerprint = ""  # of the encoder whose vectors these are; "" is unknown
        self.default_params: dict[str, Any] = {}  # of searches; a call's own params come first
        self.notes: dict[str, Any] = {}  # JSON values saved with the index, such as why it is this
        self._live = LiveRows()
        self._changing: AbstractContextManager[Any] = nullcontext()  # held while the index changes

    # What a subclass fills in.

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of the arrays that are stored."""

    @abstractmethod
    def _checked(self, vectors: Any, what: str) -> Any:
        """Return the vectors in the index's own form ``[n, width]``, or raise ``DataError``."""

    @abstractmethod
    def _append(self, documents: Any) -> None:
        """Store at least one checked document; on an error leave the index as it was."""

    @abstractmethod
    def _search(
        self, queries: Any, k: int, allowed: Mask | None, parameters: dict[str, Any]
    ) -> Hits:
        """Return ``[n, k]`` hits, n above 0, k from 1 to the number of rows that may be hits."""

    @abstractmethod
    def _keep_only(self, allowed: Mask) -> None:
        """Drop the stored rows that ``allowed`` excludes; the others move up in order."""

    @abstractmethod
    def _write(self, folder: Path) -> dict[str, Any]:
        """Write the data files into an empty folder; return the facts that describe them."""

    @classmethod
    @abstractmethod
    def _read(cls, folder: Path, facts: Mapping[str, Any]) -> Self:
        """Open what ``_write`` wrote, mapped into memory; rows and tombstones are set after."""

    # What a subclass may fill in.

    @property
    def width(self) -> int | None:
        """The width of its vectors; None before the first, or where it is not known."""
        return None

    @property
    def explains(self) -> bool:
        """Whether ``explain`` can say what each term adds to a score."""
        return type(self).explain is not Index.explain

    def explain(self, query: Any, row: int) -> Sequence[Any]:
        """Return each shared term's part of the score of ``row``, see ``InvertedIndex.explain``."""
        raise ConfigError(
            f"{type(self).__name__}: cannot explain a score; a score of dense vectors has no terms"
        )

    def plan(self, queries: Any, k: int, *, params: Parameters | None = None) -> Sequence[Any]:
        """Return what a planner chose for each query; nothing where none chooses."""
        return ()

    @property
    def innermost(self) -> Index:
        """The index that holds the vectors as they were encoded: this one, or one it regroups."""
        return self

    @property
    def by_passages(self) -> bool:
        """Whether a document has a vector, or a matrix, for each of its passages."""
        return False

    @property
    def form(self) -> type[Index]:
        """The class that holds the vectors as they were encoded; that of each of several shards."""
        return type(self.innermost)

    @property
    def resident_bytes(self) -> int:
        """Bytes that searches keep returning to, and that should fit into memory.

        The rest of an opened folder is mapped, and read in a few places a query.
        """
        return self.size_bytes

    def training_rows(self, documents: int) -> int:
        """Return how many sample vectors ``train`` would like for so many documents; 0 for none."""
        return 0

    def check_fit(self, width: int, documents: int) -> None:  # most take any
        """Raise if so many documents of this width cannot be held: before they are encoded."""

    def train(self, sample: Any) -> None:
        """Learn from sample vectors what the index needs before ``add``; most need nothing."""
        self._checked(sample, "sample")

    def spool(self, folder: Path) -> None:  # most have nothing to do
        """Keep what is added from now on in files of ``folder``, where the index can, until saved.

        For an index that is filled and saved without lying in memory; the caller removes the
        folder after. Most indexes ignore it.
        """

    def empty(self) -> Self:
        """Return an index without documents that has the settings of this one."""
        raise ConfigError(f"{type(self).__name__}: cannot be emptied; make a new index")

    @classmethod
    def _open(cls, folder: Path, facts: Mapping[str, Any], allow: Collection[str]) -> Self:
        """Open what ``_write`` wrote; only what holds other classes by name needs ``allow``."""
        return cls._read(folder, facts)

    def _documents(self, rows: Rows) -> Any:
        """Return the stored vectors of known rows, in their order."""
        raise ConfigError(
            f"{type(self).__name__}: cannot give its vectors back; rebuild the index from the "
            "corpus, as one that keeps them (flat)"
        )

    @property
    def words(self) -> Sequence[str]:
        """What ``open_index`` must be allowed to open it, beside reading its folder."""
        own = saved_type(self)
        return [own] if ":" in own else []

    def settle(self) -> None:  # most keep all they have in their folder
        """Free what only earlier states used: the last ``save`` has become the current state."""

    def verify(self) -> Sequence[str]:
        """Check what lies outside the folder; return what was checked, in a sentence each.

        ``IndexFormatError`` for what is not as it was saved.
        """
        return ()

    @classmethod
    def _together(cls, parts: Sequence[Any], rows: Sequence[Rows]) -> Index | None:
        """Return an index that searches the documents of all ``parts`` at once, for shards.

        The parts are of this class, and row ``i`` of one is ``rows[part][i]`` of the collection,
        ascending. Only ``_search`` of the result is called, until a part changes. None: the parts
        are searched one by one.
        """
        return None

    def _stored_rows(self) -> int | None:
        """Return how many rows the arrays hold, for a check at opening; None leaves it out."""
        return None

    @property
    def _parameters(self) -> SearchParameters:
        """What ``params`` of a search may be."""
        return SearchParameters()

    def _reader(self) -> Self:
        """Return what a search reads: this index, or a state of it that no change reaches."""
        return self

    def _changed(self) -> None:  # most keep nothing that a change outdates
        """Forget what was derived from the rows; called after each change to them."""

    # What users call.

    def __len__(self) -> int:
        """Number of live documents: rows allotted less rows deleted."""
        return len(self._live)

    @property
    def rows(self) -> int:
        """Number of rows allotted since the last ``compact``, deleted ones included."""
        return self._live.total

    @property
    def deleted_rows(self) -> Rows:
        """The rows deleted since the last ``compact``, ascending."""
        return self._live.deleted

    def add(self, vectors: Any) -> Rows:
        """Append document vectors and return their rows, int64 ``[n]``.

        The vectors are copied. ``DataError`` for NaN, a wrong dtype or width; then nothing is
        added.
        """
        with self._changing:
            documents = self._checked(vectors, "documents")
            count = int(documents.shape[0])
            if count:
                self._append(documents)
            rows = self._live.extend(count)
            self._changed()
            return rows

    @renamed(vectors="x xq queries", k=K)
    def search(
        self,
        vectors: Any,
        k: int,
        *,
        keep: ArrayLike | None = None,
        params: Parameters | None = None,
    ) -> Hits:
        """Return the ``k`` best live documents of each query, ties by row ascending.

        ``keep`` restricts the search: a boolean mask over all rows, or the allowed row numbers.
        ``params`` are the search parameters of approximate indexes, for this call alone; they go
        before those in ``default_params``. Where fewer than ``k`` documents can be hits, the rest
        is row -1 and score -inf. ``ConfigError`` for a ``k`` that makes the result too large.
        """
        merged = {**self.default_params, **(params or {})}
        return self._reader()._hits(vectors, whole_number(k, "k", 0), keep, merged)

    def _hits(self, vectors: Any, k: int, keep: ArrayLike | None, params: dict[str, Any]) -> Hits:
        queries = self._checked(vectors, "queries")
        allowed = self._live.allowed(keep)
        if params:
            self._parameters.check(params)
        count = int(queries.shape[0])
        if count * k > MOST_PLACES:
            raise ConfigError(
                f"k is {k:,} for {count:,} {'query' if count == 1 else 'queries'}, expected at "
                f"most {MOST_PLACES:,} hits in one result; search with a smaller k or fewer "
                "queries at a time"
            )
        candidates = len(self)
        if keep is not None and allowed is not None:
            candidates = int(np.count_nonzero(allowed))
        places = min(k, candidates)
        if not count or not places:
            return Hits.missing(count, k)
        return self._search(queries, places, allowed, params).padded(k)

    def check_params(self, params: Parameters) -> None:
        """Raise ``ConfigError`` for search parameters that it does not take, or does not read."""
        self._parameters.check(params)
        unread = [name for name in self._parameters.names if name in params and name != "mode"]
        if self._parameters.by_mode and params.get("mode") == "exhaustive" and unread:
            raise ConfigError(
                f"{unread[0]} has no effect with mode: exhaustive; leave one of them out"
            )

    def documents(self, rows: ArrayLike) -> Any:
        """Return the stored vectors of rows, float32 ``[len(rows), width]``; deleted ones too.

        Quantised indexes give the decoded ones. ``ConfigError`` where none can be given back.
        """
        reader = self._reader()
        return reader._documents(reader._live.known(np.asarray(rows), "documents"))

    def delete(self, rows: ArrayLike) -> None:
        """Put tombstones on ``rows``: they keep their numbers, and no search returns them.

        ``DataError`` for an unknown or already deleted row; then nothing is deleted.
        """
        with self._changing:
            self._live.delete(rows)
            self._changed()

    def compact(self) -> Rows:
        """Drop deleted rows and close the gaps; return old row -> new row (-1 where deleted)."""
        with self._changing:
            allowed = self._live.allowed()
            if allowed is not None:
                self._keep_only(allowed)
            moved = self._live.compact()
            self._changed()
            return moved

    def save(self, path: str | Path) -> None:
        """Write the index as the new state of the folder ``path``, in one step.

        A kill at any instant leaves the former state or this one. ``open_index`` reads it. Saving
        onto the folder the index was opened from is safe: its files are never written again.
        """
        facts: dict[str, Any] = {}
        with self._changing, new_generation(Path(path), FORMAT, VERSION, facts) as folder:
            facts.update(
                type=saved_type(self),
                rows=self.rows,
                documents=len(self),
                encoder_fingerprint=self.encoder_fingerprint,
                packages=_packages(),
                default_params=self.default_params,
                notes=self.notes,
                index=self._write(folder),
            )
            deleted = self._live.deleted
            write_array(folder / DELETED, [deleted], deleted.shape, np.int64)


class Chosen(Protocol):
    """What a recipe returns: at least the index it chose, filled."""

    index: Index


class Recipe(ABC):
    """Stands where an index is configured: it measures the vectors, then makes one."""

    type_name: ClassVar[str] = ""

    @abstractmethod
    def choose(
        self, vectors: Any, queries: Any | None = None, *, work: Path | None = None
    ) -> Chosen:
        """Return an index that holds all ``vectors`` in their order.

        ``queries`` ``[n, dim]`` are real ones to measure with; ``work`` is a folder for vectors
        that need not lie in memory, which the caller removes once the index is saved.
        """


def saved_type(instance: Any) -> str:
    """Return the type name of a built-in object, or ``module:Class`` of a user's own."""
    kind = type(instance)
    return str(instance.type_name or f"{kind.__module__}:{kind.__qualname__}")


@functools.cache
def _packages() -> dict[str, str]:
    packages = {"python": platform.python_version()}
    for name in ("sluice-ir", "numpy", "scipy", "faiss-cpu", "numba"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # another build of it may be installed
            continue
    return packages
