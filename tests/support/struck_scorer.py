"""A scorer that strikes a process dead at its first pairs, once: by a mark on disk."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.retrieval.execution import Executor, ProcessExecutor
from sluice.retrieval.execution.executor import LOCAL
from sluice.retrieval.training_data.teachers.distillation import distil
from sluice.retrieval.training_data.teachers.teachers import ModelTeacher
from sluice.training.negatives.false_negatives import JudgedPair

QUERIES, DOCUMENTS, SHARD = 12, 5, 10
FILE = "scorer.json"


class StruckScorer:
    """Scores by a hash of the texts, whose last bits depend on how many pairs come together.

    ``victim`` is "itself" or a process's number; only a reopened scorer strikes.
    """

    def __init__(self, mark: str = "", victim: str = "") -> None:
        self.mark, self.victim, self.home = mark, victim, True

    @property
    def fingerprint(self) -> str:
        return fingerprint_of("struck")

    def score(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        if len(pairs) and self.victim and not self.home and self._first():
            number = os.getpid() if self.victim == "itself" else int(self.victim)
            os.kill(number, signal.SIGKILL)
            time.sleep(60)  # whoever loses its driver ends with it
        values = [int(fingerprint_of(*pair)[:8], 16) / 2**32 for pair in pairs]
        return np.array(values, np.float64) + len(pairs) * 1e-9

    def _first(self) -> bool:
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def save_pretrained(self, path: str | Path) -> None:
        with replaced_folder(Path(path), [FILE]) as folder:
            facts = {"mark": self.mark, "victim": self.victim}
            (folder / FILE).write_text(json.dumps(facts), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "StruckScorer":
        opened = cls(**json.loads((Path(path) / FILE).read_text()))
        opened.home = False
        return opened


def texts(ids: Sequence[tuple[str, str]]) -> list[JudgedPair]:
    return [JudgedPair(query, f"text of {query}", doc, f"document {doc}") for query, doc in ids]


def score(folder: Path, victim: str = "", executor: Executor = LOCAL) -> bytes:
    """Score twelve queries' documents in six shards; return the bytes of the file."""
    teacher = ModelTeacher(StruckScorer(str(folder / "mark"), victim), "struck")
    pairs = [(f"q{n}", [f"d{m}" for m in range(DOCUMENTS)]) for n in range(QUERIES)]
    output = folder / "scores.parquet"
    distil(teacher, pairs, texts, output, key="k", facts={"a": 1}, shard=SHARD, executor=executor)
    return output.read_bytes()


if __name__ == "__main__":
    from struck_scorer import score as score_imported  # a class of __main__ cannot be sent

    score_imported(Path(sys.argv[1]), str(os.getpid()), ProcessExecutor(1))
