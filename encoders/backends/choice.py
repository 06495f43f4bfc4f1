"""Chooses what runs an encoder: torch, or the graph that its folder or its caller names."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from sluice.encoders.backends.backend import (
    OUTPUTS,
    Backend,
    ChosenBackend,
    check_engine,
    open_backend,
)
from sluice.encoders.backends.comparison import compared
from sluice.encoders.backends.devices import Dtype, Engine
from sluice.encoders.backends.graph import MODEL_FILE, graph_path
from sluice.encoders.foundation.disk.files import file_hash
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.identity import versions

# How far another tool's graph may be from the weights beside it without a warning.
NEAR, FAR = 0.99, 0.05  # the smallest cosine; of scores, the share of the largest
PROBES = ("what is a sluice", "The gold lies at the bottom of the river.", "x")

log = logging.getLogger("sluice")


class BackedModel(Protocol):
    """A model that a back end can run, as ``choose_backend`` sees it."""

    kind: str
    module: nn.Module
    backend: ChosenBackend | None

    def weights_hash(self) -> str:
        """Return a hash of the weights that the graph must have been exported from."""
        ...


def choose_backend(
    encoder: BackedModel,
    folder: Path,
    *,
    engine: Engine | None,
    file: str | None,
    dtype: Dtype,
    noted: dict[str, Any],
) -> None:
    """Set an encoder's back end: ``engine``, else the one its folder notes, else torch."""
    if engine is None and file is not None:
        raise ConfigError(f"backend_file: {file!r} needs backend: onnx or openvino")
    chosen: Any = noted.get("backend", "torch") if engine is None else engine
    check_engine(chosen)
    if chosen == "torch":
        if file is not None:
            raise ConfigError(f"backend_file: {file!r} is for backend onnx or openvino")
        return
    placed = file or noted.get("backend_file") or MODEL_FILE
    run = open_backend(
        folder,
        chosen,
        OUTPUTS[encoder.kind],
        dtype=dtype,
        file=placed,
        weights=encoder.weights_hash(),
    )
    path = graph_path(folder, placed)
    mark = None if placed == MODEL_FILE and run.own else file_hash(path)
    if not run.own:
        _compare(encoder, run, path)
    weights = versions(encoder.module.parameters())
    encoder.backend = ChosenBackend(chosen, folder, placed, run, mark, weights)


def _compare(encoder: BackedModel, run: Backend, path: Path) -> None:
    """Log a warning if a graph that does not name its weights differs from the model's."""
    difference = compared(encoder, run, PROBES)
    scores = encoder.kind == "cross_encoder"
    if difference.relative <= FAR if scores else difference.cosine >= NEAR:
        return
    what = "scores differ" if scores else "vectors differ"
    amount = (
        f"by up to {difference.largest:.2g} of {difference.span:.2g}"
        if scores
        else f"to a cosine of {difference.cosine:.3f}"
    )
    log.warning(
        "%s: does not say which weights it was made from, and its %s from the model's own %s on %s "
        "texts; those of a quantised graph do, else it is another model's: export the model again "
        "with `sluice model export`", path, what, amount, difference.texts,
    )  # fmt: skip
