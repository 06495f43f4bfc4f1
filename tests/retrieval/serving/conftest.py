"""An experiment of tiny models, served in this process or over the loopback."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import EXTRA, Ask, asker, over_http
from small_world import write_beir

from sluice.retrieval.experiments.experiment import Experiment, open_experiment
from sluice.retrieval.jobs import index


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, bert: Path, pair_bert: Path) -> Path:
    """An experiment's output: BM25, dense, their fusion and a cascade."""
    folder = tmp_path_factory.mktemp("served")
    config = {
        "output": str(folder / "world"),
        "dataset": str(write_beir(folder / "beir")),
        "retrievers": {
            "bm25": {"encoder": {"type": "bm25"}},
            "dense": {"encoder": {"type": "dense", "model": str(bert)}},
        },
        "rerankers": {"cross": {"type": "cross_encoder", "model": str(pair_bert)}},
        "pipelines": {"hybrid": "bm25 | dense", "cascade": "(bm25 | dense) >> cross(depth=20)"},
    }
    index(config)
    return folder / "world"


@pytest.fixture(scope="session")
def library(built: Path) -> Experiment:
    """The same experiment, asked without a service."""
    return open_experiment(built)


@pytest.fixture(scope="session")
def service(built: Path) -> Iterator[Any]:
    """A service that reads."""
    pytest.importorskip("starlette", reason=EXTRA)
    pytest.importorskip("prometheus_client", reason=EXTRA)
    from sluice.retrieval.serving import ServeSettings, Service

    opened = Service.open(built, ServeSettings(longest_wait=60))  # however busy the machine is
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def ask(service: Any) -> Ask:
    """Asks the service: method, path and body, or several such tuples at once."""
    return asker(service)


@pytest.fixture
def own(built: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes services over a copy of the experiment, with settings of their own."""
    pytest.importorskip("starlette", reason=EXTRA)
    pytest.importorskip("prometheus_client", reason=EXTRA)
    from sluice.retrieval.serving import ServeSettings, Service

    shutil.copytree(built, tmp_path / "world")
    opened = []

    def make(folder: Path | None = None, **settings: Any) -> Any:
        settings.setdefault("longest_wait", 60)
        made = Service.open(folder or tmp_path / "world", ServeSettings(**settings))
        opened.append(made)
        return made

    yield make
    for each in opened:
        each.close()


@pytest.fixture(scope="session")
def address(built: Path) -> Iterator[str]:
    """The address of a service over real sockets, with MCP."""
    pytest.importorskip("uvicorn", reason=EXTRA)
    pytest.importorskip("mcp", reason=EXTRA)
    from sluice.retrieval.serving import ServeSettings

    with over_http(built, ServeSettings(port=0, mcp=True, longest_wait=60)) as found:
        yield found
