"""What a config would do, step by step: for how long, with how much memory and disk space.

Nothing is written. Models are loaded and read a few texts, to measure how fast they are here,
unless nothing is to be measured: the steps are the same then, and times are left open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from sluice.encoders.dense.experts.names import MEAN
from sluice.encoders.foundation.numbers import duration, plural
from sluice.encoders.model_files.layout import read_sidecar
from sluice.encoders.model_files.locate import is_published, local_folder
from sluice.encoders.table import KNOWN, USUAL
from sluice.encoders.tuning.learning import learning_of
from sluice.retrieval.config.components import START_KEY
from sluice.retrieval.config.sections import (
    CachedEncoding,
    ExperimentConfig,
    TrainConfig,
    TrainingSection,
    TuneConfig,
    checked,
)
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.evaluation.measures import depth_for, parse_measure
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.reuse import read_by
from sluice.retrieval.experiments.suites.suite import is_suite
from sluice.retrieval.experiments.system import is_saved
from sluice.retrieval.experiments.training.job import made_before
from sluice.retrieval.pipelines.expression import depths_in
from sluice.retrieval.planning.problems import LOADED, first_dataset, kind_of, models, trained_here
from sluice.retrieval.planning.rates import (
    CHECKPOINT,
    COUNTED_PER_SECOND,
    SEARCH_SECONDS,
    STARTED,
    Rates,
    training_size,
)

SHARED = ("type", "model", "query_length", "document_length", "max_length", "dtype", "device",
          "batch_tokens")  # fmt: skip
DEPTH = 100  # of a reranker that names none
RUN_BYTES = 20  # of a document in a compressed run
IDLE = "times are estimates for this machine when it does nothing else"
UNMEASURED = "nothing was measured: without --fast, times, memory and disk space are estimated"


class Step(NamedTuple):
    """One step of a plan; ``seconds`` is None where nothing says how long it takes.

    ``basis`` is what the time rests on: measured here, or assumed. ``disk_bytes`` stay,
    ``passing_bytes`` are needed beside them while the step runs.
    """

    name: str
    what: str
    seconds: float | None = 0.0
    basis: str = ""
    disk_bytes: int = 0
    memory_bytes: int = 0
    reused: bool = False
    passing_bytes: int = 0

    @property
    def costs(self) -> str:
        """The time, disk space and memory in words."""
        if self.reused:
            return "there already, reused"
        parts = ["time unknown" if self.seconds is None else f"about {duration(self.seconds)}"]
        if self.basis:
            parts[0] += f" ({self.basis})"
        if self.disk_bytes:
            more = f" (and {self.passing_bytes / 1e6:,.1f} MB until it ends)"
            parts.append(
                f"{self.disk_bytes / 1e6:,.1f} MB on disk{more if self.passing_bytes else ''}"
            )
        if self.memory_bytes:
            parts.append(f"{self.memory_bytes / 1e9:,.1f} GB of memory")
        return ", ".join(parts)


class Plan(NamedTuple):
    """The steps of a config, in their order, and notes about them."""

    title: str
    steps: list[Step]
    notes: list[str]

    def __str__(self) -> str:
        width = max((len(step.name) for step in self.steps), default=0)
        lines = [self.title]
        for number, step in enumerate(self.steps, 1):
            lines.append(f"  {number:>2}  {step.name.ljust(width)}  {step.what}")
            lines.append(f"      {' ' * width}  {step.costs}")
        left = [step for step in self.steps if not step.reused]
        known = sum(step.seconds or 0.0 for step in left)
        least = "at least " if any(step.seconds is None for step in left) else "about "
        if left:
            lines.append(
                f"in all: {least}{duration(known)}, "
                f"{sum(step.disk_bytes for step in left) / 1e6:,.1f} MB on disk, "
                f"{max(step.memory_bytes for step in left) / 1e9:,.1f} GB of memory at the peak"
            )
        else:
            lines.append("in all: everything exists already")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def plan(values: Mapping[str, Any], file: Path | None = None, *, measure: bool = True) -> Plan:
    """Return what a config without problems would do.

    Of several datasets the first is planned. Without ``measure`` no model is loaded. Raises what
    the verb itself would for a bad config.
    """
    named = values.get("dataset")
    notes = []
    if is_suite(named):
        values = {**values, "dataset": first_dataset(named)}
        notes.append("of several datasets the first is planned; the others come after it")
    config: Any = checked(values, kind_of(values))
    notes += [
        f"{place}: {name} is not on this machine"
        + (f": sluice model get {name}" if is_published(name) else " and would be downloaded")
        for place, name in models(config)
        if local_folder(name) is None
    ]
    notes.append(IDLE if measure else UNMEASURED)
    if isinstance(config, TrainConfig):
        trained = config.datasets[0] if config.datasets else config.dataset
        dataset = None if trained is None else load_dataset(trained, None)
        rates = Rates(dataset) if measure else None
        return Plan(_title(config, dataset), list(_training_steps(config, dataset, rates)), notes)
    dataset = load_dataset(config.dataset, None)
    rates = Rates(dataset) if measure else None
    return Plan(_title(config, dataset), list(_steps(config, dataset, file, rates)), notes)


def _title(config: Any, dataset: Dataset | None) -> str:
    kind = "a tuning" if isinstance(config, TuneConfig) else "an experiment"
    if isinstance(config, TrainConfig):
        kind = "one training run"
    if isinstance(config, TrainConfig) and config.datasets is not None:
        return f"{kind} on {plural(len(config.datasets), 'dataset')}, into {config.output}"
    if dataset is None:
        return f"{kind} on pairs of its own, into {config.output}"
    size = dataset.corpus.size
    documents = "" if size is None else f"{plural(size, 'document')}, "
    splits = ", ".join(dataset.splits) or "none"
    return f"{kind} on {dataset.name} ({documents}splits: {splits}), into {config.output}"


def _training_steps(
    config: TrainConfig, dataset: Dataset | None, rates: Rates | None
) -> Iterator[Step]:
    from sluice.retrieval.experiments.suites.training_jobs import training_job

    job = training_job(config)
    if made_before(job.model_path, job.keys.key):
        yield Step("train", f"the model in {job.model_path}", reused=True)
    else:
        yield _trained("train", config, dataset, rates, config)


def _steps(
    config: ExperimentConfig, dataset: Dataset, file: Path | None, rates: Rates | None
) -> Iterator[Step]:
    experiment = Experiment(config, file=file)
    for name, section in config.train.items():
        key = experiment.needs.keys(f"train.{name}").key
        if made_before(experiment.output / "models" / name, key):
            yield Step(f"train {name}", "its model", reused=True)
        else:
            yield _trained(f"train {name}", section, dataset, rates, config)
    estimates = Experiment(_with_base_models(config), file=file) if rates else None
    for name in config.retrievers:
        yield _indexed(name, experiment, estimates, dataset)
    if isinstance(config, TuneConfig):
        limit = plural(config.tune.queries, "query")
        yield Step("tune", f"pipelines on up to {limit} of {config.tune.split}", None)
    if experiment.systems and dataset.splits:
        yield from _evaluated(experiment, dataset, rates)


def _trained(
    name: str, section: TrainingSection, dataset: Dataset | None, rates: Rates | None, config: Any
) -> Step:
    size = training_size(section, dataset, config.seed)
    what = f"{size}, from {_base_model(config, section.encoder).get('model', 'scratch')}"
    spec = _measurable(config, section.encoder, training=True)
    if spec is None or rates is None:
        return Step(name, what, None)
    trainer = section.trainer
    rate = rates.of_training(spec, bf16=bool(trainer.get("bf16")))
    per_text = rate.trained + (rate.seconds if section.gradient_cache else 0.0)
    seconds = None
    if size.steps is not None:
        started = STARTED if START_KEY in spec else 0
        seconds = size.steps * size.texts * per_text + (size.evaluated + started) * rate.seconds
    saves = 0 if trainer.get("save_strategy") == "no" else 2
    return Step(
        name, what, seconds, "without mining; steps measured here", rate.model_bytes(),
        rate.training_memory_bytes(size.held), passing_bytes=rate.model_bytes(CHECKPOINT * saves),
    )  # fmt: skip


def _indexed(
    name: str, experiment: Experiment, estimates: Experiment | None, dataset: Dataset
) -> Step:
    """Return the step of a retriever; without ``estimates`` no encoder is loaded."""
    section = experiment.config.retrievers[name]
    kind = str(section.encoder.get("type"))
    if experiment.is_built(name):
        return Step(f"index {name}", f"{kind} retriever", reused=True)
    size = dataset.corpus.size
    if estimates is None and (not learning_of(kind).fitted or size is None):
        of = "" if size is None else f", {plural(size, 'document')}"
        return Step(f"index {name}", f"{kind} retriever{of}", None)
    base = section.encoder if estimates is None else estimates.config.retrievers[name].encoder
    if base.get("type") in LOADED and local_folder(str(base.get("model"))) is None:
        return Step(f"index {name}", f"{kind} retriever", None)
    cost = None if estimates is None else estimates.estimate(name)
    if cost is None:
        documents = size or sum(1 for _ in dataset.corpus)
        seconds = documents / COUNTED_PER_SECOND
        return Step(f"index {name}", f"{kind}, {plural(documents, 'document')}", seconds, "assumed")
    unit = "document" if section.passages is None else "passage"
    what = f"{kind}, {plural(cost.documents, unit)}, {cost.missing:,} to encode"
    takes = cost.seconds if cost.missing else 0.0
    if base != section.encoder:
        what += f" (rate of {base.get('model')})"
    return Step(
        f"index {name}", what, takes, "measured" if takes else "",
        cost.disk_bytes or 0, cost.memory_bytes or 0,
    )  # fmt: skip


def _evaluated(experiment: Experiment, dataset: Dataset, rates: Rates | None) -> Iterator[Step]:
    config = experiment.config
    split = dataset.with_split(config.evaluate.split)
    depth = depth_for([parse_measure(text) for text in config.evaluate.measures])
    queries = len(split.queries)
    timed = min(config.evaluate.latency_queries, queries)
    for name in experiment.systems:
        if is_saved(experiment, name, split, depth):
            yield Step(f"evaluate {name}", "its run", reused=True)
            continue
        kind = "pipelines" if name in config.pipelines else "retrievers"
        nodes = list(experiment.needs.closure(f"{kind}.{name}"))
        searched = {node.partition(".")[2] for node in nodes if node.startswith("retrievers.")}
        seconds: float | None = (queries + timed) * len(searched) * SEARCH_SECONDS
        if any(_writes(config.retrievers[each].encoder) for each in searched):
            seconds = None
        pairs = 0
        for node in dict.fromkeys(nodes):
            section, _, part = node.partition(".")
            if section != "rerankers":
                continue
            if read_by(config.rerankers[part]) is not None:  # vectors that are stored
                seconds = None if seconds is None else seconds + queries * SEARCH_SECONDS
                continue
            pairs += _depth_of(experiment, nodes, part)
            spec = _measurable(config, config.rerankers[part])
            if spec is None or rates is None or seconds is None:
                seconds = None
            else:
                seconds += (
                    (queries + timed) * _depth_of(experiment, nodes, part) * rates.of(spec).seconds
                )
        what = f"{queries:,} queries of {config.evaluate.split}"
        what += f", {queries * pairs:,} pairs to rerank" if pairs else ""
        basis = "scoring measured, searching assumed" if pairs and rates else "assumed"
        basis = "" if seconds is None else basis
        yield Step(f"evaluate {name}", what, seconds, basis, queries * depth * RUN_BYTES)


def _writes(encoder: Mapping[str, Any]) -> bool:
    """Return whether a language model writes an encoder's queries, for seconds if it is large."""
    known = KNOWN.get(str(encoder.get("type")))
    return known is not None and known.form in ("ngrams", "identifiers")


