"""Every problem of a config at once: each is noted, mended in a copy, and the checks go again.

A check raises at its first problem. So that the others are found too, the key it names is taken
out, or replaced by one that works, and what follows from that alone is not reported.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sluice.encoders.foundation.errors import SluiceError
from sluice.encoders.model_files.locate import (
    hub_reachable,
    is_published,
    local_folder,
    model_folder,
)
from sluice.encoders.model_files.registry import opener_of
from sluice.encoders.table import KNOWN, ROUTED, USUAL, USUAL_RANKER
from sluice.retrieval.config.component_types import EXAMPLES as SOURCES, Section
from sluice.retrieval.config.names import Role
from sluice.retrieval.config.reading import find_own_modules, messages
from sluice.retrieval.config.sections import (
    ExperimentConfig,
    TrainConfig,
    TrainingSection,
    TuneConfig,
)
from sluice.retrieval.datasets.beir import LooseFiles
from sluice.retrieval.datasets.dataset import load_dataset
from sluice.retrieval.datasets.source import find_split
from sluice.retrieval.experiments.checks import SECTIONS, check_experiment
from sluice.retrieval.experiments.reuse import models_in, section_names
from sluice.retrieval.experiments.suites.suite import beir_datasets, is_suite
from sluice.retrieval.experiments.tuning.experiment import check_tuning
from sluice.retrieval.pipelines.table import STORED
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.training_data.files.corpus_examples import sees_queries
from sluice.training.losses import USUAL as USUAL_LOSS
from sluice.training.rules import BrokenRules

# Types whose `model` is loaded.
LOADED = (*(name for name, each in KNOWN.items() if each.model == "network"), STORED)


def models(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the places and names of the models that a config loads, those it trains left out."""
    sections: list[tuple[str, Any]] = [*trainings(config)]
    rerankers: Collection[str] = ()
    if isinstance(config, ExperimentConfig):
        rerankers = config.rerankers
        sections += [(f"retrievers.{name}.", each) for name, each in config.retrievers.items()]
        sections += [(f"rerankers.{name}.", each) for name, each in config.rerankers.items()]
    for place, section in sections:
        for each in models_in(section, place):
            judges = rerankers if each.role is Role.JUDGE else ()
            if each.value not in (*judges, *trained_here(config)):
                yield each.where, each.value


def trained_here(config: Any) -> Mapping[str, TrainingSection]:
    """Return the training runs of an experiment by the names of their models."""
    return config.train if isinstance(config, ExperimentConfig) else {}


def trainings(config: Any) -> Iterator[tuple[str, TrainingSection]]:
    """Yield the training runs of a config and their places, which end in a dot."""
    if isinstance(config, TrainConfig):
        yield "", config
    for name, section in trained_here(config).items():
        yield f"train.{name}.", section


