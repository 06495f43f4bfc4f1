"""One experiment from a config: models, retrievers, rerankers and pipelines, made when needed.

Everything lies under ``<output>`` by name and is made once: a rerun, or one after a kill, opens
what is whole and makes the rest.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from encoders.errors import ConfigError, IndexFormatError, suggest
from encoders.files import fingerprint_of, read_json, write_text
from retrieval.components import check_experiment, make_encoder, make_index
from retrieval.config import (
    ExperimentConfig,
    RetrieverSection,
    checked,
    load_config,
    named_file,
)
from retrieval.dataset import Dataset, load_dataset
from retrieval.dependencies import Dependencies
from retrieval.expression import names_in, parse
from retrieval.ranking import Run
from retrieval.retriever import Retriever
from retrieval.retriever_folder import HEAD
from retrieval.stage import Stage
from retrieval.training_job import train_model

log = logging.getLogger("sluice")

SETTINGS = "experiment.yaml"


class Experiment:
    """The named parts of a config, opened or made on first use.

    ``file`` is named in errors. ``allow`` restricts the classes of your own that types may name to
    these; None, for a config that is yours, restricts nothing.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        *,
        file: str | Path | None = None,
        allow: Collection[str] | None = None,
    ) -> None:
        self.config = config
        self.file = file
        self.allow = allow
        self.output = Path(config.output)
        self._models: dict[str, Path] = {}
        self._retrievers: dict[str, Retriever] = {}
        self._scorers: dict[str, Any] = {}
        self._needs = Dependencies(config)
        with named_file(file):
            self._check_names()
            check_experiment(config, allow)
            self._needs.check()

    def _check_names(self) -> None:
        """Refuse names that stand for two things, and pipelines that use unknown ones."""
        config = self.config
        owners: dict[str, str] = {}
        for section in ("retrievers", "rerankers"):
            for name in getattr(config, section):
                if name in owners:
                    raise ConfigError(f"{section}.{name}: {owners[name]} has that name too")
                owners[name] = section
        known = {*owners, *config.pipelines}
        for name, text in config.pipelines.items():
            for used in names_in(text, where=f"pipelines.{name}"):
                if used not in known:
                    raise ConfigError(
                        f"pipelines.{name}: unknown name {used!r} in {text!r}; known: "
                        f"{', '.join(sorted(known)) or 'none'}{suggest(used, known)}"
                    )
        baseline = config.evaluate.baseline
        if baseline is not None and baseline not in self.systems:
            raise ConfigError(
                f"evaluate.baseline: no pipeline {baseline!r}; known: "
                f"{', '.join(self.systems)}{suggest(baseline, self.systems)}"
            )

    @property
    def systems(self) -> list[str]:
        """The names that are evaluated: the pipelines, or every retriever where there are none."""
        return list(self.config.pipelines or self.config.retrievers)

    def dataset(self, split: str | None) -> Dataset:
        """Return the experiment's dataset, opened at a split."""
        return load_dataset(self.config.dataset, split)

    def write_settings(self) -> None:
        """Save the resolved config beside the artefacts."""
        import yaml

        text = yaml.safe_dump(self.config.model_dump(), sort_keys=False, allow_unicode=True)
        write_text(self.output / SETTINGS, text)

    def model(self, name: str) -> str:
        """Return what ``model: name`` means: a model trained here, else the name itself."""
        if name not in self.config.train:
            return name
        if name not in self._models:
            with named_file(self.file):
                self._models[name] = self._trained(name)
        return str(self._models[name])

    def _trained(self, name: str) -> Path:
        section = self.config.train[name]

        def tested() -> Mapping[str, str]:
            return self.dataset(self.config.evaluate.split).queries if self.systems else {}

        return train_model(
            section,
            lambda: self.dataset(None),
            model_path=self.output / "models" / name,
            work_path=self.output / "training" / name,
            seed=self.config.seed,
            where=f"train.{name}.",
            source=self.lists,
            model=self.model,
            key=self._needs.key(f"train.{name}"),
            tested=tested,
        )

    def retriever(self, name: str) -> Retriever:
        """Return a retriever by name, built if its folder does not hold this very one."""
        if name not in self._retrievers:
            with named_file(self.file):
                key = self._needs.key(f"retrievers.{name}")
                self._retrievers[name] = self.built(name, self.config.retrievers[name], key)
        return self._retrievers[name]

    def built(self, name: str, section: RetrieverSection, key: str) -> Retriever:
        """Open ``<output>/retrievers/<name>`` if it has this key, else build it."""
        path = self.output / "retrievers" / name
        where = f"retrievers.{name}"
        try:
            if (path / HEAD).exists() and _origin(path) == key:
                own = [str(section.encoder["type"]), str((section.index or {}).get("type"))]
                return Retriever.open(path, allow=own, **_options(section.encoder))
        except IndexFormatError as error:
            log.warning("%s; it is built again", error)
        encoder = make_encoder(section.encoder, where=f"{where}.encoder", model=self.model)
        log.info("index %s", name)
        return Retriever.build(
            encoder,
            self.dataset(None).corpus,
            index=make_index(section.index, where=f"{where}.index"),
            path=path,
            name=name,
            config={
                "retriever": section.model_dump(),
                "dataset": self.config.dataset,
                "key": key,
            },
        )

    def scorer(self, name: str) -> Any:
        """Return a reranker's scorer by name."""
        if name not in self._scorers:
            spec = self.config.rerankers[name]
            self._scorers[name] = make_encoder(spec, where=f"rerankers.{name}", model=self.model)
        return self._scorers[name]

    def stage(self, name: str) -> Stage:
        """Return a pipeline or retriever by name (a pipeline comes before a retriever)."""
        if name in self.config.pipelines:
            with named_file(self.file):
                text = self.config.pipelines[name]
                return parse(text, self._names(), where=f"pipelines.{name}")
        if name in self.config.retrievers:
            return self.retriever(name)
        known = [*self.config.pipelines, *self.config.retrievers]
        raise ConfigError(f"no pipeline {name!r}; known: {', '.join(known)}{suggest(name, known)}")

    def lists(self, named: Any, where: str) -> Stage | Run:
        """Return the ranked lists that ``negatives.retriever`` stands for.

        A name under ``pipelines`` or ``retrievers``, an inline ``{encoder, index}``, a retriever
        folder, or a run file.
        """
        if isinstance(named, Mapping):
            section = checked(named, RetrieverSection)
            key = fingerprint_of(section.model_dump(), self.config.dataset, self.config.seed)
            return self.built(f"inline-{key[:8]}", section, key)
        if named in self.config.pipelines or named in self.config.retrievers:
            return self.stage(str(named))
        return open_lists(str(named), where, [*self.config.pipelines, *self.config.retrievers])

    def _names(self) -> dict[str, Callable[[], Any]]:
        opened = {
            "pipelines": self.stage,
            "rerankers": self.scorer,
            "retrievers": self.retriever,  # last: in an expression a retriever's name wins
        }
        return {
            name: functools.partial(make, name)
            for section, make in opened.items()
            for name in getattr(self.config, section)
        }


