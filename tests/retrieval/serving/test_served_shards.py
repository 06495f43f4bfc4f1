"""A service whose shards are searched by workers."""

from pathlib import Path
from typing import Any

import pytest
from serving import EXTRA, asker
from small_world import documents
from workers_here import WorkersHere

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval import Retriever
from sluice.retrieval.cli.searching import serve as verb
from sluice.retrieval.retrievers.shards.workers import ShardActors, ShardProcesses


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    Retriever.build("bm25", documents(), path=folder / "parts", shards=2)
    Retriever.build("bm25", documents(), path=folder / "whole")
    return folder


def opened(folder: Path, shard_workers: Any, **settings: Any) -> Any:
    pytest.importorskip("starlette", reason=EXTRA)
    pytest.importorskip("prometheus_client", reason=EXTRA)
    from sluice.retrieval.serving import ServeSettings, Service

    options = {"shard_workers": shard_workers, "longest_wait": 60, **settings}
    return Service.open(folder, ServeSettings(**options))


def test_a_service_asks_workers_and_names_those_that_are_gone(world: Path) -> None:
    workers = WorkersHere()
    service = opened(world / "parts", workers, writable=True)
    try:
        ask = asker(service)
        body = {"query": "gold river", "k": 5}
        ids = [hit["id"] for hit in ask("POST", "/search", body).json()["hits"]]
        assert ids == [hit.doc_id for hit in Retriever.open(world / "whole").search(**body)]
        asked = len(workers.sent)
        written = ask("POST", "/documents", {"documents": [{"id": "new", "text": "gold river"}]})
        assert written.json()["served"]
        answer = ask("POST", "/search", body).json()
        assert "new" in [hit["id"] for hit in answer["hits"]]
        assert (answer["complete"], answer["state"]) == (True, 2)
        assert len(workers.sent) > asked
        workers.gone = {1}
        refused = ask("POST", "/search", body)
        assert refused.status_code == 503
        assert "shard-1: its worker ended" in refused.text
    finally:
        service.close()
    assert workers.closed


def test_a_partial_answer_by_the_workers_setting(world: Path) -> None:
    workers = WorkersHere(partial="allow")
    service = opened(world / "parts", workers)
    try:
        workers.gone = {0}
        answer = asker(service)("POST", "/search", {"query": "gold river"}).json()
        assert (answer["complete"], answer["partial"]) == (False, ["shard-0"])
        assert answer["hits"]
    finally:
        service.close()


def test_workers_without_shards_are_refused(world: Path) -> None:
    with pytest.raises(ConfigError, match=r"--shard-workers: nothing here is in shards \(whole\)"):
        opened(world / "whole", WorkersHere())
    with pytest.raises(ConfigError, match="workers: 2, and shard_workers"):
        opened(world / "parts", WorkersHere(), workers=2)


def test_workers_on_the_command_line() -> None:
    made = verb._shard_workers("processes")
    assert isinstance(made, ShardProcesses)
    assert (made.workers, made.replicas, made.params) == (None, 1, {})
    made = verb._shard_workers("{type: ray, address: auto, replicas: 2, hedge_ms: 50}")
    assert isinstance(made, ShardActors)
    assert (made.replicas, made.params) == (2, {"hedge_ms": 50})
    for text, message in (
        ("proceses", "unknown type 'proceses'.*'processes'"),
        ("{type: processes, hosts: 2}", "--shard-workers.hosts: unknown key"),
        ("{type: os:system}", "--shard-workers.type"),
        ("{type", "expected a type, or"),
        ("3", "expected a type, or"),
    ):
        with pytest.raises(ConfigError, match=message):
            verb._shard_workers(text)
