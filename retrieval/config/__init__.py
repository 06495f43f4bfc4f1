"""The YAML file: its sections, its components, its schema, the files it names.

May import: `retrieval.retrievers` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.config.schema.json_schema import json_schema as json_schema
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
