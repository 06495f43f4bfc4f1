"""Encodes a query or scores a few pairs in numpy, for commands that would wait for torch to load.

May import: `encoders.model_files` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.backends.quick.encoders import opened_quickly as opened_quickly
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
