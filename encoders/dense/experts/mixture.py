"""Which experts an encoder has: their settings, as in YAML and in a saved folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from sluice.encoders.dense.experts.layers import expert_parameters, install, shapes_of
from sluice.encoders.dense.experts.names import checked_experts
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.encoders.model_files.layout import SIDECAR, read_modules
from sluice.encoders.model_files.probes import add_module

MODULE = "Experts"
KEY = "experts"  # of sluice.json
WEIGHTS = "experts.safetensors"


@dataclass(frozen=True, slots=True)
class Mixture:
    """The experts of an encoder: one for each of ``names``, datasets, or ``count`` by a gate.

    ``layers`` are the numbers of the blocks that have them, from 1.
    """

    names: tuple[str, ...]
    count: int
    layers: tuple[int, ...]
    gate_learns: bool = False

    @classmethod
    def from_settings(cls, experts: Any, layers: Any, gate_learns: Any, depth: int) -> Mixture:
        """Return what settings say of a model with ``depth`` layers; None: all of them."""
        names, count = checked_experts(experts, gate_learns)
        if not isinstance(gate_learns, bool | None):
            raise ConfigError(f"gate_learns: {gate_learns!r}, expected true or false")
        chosen = range(1, depth + 1) if layers is None else layers
        if not isinstance(chosen, range | list | tuple) or not chosen:
            raise ConfigError(f"expert_layers: {layers!r}, expected a list of layers, such as [3]")
        numbers = tuple(whole_number(each, "expert_layers", 1, depth) for each in chosen)
        if len(set(numbers)) < len(numbers):
            raise ConfigError(f"expert_layers: {layers!r} names a layer twice")
        return cls(names, count, numbers, not names and gate_learns is not False)

    def place(self, model: Any) -> None:
        """Give a plain model the experts, each a copy of its own layers, in place."""
        install(model, self.count, self.layers, gated=not self.names, learns=self.gate_learns)

    def number(self, name: str) -> int:
        """Return the number of a dataset's expert; ``ConfigError`` for one without."""
        if name in self.names:
            return self.names.index(name)
        having = f"there is an expert for each dataset, {', '.join(self.names)}"
        if not name:
            raise ConfigError(
                f"{having}, and the examples name none; train on several (datasets: "
                f"[{', '.join(self.names)}]), or give experts: {len(self.names)}, among which a "
                "gate chooses"
            )
        raise ConfigError(f"{having}, and none for {name!r}")

    def __str__(self) -> str:
        layers = ", ".join(map(str, self.layers))
        chosen = f"for {', '.join(self.names)}" if self.names else "chosen by a gate"
        return f"{plural(self.count, 'expert')} in layers {layers}, {chosen}"


def write_mixture(folder: Path, model: Any, mixture: Mixture) -> None:
    """Add the experts to a dense encoder's folder, which is then theirs."""
    place = add_module(folder, MODULE, {"type": "experts", KEY: asdict(mixture)})
    state = {n: p.detach().cpu().contiguous() for n, p in expert_parameters(model).items()}
    safetensors.torch.save_file(state, place / WEIGHTS)


def read_mixture(folder: Path, facts: dict[str, Any], model: Any) -> Mixture:
    """Put what ``write_mixture`` wrote into a freshly loaded plain model."""
    file = dict(read_modules(folder))[MODULE] / WEIGHTS
    noted = facts.get(KEY)
    try:
        mixture = _noted(noted, int(model.config.num_hidden_layers))
    except (TypeError, KeyError, ConfigError) as error:
        raise ModelError(f"{folder / SIDECAR}: {KEY} is {noted!r}: {error}") from None
    try:
        expected = shapes_of(model, mixture.count, mixture.layers, gated=not mixture.names)
        with safe_open(file, framework="pt") as saved:
            shapes = {key: tuple(saved.get_slice(key).get_shape()) for key in saved.keys()}  # noqa: SIM118
        for key in sorted(key for key, _ in shapes.items() ^ expected.items()):
            raise ModelError(  # before memory is taken for what the file does not hold
                f"{file}: {key} is {shapes.get(key, 'missing')}, expected "
                f"{expected.get(key, 'no such tensor')}"
            )
        mixture.place(model)
        state = safetensors.torch.load_file(file)
    except (ConfigError, OSError, SafetensorError) as error:
        raise ModelError(f"{file}: {error}") from error
    parameters = expert_parameters(model)
    with torch.no_grad():
        for key, parameter in parameters.items():
            if not state[key].is_floating_point():
                raise ModelError(f"{file}: {key} is {state[key].dtype}, expected floats")
            parameter.copy_(state[key])
    return mixture


def _noted(noted: Any, depth: int) -> Mixture:
    """Return the settings of ``sluice.json``, checked."""
    names = noted["names"]
    if not isinstance(names, list):
        raise ConfigError(f"names is {names!r}, expected a list")
    learns = noted["gate_learns"] if not names else None
    return Mixture.from_settings(names or noted["count"], noted["layers"], learns, depth)
