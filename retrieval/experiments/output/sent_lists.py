"""Searches a slice of queries with a retriever or pipeline that another process has sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.disk.files import read_json
from sluice.retrieval.execution.executor import Facts
from sluice.retrieval.experiments.output.saved_pipeline import open_pipeline
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.training_data.list_tasks import Asked, find_lists, write_lists

if TYPE_CHECKING:
    pass


def lists_task(*, stage: Mapping[str, Any], inputs: str, output: str) -> Facts:
    """Search the queries of the file ``inputs`` into the file ``output``; see ``find_lists``."""
    opened = _opened(json.dumps(stage, sort_keys=True))
    write_lists(find_lists(opened, Asked(**read_json(Path(inputs)))), Path(output))
    return {}


@lru_cache(maxsize=1)
def _opened(form: str) -> Stage:
    """Open what ``SentStage.form`` describes; the last one stays open."""
    facts = json.loads(form)
    if "retriever" in facts:
        return Retriever.open(**facts["retriever"])
    return open_pipeline(
        Path(facts["pipeline"]), allow=facts["allow"], given={}, params=facts["params"]
    )
