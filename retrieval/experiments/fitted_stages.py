"""Fits an experiment's open stages on dev queries, never those of the test; keeps the choice.

``fitted(...)`` number n of pipeline p is kept in ``<output>/fitted/p.json``, from the second on in
``p~n.json``, in the form that ``fitted=`` reads. It is fitted anew when its parts, the dev queries
or the options change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.files import fingerprint_of, read_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, SluiceError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.foundation.provenance import provenance
from sluice.retrieval.config.file_keys import path_contents
from sluice.retrieval.config.sections import ExperimentConfig
from sluice.retrieval.datasets.dataset import Dataset, training_splits
from sluice.retrieval.datasets.source import Qrels, find_split
from sluice.retrieval.experiments.output.folder import RETRIEVERS
from sluice.retrieval.experiments.reuse import Dependencies
from sluice.retrieval.experiments.training.tested_queries import untested
from sluice.retrieval.pipelines.expression import (
    FITTED,
    PROBABILITY,
    count_calls,
    count_open,
    texts_in,
)
from sluice.retrieval.pipelines.fitting.choice import FEWEST, QueryFit, Unfitted, fit_open, is_open
from sluice.retrieval.pipelines.fitting.fitter import QueryFitter, closed, read_fit
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.candidate_lists import asked
from sluice.retrieval.retrievers.folder import HEAD, read_head
from sluice.retrieval.training_data.files.corpus_examples import too_few_to_hold_out

log = logging.getLogger("sluice")


@dataclass(frozen=True, slots=True)
class FittingQueries:
    """The judged queries to fit on, perhaps none; ``dataset`` is opened at their split if any.

    ``level`` is the least grade that is relevant, ``contents`` a hash of all that.
    """

    dataset: Dataset
    qrels: Qrels
    split: str | None
    level: int
    contents: str

    @property
    def shown(self) -> str:
        """How many there are, in words."""
        return plural(len(self.qrels), "dev query") if self.qrels else "no judgements"


def fitting_queries(
    dataset: Callable[[str | None], Dataset], evaluated: str, seed: int
) -> FittingQueries:
    """Return the queries of dev; without dev the tenth of train that training never sees.

    A dataset with neither has none, and neither has one whose dev judges no document relevant.
    Dev queries that occur in the evaluated split are left out. Raises ``ConfigError`` where dev
    is the evaluated split, or more than ``STRAYS`` of its queries are tested ones, and
    ``DataError`` for judgements that cannot be read.
    """
    data = dataset(None)
    source = find_split("dev", data.splits) or find_split("train", data.splits)
    if source is None:
        return _none(data, "neither a dev nor a train split has judgements")
    if source == find_split(evaluated, data.splits):
        raise ConfigError(
            f"pipelines: fitted(...) would be fitted on {source}, on which the experiment is "
            "evaluated; fitting on the test is refused: choose another evaluate.split, or give "
            "the dataset a dev split"
        )
    if source == "train" and too_few_to_hold_out(data):
        return _none(data, "train has too few queries to hold some out of training")
    dev = data.with_split(source) if source != "train" else training_splits(data, seed)[1]
    judged = {
        query: grades
        for query, grades in dev.qrels.items()
        if query in dev.queries and any(grade >= data.level for grade in grades.values())
    }
    qrels = untested(dev, judged, dataset, evaluated)
    if not qrels:
        return _none(data, f"the judgements of {source} name no relevant document")
    if len(qrels) < FEWEST:
        log.warning(
            "%s: %s to fit on; expected %d or more: settings for all collections are taken",
            data.name, plural(len(qrels), "judged query"), FEWEST,
        )  # fmt: skip
    contents = fingerprint_of(
        sorted((query, dev.queries[query]) for query in qrels),
        sorted((query, sorted(grades.items())) for query, grades in qrels.items()),
        data.level,
    )
    split = source if source != "train" else "train, a tenth held out"
    return FittingQueries(dev, qrels, split, data.level, contents)


def _none(data: Dataset, why: str) -> FittingQueries:
    log.warning("%s: nothing to fit on (%s)", data.name, why)
    return FittingQueries(data, {}, None, data.level, fingerprint_of("none"))


FOLDER = "fitted"
VERSION = 1


class FittedStages:
    """What the pipelines of one experiment leave open: chosen on dev once, or read.

    ``dataset`` opens the experiment's dataset at a split. With ``only_open`` nothing is fitted:
    settings that are missing, or of another recipe, are an ``IndexFormatError``.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        output: Path,
        needs: Dependencies,
        dataset: Callable[[str | None], Dataset],
        *,
        only_open: bool,
    ) -> None:
        self.config, self.output, self.needs = config, output, needs
        self.dataset, self.only_open = dataset, only_open
        self._fitter: QueryFitter | None = None

    def closed(self, pipeline: str, stage: Stage) -> Stage:
        """Return the stage of a pipeline with all that is open in it fitted."""
        return fit_open(stage, _OfPipeline(self, pipeline)) if is_open(stage) else stage

    def check(self) -> None:
        """Raise, before any work, for dev queries that nothing may be fitted on.

        Without enough of them what is chosen has usual settings, but a probability has none.
        """
        for name, text in self.config.pipelines.items():
            where = f"pipelines.{name}"
            count, others = self._count(name), count_calls(text, FITTED, where=where)
            if count and len(self.queries.qrels) < FEWEST and count > others:
                raise ConfigError(
                    f"{where}: {PROBABILITY}=True is fitted on {FEWEST} judged dev queries or "
                    f"more, and {self.queries.dataset.name} has {len(self.queries.qrels)}; give "
                    f"the dataset a dev split, or {PROBABILITY}='p.json', the file of another fit"
                )

    def file(self, pipeline: str, number: int) -> Path:
        """Return where the settings of a pipeline's ``number``th open stage are kept, from 1."""
        return self.output / FOLDER / f"{pipeline}{'' if number == 1 else f'~{number}'}.json"

    def state(self, pipeline: str) -> list[Any]:
        """Return what changes with the fits that a pipeline is made of; empty without any."""
        states = []
        for name in self._pipelines_of(pipeline):
            for number in range(1, self._count(name) + 1):
                file = self.file(name, number)
                states.append((self.key(name, number), path_contents(str(file))))
        return states

    def chosen(self, pipeline: str) -> Iterator[QueryFit]:
        """Yield what was chosen for a pipeline's own open stages, as far as it is there."""
        for number in range(1, self._count(pipeline) + 1):
            file = self.file(pipeline, number)
            if file.exists():
                yield read_fit(file)

    @cached_property
    def queries(self) -> FittingQueries:
        """The dev queries to fit on."""
        return fitting_queries(self.dataset, self.config.evaluate.split, self.config.seed)

    def key(self, pipeline: str, number: int) -> str:
        """Return a hash of all that decides the settings of an open stage."""
        node = f"pipelines.{pipeline}"
        parts = dict.fromkeys(self.needs.closure(node))
        names = [part.partition(".")[::2] for part in parts]
        heads = [self.output / RETRIEVERS / name for kind, name in names if kind == "retrievers"]
        models = [self.output / "models" / name for kind, name in names if kind == "train"]
        texts = [self.config.pipelines[name] for kind, name in names if kind == "pipelines"]
        files = {each for text in texts for each in texts_in(text, where=node)}
        return fingerprint_of(
            VERSION,
            number,
            self.needs.keys(node).key,
            self.queries.contents,
            [_state(head) for head in heads if (head / HEAD).exists()],
            [path_contents(str(m / MANIFEST)) for m in models if (m / MANIFEST).exists()],
            sorted((each, path_contents(each)) for each in files),
        )

    def saved(self, pipeline: str, number: int) -> QueryFit | None:
        """Return the kept settings if they are of these parts and queries."""
        file, node = self.file(pipeline, number), f"pipelines.{pipeline}"
        origin = _origin(file)
        if self.only_open:
            if origin.get("recipe") != self.needs.recipe(node):
                state = "was made with other settings" if file.exists() else "does not exist"
                raise IndexFormatError(
                    f"{file}: {state}, and searching fits nothing; run `sluice run` with the "
                    "experiment's YAML file to make it"
                )
        elif origin.get("key") != self.key(pipeline, number):
            return None
        return read_fit(file)

    def fitted(self, pipeline: str, number: int, stage: Unfitted, first: Stage | None) -> QueryFit:
        """Choose the settings of an open stage and keep them."""
        node, queries = f"pipelines.{pipeline}", self.queries
        log.info("%s: fitting %s on %s", pipeline, stage.name, queries.shown)
        fit = self._on(stage if first is None else first).choose(stage, first)
        origin = {
            "pipeline": pipeline,
            "expression": self.config.pipelines[pipeline],
            "dataset": queries.dataset.name,
            "split": queries.split,
            "seed": self.config.seed,
            "recipe": self.needs.recipe(node),
            "key": self.key(pipeline, number),
            **{k: v for k, v in provenance({}).items() if k not in ("config", "seconds")},
        }
        fit.with_origin(origin).save(self.file(pipeline, number))
        log.info("%s: %s", pipeline, fit.why)
        return fit

    def _on(self, stage: Stage) -> QueryFitter:
        """Return the fitter on dev; ``stage`` has the documents that queries may be."""
        if self._fitter is None:
            dev = self.queries
            queries = asked(dev.dataset, stage) if dev.qrels else {}
            self._fitter = QueryFitter(queries, dev.qrels, level=dev.level, seed=self.config.seed)
        return self._fitter

    def _count(self, pipeline: str) -> int:
        text = self.config.pipelines[pipeline]
        return count_open(text, where=f"pipelines.{pipeline}")

    def _pipelines_of(self, pipeline: str) -> list[str]:
        if pipeline not in self.config.pipelines:
            return []
        nodes = dict.fromkeys(self.needs.closure(f"pipelines.{pipeline}"))
        return [name for kind, _, name in (n.partition(".") for n in nodes) if kind == "pipelines"]


class _OfPipeline:
    """Numbers the open stages of one pipeline in the order they are fitted."""

    def __init__(self, stages: FittedStages, pipeline: str) -> None:
        self.stages, self.pipeline, self.number = stages, pipeline, 0

    def fit(self, stage: Unfitted, first: Stage | None) -> Stage:
        self.number += 1
        saved = self.stages.saved(self.pipeline, self.number)
        fit = saved or self.stages.fitted(self.pipeline, self.number, stage, first)
        return closed(stage, fit)


def _origin(file: Path) -> Mapping[str, Any]:
    """Return what a file of settings says of its origin, nothing for a damaged one."""
    try:
        values = read_json(file) if file.exists() else {}
    except SluiceError as error:
        log.warning("%s; it is fitted anew", error)
        return {}
    origin = values.get("origin") if isinstance(values, dict) else None
    return origin if isinstance(origin, Mapping) else {}


def _state(retriever: Path) -> list[Any]:
    head = read_head(retriever)
    return [retriever.name, head.encoder_fingerprint, head.state]
