"""Examples refreshed while training goes on, early stopping, live candidates."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.indexing import FlatIndex
from sluice.training import fit
from sluice.training.loop.objective import LiveCandidates
from sluice.training.losses.contrastive.softmax import InfoNCE
from sluice.training.losses.listwise.lists import Adore
from sluice.training.protocol import Example, Text


def job(tiny: ModuleType, **trainer: Any) -> dict[str, Any]:
    return {**tiny.JOB, "trainer": {**tiny.JOB["trainer"], "num_train_epochs": 3, **trainer}}


@pytest.mark.thorough
@pytest.mark.parametrize("every", [2, 4, 5])
def test_resumes_within_an_epoch_with_what_was_in_force(
    tiny: ModuleType, tmp_path: Path, every: int
) -> None:
    asked: list[int] = []

    def refresh(step: int) -> list[Example]:
        asked.append(step)
        return [
            replace(e, documents=(e.documents[0], Text(f"x{step}", f"fresh thing {step} {n}")))
            for n, e in enumerate(tiny.examples())
        ]

    options = {**job(tiny), "refresh": refresh, "refresh_every": every}
    encoder = tiny.Splade()
    report = fit(encoder, tiny.examples(), InfoNCE(), output=tmp_path, **options)
    assert report.steps == 9
    due = list(range(every, 9, every))
    assert asked == due
    ages = {line["step"]: line["negatives_age"] for line in report.history if "loss" in line}
    assert ages == {s: s - (s - 1) // every * every for s in range(1, 10)}
    for last in (8, 6, 4, 2):  # as if killed behind each checkpoint in turn
        for folder in tmp_path.glob("checkpoint-*"):
            if int(folder.name.rpartition("-")[2]) > last:
                shutil.rmtree(folder)
        again = tiny.Splade()
        resumed = fit(again, tiny.examples(), InfoNCE(), output=tmp_path, **options)
        assert resumed.resumed_step == last
        assert asked == due  # what was made before is read again
        one, other = tiny.weights_of(encoder), tiny.weights_of(again)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_refresh_that_draws_at_random_is_not_missed_when_resumed(
    tiny: ModuleType, tmp_path: Path
) -> None:
    def refresh(step: int) -> list[Example]:
        torch.rand(3 + step), np.random.rand(2), random.random()  # noqa: NPY002
        return tiny.examples()

    options = {**job(tiny), "refresh": refresh, "refresh_every": 3}
    encoder, again = tiny.Splade(), tiny.Splade()
    fit(encoder, tiny.examples(), InfoNCE(), output=tmp_path, **options)
    for step in (4, 6, 8, 9):  # killed at step 5: the examples of step 3 and 6 are found
        shutil.rmtree(tmp_path / f"checkpoint-{step}", ignore_errors=True)
    resumed = fit(again, tiny.examples(), InfoNCE(), output=tmp_path, **options)
    assert resumed.resumed_step == 2
    one, other = tiny.weights_of(encoder), tiny.weights_of(again)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_refresh_may_not_change_the_queries_within_an_epoch(
    tiny: ModuleType, tmp_path: Path
) -> None:
    options = {**job(tiny), "refresh": lambda _: tiny.examples()[::-1], "refresh_every": 2}
    with pytest.raises(DataError, match="same queries in the same order"):
        fit(tiny.Splade(), tiny.examples(), InfoNCE(), output=tmp_path, **options)
    with pytest.raises(ConfigError, match="refresh: 0"):
        options = {**job(tiny), "refresh": lambda _: tiny.examples(), "refresh_every": 0}
        fit(tiny.Splade(), tiny.examples(), InfoNCE(), output=tmp_path / "2", **options)


def test_patience_ends_a_training_also_when_resumed(tiny: ModuleType, tmp_path: Path) -> None:
    values = iter([0.0, 0.2, 0.5, 0.4, 0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    options = {**job(tiny, save_steps=1), "evaluate_every": 1, "patience": 3}
    encoder = tiny.Splade()
    report = fit(
        encoder, tiny.examples(), InfoNCE(), output=tmp_path,
        evaluate=lambda _: {"nDCG@10": next(values)}, **options,
    )  # fmt: skip
    assert (report.steps, report.best_step, report.best_value) == (5, 2, 0.5)
    shutil.rmtree(tmp_path / "checkpoint-5")
    later = iter([0.1] * 9)
    again = tiny.Splade()
    resumed = fit(
        again, tiny.examples(), InfoNCE(), output=tmp_path,
        evaluate=lambda _: {"nDCG@10": next(later)}, **options,
    )  # fmt: skip
    assert (resumed.resumed_step, resumed.steps, resumed.best_step) == (4, 5, 2)
    one, other = tiny.weights_of(encoder), tiny.weights_of(again)
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(ConfigError, match="patience"):
        fit(tiny.Splade(), tiny.examples(), InfoNCE(), output=tmp_path / "2", patience=2)


@pytest.mark.parametrize(
    ("values", "patience", "steps"),
    [([0.1, 0.2, 0.3, 0.4, 0.4, 0.5], 1, 5), ([0.3, 0.1, 0.4, 0.1, 0.5, 0.1, 0.1, 0.6], 2, 7)],
)
def test_a_better_evaluation_is_not_one_without(
    tiny: ModuleType, tmp_path: Path, values: list[float], patience: int, steps: int
) -> None:
    measured = iter([0.0, *values])  # the first at the start
    report = fit(
        tiny.Splade(), tiny.examples(), InfoNCE(), output=tmp_path,
        evaluate=lambda _: {"nDCG@10": next(measured)}, evaluate_every=1, patience=patience,
        **job(tiny, save_steps=1),
    )  # fmt: skip
    assert report.steps == steps


def live_job(tiny: ModuleType, depth: int = 5) -> tuple[Any, LiveCandidates, np.ndarray]:
    encoder = tiny.Dense(dropout=0.0)
    texts = [d.text for e in tiny.examples(24, negatives=2) for d in e.documents]
    with torch.no_grad():
        vectors = encoder.embed(encoder.tokenize(texts, "document"), "document").numpy()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = FlatIndex()
    index.add(vectors)
    relevant = {f"q{i}": {3 * i: 1.0} for i in range(24)}
    return encoder, LiveCandidates(index, lambda r: vectors[r], relevant, depth=depth), vectors


def test_live_candidates_are_what_the_index_finds(tiny: ModuleType) -> None:
    encoder, live, vectors = live_job(tiny)
    texts = [e.query.text for e in tiny.examples(24)]
    queries = encoder.embed(encoder.tokenize(texts, "query"), "query")
    batch = live.batch(queries, [f"q{i}" for i in range(24)], cosine=True)
    unit = torch.nn.functional.normalize(queries, dim=1)
    scores = (unit @ torch.from_numpy(vectors).T).detach().numpy()
    for place in range(24):
        order = np.lexsort((np.arange(72), -scores[place]))[:5]
        listed = [*order, *([] if 3 * place in order else [3 * place])]
        row = batch.scores()[place][batch.mask[place]].detach().numpy()
        assert np.allclose(row, scores[place][listed], atol=1e-6)
        assert batch.labels[place].tolist()[: len(listed)] == [x == 3 * place for x in listed]
    (gradient,) = torch.autograd.grad(batch.scores().sum(), queries)
    assert gradient.abs().sum() > 0


def test_positives_that_were_missed_are_appended_if_none_was_found(tiny: ModuleType) -> None:
    encoder, live, vectors = live_job(tiny)
    texts = [e.query.text for e in tiny.examples(24)]
    queries = encoder.embed(encoder.tokenize(texts[:1], "query"), "query")
    unit = torch.nn.functional.normalize(queries, dim=1)
    order = np.argsort(-(unit.detach().numpy() @ vectors.T)[0])
    first, last, before = int(order[1]), int(order[-1]), int(order[-2])

    def appended(relevant: dict[int, float], append: Any) -> list[int]:
        found = LiveCandidates(
            live.index, live.gather, {"q0": relevant}, depth=5, append=append
        ).batch(queries, ["q0"], cosine=True)
        own = vectors @ unit.detach().numpy()[0]
        more = found.scores()[0, 5:].tolist()
        rows = [int(np.argmin(np.abs(own - score))) for score in more]
        assert found.labels[0, 5:].tolist() == [relevant[row] for row in rows]
        assert found.labels[0, 1] == relevant.get(first, 0.0)
        return rows

    assert appended({first: 1.0, last: 2.0}, "none_found") == []
    assert appended({first: 1.0, last: 2.0}, "every") == [last]
    for append in ("none_found", "every"):
        assert appended({last: 2.0, before: 1.0}, append) == [last, before]
    assert LiveCandidates(live.index, live.gather, {}).append == "none_found"
    with pytest.raises(ConfigError, match=r"append: 'all', expected none_found or every"):
        LiveCandidates(live.index, live.gather, {}, append="all")  # type: ignore[arg-type]


def test_adore_raises_the_rank_of_positives_and_leaves_the_index(
    tiny: ModuleType, tmp_path: Path
) -> None:
    encoder, live, vectors = live_job(tiny, depth=30)
    before = vectors.tobytes()

    def reciprocal_rank() -> float:
        texts = [e.query.text for e in tiny.examples(24)]
        with torch.no_grad():
            found = encoder.embed(encoder.tokenize(texts, "query"), "query").numpy()
        own = (found @ vectors.T).argsort(axis=1)[:, ::-1]
        return float(np.mean([1 / (1 + np.flatnonzero(own[i] == 3 * i)[0]) for i in range(24)]))

    start = reciprocal_rank()
    trainer = {"max_steps": 30, "per_device_train_batch_size": 8, "learning_rate": 3e-3,
               "save_strategy": "no"}  # fmt: skip
    fit(encoder, tiny.examples(24), Adore(), output=tmp_path, live=live, trainer=trainer)
    assert reciprocal_rank() > start
    assert vectors.tobytes() == before


@pytest.mark.thorough
def test_live_candidates_weigh_their_queries_and_resume(tiny: ModuleType, tmp_path: Path) -> None:
    ends = []
    for name, weights in (("plain", (1.0,)), ("other", (1.0, 0.0)), ("plain", (1.0,))):
        encoder, live, _ = live_job(tiny)
        examples = [
            replace(e, weight=weights[n % len(weights)]) for n, e in enumerate(tiny.examples(24))
        ]
        trainer = job(tiny)["trainer"]
        for step in (4, 6, 8, 9):
            shutil.rmtree(tmp_path / name / f"checkpoint-{step}", ignore_errors=True)
        report = fit(encoder, examples, Adore(), output=tmp_path / name, live=live, trainer=trainer)
        ends.append(tiny.weights_of(encoder))
    assert report.resumed_step == 2
    plain, other, resumed = ends
    assert all(torch.equal(plain[name], resumed[name]) for name in plain)
    assert not all(torch.equal(plain[name], other[name]) for name in plain)


def test_a_query_without_indexed_positives_is_named(tiny: ModuleType, tmp_path: Path) -> None:
    encoder, live, _ = live_job(tiny)
    live.relevant = {**live.relevant, "q3": {}}
    with pytest.raises(DataError, match="'q3': none of its relevant documents"):
        fit(encoder, tiny.examples(24), Adore(), output=tmp_path, live=live)
    with pytest.raises(ConfigError, match="depth"):
        LiveCandidates(live.index, live.gather, {}, depth=1)
    with pytest.raises(ConfigError, match="live"):
        fit(tiny.Cross(), tiny.examples(4), Adore(), output=tmp_path, live=live)
