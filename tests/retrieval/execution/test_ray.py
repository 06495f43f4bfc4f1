"""The plan on a Ray cluster of three nodes, processes of this machine, with real kills."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launched_training import check_struck
from places import SUPPORT
from small_world import documents
from struck_encoders import arrays, build
from struck_queries import mined
from struck_scorer import score
from struck_tuning import tuned

from sluice.encoders.foundation.errors import ConfigError, MissingPackageError, SluiceError
from sluice.indexing.wrappers.remote import RemoteIndex
from sluice.retrieval import Retriever
from sluice.retrieval.execution import ProcessExecutor, RayExecutor, on_ray, worker
from sluice.retrieval.execution.executor import Plan, Task, run_plan
from sluice.retrieval.retrievers.shards.workers import ShardActors, actors

pytestmark = pytest.mark.thorough

os.environ.update(
    {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "300", on_ray.ALONE: "0"}
)
STORE = {"object_store_memory": 80_000_000}
thorough = pytest.mark.skipif(
    not os.environ.get("SLUICE_THOROUGH"),
    reason="waits for Ray for a minute or more: run with SLUICE_THOROUGH=1",
)


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
    constants = SimpleNamespace(ENABLE_RAY_CLUSTER=True)
    able: list[bool] = []

    def init(**options: Any) -> None:
        asked.append(options["num_cpus"])
        able.append(constants.ENABLE_RAY_CLUSTER)

    ray = SimpleNamespace(
        init=init,
        shutdown=lambda: None,
        _private=SimpleNamespace(ray_constants=constants),
        get_runtime_context=lambda: SimpleNamespace(gcs_address=address),
    )
    address = "127.0.0.1:6379"
    monkeypatch.setattr(on_ray, "cores", lambda: 2)
    for executor in (RayExecutor(num_cpus=2), RayExecutor(), RayExecutor(workers=3, num_cpus=0.5)):
        executor._connect(ray)
    assert asked == [2, 2, 2]
    assert able == [False] * 3  # or else Ray would listen at every address of this machine
    assert constants.ENABLE_RAY_CLUSTER
    address = "192.0.2.7:6379"
    with pytest.raises(ConfigError, match=r"Ray listens at 192.0.2.7:6379"):
        RayExecutor()._connect(ray)


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

    # The nodes listen at the loopback alone.
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


def test_actors_search_shards_and_are_replaced(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors, "HUNG", 600.0)  # on a busy machine it is not replaced too soon
    path, queries = tmp_path / "r", {"a": "gold river", "b": "stone"}
    Retriever.build("bm25", documents(), path=path, shards=2)
    expected = Retriever.open(path).run(queries, k=5).to_dict()
    allow = {"partial": "allow", "deadline_ms": 300}
    with ShardActors(cluster.address, num_cpus=0.5) as workers:
        retriever = Retriever.open(path)
        retriever.use_workers(workers)
        assert retriever.run(queries, k=5).to_dict() == expected
        killed = workers.process_id(1, 0)
        os.kill(killed, signal.SIGSTOP)
        ends = time.monotonic() + 300
        while (run := retriever.run(queries, k=5, params=allow)).partial != ("shard-1",):
            assert "shard-1" in run.partial
            assert time.monotonic() < ends  # a busy machine: the other is late too
        os.kill(killed, signal.SIGKILL)
        with suppress(SluiceError):  # Ray may not have seen it yet
            assert retriever.run(queries, k=5).to_dict() == expected
        assert workers.process_id(1, 0) != killed
        assert retriever.run(queries, k=5).to_dict() == expected
        assert isinstance(retriever.index.first, RemoteIndex)  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The arrays of one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    build(folder)
    return arrays(folder)


@pytest.mark.parametrize("victim", ["itself", pytest.param("parent", marks=thorough)])
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


def test_a_killed_head_ends_the_command_with_an_error(
    tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'sluice-ir[ray]'")
    command = [sys.executable, str(SUPPORT / "struck_encoders.py"), str(tmp_path), "own"]
    environment = {**os.environ, "PYTHONPATH": f"{SUPPORT.parents[1]}{os.pathsep}{SUPPORT}"}
    done = subprocess.run(
        command, env=environment, timeout=600, check=False, capture_output=True, text=True
    )
    if not (tmp_path / "mark").exists() and "no cluster could be" in done.stderr:
        pytest.skip("Ray starts no cluster here: the machine is too busy")
    assert done.returncode == 1
    assert "executor: the cluster is gone" in done.stderr
    assert "the same command continues from there" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "r/retriever.json").exists()
    build(tmp_path, executor=ProcessExecutor(1))
    assert arrays(tmp_path) == undisturbed


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


@pytest.mark.parametrize("job", ["teacher", "mining", pytest.param("tuning", marks=thorough)])
def test_other_jobs_leave_what_one_process_does(cluster: Any, tmp_path: Path, job: str) -> None:
    """A worker's process may be lost: it is killed at its first pairs or queries."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    if job == "tuning":
        spec = {"type": "ray", "address": cluster.address}
        grid = {"pipelines": ["bm25 % 9 >> struck(depth={d})"], "choices": {"d": [3, 9]}}
        assert tuned(there, spec, "itself", **grid) == tuned(here, **grid)
    else:
        made = {"teacher": score, "mining": mined}[job]
        assert made(there, "itself", RayExecutor(cluster.address)) == made(here)  # type: ignore[operator]
    assert (there / "mark").exists()


@thorough
def test_two_machines_share_a_training_though_a_worker_is_killed(
    cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    check_struck(tmp_path, {"type": "ray", "workers": 2, "address": cluster.address})
    assert "training: a process is lost (worker " in caplog.text
