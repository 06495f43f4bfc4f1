"""Carries out a task by its name, in whatever process, as the table of tasks has it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from sluice.encoders.foundation.build import resolve

# Of higher rooms: they are imported where a task of theirs is carried out.
TASKS: Final[Mapping[str, str]] = {
    "encode": "sluice.retrieval.retrievers.corpus.vectors.encoding_tasks:encode_task",
    "index_shard": "sluice.retrieval.retrievers.corpus.vectors.index_tasks:index_task",
    "lists": "sluice.retrieval.experiments.output.saved_pipeline:lists_task",
    "pairs": "sluice.retrieval.experiments.tuning.pair_tasks:pairs_task",
    "score": "sluice.retrieval.training_data.teachers.scoring_tasks:score_task",
    "train": "sluice.retrieval.experiments.suites.training_jobs:train_task",
    "mine": "sluice.retrieval.experiments.suites.training_jobs:mine_task",
    "evaluate": "sluice.retrieval.experiments.suites.training_jobs:evaluate_task",
}


def carry_out(kind: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a task; return the facts it reports, with its ``seconds``."""
    start = time.perf_counter()
    facts: dict[str, Any] = resolve(TASKS[kind])(**args)
    return {"seconds": time.perf_counter() - start, **facts}
