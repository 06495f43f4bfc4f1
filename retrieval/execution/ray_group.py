"""Carries out one task in workers of a Ray cluster that talk to each other, as torchrun's do."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.execution.group import TRIES, Group, Order, join
from sluice.retrieval.execution.on_ray import RayExecutor, Surroundings

log = logging.getLogger("sluice")

WAITING = 60.0  # seconds after which a line says that the cluster has no room yet


class RayGroup(Group):
    """Trains in several workers of a Ray cluster.

    The machines must see the same folders. ``workers`` is how many they are. ``address`` is that of
    a running cluster, or auto; left out, one is started on this machine for as long as the training
    takes. ``num_cpus`` are the cores that each worker asks for, and its threads. ``num_gpus`` are
    the GPUs that it asks for, 0 or 1. ``resources`` are what else it asks for, amounts by the
    cluster's own names. ``tries`` is how often all are started where one of them is lost.
    """

    type_name = "ray"

    def __init__(
        self,
        workers: Annotated[int, Ge(1)],
        address: str | None = None,
        num_cpus: Annotated[float, Ge(0)] = 1.0,
        num_gpus: Annotated[int, Ge(0)] = 0,
        resources: Mapping[str, float] | None = None,
        tries: Annotated[int, Ge(1)] = TRIES,
    ) -> None:
        super().__init__(whole_number(workers, "workers", 1), whole_number(tries, "tries", 1))
        if num_gpus > 1:
            raise ConfigError(
                f"num_gpus: {num_gpus}; expected 0 or 1: a worker trains on one GPU; for more, "
                "ask for more workers"
            )
        self._cluster = RayExecutor(address, self.workers, num_cpus, num_gpus, resources)

    @property
    def threads(self) -> int:
        """The threads of each worker."""
        return max(1, math.floor(self._cluster.needs["CPU"]))

    def attempt(self, order: Order, work: Path) -> str:
        """Start the workers once; return why one of them ended early, or nothing."""
        with self._cluster.connected() as ray:
            self._cluster.slots(ray)  # ConfigError where there is none
            needs = {name: amount for name, amount in self._cluster.needs.items() if amount}
            room = ray.util.placement_group([needs] * self.workers, strategy="PACK")
            try:
                if not room.wait(WAITING):
                    log.warning(
                        "launch: the cluster has no room for %d workers yet (%s each); waiting",
                        self.workers, ", ".join(f"{k}: {v:g}" for k, v in needs.items()),
                    )  # fmt: skip
                    ray.get(room.ready())
                return _join_members(ray, room, needs, order, self.workers)
            except (ray.exceptions.RayError, ConnectionError) as error:
                raise ModelError(
                    f"launch: the cluster is gone ({_last(error)}); what is complete is kept: the "
                    "same command continues from there"
                ) from None
            finally:
                with contextlib.suppress(Exception):  # the cluster may be gone
                    ray.util.remove_placement_group(room)


def _join_members(
    ray: Any, room: Any, needs: Mapping[str, float], order: Order, workers: int
) -> str:
    """Let one worker in each place of ``room`` carry out the order; return why one ended early."""
    others = {name: amount for name, amount in needs.items() if name not in ("CPU", "GPU")}
    options = {
        "num_cpus": needs.get("CPU", 0), "num_gpus": needs.get("GPU", 0), "resources": others,
        "max_restarts": 0, "max_task_retries": 0,
    }  # fmt: skip
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    members = [
        ray.remote(**options, scheduling_strategy=strategy(room, rank))(Member).remote()
        for rank in range(workers)
    ]
    try:
        nodes = ray.get([member.node.remote() for member in members])
        # Each worker sees its own GPU only, as the first one.
        devices = [f"{node}/{rank}" for rank, node in enumerate(nodes)] if "GPU" in needs else nodes
        address, port = ray.get(members[0].meeting_place.remote())
        message = json.dumps(order), Surroundings.here()
        pending = {
            member.join.remote(*message, _group_settings(rank, devices, address, port)): rank
            for rank, member in enumerate(members)
        }
        while pending:
            (ready,), _ = ray.wait(list(pending), num_returns=1)
            rank = pending.pop(ready)
            try:
                ray.get(ready)
            except ray.exceptions.RayError as error:
                return f"worker {rank}: {_last(error)}"
    except ray.exceptions.RayActorError as error:  # before it had its order
        return f"a worker: {_last(error)}"
    finally:
        for member in members:
            with contextlib.suppress(Exception):
                ray.kill(member)
    return ""


class Member:
    """A worker of Ray's that belongs to a group."""

    def node(self) -> str:
        """Return the machine's name in the cluster."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def meeting_place(self) -> tuple[str, int]:
        """Return the address of this machine and a port that is free."""
        import ray

        address = str(ray.util.get_node_ip_address())
        with socket.create_server((address, 0)) as free:
            return address, free.getsockname()[1]

    def join(self, message: str, around: Surroundings, group: dict[str, str]) -> None:
        """Carry out an order together with the others."""
        order = Order(*json.loads(message))
        around.take_over(order.threads)
        os.environ.update(group)
        join(order)


def _group_settings(rank: int, nodes: list[str], address: str, port: int) -> dict[str, str]:
    """Return the variables that torchrun gives to a process; ``nodes`` share devices."""
    own = nodes[rank]
    return {
        "MASTER_ADDR": address, "MASTER_PORT": str(port), "RANK": str(rank),
        "WORLD_SIZE": str(len(nodes)), "LOCAL_RANK": str(nodes[:rank].count(own)),
        "LOCAL_WORLD_SIZE": str(nodes.count(own)),
    }  # fmt: skip


def _last(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or [''])[-1][:200]}"
