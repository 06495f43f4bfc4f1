"""The plan on a Ray cluster of three nodes, processes of this machine, with real kills."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launched_training import check_struck
from places import SUPPORT
from struck_encoders import arrays, build

from sluice.encoders.foundation.errors import ConfigError, MissingPackageError
from sluice.retrieval.execution import RayExecutor, on_ray, worker
from sluice.retrieval.execution.executor import Task
from sluice.retrieval.execution.plan import Plan, run_plan

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_raylet_start_wait_time_s="300")
STORE = {"object_store_memory": 80_000_000}


def test_without_ray_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"executor: ray.*pip install 'sluice-ir\[ray\]'"):
        build(tmp_path, executor=RayExecutor())


class _Rayless:
    """Stands for Ray: a worker is this process, after it went elsewhere."""

    def __init__(self, elsewhere: Path) -> None:
        self.elsewhere = elsewhere

    def remote(self, *args: Any, **options: Any) -> Any:
        if options:
            return lambda function: setattr(self, "function", function) or self
        os.chdir(self.elsewhere)
        return self.function(*json.loads(json.dumps(args)))  # type: ignore[attr-defined]


def test_a_worker_finds_what_the_driver_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def carry_out(kind: str, args: Any) -> dict[str, Any]:
        seen.append({"data": os.environ["SLUICE_DATA"], "text": Path("a.txt").read_text()})
        return {}

    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home, elsewhere):
        folder.mkdir()
    (home / "a.txt").write_text("gold")
    monkeypatch.setattr(worker, "carry_out", carry_out)
    monkeypatch.setattr(on_ray, "limit_threads", lambda threads: None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("SLUICE_PROGRESS", "0")
    monkeypatch.setenv("SLUICE_DATA", "data")
    monkeypatch.chdir(home)
    crew = on_ray._Remote(_Rayless(elsewhere), {"CPU": 1.0, "GPU": 0.0}, 1)
    for _ in range(2):
        monkeypatch.setenv("SLUICE_DATA", "of the worker")
        crew.submit(Task("encode", "a", {}, tmp_path / "a", lambda advance: {}))
    assert seen == [{"data": str(home / "data"), "text": "gold"}] * 2


def test_a_cluster_of_this_machine_has_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of two cores each do not claim four of two."""
    asked: list[Any] = []
    ray = SimpleNamespace(init=lambda **options: asked.append(options["num_cpus"]))
    monkeypatch.setattr(on_ray, "cores", lambda: 2)
    for executor in (RayExecutor(num_cpus=2), RayExecutor(), RayExecutor(workers=3, num_cpus=0.5)):
        executor._connect(ray)
    assert asked == [2, 2, 2]


def test_an_address_without_a_cluster_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'sluice-ir[ray]'")
    with pytest.raises(ConfigError, match=r"executor.address: nonsense: no cluster"):
        build(tmp_path, executor=RayExecutor("nonsense"))
    assert run_plan(Plan("nothing", []), RayExecutor("nonsense")) == {}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without cores, and two nodes with one each."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'sluice-ir[ray]'")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, **STORE}
    try:
        made = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=made.address)  # this process belongs to the head, which stays
        for _ in range(2):
            made.add_node(num_cpus=1, resources={"encoding": 2}, **STORE)
    except (Exception, SystemExit) as error:  # limits of time of its own, on a busy machine
        pytest.skip(f"Ray starts no cluster here: {error}")
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The arrays of one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    build(folder)
    return arrays(folder)


@pytest.mark.parametrize("victim", ["itself", "parent"])
def test_a_killed_worker_or_node_costs_no_bit(
    cluster: Any,
    tmp_path: Path,
    undisturbed: dict[str, bytes],
    victim: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    build(tmp_path, victim, RayExecutor(cluster.address, resources={"encoding": 0.5}))
    assert arrays(tmp_path) == undisturbed
    if victim == "itself":
        assert "its worker is lost" in caplog.text
    else:  # Ray may give the tasks of a lost node to another by itself
        import ray

        assert sum(node["Alive"] for node in ray.nodes()) == 2  # the head, and one of two
        cluster.add_node(num_cpus=1, resources={"encoding": 2}, **STORE)


def test_a_killed_driver_is_continued_to_the_same_bits(
    cluster: Any, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    command = [sys.executable, str(SUPPORT / "struck_encoders.py"), str(tmp_path), cluster.address]
    environment = {**os.environ, "PYTHONPATH": f"{SUPPORT.parents[1]}{os.pathsep}{SUPPORT}"}
    done = subprocess.run(command, env=environment, timeout=600, check=False)
    assert done.returncode == -9
    assert not (tmp_path / "r/retriever.json").exists()
    build(tmp_path, executor=RayExecutor(cluster.address))
    assert arrays(tmp_path) == undisturbed


def test_two_machines_share_a_training_though_a_worker_is_killed(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_struck(tmp_path, {"type": "ray", "workers": 2, "address": cluster.address})
    assert "training: a process is lost (worker " in caplog.text
