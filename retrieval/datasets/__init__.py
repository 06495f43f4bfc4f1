"""Datasets by name: BEIR folders, ir_datasets, the hub, memory, and the built-in pydocs.

May import: `retrieval.documents`, `retrieval.runs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset as Dataset, load_dataset as load_dataset
    from sluice.retrieval.datasets.report import describe as describe
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
