"""What all four packages share: errors, atomic files, building from YAML, progress.

May import: nothing of Sluice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.foundation.errors import ConfigError as ConfigError
    from sluice.encoders.foundation.errors import DataError as DataError
    from sluice.encoders.foundation.errors import IndexFormatError as IndexFormatError
    from sluice.encoders.foundation.errors import MissingPackageError as MissingPackageError
    from sluice.encoders.foundation.errors import ModelError as ModelError
    from sluice.encoders.foundation.errors import SluiceError as SluiceError
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
