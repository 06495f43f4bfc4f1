"""An encoder that strikes a process dead at the first queries it encodes, once; mining with it."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from batch_encoder import vectors_of
from small_world import documents
from struck_encoders import StruckEncoder
from struck_scorer import StruckScorer

from sluice.retrieval import Dataset, Retriever
from sluice.retrieval.execution import Executor, ProcessExecutor
from sluice.retrieval.execution.executor import LOCAL
from sluice.retrieval.training_data import list_tasks
from sluice.retrieval.training_data.mining import mine_negatives, write_mined
from sluice.retrieval.training_data.teachers import judges as judge_tasks
from sluice.retrieval.training_data.teachers.teachers import ModelTeacher

SPEC = {"per_query": 3, "judge_margin": 0.01, "judge_depth": 6}
SLICE, SHARD = 4, 20


class StruckQueries(StruckEncoder):
    """Only a reopened encoder strikes; vectors' last bits depend on how many texts come together.

    Documents are encoded before it is reopened.
    """

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        return vectors_of(texts, self.dim)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        vectors = vectors_of(texts, self.dim)
        vectors[:, -1] += np.float32(len(texts) * 1e-6)
        if len(texts) and self.victim and self.home == 0 and self._first():
            known = {"itself": os.getpid()}
            os.kill(known.get(self.victim) or int(self.victim), signal.SIGKILL)
            time.sleep(60)
        return vectors


def dataset() -> Dataset:
    texts = documents()
    queries = {f"q{n}": texts[n].text for n in range(10)}
    qrels = {f"q{n}": {texts[n].id: 1, texts[n + 10].id: 1} for n in range(10)}
    return Dataset.from_memory(texts, queries, qrels)


def built(folder: Path, victim: str = "") -> Retriever:
    """Build a retriever that strikes once; or open it, as it was built."""
    if not (folder / "r").exists():
        encoder = StruckQueries(str(folder / "mark"), victim)
        Retriever.build(encoder, documents(), path=folder / "r", name="struck")
    return Retriever.open(folder / "r", allow=["struck_queries:StruckQueries"])


def mined(folder: Path, victim: str = "", executor: Executor = LOCAL, **spec: Any) -> list[bytes]:
    """Mine in three slices and some shards of judged pairs; return what was written."""
    list_tasks.SLICE, judge_tasks.SHARD = SLICE, SHARD
    retriever = built(folder, victim)
    judge = ModelTeacher(StruckScorer(), "struck")
    data, output = dataset(), folder / "negatives.jsonl"
    found = mine_negatives(
        retriever, data, {**SPEC, **spec}, seed=1, judge=judge, work=folder / "n.parts",
        executor=executor,
    )  # fmt: skip
    write_mined(output, data, found)
    return [path.read_bytes() for path in sorted(folder.glob("negatives*"))]


if __name__ == "__main__":
    from struck_queries import mined as mined_imported  # a class of __main__ cannot be sent

    mined_imported(Path(sys.argv[1]), str(os.getpid()), ProcessExecutor(1))
