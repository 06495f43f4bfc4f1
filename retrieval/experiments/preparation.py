"""Finds, before any work, what an experiment would stop at later: its output, its models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, ModelError, SluiceError
from sluice.encoders.model_files.locate import model_folder
from sluice.retrieval.config.names import Place
from sluice.retrieval.config.trust import refuse_unknown_model
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.experiments.reuse import WITH_MODELS, section_names


def prepare(experiment: Experiment, nodes: Iterable[str] | None = None) -> None:
    """Raise a ``SluiceError`` if the output is a file or a model that is needed is not found.

    Dev queries that pipelines must not be fitted on are refused too.

    ``nodes`` are what will be made, such as ``retrievers.bm25``; by default all systems, of which
    one that has been evaluated needs no reranker. Models of what is there are not looked for; one
    that is only on the hub is downloaded now.
    """
    check_output(experiment.output)
    needs, config = experiment.needs, experiment.config
    wanted: set[str] = set()
    for node in nodes if nodes is not None else ():
        wanted.update(needs.closure(node))
    if nodes is None or any(node.startswith("pipelines.") for node in wanted):
        experiment.fits.check()
    for name in experiment.systems if nodes is None else ():
        kind = "pipelines" if name in config.pipelines else "retrievers"
        evaluated = (experiment.output / "runs" / f"{name}.json").exists()
        below = needs.closure(f"{kind}.{name}")
        wanted.update(n for n in below if not (evaluated and n.startswith("rerankers.")))
    for node in sorted(wanted):
        for each in _encoders(experiment, node):
            _find(f"{node}.{each.where}".removesuffix(".model"), each, experiment)


def check_output(output: Path) -> None:
    """Raise ``ConfigError`` if an output folder's place, or one above it, is a file or no path."""
    if "\0" in str(output):
        raise ConfigError(f"output: {str(output)!r:.200} has a character that no path may have")
    for place in (output, *output.parents):
        if place.exists():
            if not place.is_dir():
                raise ConfigError(f"output: {place} is a file; choose a folder with output=FOLDER")
            return


def _encoders(experiment: Experiment, node: str) -> Iterator[Place]:
    """Yield the models of encoders and rerankers that a node needs before it is there."""
    kind, _, name = node.partition(".")
    if (
        kind == "pipelines"
        or (kind == "retrievers" and experiment.is_built(name))
        or (kind == "train" and (experiment.output / "models" / name / MANIFEST).exists())
    ):
        return
    for each in section_names(getattr(experiment.config, kind)[name]):
        encodes = kind == "rerankers" or each.where.startswith("encoder.")
        if encodes and each.key == "model" and each.spec.get("type") in WITH_MODELS:
            yield each


def _find(key: str, each: Place, experiment: Experiment) -> None:
    """Find the model of a component, and the device it asks for."""
    device = each.spec.get("device", "auto")
    if each.role is not None and each.value not in experiment.config.train:
        refuse_unknown_model(each.value, f"{key}.model", experiment.allow)
        try:
            model_folder(each.value)
        except SluiceError as error:
            raise ModelError(f"{key}.model: {error}") from error
    if isinstance(device, str) and device not in ("auto", "cpu"):
        from sluice.encoders.backends.backend import pick_device

        try:
            pick_device(device)
        except ConfigError as error:
            raise ConfigError(f"{key}.{error}") from error
