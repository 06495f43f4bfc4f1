"""Carries out one task in workers of a Ray cluster that talk to each other, by Ray Train."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from sluice.encoders.foundation.errors import MissingPackageError
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.execution.group import TRIES, Group, Order, join
from sluice.retrieval.execution.on_ray import RayExecutor, Surroundings

PATIENCE = 2 * 24 * 3600  # seconds that processes wait for one that mines
RUNS = "ray"  # in the work folder: what Ray Train writes of its own


class RayGroup(Group):
    """Trains in several workers of a Ray cluster, by Ray Train.

    The machines must see the same folders. ``workers`` is how many they are. ``address`` is that of
    a running cluster, or auto; left out, one is started on this machine for as long as the training
    takes. ``num_cpus`` are the cores that each worker asks for, and its threads. ``num_gpus`` are
    the GPUs that it asks for. ``resources`` are what else it asks for, amounts by the cluster's own
    names. ``tries`` is how often all are started where one of them is lost.
    """

    type_name = "ray"

    def __init__(
        self,
        workers: Annotated[int, Ge(1)],
        address: str | None = None,
        num_cpus: Annotated[float, Ge(0)] = 1.0,
        num_gpus: Annotated[float, Ge(0)] = 0.0,
        resources: Mapping[str, float] | None = None,
        tries: Annotated[int, Ge(1)] = TRIES,
    ) -> None:
        super().__init__(whole_number(workers, "workers", 1), whole_number(tries, "tries", 1))
        self._cluster = RayExecutor(address, self.workers, num_cpus, num_gpus, resources)

    @property
    def threads(self) -> int:
        """The threads of each worker."""
        return max(1, math.floor(self._cluster.needs["CPU"]))

    def attempt(self, order: Order, work: Path) -> str:
        """Start the workers once; return why one of them ended early, or nothing."""
        os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
        with self._cluster.connected():
            try:
                from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
                from ray.train.torch import TorchConfig, TorchTrainer
            except ImportError as error:
                raise MissingPackageError(str(error.name), "ray", "launch: ray") from None
            needs = {name: amount for name, amount in self._cluster.needs.items() if amount}
            runs = (work / RUNS).absolute()
            told = {"order": json.dumps(order), **Surroundings.here()._asdict()}
            trainer = TorchTrainer(
                join_remotely,
                train_loop_config=told,
                torch_config=TorchConfig(timeout_s=PATIENCE),
                scaling_config=ScalingConfig(
                    num_workers=self.workers, use_gpu="GPU" in needs, resources_per_worker=needs
                ),
                run_config=RunConfig(
                    name=RUNS,
                    storage_path=str(runs),
                    failure_config=FailureConfig(max_failures=0),  # tries are counted here
                    logging_config=LoggingConfig(log_level="ERROR"),
                ),
            )
            try:
                trainer.fit()
            except Exception as error:  # of several kinds, by how a worker ended
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                return f"{type(error).__name__}: {(lines or [''])[-1][:200]}"
            finally:
                shutil.rmtree(runs, ignore_errors=True)
        return ""


def join_remotely(told: dict[str, Any]) -> None:
    """Carry out an order in a worker of Ray Train's, which has made the process group."""
    os.environ.update(told["settings"], SLUICE_PROGRESS="0")
    with contextlib.suppress(OSError):  # a task of absolute paths needs none
        os.chdir(told["folder"])
    sys.path += [place for place in told["places"] if place not in sys.path]
    logging.getLogger("sluice").setLevel(logging.INFO)
    join(Order(*json.loads(told["order"])))
