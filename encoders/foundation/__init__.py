"""What all four packages share: errors, atomic files, building from YAML, progress.

May import: nothing of Sluice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.foundation.errors import (
        ConfigError as ConfigError,
        DataError as DataError,
        IndexFormatError as IndexFormatError,
        MissingPackageError as MissingPackageError,
        ModelError as ModelError,
        SluiceError as SluiceError,
    )
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