def open_lists(named: str, where: str, known: list[str]) -> Stage | Run:
    """Open a retriever folder or a TREC run by path."""
    path = Path(named)
    if path.is_dir():
        return Retriever.open(path)
    if path.is_file():
        return Run.load(path)
    raise ConfigError(
        f"{where}: {named!r} is no pipeline or retriever here ({', '.join(known) or 'none'}), and "
        f"no retriever folder or run file{suggest(named, known)}"
    )


def load_pipeline(folder: str | Path, name: str, *, allow: Collection[str] = ()) -> Stage:
    """Open a pipeline by name from an experiment's output folder.

    The dataset is not needed. ``allow`` names the classes of your own that the folder may import.
    """
    path = Path(folder) / SETTINGS
    if not path.exists():
        raise IndexFormatError(
            f"{folder}: no {SETTINGS} here; expected the output folder of sluice run"
        )
    config = load_config(path, ExperimentConfig)
    moved = config.model_copy(update={"output": str(folder)})
    return Experiment(moved, file=path, allow=allow).stage(name)


def _origin(path: Path) -> Any:
    return read_json(path / HEAD).get("origin", {}).get("config", {}).get("key")


def _options(encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an encoder that a saved folder does not carry."""
    return {k: encoder[k] for k in ("device", "dtype", "batch_tokens") if k in encoder}
