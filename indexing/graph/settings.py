"""The settings of a graph's search, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.numbers import whole_number

Mode = Literal["graph", "exhaustive"]
MODES: Final[tuple[Mode, ...]] = ("graph", "exhaustive")
ENTRIES = 10_000  # at most, where none are set
ENTRY_SHARE = 20  # documents for each entry point, where none are set
FEWEST_ENTRIES = 64
# Candidates, where none are set. Of SciFact's 5,183 documents with 32 neighbours each, 10 find .965
# of the ten best and score 14 % of the documents, 50 find .995 and score 35 %.
CANDIDATES = 50  # at most, as in the paper, which has 8.8 million documents
FEWEST_CANDIDATES = 10
CANDIDATE_SHARE = 500  # documents for each
COUNTS: Final = ("entries", "candidates", "iterations", "budget")
PARAMETERS: Final = ("mode", *COUNTS, "early_stop")  # of one search


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """How a graph is walked.

    ``entries`` None: a twentieth of the documents, 64 to 10,000; ``candidates`` None: one for each
    500 documents, 10 to 50; ``budget`` None: as many documents as the walk reaches.
    """

    entries: int | None = None
    candidates: int | None = None
    iterations: int = 16
    budget: int | None = None
    early_stop: bool = True

    def changed(self, parameters: Mapping[str, Any]) -> SearchSettings:
        """Return the settings with those of one search."""
        own = {name: value for name, value in parameters.items() if name != "mode"}
        return replace(self, **own) if own else self

    def entry_count(self, documents: int) -> int:
        """Return at how many of the documents a walk begins."""
        if self.entries is not None:
            return self.entries
        return max(FEWEST_ENTRIES, min(ENTRIES, documents // ENTRY_SHARE))

    def candidate_count(self, documents: int) -> int:
        """Return of how many documents each step scores the neighbours."""
        if self.candidates is not None:
            return self.candidates
        return max(FEWEST_CANDIDATES, min(CANDIDATES, documents // CANDIDATE_SHARE))


def checked_settings(
    entries: int | None,
    candidates: int | None,
    iterations: int,
    budget: int | None,
    early_stop: bool,
) -> SearchSettings:
    """Return the settings; ``ConfigError`` if one is wrong."""
    given: dict[str, Any] = {
        "entries": entries, "candidates": candidates, "iterations": iterations, "budget": budget,
        "early_stop": early_stop,
    }  # fmt: skip
    check_parameters({name: value for name, value in given.items() if value is not None})
    return SearchSettings(**given)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Raise ``ConfigError`` for values that a search cannot have."""
    for name in COUNTS:
        if name in parameters:
            whole_number(parameters[name], name, 1)
    if not isinstance(parameters.get("early_stop", True), bool):
        raise ConfigError(f"early_stop is {parameters['early_stop']!r}, expected true or false")
    mode = parameters.get("mode", "graph")
    if mode not in MODES:
        raise ConfigError(
            f"mode is {mode!r}, expected graph or exhaustive{suggest(str(mode), MODES)}"
        )
