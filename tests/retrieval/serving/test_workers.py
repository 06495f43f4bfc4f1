"""Several processes over one socket: one state for all, and none missed when it is killed."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from served_process import Served
from serving import EXTRA

from sluice.encoders import BM25Encoder
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Document, Retriever
from sluice.retrieval.serving.content.live import REMEMBERED, Numbers
from sluice.retrieval.serving.settings import ServeSettings


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_workers_serve_one_state_and_outlive_each_other(tmp_path: Path) -> None:
    for name in ("starlette", "uvicorn", "prometheus_client"):
        pytest.importorskip(name, reason=EXTRA)
    first = [Document("a", "", "gold river"), Document("b", "", "stone")]
    Retriever.build(BM25Encoder(), first, path=tmp_path / "bm25")
    served = Served(tmp_path / "bm25", "--writable")
    try:
        served.until(lambda: len(served.states()) == 2)
        counts: Counter[int] = Counter()
        for number in range(2, 5):
            new = {"documents": [{"id": f"z{number}", "text": f"zebra {number}"}]}
            status, answer = served.ask("PUT", "/documents", new)
            assert (status, answer["state"]) == (200, number)
            for _ in range(6):  # whichever worker answers, it has the change
                _, found = served.ask("POST", "/search", {"query": "zebra", "k": 9})
                assert (found["state"], len(found["hits"])) == (number, number - 1)
                counts[200] += 1
        assert set(served.states().values()) == {4.0}
        _, text = served.ask("GET", "/metrics")
        total = re.search(r'te_request_count_total{path="/search"} (\S+)', text)
        assert total is not None
        assert float(total.group(1)) == counts[200]  # of both together
        one, other = served.workers()
        os.kill(one, signal.SIGKILL)
        for _ in range(10):  # the other one answers meanwhile
            status, found = served.ask("POST", "/search", {"query": "zebra", "k": 9})
            assert (status, found["state"], len(found["hits"])) == (200, 4, 3)
        served.until(lambda: len(served.workers()) == 2)
        os.kill(other, signal.SIGKILL)  # who answers now has come after the changes

        def answers() -> bool:
            try:
                _, found = served.ask("POST", "/search", {"query": "zebra", "k": 9})
            except OSError:
                return False
            assert (found["state"], len(found["hits"])) == (4, 3)
            return True

        served.until(answers)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(30) == 0
        assert served.workers() == []
        with pytest.raises(OSError, match="refused"):
            served.ask("GET", "/health")
    finally:
        served.end()
    text = "".join(served.lines)
    assert text.count("starting another") == 2
    assert "stopped" in served.lines[-1]


def test_a_worker_that_cannot_start_ends_the_command(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason=EXTRA)
    pytest.importorskip("starlette", reason=EXTRA)
    from sluice.retrieval.serving.processes.start import Parent, Worker
    from sluice.retrieval.serving.processes.worker import Failed, Listening

    settings = ServeSettings(workers=2)
    with socket.socket() as listener:
        parent = Parent(tmp_path, settings, listener)
    worker = Worker(0, process=None, pipe=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no such pipeline"):
        parent._take(worker, Failed("--pipeline no: no such pipeline"))
    parent._take(worker, Listening())
    assert worker.listens


def test_a_change_counts_the_workers_that_do_not_serve_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One serves it, one cannot, one does not answer in time, one is killed."""
    pytest.importorskip("uvicorn", reason=EXTRA)
    pytest.importorskip("starlette", reason=EXTRA)
    from sluice.retrieval.serving.processes import start as parents
    from sluice.retrieval.serving.processes.worker import Answer, Ask, Refresh, Refreshed

    with socket.socket() as listener:
        parent = parents.Parent(tmp_path, ServeSettings(workers=5), listener)
    sent: list[tuple[int, Any]] = []

    class Pipe:
        """What a worker would read."""

        def __init__(self, number: int) -> None:
            self.number = number

        def send(self, message: Any) -> None:
            sent.append((self.number, message))

    workers = [
        parents.Worker(number, process=None, pipe=Pipe(number), opened=True)  # type: ignore[arg-type]
        for number in range(5)
    ]
    parent._workers = workers
    parent._take(workers[0], Ask(ticket=9))
    assert sent == [(number, Refresh(1)) for number in range(1, 5)]
    sent.clear()
    parent._take(workers[1], Refreshed(1, served=True))
    parent._take(workers[2], Refreshed(1, served=False))
    (spread,) = parent._spreads.values()
    spread.waiting.discard(workers[4])  # as where it ended
    assert sent == []
    monkeypatch.setattr(parents, "GIVEN_UP", -1.0)
    monkeypatch.setattr(parents, "wait", lambda watched, timeout: [])
    monkeypatch.setattr(parent, "_workers", [])
    parent._turn(None)  # type: ignore[arg-type]
    assert sent == [(0, Answer(9, 2))]


def test_a_state_keeps_its_number() -> None:
    numbers = Numbers()
    assert [numbers.number(state) for state in ("a", "b", "a", "c", "b")] == [1, 2, 1, 3, 2]
    for number in range(REMEMBERED):
        numbers.number(f"later {number}")
    assert numbers.number("a") == REMEMBERED + 4  # forgotten, and never an old number again
