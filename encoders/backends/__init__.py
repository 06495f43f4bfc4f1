"""Runs models: torch on a device, ONNX Runtime or OpenVINO, and the export to them.

May import: `encoders.model_files` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.encoders.backends.export import export_onnx as export_onnx
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
