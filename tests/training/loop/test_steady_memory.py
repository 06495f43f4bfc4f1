"""The memory of a training does not grow with its steps."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.training import fit
from sluice.training.losses.contrastive.info_nce import InfoNCE

FIRST, LAST = 20, 200
NOTED = 15  # of Python's blocks a step, at most: the report keeps its logged lines


@pytest.mark.parametrize("kind", ["Dense", "Splade"])
def test_step_200_holds_what_step_20_held(tiny: ModuleType, tmp_path: Path, kind: str) -> None:
    tensors: list[tuple[int, int]] = []
    blocks: list[int] = []

    def measured(_: Any) -> dict[str, float]:
        gc.collect()
        held = [each.untyped_storage() for each in gc.get_objects() if type(each) is torch.Tensor]
        sizes = {each.data_ptr(): each.nbytes() for each in held}
        tensors.append((len(held), sum(sizes.values())))
        blocks.append(sys.getallocatedblocks())
        return {"nothing": 0.0}

    few = {"per_device_train_batch_size": 2, "logging_steps": 20, "save_strategy": "no"}
    trainer = {**tiny.JOB["trainer"], "max_steps": LAST, **few}
    job = {**tiny.JOB, "trainer": trainer, "evaluate": measured, "evaluate_every": FIRST}
    fit(getattr(tiny, kind)(), tiny.examples(), InfoNCE(similarity="dot"), output=tmp_path, **job)
    assert len(tensors) >= LAST // FIRST
    # The second measurement: at the first some of the optimiser's and the best weights were new.
    assert tensors[LAST // FIRST - 1] <= tensors[1]
    assert blocks[LAST // FIRST - 1] - blocks[1] < NOTED * (LAST - 2 * FIRST)
