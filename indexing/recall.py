"""Measured recall: what an approximate search finds of the exact best, noted in the index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from sluice.encoders.foundation.numbers import is_number
from sluice.indexing.hits import Hits, Rows
from sluice.indexing.index import Index

DEPTHS = (10, 100)
NOTE = "recall"  # in an index's notes
SOURCES = ("queries", "documents")  # what an index was measured with


class RecallNote:
    """A note of a measured recall, a dataclass; the index has ``added`` and ``deleted`` since."""

    __slots__ = ()

    added: int
    deleted: int

    def changed(self, added: int = 0, deleted: int = 0) -> Self:
        """Return the note after a change of the index."""
        note: Any = self
        changed: Self = replace(note, added=self.added + added, deleted=self.deleted + deleted)
        return changed

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        note: Any = self
        return asdict(note)

    @classmethod
    def from_note(cls, note: Any) -> Self | None:
        """Return the recall a saved note tells of; None where there is none, or not a whole one."""
        if not isinstance(note, Mapping):
            return None
        kind: Any = cls
        facts: dict[str, Any] = {each.name: note.get(each.name) for each in fields(kind)}
        numbers = [value for name, value in facts.items() if name != "source"]
        known = facts.get("source", SOURCES[0]) in SOURCES
        return cls(**facts) if known and all(map(is_number, numbers)) else None

    def _with_changes(self, measured: str) -> str:
        """Return what was measured, and how many documents came and went since."""
        counts = {"added": self.added, "deleted": self.deleted}
        changes = [f"{count:,} {name} since" for name, count in counts.items() if count]
        return "; ".join([measured, *changes])


class MeasuredIndex(Index):
    """An index that notes what its search finds of the exact best, and how it changed since."""

    @property
    def recall_note(self) -> RecallNote | None:
        """What was measured; None where nothing was."""
        return None

    def add(self, vectors: Any) -> Rows:
        """Append documents; a recall that was measured before says how many came since."""
        rows = super().add(vectors)
        self._note_change(added=len(rows))
        return rows

    def delete(self, rows: ArrayLike) -> None:
        """Put tombstones on ``rows``; a recall measured before says how many went since."""
        before = len(self)
        super().delete(rows)
        self._note_change(deleted=before - len(self))

    def _note_change(self, added: int = 0, deleted: int = 0) -> None:
        note = self.recall_note
        if note is not None and (added or deleted):
            self.notes[NOTE] = note.changed(added, deleted).as_dict()


def mean_share(found: Hits, exact: Hits, k: int) -> float:
    """Return the mean share of each line's exhaustive best ``k`` that was found.

    A hit counts if its score reaches that of the exhaustive k-th best.
    """
    shares = []
    for place, rows in enumerate(exact.rows):
        best = exact.scores[place][rows >= 0][:k]
        if len(best):
            own = found.scores[place][found.rows[place] >= 0][:k]
            shares.append(int((own >= best[-1]).sum()) / len(best))
    return float(np.mean(shares)) if shares else 1.0
