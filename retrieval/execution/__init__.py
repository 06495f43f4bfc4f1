"""Plans of tasks over files, and what carries them out: this process, several, or Ray.

May import: `encoders.foundation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.execution.executor import (
        Executor as Executor,
        LocalExecutor as LocalExecutor,
    )
    from sluice.retrieval.execution.on_ray import RayExecutor as RayExecutor
    from sluice.retrieval.execution.processes import ProcessExecutor as ProcessExecutor
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
