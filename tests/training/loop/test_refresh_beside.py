"""Examples mined beside training: when they are used, how old they are, and what a kill costs."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training import fit
from sluice.training.loop.checkpoint import save_examples
from sluice.training.loop.refresh import Beside
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.protocol import Example, Text

STEPS = 9  # three epochs of three


class HandMiner:
    """Mines when it is waited for, or after so many looks whether it is ready.

    The negatives' texts are of the weights of the copy, so that any other weights would train
    another model.
    """

    def __init__(self, tiny: ModuleType, encoder: Any, folder: Path, looks: int = 10**9) -> None:
        self.tiny, self.encoder, self.folder, self.looks = tiny, encoder, folder, looks
        self.begun: list[int] = []
        self.seen = 0
        self.folder.mkdir(parents=True, exist_ok=True)

    def copies(self) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob("*.pt"))

    def forget(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    def begin(self, step: int, output: Path) -> None:
        assert not self.encoder.module.training
        copy = self.folder / f"{step}.pt"
        if not copy.exists():
            torch.save(self.encoder.module.state_dict(), copy)
        torch.rand(3)
        self.begun.append(step)
        self.output, self.copy, self.seen = output, copy, 0

    def is_ready(self) -> bool:
        self.seen += 1
        return self.seen > self.looks

    def wait(self) -> int:
        if not self.output.exists():
            weights = torch.load(self.copy, weights_only=True)
            save_examples(self.output, mined(self.tiny, weights))
        self.copy.unlink()
        return 1


def mined(tiny: ModuleType, weights: dict[str, torch.Tensor]) -> list[Example]:
    words = f"fresh {sum(float(value.sum()) for value in weights.values()):.6f}"
    return [
        replace(each, documents=(each.documents[0], Text(words, f"{words} {place}")))
        for place, each in enumerate(tiny.examples())
    ]


def job(tiny: ModuleType, every: int | None) -> dict[str, Any]:
    trainer = {**tiny.JOB["trainer"], "num_train_epochs": 3}
    return {**tiny.JOB, "trainer": trainer, "refresh_every": every}


def same(one: Any, other: Any, tiny: ModuleType) -> bool:
    a, b = tiny.weights_of(one), tiny.weights_of(other)
    return all(torch.equal(a[name], b[name]) for name in a)


def ages_of(report: Any) -> list[int]:
    return [int(line["negatives_age"]) for line in report.history if "loss" in line]


@pytest.mark.parametrize("every", [2, None])
def test_without_a_lag_it_is_what_the_training_mines_itself(
    tiny: ModuleType, tmp_path: Path, every: int | None
) -> None:
    alone, encoder = tiny.Splade(), tiny.Splade()
    expected = fit(
        alone, tiny.examples(), InfoNCE(), output=tmp_path / "alone",
        refresh=lambda step: mined(tiny, alone.module.state_dict()), **job(tiny, every),
    )  # fmt: skip
    miner = HandMiner(tiny, encoder, tmp_path / "copies")
    report = fit(
        encoder, tiny.examples(), InfoNCE(), output=tmp_path / "beside",
        refresh=Beside(miner, lag=0), **job(tiny, every),
    )  # fmt: skip
    assert same(alone, encoder, tiny)
    assert ages_of(report) == ages_of(expected)
    assert miner.begun == list(range(every or 3, STEPS, every or 3))
    assert report.negatives_age is not None
    assert expected.negatives_age is not None
    assert report.negatives_age[:3] == expected.negatives_age[:3]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("every", "lag", "made"),
    [
        (2, 1, [0, 0, 0, 2, 2, 4, 4, 6, 6]),
        (2, 2, [0, 0, 0, 0, 2, 2, 4, 4, 6]),
        (3, 2, [0, 0, 0, 0, 0, 3, 3, 3, 6]),
        (None, 3, [0, 0, 0, 0, 0, 0, 3, 3, 3]),
    ],
)
def test_a_lag_says_when_whatever_the_load_and_wherever_it_is_killed(
    tiny: ModuleType, tmp_path: Path, every: int | None, lag: int, made: list[int]
) -> None:
    def trained(encoder: Any, looks: int = 0) -> Any:
        miner = HandMiner(tiny, encoder, tmp_path / "copies", looks)
        report = fit(
            encoder, tiny.examples(), InfoNCE(), output=tmp_path / "out",
            refresh=Beside(miner, lag=lag), **job(tiny, every),
        )  # fmt: skip
        return report, miner.begun

    encoder = tiny.Splade()
    report, begun = trained(encoder)
    ages = [step - each for step, each in enumerate(made, start=1)]
    assert ages_of(report) == ages
    assert begun == sorted({*made} - {0})  # none is begun that would not be used
    age = report.negatives_age
    assert (age.max, age.mean) == (max(ages), pytest.approx(sum(ages) / STEPS))
    assert (age.refreshes, age.restarts) == (len(begun), len(begun))
    # killed behind each checkpoint in turn; what was being mined then is mined again of its copy
    for last in (8, 6, 4, 2):
        for folder in (tmp_path / "out").glob("checkpoint-*"):
            if int(folder.name.rpartition("-")[2]) > last:
                shutil.rmtree(folder)
        again = tiny.Splade()
        resumed, begun = trained(again, 10**9)
        assert resumed.resumed_step == last
        assert begun == []  # what was made before is read again
        assert same(encoder, again, tiny)
        assert resumed.negatives_age[:3] == age[:3]


@pytest.mark.thorough
def test_what_was_being_mined_at_a_kill_is_mined_with_its_copy(
    tiny: ModuleType, tmp_path: Path
) -> None:
    def trained(encoder: Any) -> list[int]:
        miner = HandMiner(tiny, encoder, tmp_path / "copies")
        options = {**job(tiny, 3), "refresh": Beside(miner, lag=2)}
        fit(encoder, tiny.examples(), InfoNCE(), output=tmp_path / "out", **options)
        return miner.begun

    class Killed(Exception):
        pass

    undisturbed, encoder, again = tiny.Splade(), tiny.Splade(), tiny.Splade()
    trained(undisturbed)
    shutil.rmtree(tmp_path / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HandMiner, "wait", lambda self: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):  # at step 5, and the last checkpoint is of step 4
            trained(encoder)
    assert (tmp_path / "copies/3.pt").exists()
    shutil.copytree(tmp_path / "out", tmp_path / "other")
    assert trained(again) == [3, 6]
    assert same(undisturbed, again, tiny)
    shutil.rmtree(tmp_path / "out")
    shutil.move(tmp_path / "other", tmp_path / "out")
    with pytest.raises(DataError, match=r"encoder of step 3.*is missing; delete the folder"):
        trained(tiny.Splade())


@pytest.mark.thorough
@pytest.mark.parametrize("looks", [0, 1, 4, 10**9])
def test_with_a_greatest_age_they_are_used_when_ready_and_a_resumed_training_repeats_it(
    tiny: ModuleType, tmp_path: Path, looks: int
) -> None:
    def trained(encoder: Any, looks: int) -> Any:
        miner = HandMiner(tiny, encoder, tmp_path / "copies", looks)
        return fit(
            encoder, tiny.examples(), InfoNCE(), output=tmp_path / "out",
            refresh=Beside(miner, max_age=4), **job(tiny, 2),
        )  # fmt: skip

    encoder = tiny.Splade()
    report = trained(encoder, looks)
    ages = ages_of(report)
    expected = {0: [1, 2, 3, 2, 3, 2, 3, 2, 3], 10**9: [1, 2, 3, 4, 3, 4, 3, 4, 3]}
    assert max(ages) <= 4
    assert ages == expected.get(looks, ages)
    assert report.negatives_age.max == max(ages)
    assert report.negatives_age.mean == pytest.approx(sum(ages) / STEPS)
    last = max(step - age for step, age in enumerate(ages, start=1))
    for folder in (tmp_path / "out").glob("checkpoint-*"):
        if int(folder.name.rpartition("-")[2]) > 4:
            shutil.rmtree(folder)
    again = tiny.Splade()
    resumed = trained(again, 10**9)  # as if slower now: what was used before is used again
    assert resumed.resumed_step == 4
    used = next(step for step, age in enumerate(ages, start=1) if step - age == last)
    assert ages_of(resumed)[:used] == ages[:used]
    assert max(ages_of(resumed)) <= 4


def test_impossible_schedules_are_refused(tiny: ModuleType, tmp_path: Path) -> None:
    miner = HandMiner(tiny, tiny.Splade(), tmp_path / "copies")
    for beside, message in (
        (Beside(miner, lag=4), r"refresh.lag: 4, expected 0 to 3 steps"),
        (Beside(miner, max_age=3), r"refresh.max_age: 3, expected more than 3"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit(
                tiny.Splade(), tiny.examples(), InfoNCE(), output=tmp_path / "out",
                refresh=beside, **job(tiny, 3),
            )  # fmt: skip
