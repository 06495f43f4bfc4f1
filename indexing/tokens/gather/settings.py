"""The settings of `mode: gather`, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import is_number, whole_number

Mode = Literal["exact", "gather", "auto"]
MODES: Final[tuple[Mode, ...]] = ("exact", "gather", "auto")
CANDIDATES = 1_000  # until a depth is measured
EXACT_BELOW = 10_000  # documents, for which ``auto`` does not prepare a gather
RECALL = 0.99
PARAMETERS: Final = ("mode", "candidates", "probes")  # of one search


@dataclass(frozen=True, slots=True)
class GatherSettings:
    """How candidates are gathered, and what recall and latency they are to reach.

    ``candidates`` None: the least that reaches ``recall`` at 10, measured when the index is saved.
    """

    candidates: int | None = None
    probes: int | None = None
    recall: float | None = None
    latency_ms: float | None = None

    @classmethod
    def checked(
        cls,
        mode: Mode,
        candidates: int | None,
        probes: int | None,
        recall: float | None,
        latency_ms: float | None,
    ) -> GatherSettings:
        """Return the settings; ``ConfigError`` if one is wrong, or ``mode`` never reads it."""
        given = {"candidates": candidates, "probes": probes, "recall": recall}
        unread = [name for name, value in given.items() if value is not None and mode == "exact"]
        if latency_ms is not None and mode != "auto":
            unread.append("latency_ms")
        if unread:
            needed = "auto" if unread == ["latency_ms"] else "gather"
            raise ConfigError(
                f"{unread[0]} has no effect with mode: {mode}; remove it, or set mode: {needed}"
            )
        if candidates is not None and recall is not None:
            raise ConfigError(
                f"candidates {candidates} and recall {recall}: a depth is either fixed or chosen "
                "for a recall; remove one of them"
            )
        if recall is not None and not (is_number(recall) and 0 < recall <= 1):
            raise ConfigError(f"recall is {recall!r}, expected a share above 0, at most 1")
        if latency_ms is not None and not (is_number(latency_ms) and latency_ms > 0):
            raise ConfigError(f"latency_ms is {latency_ms!r}, expected milliseconds above 0")
        return cls(
            None if candidates is None else whole_number(candidates, "candidates", 1),
            None if probes is None else whole_number(probes, "probes", 1),
            None if recall is None else float(recall),
            None if latency_ms is None else float(latency_ms),
        )

    @property
    def target(self) -> float:
        """The share of the ten best that is to be found."""
        return RECALL if self.recall is None else self.recall

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return asdict(self)


def checked_mode(name: str) -> Mode:
    """Return ``name`` if it is a mode of search."""
    for known in MODES:
        if name == known:
            return known
    raise ConfigError(
        f"mode: unknown {name!r}, expected {', '.join(MODES)}{suggest(str(name), MODES)}"
    )


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for values that a search cannot have.

    ``mode: exact`` takes precedence over a depth, which the index may have by default.
    """
    for name in ("candidates", "probes"):
        if name in parameters:
            whole_number(parameters[name], name, 1)
    mode = parameters.get("mode", "gather")
    if mode not in ("exact", "gather"):
        raise ConfigError(f"params: mode is {mode!r}, expected exact or gather")
