"""Encoders by other people, behind HTTP: requests, answers, and what they cost.

May import: `encoders.dense.objects.function`, `encoders.model_files`, `encoders.encoder` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.dense.remote.encoder import HttpEncoder as HttpEncoder
    from sluice.encoders.dense.remote.http_json import HttpJson as HttpJson
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
