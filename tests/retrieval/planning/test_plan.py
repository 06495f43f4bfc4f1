"""What a config would do: its steps, what they rest on, and what is there already."""

import re
from pathlib import Path
from typing import Any

import pytest
from small_world import write_beir

from sluice.retrieval import jobs
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.planning.plan import Step, plan
from sluice.retrieval.planning.rates import Rates, training_size


@pytest.fixture
def values(
    tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    # Another test may have encoded the same texts with the same model: nothing would be measured.
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path_factory.mktemp("cache")))
    model = {"type": "dense", "model": str(bert), "document_length": 16}
    return {
        "dataset": str(write_beir(tmp_path / "world")),
        "output": "out",
        "train": {
            "ft": {"encoder": model, "loss": "info_nce", "trainer": {"max_steps": 2}},
            "sparse": {"encoder": {"type": "splade", "model": "ft", "start": True},
                       "loss": "info_nce", "trainer": {"num_train_epochs": 2}},
        },
        "retrievers": {
            "bm25": "bm25",
            "base": {"encoder": model},
            "tuned": {"encoder": {"type": "dense", "model": "ft"}},
            "splade": {"encoder": {"type": "splade", "model": "sparse"}, "index": "inverted"},
        },
        "rerankers": {"cross": {"type": "cross_encoder", "model": str(bert)}},
        "pipelines": {"bm25": "bm25", "both": "bm25 | base", "cascade": "both >> cross(depth=7)"},
        "evaluate": {"latency_queries": 0},
    }  # fmt: skip


def test_an_experiment_step_by_step(values: dict[str, Any], tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    found = plan(values)
    assert sorted(tmp_path.rglob("*")) == before
    steps = {step.name: step for step in found.steps}
    assert list(steps) == [
        "train ft", "train sparse", "index bm25", "index base", "index tuned", "index splade",
        "evaluate bm25", "evaluate both", "evaluate cascade",
    ]  # fmt: skip
    assert not any(step.reused for step in found.steps)
    assert all(step.seconds is not None and step.seconds >= 0 for step in found.steps)
    assert steps["train ft"].what.startswith("2 steps of 32 examples")
    assert "measured" in steps["train ft"].basis
    assert steps["train ft"].disk_bytes > 0
    assert steps["train ft"].passing_bytes == 6 * steps["train ft"].disk_bytes  # two checkpoints
    assert " MB until it ends), " in steps["train ft"].costs
    assert steps["train ft"].memory_bytes > 10**7
    assert (steps["index bm25"].basis, steps["index base"].basis) == ("assumed", "measured")
    assert "40 to encode (rate of " in steps["index tuned"].what
    queries = len(load_dataset(values["dataset"]).queries)
    assert f"{7 * queries} pairs to rerank" in steps["evaluate cascade"].what
    assert re.search(r"\nin all: about .* GB of memory at the peak\n", str(found))
    assert str(found).endswith(
        "note: times are estimates for this machine when it does nothing else"
    )


def test_steps_without_measuring(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [step.name for step in plan(values).steps]

    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("a model is loaded")

    monkeypatch.setattr("sluice.retrieval.planning.rates.make_encoder", load)
    monkeypatch.setattr("sluice.retrieval.experiments.experiment.make_encoder", load)
    monkeypatch.setattr("sluice.retrieval.experiments.output.retrievers.make_encoder", load)
    found = plan(values, measure=False)
    steps = {step.name: step for step in found.steps}
    assert list(steps) == measured
    assert steps["train ft"].costs == "time unknown"
    assert steps["train ft"].what.startswith("2 steps of 32 examples")
    assert steps["index base"].what == "dense retriever, 40 documents"
    assert steps["index bm25"].basis == "assumed"
    assert steps["evaluate cascade"].seconds is None
    assert "note: nothing was measured" in str(found)
    assert "in all: at least " in str(found)


def test_rates_of_training(values: dict[str, Any]) -> None:
    """SPLADE is measured with a head of its own, and activations are counted."""
    rates = Rates(load_dataset(values["dataset"], None))
    dense = rates.of_training(values["train"]["ft"]["encoder"])
    sparse = rates.of_training(
        {**values["train"]["ft"]["encoder"], "type": "splade", "start": True}
    )
    assert sparse.parameters > dense.parameters
    assert sparse.activation_bytes > dense.activation_bytes > 0
    assert dense.training_memory_bytes(64) > dense.training_memory_bytes(32) > dense.held_bytes
    assert rates.of(values["train"]["ft"]["encoder"]).trained == 0.0


def test_what_is_there_is_reused(values: dict[str, Any]) -> None:
    del values["train"]["sparse"], values["retrievers"]["splade"]
    values["pipelines"] = {"bm25": "bm25"}
    jobs.index(values, only=["bm25"])
    jobs.run({**values, "retrievers": {"bm25": "bm25"}, "rerankers": {}, "train": {}})
    found = plan(values)
    reused = {step.name for step in found.steps if step.reused}
    assert reused == {"index bm25", "evaluate bm25"}
    assert "there already, reused" in str(found)


def test_one_training_run(values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("query,positive\n" + "a,b\n" * 64)
    training = {"output": "alone", **values["train"]["ft"], "examples": "pairs.csv"}
    training["trainer"] = {"num_train_epochs": 3, "gradient_accumulation_steps": 2}
    found = plan(training)
    assert found.title == "one training run on pairs of its own, into alone"
    (step,) = found.steps
    assert step.what.startswith("3 steps of 64 examples (64 examples in all)")
    assert not (tmp_path / "alone").exists()
    mined = {"type": "mined", "retriever": {"encoder": "bm25", "index": "inverted"}}
    del training["examples"]
    training |= {"dataset": values["dataset"], "negatives": mined}
    assert plan(training, measure=False).steps[0].name == "train"  # a name alone is an encoder too


def test_of_several_datasets_the_first(values: dict[str, Any]) -> None:
    values = {"dataset": [values["dataset"], "pydocs"], "retrievers": {"bm25": "bm25"}}
    found = plan(values)
    assert found.title.startswith("an experiment on world")
    assert "the first is planned" in found.notes[0]


def test_sizes(values: dict[str, Any]) -> None:
    from sluice.retrieval.config.sections import DevSection, TrainingSection

    dataset = load_dataset(values["dataset"], None)
    section = TrainingSection(**values["train"]["ft"])
    size = training_size(section, dataset, 13)
    assert (size.steps, size.batch) == (2, 32)
    assert size.examples is not None
    mined = section.model_copy(update={"negatives": {"type": "mined", "per_query": 3}})
    size = training_size(mined, dataset, 13)
    assert (size.texts, size.held, size.evaluated) == pytest.approx((32 * 4.3, 32 * 4.3, 0))
    cached = section.model_copy(update={
        "trainer": {"max_steps": 20, "gradient_accumulation_steps": 2},
        "gradient_cache": 8,
        "evaluate": DevSection(every=10, documents=30, queries=10),
    })  # fmt: skip
    size = training_size(cached, dataset, 13)
    assert (size.texts, size.held, size.evaluated) == pytest.approx((64 * 1.3, 8, 2 * 33))
    texts = section.model_copy(update={"examples": {"type": "texts"}, "trainer": {}})
    assert training_size(texts, dataset, 13).steps == 2
    assert Step("x", "y", None).costs == "time unknown"
