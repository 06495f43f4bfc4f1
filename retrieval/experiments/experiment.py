"""One experiment from a config: models, retrievers, rerankers and pipelines, made when needed.

Everything is stored under ``<output>`` by name and made once: a rerun, or one after a kill, reuses
what is complete and makes the rest.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.encoders.foundation.disk.files import read_json, write_text
from sluice.encoders.foundation.disk.generations import MANIFEST, settle
from sluice.encoders.foundation.errors import ConfigError, IndexFormatError, suggest
from sluice.encoders.table import traits_of
from sluice.familiar import refused
from sluice.retrieval.config.components import make_encoder, make_executor
from sluice.retrieval.config.file_keys import normalised_dataset
from sluice.retrieval.config.sections import (
    ExperimentConfig,
    RetrieverSection,
    checked,
    load_config,
    named_file,
)
from sluice.retrieval.config.trust import (
    followed,
    refuse_remote_dataset,
    refuse_unknown_model,
    trusted,
)
from sluice.retrieval.config.yaml_file import yaml_text
from sluice.retrieval.datasets.dataset import Dataset, load_dataset
from sluice.retrieval.execution.executor import LOCAL
from sluice.retrieval.experiments.checks import check_experiment, check_opened, list_names
from sluice.retrieval.experiments.fitted_stages import FittedStages
from sluice.retrieval.experiments.output.changes import (
    differing_corpora,
    undo_interrupted,
    unfinished,
)
from sluice.retrieval.experiments.output.folder import (
    INLINE,
    RETRIEVERS,
    SETTINGS,
    loss_message,
    refuse_other_dataset,
    remove_other_dataset,
)
from sluice.retrieval.experiments.output.retrievers import ExperimentRetrievers
from sluice.retrieval.experiments.output.saved_pipeline import open_pipeline
from sluice.retrieval.experiments.reuse import Dependencies, check_saved, is_built_of, read_by
from sluice.retrieval.experiments.training.folds import FOLDS, folded_lists, folds_of
from sluice.retrieval.experiments.training.job import (
    TrainingJob,
    made_before,
    order_of,
    train_model,
)
from sluice.retrieval.experiments.training.parts import FOLDER, TrainingSet, names_of
from sluice.retrieval.experiments.training.tested_queries import (
    refuse_tested_queries,
    tested_datasets,
)
from sluice.retrieval.pipelines.expression import parse
from sluice.retrieval.pipelines.saving import PIPELINE
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.retrievers.candidate_lists import Sources, open_lists
from sluice.retrieval.retrievers.folder import HEAD, read_head
from sluice.retrieval.retrievers.retriever import Retriever
from sluice.retrieval.runs.run import Run
from sluice.retrieval.training_data.files.corpus_examples import sees_queries
from sluice.retrieval.training_data.teachers.judges import open_judge

if TYPE_CHECKING:
    from sluice.retrieval.retrievers.corpus.encoding import EncodingEstimate
    from sluice.training.negatives.false_negatives import Judge

log = logging.getLogger("sluice")


class Experiment:
    """The named parts of a config, opened or made on first use.

    ``file`` is named in errors. ``allow`` lists what the config of a saved folder may use, see
    ``sluice.encoders.foundation.trust``; None, for your own config, allows all. With ``only_open``
    nothing is made: a part that is missing, or was made with other settings, is an
    ``IndexFormatError``. ``quick`` opens it for a few queries, as ``Retriever.open`` does.

    A retriever whose documents were changed since its build is used as it is. Building it again,
    because it is asked for or because its settings changed, would lose the changes, and replacing
    the parts of another dataset would lose those: both are refused unless ``rebuild``.
    """

    def __new__(cls, *given: Any, **options: Any) -> Experiment:
        """Answer a call of PyTerrier's ``Experiment`` with the line to write."""
        if given and isinstance(given[0], list | tuple):
            line = 'compare({"a": a.run(queries), "b": b.run(queries)}, qrels, ["nDCG@10"])'
            refused("Experiment", {"stages": given}, line)
        return super().__new__(cls)

    def __init__(
        self,
        config: ExperimentConfig,
        *,
        file: str | Path | None = None,
        allow: Collection[str] | None = None,
        only_open: bool = False,
        quick: bool = False,
        rebuild: bool = False,
    ) -> None:
        with named_file(file):
            config = trusted(config, allow, Path(config.output), only_open=only_open)
        self.config = config
        self.file = file
        self.allow = allow
        self.only_open = only_open
        self._quick = quick and only_open
        self.rebuild = rebuild
        self.output = Path(config.output)
        self._untested = False  # whether training is known to see no query of the evaluation
        self._models: dict[str, Path] = {}
        self._models_of: Experiment | None = None  # the experiment that trains its models
        self._data: Dataset | None = None  # in place of the dataset that the config names
        self._folds: list[Experiment] = []  # the first stages of a reranker's folds
        self._scorers: dict[str, Any] = {}
        self._warned: set[str] = set()
        self.needs = Dependencies(config)
        self.fits = FittedStages(config, self.output, self.needs, self.dataset, only_open=only_open)
        with named_file(file):
            check_opened(config, allow) if only_open else check_experiment(config, allow)
            self.executor = LOCAL if only_open else make_executor(config.executor)
        self._retrievers = ExperimentRetrievers(
            config, self.needs, file=file, dataset=self.dataset, model=self.model,
            executor=self.executor, only_open=only_open, quick=self._quick, rebuild=rebuild,
        )  # fmt: skip

    def let_go(self) -> None:
        """Give back the memory of opened retrievers, those of folds too; a search opens them."""
        self._retrievers.let_go()
        for each in self._folds:
            each.let_go()

    @property
    def systems(self) -> list[str]:
        """The names that are evaluated: the pipelines, or without any every retriever."""
        return list(self.config.pipelines or self.config.retrievers)

    def nodes(self) -> Iterator[str]:
        """Yield what the systems are made of, such as ``retrievers.bm25``; some more than once."""
        kind = "pipelines" if self.config.pipelines else "retrievers"
        for name in self.systems:
            yield from self.needs.closure(f"{kind}.{name}")

    def dataset(self, split: str | None) -> Dataset:
        """Return the experiment's dataset, opened at a split."""
        if self._data is not None:
            return self._data.with_split(split)
        with named_file(self.file):
            refuse_remote_dataset(self.config.dataset, "dataset", self.allow)
        return load_dataset(followed(self.config.dataset, self.allow), split)

    def check_output(self, names: Iterable[str] | None = None) -> None:
        """Refuse, before any work, to replace what this config does not make again.

        That is the parts of another dataset, and documents that were added, replaced or deleted
        since the build of the retrievers ``names``, by default those of the systems. A change that
        a kill left half done is undone; with ``rebuild``, where it cannot be, ``names`` are built.
        """
        if self.only_open:
            return
        with named_file(self.file):
            names = list(self.needs.searched(self.systems) if names is None else names)
        undo_interrupted(self.output, names if self.rebuild else ())
        with named_file(self.file):
            if not self.rebuild:
                refuse_other_dataset(self.output, self.config.dataset)
            self._refuse_losses(names)

    def _refuse_losses(self, names: Iterable[str]) -> None:
        """Raise ``ConfigError`` if retrievers would be rebuilt that were changed since."""
        lost = []
        for name in names if not self.rebuild else ():
            path = self.output / RETRIEVERS / name
            changes = read_head(path).changes if (path / HEAD).exists() else None
            keys = self.needs.keys_of(self.config.retrievers[name].as_built)
            if changes is not None and not is_built_of(path, keys):
                lost.append(f"{name} ({changes})")
        if lost:
            raise ConfigError(loss_message(self.output, lost))

    def make_room(self) -> None:
        """With ``rebuild``, remove what the output holds of another dataset than this one.

        To be called when nothing that can be known before the work is in its way.
        """
        if self.rebuild:
            self.dataset(None)  # one that is not there removes nothing
            remove_other_dataset(self.output, self.config.dataset)

    def write_settings(self, only: Sequence[str] | None = None) -> None:
        """Save the resolved config beside the artefacts it describes.

        ``only`` names the retrievers that are made: the saved settings of other parts stay.
        """
        self.make_room()
        path = self.output / SETTINGS
        config = self.config
        if only is not None and path.exists():
            saved = load_config(path, ExperimentConfig)
            before = (normalised_dataset(saved.dataset), saved.seed)
            if before != (normalised_dataset(config.dataset), config.seed):
                log.warning("%s: not updated: it describes another dataset or seed", path)
                return
            nodes = [part for name in only for part in self.needs.closure(f"retrievers.{name}")]
            config = saved.model_copy(deep=True)
            for section, _, name in (node.partition(".") for node in nodes):
                getattr(config, section)[name] = getattr(self.config, section)[name]
        text = yaml_text(config.model_dump())
        write_text(path, text)

    def model(self, name: str) -> str:
        """Return the folder of a model trained in this experiment; else the name itself."""
        if name not in self.config.train:
            with named_file(self.file):
                refuse_unknown_model(name, "model", self.allow)
            return name
        if name not in self._models:
            with named_file(self.file):
                self._models[name] = self._trained(name)
        return str(self._models[name])

    def _trained(self, name: str) -> Path:
        if self._models_of is not None:
            return Path(self._models_of.model(name))
        model_path = self.output / "models" / name
        if self.only_open:
            settle(model_path)
            saved = read_json(model_path / MANIFEST) if (model_path / MANIFEST).exists() else None
            check_saved(model_path, saved, self.needs.recipe(f"train.{name}"), self.file)
            return model_path
        if self.systems:
            self.refuse_tested()
        return train_model(self.training_job(name))

    def training_job(self, name: str) -> TrainingJob:
        """Return the job that trains a model of this experiment; nothing is begun."""
        section, work = self.config.train[name], self.output / "training" / name
        source = functools.partial(self._folded, name) if folds_of(section) else self.lists
        one = TrainingSet(lambda: self.dataset(None), source, executor=self.executor)
        test = self._test if self.systems else None
        return TrainingJob(
            section,
            self.collections(section.datasets, work) if section.datasets else [one],
            model_path=self.output / "models" / name,
            work_path=work,
            seed=self.config.seed,
            where=f"train.{name}.",
            judge=self.judge,
            model=self.model,
            keys=self.needs.keys(f"train.{name}"),
            tested=lambda: tested_datasets(section, self.config.dataset, test),
            let_go=self.let_go,
            order=functools.partial(order_of, self.config, self.file, name),
        )

    def collections(
        self, datasets: Sequence[str | dict[str, Any]], work: Path
    ) -> list[TrainingSet]:
        """Return the datasets of a training run, each with this experiment's parts over its corpus.

        What these need is made in a folder of each below ``work``.
        """
        names = names_of(datasets)
        return [
            TrainingSet(
                functools.partial(self._opened_dataset, each),
                self._over(each, work / FOLDER / name).lists,
                name,
                self.executor,
            )
            for name, each in zip(names, datasets, strict=True)
        ]

    def _opened_dataset(self, named: str | dict[str, Any]) -> Dataset:
        with named_file(self.file):
            refuse_remote_dataset(named, "datasets", self.allow)
        return load_dataset(named, None)

    def _over(self, named: str | dict[str, Any], output: Path) -> Experiment:
        """Return an experiment of the same parts over another dataset, with this one's models."""
        config = self.config.model_copy(update={"dataset": named, "output": str(output)})
        other = Experiment(config, file=self.file, allow=self.allow, rebuild=self.rebuild)
        other._models_of = self
        other.needs = Dependencies(config, models_of=self.needs)
        other.fits.needs = other._retrievers.needs = other.needs
        return other

    def _folded(self, name: str, named: Any, where: str) -> Stage | Run:
        """Return the lists of ``negatives.retriever`` by folds of the training queries.

        What the first stage of a fold is made of lies in ``training/NAME/folds/N-K`` of the output,
        N folds, K the fold.
        """
        whole, folds = self.lists(named, where), folds_of(self.config.train[name])
        assert isinstance(whole, Stage)  # ``check_folds``: a name of this config

        def searched(number: int, data: Dataset) -> Stage:
            output = self.output / "training" / name / FOLDS / f"{folds}-{number}"
            config = self.config.model_copy(update={"output": str(output)})
            other = Experiment(config, file=self.file, allow=self.allow, rebuild=self.rebuild)
            other._data = data
            self._folds.append(other)
            return other.stage(str(named))

        return folded_lists(whole, self.dataset(None), folds, self.config.seed, searched)

    def _test(self) -> Dataset:
        return self.dataset(self.config.evaluate.split)

    def refuse_tested(self) -> None:
        """Raise ``ConfigError`` if a model that is evaluated learns from the tested queries.

        It makes no difference whether the model exists already; see ``refuse_tested_queries``.
        """
        kind = "pipelines" if self.config.pipelines else "retrievers"
        made_from = {node for name in self.systems for node in self.needs.closure(f"{kind}.{name}")}
        trainings = {
            f"train.{name}.": section
            for name, section in self.config.train.items()
            if f"train.{name}" in made_from
        }
        if self._untested or not any(map(sees_queries, trainings.values())):
            return
        self.dataset(None)  # refuses what may not be fetched
        for section in trainings.values():
            for each in section.datasets or []:
                self._opened_dataset(each)
        refuse_tested_queries(trainings, self.config.dataset, self._test, self.config.seed)
        self._untested = True

    def retriever(self, name: str) -> Retriever:
        """Return a retriever by name, built unless its folder holds the same one."""
        with named_file(self.file):
            return self._retrievers.named(name)

    def is_built(self, name: str) -> bool:
        """Return whether ``retriever`` would open the saved folder rather than build it."""
        return self._retrievers.is_built(name)

    def is_trained(self, name: str) -> bool:
        """Return whether ``model`` would take the saved folder rather than train."""
        if self._models_of is not None:
            return self._models_of.is_trained(name)
        return made_before(self.output / "models" / name, self.needs.keys(f"train.{name}").key)

    def estimate(self, name: str) -> EncodingEstimate | None:
        """Estimate the cost of encoding the corpus for a retriever; None if nothing is encoded."""
        with named_file(self.file):
            return self._retrievers.estimate(name)

    def scorer(self, name: str) -> Any:
        """Return a reranker's scorer by name."""
        if name not in self._scorers:
            spec = self.config.rerankers[name]

            if (read := read_by(spec)) is not None:
                spec = {**spec, "retriever": self.retriever(read)}

            def make(**options: Any) -> Any:
                return make_encoder(
                    {**spec, **options}, where=f"rerankers.{name}", model=self.model, reranker=True
                )

            traits = traits_of(spec)
            if self._quick and traits is not None and traits.scores and traits.graph:
                from sluice.encoders.backends.quick import opened_quickly
                from sluice.encoders.model_files.locate import model_folder

                options = {
                    key: value for key, value in spec.items() if key not in ("type", "model")
                }
                folder = model_folder(self.model(str(spec.get("model"))))
                self._scorers[name] = opened_quickly(str(spec["type"]), folder, options, make)
            else:
                self._scorers[name] = make()
        return self._scorers[name]

    def share_models(self, other: Experiment) -> None:
        """Take the scorers, and encoders that no document changes, that another one has loaded.

        ``other`` is of the same folder, before a change of its documents.
        """
        self._scorers.update(other._scorers)
        for name, loaded in other._retrievers.opened.items():
            own, head = self.retriever(name), loaded.head
            same = own.head.encoder_fingerprint == head.encoder_fingerprint
            if same and own.head.encoder_generation is None:
                own.state.encoder = loaded.encoder

    def stage(self, name: str) -> Stage:
        """Return a pipeline or retriever by name (a pipeline comes before a retriever).

        What the pipeline leaves open, ``fitted(...)``, is fitted on the dev queries, once.
        """
        stage = self.open_stage(name)
        if name in self.config.pipelines:
            with named_file(self.file):
                stage = self.fits.closed(name, stage)
        return stage

    def open_stage(self, name: str) -> Stage:
        """Return a pipeline or retriever by name, with what it leaves open itself not fitted."""
        if name in self.config.pipelines:
            with named_file(self.file):
                text = self.config.pipelines[name]
                stage = parse(text, self.parts(), where=f"pipelines.{name}")
            self._warn_of_corpora(name, stage)
            return stage
        if name in self.config.retrievers:
            return self.retriever(name)
        known = list_names(self.config)
        raise ConfigError(f"no pipeline {name!r}; known: {', '.join(known)}{suggest(name, known)}")

    def _warn_of_corpora(self, name: str, stage: Stage) -> None:
        """Warn if a pipeline's retrievers hold different documents, or a change is half done."""
        half_done = unfinished(self.output)
        difference = None if half_done else differing_corpora(stage)
        if half_done:
            log.warning("%s", half_done)
        elif difference and difference not in self._warned:
            self._warned.add(difference)
            log.warning("%s: %s", name, difference)

    def lists(self, named: Any, where: str) -> Stage | Run:
        """Return the ranked lists that ``negatives.retriever`` names.

        A name under ``pipelines`` or ``retrievers``, an inline ``{encoder, index}``, a retriever
        folder, a run file, or a list of these, which are mined from apart.
        """
        if isinstance(named, list):
            places = [f"{where}[{place}]" for place in range(len(named))]
            parts = [self.lists(each, place) for each, place in zip(named, places, strict=True)]
            pairs = zip(named, parts, strict=True)
            return Sources([(n if isinstance(n, str) else p.name, p) for n, p in pairs])
        if isinstance(named, Mapping):
            section = checked(named, RetrieverSection)
            keys = self.needs.keys_of(section.as_built)
            return self._retrievers.built(f"{INLINE}{keys.recipe[:8]}", section, keys)
        names = list_names(self.config)
        return self.stage(str(named)) if named in names else open_lists(str(named), where, names)

    def judge(self, named: Any, where: str) -> Judge:
        """Return the judge that ``negatives.judge`` names, see ``open_judge``."""
        return open_judge(
            named, where, scorer=self.scorer, known=list(self.config.rerankers), model=self.model
        )

    def parts(self) -> dict[str, Callable[[], Any]]:
        """Return a function for each name that a pipeline may use, which opens its part."""
        openers = {
            "pipelines": self.stage,
            "rerankers": self.scorer,
            "retrievers": self.retriever,  # last: in an expression a retriever's name wins
        }
        return {
            name: functools.partial(make, name)
            for section, make in openers.items()
            for name in getattr(self.config, section)
        }


