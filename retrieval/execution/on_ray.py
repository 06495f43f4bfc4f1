"""Carries out tasks on a Ray cluster: what moves through Ray are paths, and what a task reports."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from annotated_types import Ge

from sluice.encoders.foundation.errors import ConfigError, ModelError, needed_package
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.encoders.foundation.processes import cores, limit_threads
from sluice.encoders.foundation.progress import Advance
from sluice.retrieval.execution.executor import Crew, Executor, Outcome, Task
from sluice.retrieval.execution.worker import answer_of

log = logging.getLogger("sluice")

STORE_BYTES = 80_000_000  # of shared memory for what Ray moves: the least it takes, and plenty
LOOPBACK = "127.0.0.1"
ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # "0": Ray keeps to the loopback, on any system
LOOK = 2.0  # seconds between two looks whether the head is there
GONE: float = 20.0  # seconds without one that end a job; Ray itself ends a process after 60


class RayExecutor(Executor):
    """Carries out tasks on a Ray cluster, whose machines must see the same folders.

    ``address`` is that of a running cluster, or auto; left out, one is started on this machine for
    as long as the work takes. ``workers`` is how many tasks are under way at a time: as many as
    the cluster has room for, if left out. ``num_cpus`` are the cores that a task asks for, and its
    threads. ``num_gpus`` are the GPUs that it asks for, or the part of one. ``resources`` are
    what else it asks for, amounts by the cluster's own names.
    """

    type_name = "ray"

    def __init__(
        self,
        address: str | None = None,
        workers: Annotated[int, Ge(1)] | None = None,
        num_cpus: Annotated[float, Ge(0)] = 1.0,
        num_gpus: Annotated[float, Ge(0)] = 0.0,
        resources: Mapping[str, float] | None = None,
    ) -> None:
        self.address = address
        self.workers = None if workers is None else whole_number(workers, "workers", 1)
        self.needs = {
            "CPU": finite_number(num_cpus, "num_cpus", 0),
            "GPU": finite_number(num_gpus, "num_gpus", 0),
        }
        for name, amount in (resources or {}).items():
            if name in ("CPU", "GPU"):
                raise ConfigError(f"resources.{name}: has a key of its own, num_{name.lower()}s")
            self.needs[name] = finite_number(amount, f"resources.{name}", 0)
        self.gives_devices = self.needs["GPU"] > 0
        if not any(self.needs.values()):
            raise ConfigError("num_cpus: 0, and nothing else; expected a task to ask for something")

    @contextmanager
    def crew(self) -> Iterator[Crew]:
        """Yield the cluster's workers; a cluster that was started for them ends with the block."""
        with self.connected() as ray:
            crew = _Remote(ray, self.needs, self.slots(ray))
            try:
                yield crew
            finally:
                crew.close()

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Yield Ray, connected to the cluster, or to one that is started and ends with the block.

        ``ConfigError`` where there is none.
        """
        ray = _ray()
        started = not ray.is_initialized()
        if started:
            self._connect(ray)
        try:
            yield ray
        finally:
            if started:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": True}
        if self.address is None:
            wanted = self.workers * self.needs["CPU"] if self.workers else cores()
            own = {name: amount for name, amount in self.needs.items() if name not in _BUILT_IN}
            options |= {
                "num_cpus": max(1, math.ceil(wanted)), "include_dashboard": False,
                "object_store_memory": STORE_BYTES, "_node_ip_address": LOOPBACK,
                "address": "local",
                "resources": {name: amount * (self.workers or 1) for name, amount in own.items()},
            }  # fmt: skip
        else:
            options["address"] = self.address
        try:
            with _on_loopback(ray) if self.address is None else nullcontext():
                ray.init(**options)
        except (Exception, SystemExit) as error:  # both where a node starts too slowly
            with contextlib.suppress(Exception):
                ray.shutdown()  # what has started of it
            raise ConfigError(
                f"executor.address: {self.address}: no cluster could be reached or started "
                f"({' '.join(str(error).split())[:300]}); start one with `ray start --head`, or "
                "leave address out"
            ) from None

    def slots(self, ray: Any) -> int:
        """Return how many tasks there is room for; ``ConfigError`` where there is none for one."""
        room = 0
        for node in ray.nodes():
            has = node.get("Resources", {}) if node.get("Alive") else {}
            shares = [
                has.get(name, 0.0) / amount for name, amount in self.needs.items() if amount > 0
            ]
            room += math.floor(min(shares) + 1e-9)
        if not room:
            asked = ", ".join(
                f"{name}: {amount:g}" for name, amount in self.needs.items() if amount
            )
            message = f"executor: no machine of the cluster has what a task asks for ({asked})"
            if self.address is None:
                raise ConfigError(f"{message}; ask for less")
            log.warning("%s yet; waiting for one that has", message)
        return self.workers or max(1, room)


_BUILT_IN = ("CPU", "GPU")


@contextmanager
def _on_loopback(ray: Any) -> Iterator[None]:
    """Let what Ray starts in the block be reached from this machine alone.

    Ray takes another address for 127.0.0.1, and listens everywhere, unless it believes that this
    system can have no clusters. Anybody who reaches it may run code.
    """
    constants, before = ray._private.ray_constants, os.environ.get(ALONE)
    able, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    os.environ[ALONE] = "0"
    try:
        yield
        host = ray.get_runtime_context().gcs_address
        if not host.startswith(f"{LOOPBACK}:"):
            raise ConfigError(f"Ray listens at {host}, which other machines may reach")
    finally:
        constants.ENABLE_RAY_CLUSTER = able
        os.environ.pop(ALONE)
        if before is not None:
            os.environ[ALONE] = before


def _ray() -> Any:
    """Import Ray, which reports its use to nobody unless it was told to."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")  # 60 are too few on a busy machine
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with needed_package("ray", "ray", "executor: ray"):
        import ray
    return ray


