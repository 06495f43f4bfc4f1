"""Serves pipelines, models and documents over HTTP and MCP: `sluice serve FOLDER`.

May import: `retrieval.experiments` and below. Starlette, uvicorn, prometheus-client and mcp come
with the extra `serve`; the rooms `work`, `content` and `shapes` do without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.encoders.foundation.lazy import lazy

if TYPE_CHECKING:
    from sluice.retrieval.serving.http.app import make_app as make_app
    from sluice.retrieval.serving.mcp import mcp_server as mcp_server
    from sluice.retrieval.serving.service import Service as Service
    from sluice.retrieval.serving.settings import ServeSettings as ServeSettings
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
