"""The back end an encoder was told to use: its engine, its file, and how both are saved."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from sluice.encoders.backends.backend import OUTPUTS, Backend, check_engine, open_backend
from sluice.encoders.backends.devices import Dtype, Engine
from sluice.encoders.backends.graph import MODEL_FILE, graph_path
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.files import file_hash
from sluice.encoders.model_files.identity import versions


@dataclass(frozen=True, slots=True)
class ChosenBackend:
    """An engine on one file of a model folder.

    ``mark`` is what the encoder's fingerprint must hold of it: None for the model's own float32
    graph; a quantised one gives other vectors, so it is told apart by its contents. ``weights`` are
    the ``versions`` of those that the graph was made from, None where they are not watched.
    """

    engine: Engine
    folder: Path
    file: str
    run: Backend
    mark: str | None = None
    weights: tuple[object, ...] | None = None

    @property
    def name(self) -> str:
        """The engine, its arithmetic and the file's contents: engines differ in the last bits."""
        return self.run.name

    def save(self, folder: Path) -> dict[str, Any]:
        """Copy the graph into a model folder; return what the folder's ``sluice.json`` notes."""
        source = graph_path(self.folder, self.file)
        place = folder / self.file
        place.parent.mkdir(parents=True, exist_ok=True)
        for part in source.parent.glob(f"{source.name}*"):  # large weights lie in a file beside it
            shutil.copyfile(part, place.with_name(part.name))
        return {"backend": self.engine, "backend_file": self.file}


class BackedModel(Protocol):
    """A model that a back end can run: what ``choose_backend`` reads of it, and sets."""

    kind: str
    module: nn.Module
    backend: ChosenBackend | None

    def weights_hash(self) -> str:
        """Return a hash of the weights, which the exported graph must have been made from."""
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
    """Set an encoder's back end: the one asked for, else the one its folder notes, else torch."""
    if engine is None and file is not None:
        raise ConfigError(f"backend_file: {file!r} needs backend: onnx or openvino")
    wanted: Any = noted.get("backend", "torch") if engine is None else engine
    check_engine(wanted)
    if wanted == "torch":
        if file is not None:
            raise ConfigError(f"backend_file: {file!r} is for backend onnx or openvino")
        return
    placed = file or noted.get("backend_file") or MODEL_FILE
    run = open_backend(
        folder,
        wanted,
        OUTPUTS[encoder.kind],
        dtype=dtype,
        file=placed,
        weights=encoder.weights_hash(),
    )
    mark = None if placed == MODEL_FILE else file_hash(graph_path(folder, placed))
    weights = versions(encoder.module.parameters())
    encoder.backend = ChosenBackend(wanted, folder, placed, run, mark, weights)
