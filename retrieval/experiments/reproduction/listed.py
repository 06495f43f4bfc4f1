"""Reads the list of published runs: what is run, on what, with which figures, by whom."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from sluice.encoders.foundation.errors import ConfigError, suggest

LIST = "runs.yaml"


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One system on one collection's test split, and the figures that its source publishes.

    ``within`` is the difference that counts as the same, for the reason ``why``. ``repeated`` says
    whether this project has run it and it held.
    """

    name: str
    dataset: str
    system: str
    of: str
    source: str
    figures: Mapping[str, float]
    within: float
    why: str
    repeated: bool
    retriever: Mapping[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """The experiment's YAML as a dictionary, without its output folder."""
        return {
            "dataset": self.dataset,
            "retrievers": {self.system: dict(self.retriever)},
            "evaluate": {
                "measures": list(self.figures), "split": "test", "latency_queries": 0,
            },
        }  # fmt: skip


@functools.cache
def published_runs() -> dict[str, PublishedRun]:
    """Return every published run by its name, that of system and collection: ``bm25-scifact``."""
    text = (files("sluice.retrieval.experiments.reproduction") / LIST).read_text(encoding="utf-8")
    runs = {}
    for system, entry in yaml.safe_load(text).items():
        for dataset, figures in entry["figures"].items():
            name = f"{system}-{dataset}"
            runs[name] = PublishedRun(
                name, dataset, system, entry["of"], entry["source"], figures, entry["within"],
                entry["why"], dataset in entry["repeated"], entry["retriever"],
            )  # fmt: skip
    return runs


def published_run(name: str) -> PublishedRun:
    """Return a published run; ``ConfigError`` for a name that is not on the list."""
    runs = published_runs()
    if name not in runs:
        raise ConfigError(
            f"--published {name}: is not on the list{suggest(name, runs)}; "
            "sluice reproduce --list shows it"
        )
    return runs[name]
