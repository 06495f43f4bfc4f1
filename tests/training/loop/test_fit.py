"""The training journey on a tiny random BERT: resume, best checkpoint, regulariser, bf16."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from forks import run_forked
from places import SUPPORT

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.training import fit
from sluice.training.loop.checkpoint import last_complete
from sluice.training.losses.contrastive.pairs import BCE, STAR
from sluice.training.losses.contrastive.softmax import InfoNCE, LocalizedSoftmax


@pytest.fixture(scope="module")
def undisturbed(
    tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Any, Any]:
    torch.set_num_threads(1)
    output = tmp_path_factory.mktemp("undisturbed")
    encoder = tiny.Splade()
    report = fit(encoder, tiny.examples(), InfoNCE(similarity="dot"), output=output, **tiny.JOB)
    return output, tiny.weights_of(encoder), report


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def lines(output: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_journey(tiny: ModuleType, undisturbed: tuple[Path, Any, Any]) -> None:
    output, weights, report = undisturbed
    assert report.steps == 6
    assert report.resumed_step is report.best_step is None
    assert not same(weights, tiny.weights_of(tiny.Splade()))
    written = [line for line in lines(output) if "loss" in line]
    assert [line["step"] for line in written] == [1, 2, 3, 4, 5, 6]
    first, last = written[0], written[-1]
    assert first["loss_sparsity_document"] == 0.0  # the ramp begins at 0
    # After step 6 five steps were counted when the loss was taken; strength is reported after it.
    assert last["sparsity_strength"] == 1.0
    total = last["loss_ranking"] + last["loss_sparsity_query"] + last["loss_sparsity_document"]
    assert last["loss"] == pytest.approx(total, abs=1e-3)
    assert 0 < first["active_terms_query"] <= tiny.VOCAB
    assert not list(output.rglob("training_args.bin"))


@pytest.mark.parametrize("last", [2, 4])
def test_resumed_training_equals_the_undisturbed(
    tiny: ModuleType, undisturbed: tuple[Path, Any, Any], tmp_path: Path, last: int
) -> None:
    source, weights, whole = undisturbed
    output = tmp_path / "copy"
    shutil.copytree(source, output)
    for step in range(last + 1, 7):
        shutil.rmtree(output / f"checkpoint-{step}", ignore_errors=True)
    half = output / f"checkpoint-{last + 1}"  # a kill while saving
    shutil.copytree(output / f"checkpoint-{last}", half)
    (half / "complete.json").unlink()
    encoder = tiny.Splade(seed=9)  # what it starts from does not matter any more
    report = fit(encoder, tiny.examples(), InfoNCE(similarity="dot"), output=output, **tiny.JOB)
    assert (report.resumed_step, report.steps) == (last, 6)
    assert same(tiny.weights_of(encoder), weights)
    assert [line["step"] for line in lines(output) if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert report.history[5]["loss"] == whole.history[5]["loss"]


def test_a_training_of_before_types_were_named_goes_on(
    tiny: ModuleType, undisturbed: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    source, weights, _ = undisturbed
    output = tmp_path / "copy"
    shutil.copytree(source, output)
    for step in (5, 6):
        shutil.rmtree(output / f"checkpoint-{step}", ignore_errors=True)
    facts = json.loads((output / "training.json").read_text())
    assert facts["loss"]["type"] == "info_nce"
    facts["loss"]["type"] = "training.losses.info_nce:InfoNCE"
    (output / "training.json").write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match="differs in loss"):
        fit(tiny.Splade(), tiny.examples(), STAR(similarity="dot"), output=output, **tiny.JOB)
    encoder = tiny.Splade(seed=9)
    report = fit(encoder, tiny.examples(), InfoNCE(similarity="dot"), output=output, **tiny.JOB)
    assert (report.resumed_step, report.steps) == (4, 6)
    assert same(tiny.weights_of(encoder), weights)
    assert json.loads((output / "training.json").read_text())["loss"]["type"] == "info_nce"


def test_killed_process_resumes(
    tiny: ModuleType, undisturbed: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    _, weights, _ = undisturbed
    assert run_forked(SUPPORT / "killed.py", tmp_path) == -signal.SIGKILL
    assert last_complete(tmp_path) == tmp_path / "checkpoint-4"
    encoder = tiny.Splade()
    report = fit(encoder, tiny.examples(), InfoNCE(similarity="dot"), output=tmp_path, **tiny.JOB)
    assert (report.resumed_step, report.steps) == (4, 6)
    assert same(tiny.weights_of(encoder), weights)


def test_finished_training_is_not_repeated(
    tiny: ModuleType, undisturbed: tuple[Path, Any, Any]
) -> None:
    output, weights, _ = undisturbed
    encoder = tiny.Splade(seed=9)
    report = fit(encoder, tiny.examples(), InfoNCE(similarity="dot"), output=output, **tiny.JOB)
    assert (report.resumed_step, report.steps) == (6, 6)
    assert same(tiny.weights_of(encoder), weights)
    with pytest.raises(ConfigError, match="differs in loss, seed"):
        fit(encoder, tiny.examples(), InfoNCE(), output=output, **tiny.JOB, seed=1)


@pytest.mark.parametrize("evaluated", [False, True])
def test_training_finished_inside_an_epoch_is_only_loaded(
    tiny: ModuleType, tmp_path: Path, evaluated: bool
) -> None:
    def job(encoder: Any, evaluate: Any) -> Any:
        return fit(
            encoder,
            tiny.examples(),
            InfoNCE(),
            output=tmp_path,
            trainer={
                "max_steps": 4,
                "per_device_train_batch_size": 8,  # three batches an epoch
                "learning_rate": 1e-3,
                "lr_scheduler_type": "constant",
                "save_steps": 2,
            },
            evaluate=evaluate,
            evaluate_every=2 if evaluated else None,
        )

    def files() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    falling = iter([0.1, 0.5, 0.4])  # at the start, at 2 and at the end
    encoder, again = tiny.Dense(), tiny.Dense(seed=9)
    first = job(encoder, (lambda _: {"nDCG@10": next(falling)}) if evaluated else None)
    before = files()
    second = job(again, (lambda _: pytest.fail("evaluated again")) if evaluated else None)
    assert files() == before
    assert (first.steps, second.steps, second.resumed_step) == (4, 4, 4)
    assert (second.best_step, second.best_value) == ((2, 0.5) if evaluated else (None, None))
    assert same(tiny.weights_of(encoder), tiny.weights_of(again))
    assert not again.module.training
    if evaluated:
        shutil.rmtree(tmp_path / "checkpoint-2")
        with pytest.raises(DataError, match="the best checkpoint of this finished training"):
            job(tiny.Dense(), lambda _: {"nDCG@10": 0.5})


def test_truncated_checkpoint_is_not_complete(
    undisturbed: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    source, _, _ = undisturbed
    for step in (2, 4):
        shutil.copytree(source / f"checkpoint-{step}", tmp_path / f"checkpoint-{step}")
    state = tmp_path / "checkpoint-4" / "optimizer.pt"
    state.write_bytes(state.read_bytes()[:-10])
    assert last_complete(tmp_path) == tmp_path / "checkpoint-2"
    assert not (tmp_path / "checkpoint-4").exists()


@pytest.mark.parametrize("metric", [None, "nDCG@10"])
def test_best_checkpoint_is_loaded(tiny: ModuleType, tmp_path: Path, metric: str | None) -> None:
    encoder = tiny.Dense()
    seen: list[tuple[float, dict[str, torch.Tensor]]] = []

    def evaluate(given: Any) -> dict[str, float]:
        assert given is encoder
        assert not encoder.module.training
        value = [0.05, 0.1, 0.5, 0.3, 0.2][len(seen)]
        seen.append((value, tiny.weights_of(encoder)))
        return {"nDCG@10": value, "R@100": 1 - value}

    report = fit(
        encoder,
        tiny.examples(32),
        InfoNCE(),
        output=tmp_path,
        trainer={"per_device_train_batch_size": 4, "learning_rate": 1e-3, "max_steps": 7},
        evaluate=evaluate,
        evaluate_every=2,
        metric=metric,
    )
    assert len(seen) == 5  # at the start, at 2, 4, 6 and the end
    assert (report.best_step, report.best_value) == (4, 0.5)
    assert same(tiny.weights_of(encoder), seen[2][1])
    assert [x["eval_nDCG@10"] for x in lines(tmp_path) if "eval_nDCG@10" in x] == [
        0.05,
        0.1,
        0.5,
        0.3,
        0.2,
    ]
    assert {p.name for p in tmp_path.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-7"}


@pytest.mark.parametrize("loss", [BCE(), LocalizedSoftmax()])
def test_cross_encoder_learns_its_groups(tiny: ModuleType, tmp_path: Path, loss: Any) -> None:
    encoder = tiny.Cross()
    report = fit(
        encoder,
        tiny.examples(24, negatives=3),
        loss,
        output=tmp_path,
        trainer={
            "max_steps": 40,
            "per_device_train_batch_size": 12,
            "learning_rate": 1e-2,
            "save_strategy": "no",
        },
    )
    losses = [line["loss"] for line in report.history if "loss" in line]
    assert losses[-1] < losses[0] - 0.05
    assert all(p._version >= 40 for p in encoder.module.parameters())  # fingerprints see a change
    assert last_complete(tmp_path) is None


@pytest.mark.usefixtures("bfloat16")
def test_bf16_runs_the_encoder_in_bf16_and_the_loss_in_float32(
    tiny: ModuleType, tmp_path: Path
) -> None:
    types: list[torch.dtype] = []

    class Spy:
        negatives = "all"

        def __call__(self, scores: torch.Tensor, labels: Any, mask: Any, *_: Any) -> Any:
            types.append((scores @ scores.T).dtype)  # bfloat16 if autocast held here
            return InfoNCE()(scores, labels, mask)

    for bf16, expected in ((True, torch.bfloat16), (False, torch.float32)):
        encoder = tiny.Dense()
        trainer = {"max_steps": 2, "per_device_train_batch_size": 4, "bf16": bf16}
        fit(encoder, tiny.examples(8), Spy(), output=tmp_path / str(bf16), trainer=trainer)
        assert {probe for probe, _ in encoder.seen} == {expected}
        assert all(p.dtype == torch.float32 for p in encoder.module.parameters())
        encoder.seen.clear()
        encoder.embed(encoder.tokenize(["x"], "query"), "query")
        assert encoder.seen[0][0] == torch.float32  # nothing of the Trainer's is left on it
    assert set(types) == {torch.float32}


def test_refresh_gives_each_later_epoch_its_examples(tiny: ModuleType, tmp_path: Path) -> None:
    asked: list[int] = []

    def refresh(step: int) -> list[Any]:
        asked.append(step)
        return tiny.examples(24, negatives=2)

    job = {**tiny.JOB, "trainer": {**tiny.JOB["trainer"], "num_train_epochs": 3}}
    encoder = tiny.Splade()
    fit(encoder, tiny.examples(), InfoNCE(), output=tmp_path, refresh=refresh, **job)
    assert asked == [3, 6]
    shutil.rmtree(tmp_path / "checkpoint-8")
    resumed = tiny.Splade()
    fit(resumed, tiny.examples(), InfoNCE(), output=tmp_path, refresh=refresh, **job)
    assert asked == [3, 6]  # what was made before the kill is used again
    assert same(tiny.weights_of(encoder), tiny.weights_of(resumed))
