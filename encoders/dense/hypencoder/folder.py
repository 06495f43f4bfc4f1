"""Reads and writes what a Hypencoder's folder has beside a dense encoder's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from sluice.encoders.dense.hypencoder.head import SCALINGS, HyperHead, Scaling
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout import SIDECAR, Layout

HEAD = "hyper_head.safetensors"
KEY = "hyper_head"  # of the sidecar


class Noted(NamedTuple):
    """What a folder says of its q-nets."""

    hidden_layers: int
    scaling: Scaling
    product: bool

    def facts(self) -> dict[str, Any]:
        """Return the entry of ``sluice.json``."""
        return {KEY: self._asdict()}


def noted_in(layout: Layout, folder: Path) -> Noted | None:
    """Return what the folder of a Hypencoder says; None for another encoder's."""
    if "HyperHead" not in layout.modules:
        return None
    facts = layout.sidecar.get(KEY)
    values = dict(facts) if isinstance(facts, dict) else {}
    layers, scaling, product = (values.get(name) for name in Noted._fields)
    counted = isinstance(layers, int) and not isinstance(layers, bool) and layers >= 0
    if not counted or scaling not in SCALINGS or not isinstance(product, bool):
        raise ModelError(
            f"{folder / SIDECAR}: {KEY} is {facts!r}; expected hidden_layers (a number), scaling "
            f"({' or '.join(SCALINGS)}) and product (true or false)"
        )
    noted = Noted(layers, scaling, product)  # type: ignore[arg-type]
    _check_layers(noted, folder)
    return noted


def _check_layers(noted: Noted, folder: Path) -> None:
    """Raise ``ModelError`` unless the file has so many layers, before any is made."""
    from safetensors import SafetensorError, safe_open

    file = folder / HEAD
    try:
        with safe_open(file, "pt") as weights:
            stored = sum(name.endswith(".table") for name in weights.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error
    if stored != 2 * noted.hidden_layers + 1:
        raise ModelError(
            f"{file}: has {stored} tables, and {SIDECAR} says hidden_layers: "
            f"{noted.hidden_layers}, which has {2 * noted.hidden_layers + 1}; copy both from where "
            "the model was saved"
        )


def read_head(head: HyperHead, folder: Path) -> None:
    """Load the hyper-head's weights; ``ModelError`` for other names or sizes than its own."""
    from safetensors.torch import load_file

    file = folder / HEAD
    state, own = load_file(file), head.state_dict()
    for name in sorted({*own, *state}):
        found = list(state[name].shape) if name in state else None
        expected = list(own[name].shape) if name in own else None
        if found != expected or not state[name].is_floating_point():
            raise ModelError(
                f"{file}: {name} is {found or 'missing'}, expected "
                f"{expected or 'no such weight'} for the q-nets that {SIDECAR} describes; copy "
                "both from where the model was saved"
            )
    with torch.no_grad():
        head.load_state_dict(state)


def write_head(head: HyperHead, folder: Path) -> None:
    """Write the hyper-head's weights."""
    from safetensors.torch import save_file

    state = {name: value.detach().cpu().contiguous() for name, value in head.state_dict().items()}
    save_file(state, folder / HEAD)