class Surroundings(NamedTuple):
    """Where the driver finds what it names: its folder, modules of one's own, data and caches."""

    folder: str
    places: list[str]
    settings: dict[str, str]

    @classmethod
    def here(cls) -> Self:
        """Return those of this process."""
        settings = {
            name: str(Path(os.environ[name]).expanduser().absolute())
            for name in ("SLUICE_DATA", "SLUICE_CACHE")
            if os.environ.get(name)
        }
        return cls(str(Path.cwd()), [place for place in sys.path if place], settings)

    def take_over(self, threads: int) -> None:
        """Find things there in this process, which uses so many threads."""
        os.environ.update(self.settings, SLUICE_PROGRESS="0")
        with contextlib.suppress(OSError):  # absolute paths need none
            os.chdir(self.folder)
        sys.path += [place for place in self.places if place not in sys.path]
        limit_threads(threads)


def remote_answer(
    order: str, threads: int, folder: str, places: list[str], settings: dict[str, str]
) -> str:
    """Carry out a task in a worker of Ray's; return its answer, as a process's is.

    Relative paths, modules of one's own and data are found where the driver finds them.
    """
    Surroundings(folder, places, settings).take_over(threads)
    return json.dumps(answer_of(order))


class _Remote(Crew):
    def __init__(self, ray: Any, needs: Mapping[str, float], slots: int) -> None:
        self.slots, self._ray = slots, ray
        own = {name: amount for name, amount in needs.items() if name not in _BUILT_IN and amount}
        self._function = ray.remote(
            num_cpus=needs["CPU"], num_gpus=needs["GPU"], resources=own, max_retries=0,
            scheduling_strategy="SPREAD",
        )(remote_answer)  # fmt: skip
        self._threads = max(1, math.floor(needs["CPU"]))
        self._around = Surroundings.here()
        self._tasks: dict[Any, Task] = {}

    def submit(self, task: Task) -> None:
        self._tasks[self._function.remote(task.order, self._threads, *self._around)] = task

    def next(self, advance: Advance) -> Outcome:
        errors = self._ray.exceptions
        try:
            ready = self._ready()
        except (errors.RayError, ConnectionError) as error:
            raise ModelError(
                f"executor: the cluster is gone ({in_short(error)}); what is complete is kept: the "
                "same command continues from there"
            ) from None
        task = self._tasks.pop(ready)
        try:
            return Outcome.from_answer(task, self._ray.get(ready))
        except errors.RayTaskError as error:
            raise ModelError(
                f"executor: a worker of Ray's cannot work ({str(error).strip().splitlines()[-1]}); "
                f"every machine needs this Sluice, Python {sys.version_info[0]}."
                f"{sys.version_info[1]} and the encoder's packages"
            ) from None
        except errors.RayError as error:
            return Outcome(task, {}, lost=in_short(error))

    def _ready(self) -> Any:
        """Wait for a task's end; ``ConnectionError`` once the head gives no sign for ``GONE``."""
        heard = time.monotonic()
        while True:
            ready, _ = self._ray.wait(list(self._tasks), num_returns=1, timeout=LOOK)
            if ready:
                return ready[0]
            host, _, port = self._ray.get_runtime_context().gcs_address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), LOOK).close()
                heard = time.monotonic()
            except OSError as error:
                if time.monotonic() - heard > GONE:
                    self._tasks = {}  # nobody is there to cancel it
                    raise ConnectionError(f"its head, {host}:{port}: {error}") from None

    def close(self) -> None:
        """Cancel what is under way."""
        for reference in list(self._tasks):  # a thread that waits in ``next`` removes its own
            with contextlib.suppress(Exception):  # it may have ended, or the cluster be gone
                self._ray.cancel(reference, force=True)
        self._tasks = {}


def in_short(error: Exception) -> str:
    """Return the class of one of Ray's errors, and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