def load_pipeline(
    folder: str | Path,
    name: str = "",
    *,
    allow: Collection[str] = (),
    given: Mapping[str, Any] | None = None,
) -> Stage:
    """Open a pipeline that was saved, or one by name from an experiment's output folder.

    A pipeline that ``save`` wrote has no name; without a name an experiment's last one is opened,
    as by ``sluice search``. ``given`` are the functions and objects that ``save`` could not write:
    scorers, and encoders of retrievers, by their names in the pipeline. ``allow`` is what the
    folder may do beside reading, see ``sluice.encoders.foundation.trust``.
    """
    if (Path(folder) / PIPELINE).exists():
        if name:
            raise ConfigError(f"{folder}: is one saved pipeline; leave the name {name!r} out")
        return open_pipeline(Path(folder), allow=allow, given=given or {})
    if given:
        raise ConfigError("given: belongs to a saved pipeline; an experiment has all its parts")
    experiment = open_experiment(folder, allow=allow)
    return experiment.stage(name or experiment.systems[-1])


def open_experiment(
    folder: str | Path,
    *,
    allow: Collection[str] = (),
    overrides: Sequence[str] = (),
    quick: bool = False,
) -> Experiment:
    """Open the output folder of an experiment, for searching.

    Nothing is built and the dataset is not needed: a part that is missing, or was made with other
    settings than those in ``experiment.yaml``, is an ``IndexFormatError``. ``allow``
    lists what the folder may do beside reading: import a class of your own, reach a server, see
    ``sluice.encoders.foundation.trust``. ``overrides`` are ``key.path=value`` texts for its
    settings; ``quick`` is as in ``Experiment``.
    """
    path = Path(folder) / SETTINGS
    if (Path(folder) / HEAD).exists():
        raise IndexFormatError(
            f"{folder}: one retriever, not an experiment or a pipeline; Retriever.open opens it"
        )
    if not path.exists():
        raise IndexFormatError(
            f"{folder}: neither {SETTINGS} nor {PIPELINE} here; expected the output folder of "
            "sluice run, or a pipeline's folder"
        )
    config = load_config(path, ExperimentConfig, overrides)
    moved = config.model_copy(update={"output": str(folder)})
    return Experiment(moved, file=path, allow=allow, only_open=True, quick=quick)