def _depth_of(experiment: Experiment, nodes: list[str], scorer: str) -> int:
    """Return how many candidates of a query a reranker scores in some pipelines."""
    expressions = [
        experiment.config.pipelines[name]
        for name in dict.fromkeys(node.partition(".")[2] for node in nodes)
        if name in experiment.config.pipelines
    ]
    found = [depths_in(text, scorer, DEPTH) for text in expressions]
    return sum(sum(depths) for depths in found) or DEPTH


def _with_base_models(config: ExperimentConfig) -> ExperimentConfig:
    """Return the config with the models that training starts from, in place of those it makes."""
    changed = {}
    for name, section in config.retrievers.items():
        encoder = _measurable(config, section.encoder)
        if encoder is not None and encoder != section.encoder:
            uncached = replace(section.encoding or CachedEncoding(), cache=None)
            update = {"encoder": encoder, "encoding": uncached, "index": None, "search": {}}
            changed[name] = section.model_copy(update=update)
    return config.model_copy(update={"retrievers": {**config.retrievers, **changed}})


def _base_model(config: Any, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a component with the model that it is trained from in the end, not made here.

    ``start`` is that of the training run that made the head, if one did.
    """
    trained = trained_here(config)
    base = dict(spec)
    seen = set()
    while base.get("model") in trained and base["model"] not in seen:
        seen.add(base["model"])
        before = trained[base["model"]].encoder
        base["model"] = before.get("model")
        if START_KEY in before:
            base[START_KEY] = before[START_KEY]
    return base


def _measurable(
    config: Any, spec: Mapping[str, Any], *, training: bool = False
) -> dict[str, Any] | None:
    """Return a component that can be loaded now and is about as fast; None if there is none.

    SPLADE that begins without a head is measured as a dense encoder of the same model, but in
    training with a head that is made for it.
    """
    base = _base_model(config, spec)
    if base.get("type") not in LOADED or not isinstance(base.get("model"), str):
        return None
    known = KNOWN.get(str(base["type"]))
    if known is not None and known.form == "identifiers":  # which are made in training
        return None
    if known is not None and known.scores and known.writes:  # for seconds if it is large
        return None
    if known is not None and base["model"] != spec["model"]:  # it lacks what comes by training
        if known.untrained:
            return None
        if known.heads:
            base = {key: value for key, value in base.items() if key in SHARED} | {"type": USUAL}
    folder = local_folder(str(base["model"]))
    if folder is None or isinstance(base.get(START_KEY), Mapping):
        return None
    if known is not None and known.on_dense:
        return _on_dense(base, folder)
    starts = known is not None and known.starts
    if START_KEY not in base or (training and starts):
        return dict(base)
    shared = {key: value for key, value in base.items() if key in SHARED}
    return {**shared, "type": USUAL} if starts else shared


def _on_dense(base: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return what measures an encoder that is made of a dense one: that, or its saved folder."""
    shared = {key: value for key, value in base.items() if key in SHARED}
    noted = read_sidecar(folder)
    if noted.get("type") != base["type"]:
        return {**shared, "type": USUAL}
    named = isinstance(noted.get("experts"), Mapping) and noted["experts"].get("names")
    return {**shared, "expert": MEAN} if named else shared
