"""What was added to a retriever, replaced in it and deleted from it since its build."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sluice.encoders.foundation.errors import IndexFormatError

CHANGES = "changes"  # in the origin of ``retriever.json``
KINDS = ("added", "replaced", "deleted")


@dataclass(frozen=True, slots=True)
class Changes:
    """Counts of documents since the build; a rebuild from the dataset would undo them.

    ``last`` is the time of the latest change and ``mark`` the change of a whole experiment that it
    was part of, both texts. ``counted`` is False for a folder that an earlier version changed,
    which noted no counts.
    """

    added: int = 0
    replaced: int = 0
    deleted: int = 0
    last: str = ""
    mark: str = ""
    counted: bool = True

    def __str__(self) -> str:
        counts = [f"{getattr(self, kind):,} {kind}" for kind in KINDS if getattr(self, kind)]
        if not self.counted:
            counts.append("others changed")
        return ", ".join(counts)

    def plus(self, counts: Mapping[str, int], mark: str) -> Changes:
        """Return the changes after another one, given its counts by kind."""
        sums = {kind: getattr(self, kind) + counts.get(kind, 0) for kind in KINDS}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return Changes(**sums, last=now, mark=mark, counted=self.counted)


def changes_in(origin: Mapping[str, Any]) -> Changes | None:
    """Return the changes that the origin of a ``retriever.json`` notes, None if there are none.

    Earlier versions noted a change by taking away the key of the config.
    """
    config = origin.get("config")
    counted = not (isinstance(config, Mapping) and config.get("key", "") is None)
    noted = origin.get(CHANGES)
    if noted is None:
        return None if counted else Changes(counted=False)
    known = {each.name for each in fields(Changes)} - {"counted"}
    sound = isinstance(noted, Mapping) and noted.keys() <= known
    if not sound or not all(isinstance(noted.get(kind, 0), int) for kind in KINDS):
        raise IndexFormatError(
            f"{CHANGES}: {noted!r} is not as this Sluice writes it; upgrade sluice-ir, or rebuild"
        )
    return Changes(**noted, counted=counted)


def noted_in(origin: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Return an origin that notes ``changes``."""
    noted = {each.name: getattr(changes, each.name) for each in fields(Changes)}
    del noted["counted"]
    return {**origin, CHANGES: noted}
