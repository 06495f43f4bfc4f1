"""What the verbs of this room open: a retriever's folder, or a pipeline of an experiment."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.cli.terminal.verbs import Shown

if TYPE_CHECKING:
    from sluice.retrieval.pipelines.stage import Stage

log = logging.getLogger("sluice")

Searched = Annotated[Path, "FOLDER", "A retriever's folder, or an experiment's output."]
Pipeline = Annotated[
    str | None,
    "NAME",
    "The pipeline to use, where FOLDER is an experiment's output.",
    Shown("the last one"),
]


def opened(
    path: Path, pipeline: str | None, allow: Sequence[str], *, quick: bool = False
) -> tuple[Stage, str | None]:
    """Open a retriever's folder, or a pipeline; return the pipeline's name too."""
    from sluice.retrieval.retrievers.folder import HEAD
    from sluice.retrieval.retrievers.retriever import Retriever

    if (path / HEAD).exists() and pipeline is None:
        return Retriever.open(path, allow=allow, quick=quick), None
    from sluice.retrieval.experiments.output.folder import SETTINGS
    from sluice.retrieval.pipelines.saving import PIPELINE

    if (path / PIPELINE).exists():
        from sluice.retrieval.experiments.experiment import load_pipeline

        return load_pipeline(path, pipeline or "", allow=allow), path.absolute().name
    if not (path / SETTINGS).exists():
        parts = sorted(file.parent.name for file in path.glob(f"datasets/*/{SETTINGS}"))
        if parts:
            raise ConfigError(
                f"{path}: is an evaluation of several datasets; name one of them: "
                f"{path}/datasets/NAME ({', '.join(parts)})"
            )
        if pipeline is None:
            return Retriever.open(path), None  # says what is missing
    from sluice.retrieval.experiments.experiment import open_experiment
    from sluice.retrieval.experiments.own_documents import HYBRID

    experiment = open_experiment(path, allow=allow, quick=quick)
    name = pipeline or experiment.systems[-1]
    if pipeline is None and len(experiment.systems) > 1 and name != HYBRID:  # else as meant
        others = ", ".join(experiment.systems[:-1])
        log.info("searching with the last pipeline, %s; --pipeline takes %s too", name, others)
    return experiment.stage(name), name