def missing_models(config: Any, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each model that is neither here nor on a hub that can be reached."""
    seen = set()
    for place, name in models(config):
        if name in seen:
            continue
        seen.add(name)
        if local_folder(name) is not None or (hub_reachable() and not is_published(name)):
            continue
        try:
            model_folder(name)
        except SluiceError as error:
            yield f"{place}: {error}"


def unopened_folders(config: Any, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each folder that a teacher, a judge or negatives name and cannot open."""
    for place, section in trainings(config):
        for each in section_names(section, place):
            alone = each.role is Role.JUDGE or each.key in ("teacher", "teachers")
            try:
                if each.role is Role.LISTS and Path(each.value).is_dir():
                    Retriever.open(each.value).let_go()
                elif alone and (folder := local_folder(str(each.value))) is not None:
                    opener_of(folder)
            except SluiceError as error:
                yield f"{each.where}: {error}"


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


MOST = 60  # problems of one config
MODEL = "stand-in"
ENCODER = {"type": USUAL, "model": MODEL}
EXAMPLES = {"type": SOURCES["texts"]}  # by its class, of whose rows nothing is known
# What takes the place of a part that cannot be mended by leaving a key out. Towers of a folder may
# have any vectors: no index is wrong for them.
STAND_INS: Mapping[str, Any] = {
    "retrievers": {"encoder": {"type": ROUTED, "model": MODEL}},
    "rerankers": {"type": USUAL_RANKER, "model": MODEL},
    "train": {"encoder": ENCODER, "loss": USUAL_LOSS, "examples": EXAMPLES},
}
TOP: Mapping[str, Any] = {
    "dataset": "pydocs", "output": "runs/x", "encoder": ENCODER, "loss": USUAL_LOSS,
    "examples": EXAMPLES,
}  # fmt: skip


def kind_of(values: Mapping[str, Any]) -> type[Section]:
    """Return what a file describes: a tuning, one training run, or an experiment."""
    if "tune" in values:
        return TuneConfig
    return TrainConfig if "encoder" in values or "loss" in values else ExperimentConfig


def problems(values: Mapping[str, Any], file: Path | None = None) -> list[str]:
    """Return every problem of a config that can be known before any work; empty for a good one.

    Each begins with the key's path. ``file`` is the config's, beside which its own modules may be.
    """
    find_own_modules(values, file)
    mended = _Mended(values)
    for place, dataset in _datasets(values):
        mended.note_if_it_fails(partial(_look_at, dataset), place)
    if is_suite(mended.values.get("dataset")) or any("dataset" in p for p in mended.removed):
        mended.values["dataset"] = TOP["dataset"]
    config = mended.settled(_check)
    if config is not None:
        for check in (missing_models, unopened_folders, missing_splits):
            mended.found += [text for text in check(config, values) if mended.is_new(text)]
    return mended.found


def first_dataset(named: Any) -> Any:
    """Return the first of several datasets, as a config names them."""
    return next((dataset for _, dataset in _datasets({"dataset": named})), named)


def _datasets(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the datasets of a config with their places; what is not one is left to the schema."""
    named = values.get("dataset")
    if isinstance(named, list):
        every = [(f"dataset[{place}]", each) for place, each in enumerate(named)]
    else:
        every = [("dataset", named)]
    for place, each in every:
        if isinstance(each, str) and each.startswith("beir:"):
            yield from ((place, one["dataset"]) for one in beir_datasets(each))
        elif isinstance(each, (str, Mapping)):
            yield place, each


def _look_at(dataset: Any) -> None:
    """Open a dataset, and files of the user's own as far as their first rows."""
    source = load_dataset(dataset, None).source
    if isinstance(source, LooseFiles):
        _ = source.described


def _check(config: Section) -> None:
    """Raise the first problem of a config whose keys and values fit the sections."""
    if isinstance(config, TrainConfig):
        from sluice.retrieval.jobs import check_train

        check_train(config)
    elif isinstance(config, ExperimentConfig):
        check_experiment(config)
        if isinstance(config, TuneConfig):
            check_tuning(config)


class _Mended:
    """A copy of a config's values that is mended while its problems are found."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = copy.deepcopy(dict(values))
        self.found: list[str] = []
        self.removed: set[str] = set()  # the places that were mended

    def settled(self, check: Callable[[Section], None]) -> Any:
        """Mend until the checks pass, and return the config; None if they never do."""
        for _ in range(MOST):
            kind = kind_of(self.values)
            try:
                config = kind.model_validate(self.values)
            except ValidationError as error:
                texts = messages(error.errors(), kind)
                self.found += [text for text in texts if self.is_new(text)]
                for text in texts:
                    if not self._renamed(text):
                        self._mend(text.partition(": ")[0])
                continue
            try:
                check(config)
            except SluiceError as error:
                texts = [str(error), *(error.others if isinstance(error, BrokenRules) else ())]
                if not any([self._note(text) for text in texts]):
                    return None
                continue
            return config
        return None

    def note_if_it_fails(self, check: Callable[[], object], place: str) -> None:
        """Note the problem that a check raises, at this place unless it names one itself."""
        try:
            check()
        except SluiceError as error:
            text = str(error)
            self.found.append(text if text.startswith(place) else f"{place}: {text}")
            self.removed.add(place)

    def is_new(self, text: str) -> bool:
        """Return whether a problem is one of the config, not of what was mended in it."""
        place = text.partition(": ")[0]
        if MODEL in text or (place.startswith("pipelines.") and self.removed & {*SECTIONS}):
            return False
        for removed in self.removed:
            if removed == place or removed.startswith((f"{place}.", f"{place}[")):
                return False
            above, _, key = removed.rpartition(".")
            if place.startswith(f"{above}.") and above:
                if key == "encoder" and "encoder" in text:
                    return False  # about the encoder that stands in
                if re.search(rf"\b{re.escape(key)}: ", text.removeprefix(f"{place}: ")):
                    return False  # about the default of a key that was taken out
            section, _, name = removed.partition(".")
            if section in ("pipelines", *STAND_INS) and "." not in name:
                if place.startswith(f"{removed}.") and "encoder" in text:
                    return False  # about the encoder that stands in
                quoted = re.search("'([^']*)'", text)
                if section == "pipelines" and quoted is not None and quoted[1] == name:
                    return False  # its name is unknown because it was taken out
        return True

    def _note(self, text: str) -> bool:
        """Note a problem and mend its place; return whether anything could be mended."""
        if self.is_new(text):
            self.found.append(text)
        place = text.partition(": ")[0]
        keys = _keys(self.values, place)
        inside, quoted = _value(self.values, keys), re.search("'([^']*)'", text)
        if isinstance(inside, list) and len(inside) > 1 and quoted and quoted[1] in inside:
            inside.remove(quoted[1])  # one of several measures
            return True
        return self._renamed(text) or self._mend(place)

    def _renamed(self, text: str) -> bool:
        """Give a misspelt key the name that was meant; return whether there was one to give."""
        place, _, fault = text.partition(": ")
        keys, near = _keys(self.values, place), re.search(r"did you mean '(.*)'\?$", fault)
        if not fault.startswith("unknown key") or near is None or not keys:
            return False
        section = _value(self.values, keys[:-1])
        if not place.endswith(str(keys[-1])) or near[1] in section:
            return False
        section[near[1]] = section.pop(keys[-1])
        return True

    def _mend(self, place: str) -> bool:
        keys = _keys(self.values, place)
        rest = place.removeprefix(".".join(map(str, keys))).lstrip(".")
        if not keys and rest in TOP and rest not in self.removed:  # a key that is missing
            self.values[rest] = copy.deepcopy(TOP[rest])
            self.removed.add(rest)
            return True
        if not keys:
            return False
        mended = ".".join(map(str, keys))
        section, *inside = keys
        if section in STAND_INS and inside:
            return self._mend_part(mended, section, inside, rest)
        again = mended in self.removed or bool(rest)
        self.removed.add(mended)
        if len(keys) == 1 and section in TOP:
            if self.values[section] == TOP[section]:
                return False
            self.values[section] = copy.deepcopy(TOP[section])
            return True
        if section in TOP and again:
            self.values[section] = copy.deepcopy(TOP[section])
            return True
        del _value(self.values, keys[:-1])[keys[-1]]
        return True

    def _mend_part(self, place: str, section: str, inside: list[Any], rest: str) -> bool:
        """Mend as little of a retriever, reranker or training run as is wrong in it.

        ``inside`` are the keys within the section, ``rest`` what the message names below them.
        """
        name, *below = inside
        stand_in, part = STAND_INS[section], self.values[section][name]
        again = place in self.removed
        self.removed.add(place)
        key = below[0] if below else rest.partition(".")[0]
        of_part = len(below) < 2 and isinstance(stand_in.get(key), Mapping)
        if of_part and isinstance(part, dict) and not again:
            part[key] = copy.deepcopy(stand_in[key])
            self.removed.add(f"{section}.{name}.{key}")
        elif below and not again:
            del _value(part, below[:-1])[below[-1]]
        else:
            return self._replaced(section, name)
        return True

    def _replaced(self, section: str, name: str) -> bool:
        """Put the stand-in in a part's place; return whether it was not there yet."""
        if self.values[section][name] == STAND_INS[section]:
            return False
        self.values[section][name] = copy.deepcopy(STAND_INS[section])
        self.removed.add(f"{section}.{name}")
        return True


def _value(values: Any, keys: list[Any]) -> Any:
    """Return what lies at the end of keys."""
    for key in keys:
        values = values[key]
    return values


def _keys(values: Any, place: str) -> list[Any]:
    """Return the keys that lead to a place, as far as it exists; names may have dots in them."""
    keys: list[Any] = []
    rest = place.replace("[", ".").replace("]", "")
    while rest:
        if isinstance(values, list):
            head, _, after = rest.partition(".")
            if not head.isdigit() or int(head) >= len(values):
                break
            key: Any = int(head)
        elif isinstance(values, Mapping):
            fitting = [each for each in values if f"{rest}.".startswith(f"{each}.")]
            if not fitting:
                break
            key = max(fitting, key=lambda each: len(str(each)))
            after = rest[len(str(key)) :].lstrip(".")
        else:
            break
        keys.append(key)
        values, rest = values[key], after
    return keys
