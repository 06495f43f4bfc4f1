"""Carries out one task in several processes of this machine that talk to each other."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from sluice.encoders.foundation.children import end, start
from sluice.encoders.foundation.machine import cores
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.execution import group_member
from sluice.retrieval.execution.group import TRIES, Group, Order

LOOPBACK = "127.0.0.1"
LOOKS = 0.2  # seconds between two looks at the processes


class ProcessGroup(Group):
    """Trains in several processes of this machine, as torchrun does.

    ``workers`` is how many they are. ``threads`` is how many each of them uses, by default its
    share of the cores. ``tries`` is how often they are started in all where one of them is lost.
    """

    type_name = "processes"

    def __init__(
        self,
        workers: Annotated[int, Ge(1)],
        threads: Annotated[int, Ge(1)] | None = None,
        tries: Annotated[int, Ge(1)] = TRIES,
    ) -> None:
        super().__init__(whole_number(workers, "workers", 1), whole_number(tries, "tries", 1))
        share = max(1, cores() // self.workers)
        self._threads = share if threads is None else whole_number(threads, "threads", 1)

    @property
    def threads(self) -> int:
        """The threads of each process."""
        return self._threads

    def attempt(self, order: Order, work: Path) -> str:
        """Start the processes once; return why one of them ended early, or nothing."""
        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            port = str(free.getsockname()[1])
        members = [self._start(order, rank, port) for rank in range(self.workers)]
        try:
            while True:
                codes = [member.poll() for member in members]
                early = [code for code in codes if code]
                if early:
                    ended = "it was killed" if early[0] == -9 else f"exit code {early[0]}"
                    return f"process {codes.index(early[0])}: {ended}"
                if all(code == 0 for code in codes):
                    return ""
                time.sleep(LOOKS)
        finally:
            end(members)

    def _start(self, order: Order, rank: int, port: str) -> subprocess.Popen[str]:
        settings = {
            "MASTER_ADDR": LOOPBACK, "MASTER_PORT": port, "RANK": str(rank),
            "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.workers),
            "LOCAL_WORLD_SIZE": str(self.workers),
        }  # fmt: skip
        member = start(
            group_member.__name__, threads=self.threads, settings=settings,
            stdin=subprocess.PIPE, encoding="utf-8",
        )  # fmt: skip
        if member.stdin is not None:  # stays open: its end says that this process is gone
            member.stdin.write(json.dumps(order) + "\n")
            member.stdin.flush()
        return member
