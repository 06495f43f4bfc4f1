"""The types of ``rerankers``: what scores pairs or lists without naming another part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from encoders.table import RERANKERS

SCORERS: Final[Mapping[str, str]] = {
    **RERANKERS,
    "generative": "retrieval.generative_rerankers:generative",
    "http": "retrieval.generative_rerankers:generative_http",
    "max_sim": "retrieval.token_similarity:MaxSim.from_pretrained",
}
