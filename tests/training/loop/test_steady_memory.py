"""The memory of a training does not grow with its steps."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders.foundation.processes import give_back_memory
from sluice.training import fit
from sluice.training.loop.trainer import RetrievalTrainer
from sluice.training.losses.contrastive.softmax import InfoNCE

FIRST, LAST = 20, 200
NOTED = 15  # of Python's blocks a step, at most: the report keeps its logged lines


def test_nothing_of_a_training_is_held_after_it(
    tiny: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[str, weakref.ref[Any]] = {}
    train = RetrievalTrainer.train

    def noted(job: RetrievalTrainer, *words: Any, **settings: Any) -> Any:
        done = train(job, *words, **settings)
        moments = next(iter(job.optimizer.state.values()))["exp_avg"]
        parts = {"job": job, "optimizer": job.optimizer, "moments": moments, "loss": job.objective}
        held.update({name: weakref.ref(part) for name, part in parts.items()})
        return done

    monkeypatch.setattr(RetrievalTrainer, "train", noted)
    measured = {"evaluate": lambda _: {"nothing": 0.0}, "evaluate_every": 1}
    encoder = tiny.Dense()
    fit(encoder, tiny.examples(), InfoNCE(), output=tmp_path, **{**tiny.JOB, **measured})
    give_back_memory()
    assert [name for name, part in held.items() if part() is not None] == []
    assert not [name for name, p in encoder.module.named_parameters() if p.grad is not None]


@pytest.mark.thorough
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
