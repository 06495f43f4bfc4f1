"""Shards searched by other processes, on this machine or by actors of Ray.

May import: `retrieval.execution`, `indexing` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.shards.workers.actors import ShardActors as ShardActors
    from sluice.retrieval.retrievers.shards.workers.crew import ShardWorkers as ShardWorkers
    from sluice.retrieval.retrievers.shards.workers.processes import (
        ShardProcesses as ShardProcesses,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
