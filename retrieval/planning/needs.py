"""What a config needs that may not exist: models that are not here, splits without judgements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.encoders.foundation.errors import SluiceError
from sluice.encoders.model_files.locate import hub_reachable, local_folder, model_folder
from sluice.encoders.table import KNOWN
from sluice.retrieval.config.components import towers_in
from sluice.retrieval.config.sections import (
    ExperimentConfig,
    RetrieverSection,
    TrainConfig,
    TrainingSection,
    TuneConfig,
)
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.datasets.source import find_split
from sluice.retrieval.pipelines.table import STORED
from sluice.retrieval.training_data.example_sources import example_source
from sluice.retrieval.training_data.files.corpus_examples import sees_queries

# Types whose `model` is loaded.
LOADED = (*(name for name, each in KNOWN.items() if each.model == "network"), STORED)


def models(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the places and names of the models that a config loads, those it trains left out."""
    for place, spec in encoders(config):
        for side, each in {"": spec, **towers_in(spec)}.items():
            name = each.get("model")
            if each.get("type") in LOADED and isinstance(name, str):
                where = f"{place}.{side}.model" if side else f"{place}.model"
                if name not in trained_here(config) and each.get("start") in (None, True):
                    yield where, name
    for place, section in trainings(config):
        for name in example_source(section.examples).models:
            yield f"{place}examples.model", name


def trained_here(config: Any) -> Mapping[str, TrainingSection]:
    """Return the training runs of an experiment by the names of their models."""
    return config.train if isinstance(config, ExperimentConfig) else {}


def trainings(config: Any) -> Iterator[tuple[str, TrainingSection]]:
    """Yield the training runs of a config and their places, which end in a dot."""
    if isinstance(config, TrainConfig):
        yield "", config
    for name, section in trained_here(config).items():
        yield f"train.{name}.", section


def encoders(config: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the encoders and rerankers of a config, and those of inline retrievers."""
    for place, section in trainings(config):
        yield f"{place}encoder", section.encoder
        lists = (section.negatives or {}).get("retriever")
        for number, each in enumerate(lists if isinstance(lists, list) else [lists]):
            if isinstance(each, Mapping):
                inner = RetrieverSection.model_validate(each)
                where = f"{place}negatives.retriever"
                yield f"{where}[{number}]" if isinstance(lists, list) else where, inner.encoder
    if isinstance(config, ExperimentConfig):
        for name, retriever in config.retrievers.items():
            yield f"retrievers.{name}.encoder", retriever.encoder
        for name, spec in config.rerankers.items():
            yield f"rerankers.{name}", spec


def missing_models(config: Any, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each model that is neither here nor on a hub that can be reached."""
    seen = set()
    for place, name in models(config):
        if name in seen:
            continue
        seen.add(name)
        if local_folder(name) is not None or hub_reachable():
            continue
        try:
            model_folder(name)
        except SluiceError as error:
            yield f"{place}: {error}"


def missing_splits(config: Any, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each split that a config needs and its dataset has not."""
    yield from _without_train(config)
    named = values.get("dataset")
    for dataset in named if isinstance(named, list) else [named]:
        if not isinstance(dataset, (str, Mapping)):
            continue
        try:
            splits = load_dataset(dataset, None).splits
        except SluiceError:
            continue  # reported already
        listed = ", ".join(splits) or "no split with judgements"
        for place, section in trainings(config):
            if (
                section.datasets is None
                and section.examples is None
                and sees_queries(section)
                and "train" not in splits
            ):
                yield (
                    f"{place}examples: the dataset has {listed}, and training needs train; give "
                    "examples of your own: examples: pairs.csv"
                )
            spec = section.examples or {}
            if spec.get("type") == "indexing" and spec.get("judgements") and "train" not in splits:
                yield (
                    f"{place}examples.judgements: the dataset has {listed}, and judgements to "
                    "learn are those of train; leave judgements out"
                )
        if not isinstance(config, ExperimentConfig):
            continue
        evaluated = config.evaluate.split
        searches = bool(config.pipelines or config.retrievers)
        if splits and searches and find_split(evaluated, splits) is None:
            yield f"evaluate.split: the dataset has {listed}, not {evaluated!r}"
        tuning = config.tune if isinstance(config, TuneConfig) else None
        if tuning is not None and find_split(tuning.split, [*splits, *_held_out(splits)]) is None:
            yield f"tune.split: the dataset has {listed}, not {tuning.split!r}"


def _without_train(config: Any) -> Iterator[str]:
    """Yield a problem for each of a training run's datasets that has no train split."""
    for place, section in trainings(config):
        if section.examples is not None or not sees_queries(section):
            continue
        for number, each in enumerate(section.datasets or []):
            try:
                splits = load_dataset(each, None).splits
            except SluiceError as error:
                yield f"{place}datasets[{number}]: {error}"
                continue
            if "train" not in splits:
                yield (
                    f"{place}datasets[{number}]: it has {', '.join(splits) or 'no split'}, and "
                    "training needs train; leave it out, or train on examples: corpus"
                )


def _held_out(splits: list[str]) -> list[str]:
    """Return the dev split that is held out of train where a dataset has none."""
    return ["dev"] if "train" in splits else []
