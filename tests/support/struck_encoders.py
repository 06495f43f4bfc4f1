"""Encoders that strike a process dead at the first shard they encode, once: by a mark on disk."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from batch_encoder import BatchEncoder, many

from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.retrieval import Encoding, Retriever
from sluice.retrieval.execution import Executor, ProcessExecutor, RayExecutor, on_ray
from sluice.retrieval.execution.executor import LOCAL

TEXTS, SHARD = 120, 32


class StruckEncoder(BatchEncoder):
    """Kills a process when it first encodes in another one: "itself", its "parent", or by number.

    The parent of a worker of Ray's is its node; the "head" is all that the node's parent started.
    """

    def __init__(
        self, mark: str = "", victim: str = "", dim: int = 16, name: str = "batch"
    ) -> None:
        super().__init__(dim=dim, name=name)
        self.mark, self.victim, self.home = mark, victim, os.getpid()

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        vectors = super().encode_documents(texts)
        if len(texts) and self.victim and self.home == 0 and self._first():
            known = {"itself": os.getpid(), "parent": os.getppid()}
            victims = (
                [known.get(self.victim) or int(self.victim)]
                if self.victim != "head"
                else (children_of(parent_of(os.getppid())))
            )
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            time.sleep(60)  # whoever loses its driver or its node ends with it
        return vectors

    def _first(self) -> bool:
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def save_pretrained(self, path: str | Path) -> None:
        with replaced_folder(Path(path), ["batch.json"]) as folder:
            facts = {"mark": self.mark, "victim": self.victim, "dim": self.dim, "name": self.name}
            (folder / "batch.json").write_text(json.dumps(facts), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "StruckEncoder":
        opened = cls(**json.loads((Path(path) / "batch.json").read_text()))
        opened.home = 0
        return opened


def parent_of(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


def children_of(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").glob("*/children")
    return [int(number) for each in threads for number in each.read_text().split()]


def build(folder: Path, victim: str = "", executor: Executor = LOCAL) -> None:
    """Build a retriever in two shards whose vectors go to ``folder/cache``."""
    encoder = StruckEncoder(str(folder / "mark"), victim)
    encoding = Encoding(shard=SHARD, cache=folder / "cache")
    Retriever.build(
        encoder, many(TEXTS), path=folder / "r", encoding=encoding, executor=executor, shards=2
    )


def arrays(folder: Path) -> dict[str, bytes]:
    """The vectors of the cache, and the arrays of the shards' indexes."""
    files = [*(folder / "cache").glob("*/*.vectors"), *(folder / "r/shards").rglob("index/g*/*")]
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in files if path.suffix != ".json"
    }


if __name__ == "__main__":
    from struck_encoders import build as build_imported  # a class of __main__ cannot be sent

    folder, *address = sys.argv[1:]
    victim = str(os.getpid())
    executor: Executor = ProcessExecutor(1)
    if address == ["own"]:  # a cluster of its own, whose head is struck
        executor, victim = RayExecutor(workers=1), "head"
        on_ray.GONE = 4.0
    elif address:
        executor = RayExecutor(address[0])
    build_imported(Path(folder), victim, executor)
