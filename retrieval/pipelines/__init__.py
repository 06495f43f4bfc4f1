"""Stages and their algebra (`>> % |`), and the expressions that YAML writes them in.

May import: `retrieval.runs`, `retrieval.documents`, `retrieval.evaluation`, `retrieval.datasets`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.expression import parse as parse
    from sluice.retrieval.pipelines.hit import Hit as Hit, Passage as Passage
    from sluice.retrieval.pipelines.operators import Fuse as Fuse
    from sluice.retrieval.pipelines.rerank import Rerank as Rerank
    from sluice.retrieval.pipelines.stage import Stage as Stage
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
