"""Drafts configs from one's data, finds every problem of a config, and says what it would do.

May import: everything below the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.planning.drafts import draft as draft
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
