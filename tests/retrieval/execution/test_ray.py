"""The plan on a Ray cluster of three nodes, processes of this machine, with real kills."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT
from struck_encoders import arrays, build

from sluice.encoders.foundation.errors import ConfigError, MissingPackageError
from sluice.retrieval.execution import RayExecutor
from sluice.retrieval.execution.plan import Plan, run_plan

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_raylet_start_wait_time_s="300")
STORE = {"object_store_memory": 80_000_000}


def test_without_ray_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"executor: ray.*pip install 'sluice-ir\[ray\]'"):
        build(tmp_path, executor=RayExecutor())


def test_an_address_without_a_cluster_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray has no wheel here: pip install 'sluice-ir[ray]'")
    with pytest.raises(ConfigError, match=r"executor.address: nonsense: no cluster"):
        build(tmp_path, executor=RayExecutor("nonsense"))
    assert run_plan(Plan("nothing", []), RayExecutor("nonsense")) == {}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without cores, and two nodes with one each."""
    ray = pytest.importorskip("ray", reason="ray has no wheel here: pip install 'sluice-ir[ray]'")
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
    assert "its worker is lost" in caplog.text
    if victim == "parent":
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
