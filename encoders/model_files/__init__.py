"""Model folders: finding them, reading and writing their files.

May import: `encoders.foundation`, `encoders.encoder`, `encoders.table`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.model_files.registry import open_encoder as open_encoder
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
