"""Finds, before any work, what an experiment would stop at later: its output, its models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.errors import ConfigError, ModelError, SluiceError
from sluice.encoders.foundation.generations import MANIFEST
from sluice.encoders.model_files.locate import model_folder
from sluice.retrieval.config.components import towers_in
from sluice.retrieval.experiments.experiment import Experiment

# Types whose `model` is a folder or an id of the hub; that of `http`, say, is not.
WITH_MODELS = ("dense", "splade", "towers", "vocabulary", "cross_encoder", "generative", "max_sim")


def prepare(experiment: Experiment, names: Iterable[str] | None = None) -> None:
    """Raise a ``SluiceError`` if the output is no folder or a model that is needed is not found.

    ``names`` are the systems or retrievers to be made, by default all systems. Models of what is
    made already are not looked for; one that is only on the hub is downloaded now.
    """
    check_output(experiment.output)
    needs, config = experiment.needs, experiment.config
    systems = experiment.systems if names is None else list(names)
    sections = {name: "pipelines" if name in config.pipelines else "retrievers" for name in systems}
    if names is not None:
        sections = dict.fromkeys(systems, "retrievers")
    for name, section in sections.items():
        evaluated = (experiment.output / "runs" / f"{name}.json").exists()
        for node in dict.fromkeys(needs.closure(f"{section}.{name}")):
            for key, component in _components(experiment, node, evaluated=evaluated):
                _find(key, component, trained=config.train)


def check_output(output: Path) -> None:
    """Raise ``ConfigError`` if an output folder's place, or one above it, is a file."""
    for place in (output, *output.parents):
        if place.exists():
            if not place.is_dir():
                raise ConfigError(f"output: {place} is a file; choose a folder with output=FOLDER")
            return


def _components(
    experiment: Experiment, node: str, *, evaluated: bool
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the components whose models a node needs before it is there, with their keys."""
    kind, _, name = node.partition(".")
    if kind == "pipelines":
        return
    section = getattr(experiment.config, kind)[name]
    if kind == "rerankers":
        if not evaluated:
            yield node, section
    elif kind == "retrievers":
        if not experiment.is_built(name):
            yield f"{node}.encoder", section.encoder
    elif not (experiment.output / "models" / name / MANIFEST).exists():
        yield f"{node}.encoder", section.encoder


def _find(key: str, component: Mapping[str, Any], *, trained: Iterable[str]) -> None:
    """Find the models of a component and of its towers, and the device it asks for."""
    for side, tower in towers_in(component).items():
        _find(f"{key}.{side}", tower, trained=trained)
    if component.get("type") not in WITH_MODELS:
        return
    model, device = component.get("model"), component.get("device", "auto")
    if isinstance(model, str) and model not in trained:
        try:
            model_folder(model)
        except SluiceError as error:
            raise ModelError(f"{key}.model: {error}") from error
    if isinstance(device, str) and device not in ("auto", "cpu"):
        from sluice.encoders.backends.devices import pick_device

        try:
            pick_device(device)
        except ConfigError as error:
            raise ConfigError(f"{key}.{error}") from error
