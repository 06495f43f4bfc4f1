"""Decides whether a candidate is worse than a baseline by more than a budget allows.

May import: `retrieval.jobs` and below, `retrieval.studies.report`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.studies.gate.verdict import Gate as Gate, gate as gate
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
