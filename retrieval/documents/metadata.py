"""Metadata as collections have it: what columns can hold is kept, the rest counted and said."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sluice.retrieval.documents.columns import kind_of
from sluice.retrieval.documents.document import NOTHING, Metadata

log = logging.getLogger("sluice")


class MetadataReader:
    """Keeps texts, numbers, booleans and lists of texts; None is no value."""

    def __init__(self) -> None:
        self._dropped: Counter[str] = Counter()

    def kept(self, found: Mapping[Any, Any]) -> Metadata:
        """Return what of one document's metadata can be stored."""
        kept = {key: value for key, value in found.items() if key and kind_of(value)}
        if len(kept) < len(found):
            lost = (key for key in found.keys() - kept.keys() if found[key] is not None)
            self._dropped.update(map(str, lost))
        return kept or NOTHING

    def say_dropped(self, place: object) -> None:
        """Log one warning that counts the values left out, if there were any."""
        if self._dropped:
            log.warning(
                "%s: %s values of metadata are neither text, number, boolean nor list of texts and "
                "were left out (%s); write them as one of these to filter by them",
                place,
                f"{self._dropped.total():,}",
                ", ".join(f"{key}: {count:,}" for key, count in self._dropped.most_common(3)),
            )
