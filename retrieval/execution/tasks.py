"""Carries out a task by its name, in whatever process, as the table of tasks has it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from sluice.encoders.foundation.build import resolve

# Of higher rooms: they are imported where a task of theirs is carried out.
TASKS: Final[Mapping[str, str]] = {
    "encode": "sluice.retrieval.retrievers.corpus.vectors.encoding_tasks:encode_task",
    "index_shard": "sluice.retrieval.retrievers.corpus.vectors.index_tasks:index_task",
    "lists": "sluice.retrieval.experiments.output.sent_lists:lists_task",
    "pairs": "sluice.retrieval.experiments.tuning.pair_tasks:pairs_task",
    "score": "sluice.retrieval.training_data.teachers.scoring_tasks:score_task",
    "train": "sluice.retrieval.experiments.suites.training_jobs:train_task",
    "mine": "sluice.retrieval.experiments.suites.training_jobs:mine_task",
    "evaluate": "sluice.retrieval.experiments.suites.training_jobs:evaluate_task",
}


# What tells a process of its group, in torch.distributed's words: processes of its own are none.
OF_GROUP: Final = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip


def carry_out(kind: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Carry out a task; return the facts it reports, with its ``seconds``."""
    start = time.perf_counter()
    facts: dict[str, Any] = resolve(TASKS[kind])(**args)
    return {"seconds": time.perf_counter() - start, **facts}


def limit_threads(threads: int) -> None:
    """Let torch, and libraries that are loaded from now on, use so many threads."""
    os.environ.update(thread_settings(threads))
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(threads)


def thread_settings(threads: int) -> dict[str, str]:
    """Return the environment that gives a process so many threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {**dict.fromkeys(names, str(threads)), "TOKENIZERS_PARALLELISM": "false"}
