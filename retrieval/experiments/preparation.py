"""Finds, before any work, what an experiment would stop at later: its output, its models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, ModelError, SluiceError
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.table import KNOWN
from sluice.retrieval.config.components import Allow, towers_in
from sluice.retrieval.config.trust import refuse_unknown_model
from sluice.retrieval.experiments.experiment import Experiment
from sluice.retrieval.pipelines.table import LANGUAGE_MODELS, REMOTE, STORED

# Types whose `model` is a folder or an id of the hub; that of `http`, say, is not.
WITH_MODELS = (
    *(name for name, each in KNOWN.items() if each.model), STORED,
    *(name for name in LANGUAGE_MODELS if name not in REMOTE),
)  # fmt: skip


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
        for key, component in _components(experiment, node):
            _find(key, component, trained=config.train, allow=experiment.allow)


def check_output(output: Path) -> None:
    """Raise ``ConfigError`` if an output folder's place, or one above it, is a file or no path."""
    if "\0" in str(output):
        raise ConfigError(f"output: {str(output)!r:.200} has a character that no path may have")
    for place in (output, *output.parents):
        if place.exists():
            if not place.is_dir():
                raise ConfigError(f"output: {place} is a file; choose a folder with output=FOLDER")
            return


def _components(experiment: Experiment, node: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the components whose models a node needs before it is there, with their keys."""
    kind, _, name = node.partition(".")
    if kind == "pipelines":
        return
    section = getattr(experiment.config, kind)[name]
    if kind == "rerankers":
        yield node, section
    elif kind == "retrievers":
        if not experiment.is_built(name):
            yield f"{node}.encoder", section.encoder
    elif not (experiment.output / "models" / name / MANIFEST).exists():
        yield f"{node}.encoder", section.encoder


def _find(key: str, component: Mapping[str, Any], *, trained: Iterable[str], allow: Allow) -> None:
    """Find the models of a component and of its towers, and the device it asks for."""
    for side, tower in towers_in(component).items():
        _find(f"{key}.{side}", tower, trained=trained, allow=allow)
    if component.get("type") not in WITH_MODELS:
        return
    model, device = component.get("model"), component.get("device", "auto")
    if isinstance(model, str) and model not in trained:
        refuse_unknown_model(model, f"{key}.model", allow)
        try:
            model_folder(model)
        except SluiceError as error:
            raise ModelError(f"{key}.model: {error}") from error
    if isinstance(device, str) and device not in ("auto", "cpu"):
        from sluice.encoders.backends.backend import pick_device

        try:
            pick_device(device)
        except ConfigError as error:
            raise ConfigError(f"{key}.{error}") from error
