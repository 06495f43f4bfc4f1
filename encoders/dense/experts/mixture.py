"""A mixture of experts: its settings, its layers several times over, and the gate between them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.dense.experts.names import checked_experts
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import plural, whole_number
from sluice.encoders.model_files.adapters import added_modules, layer_list, low_rank_layers
from sluice.encoders.model_files.layout import SIDECAR, read_modules
from sluice.encoders.model_files.probes import add_module
from sluice.encoders.tuning.adapters import places_of

SPREAD = 0.02  # standard deviation of a new gate's weights


def numbers_in(experts: Tensor) -> list[int]:
    """Return the numbers that occur, in order."""
    return sorted(set(experts.flatten().tolist()))


class Expert(nn.Module):
    """One expert's copy of a linear layer."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().clone())
        self.bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().clone())

    def forward(self, states: Tensor) -> Tensor:
        """Return ``[..., outputs]`` of ``[..., inputs]``."""
        return functional.linear(states, self.weight, self.bias)


class Choice(NamedTuple):
    """The expert of each token ``[...]``, and what its output is multiplied by ``[..., 1]``."""

    experts: Tensor
    factor: Tensor | None


class Gate(nn.Module):
    """Chooses for each token the expert with the largest logit, a linear map of its state.

    The softmax over the one expert chosen is 1, by which the gate would learn nothing. With
    ``learns`` it is written as p / p, the denominator without gradients and p the expert's share of
    the softmax over all: still 1 exactly, and the gate learns as if outputs were multiplied by p.
    """

    def __init__(self, width: int, count: int, *, learns: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(SPREAD * torch.randn(count, width), requires_grad=learns)
        self.learns = learns
        self._made: dict[int, Choice] = {}  # by thread, from a block's first layer to its last

    def choose(self, states: Tensor) -> Choice:
        """Return the choice for states ``[..., width]``, and keep it for the block's last layer."""
        shares = functional.linear(states.float(), self.weight.float()).softmax(dim=-1)
        top, experts = shares.max(dim=-1)
        factor = (top / top.detach()).unsqueeze(-1) if self.learns else None
        choice = self._made[threading.get_ident()] = Choice(experts, factor)
        return choice

    def chosen(self) -> Choice:
        """Return the choice that the block's first layer made, once."""
        return self._made.pop(threading.get_ident())

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, without choices of passes on their way."""
        return {**self.__dict__, "_made": {}}


class ExpertLinear(nn.Module):
    """A linear layer of a block, once for each expert; all start as copies of it.

    With a gate it computes each token by the expert that is chosen for it. Without one it only
    holds the experts, which ``with_expert`` puts in its place.
    """

    def __init__(self, linear: nn.Linear, count: int, gate: Gate | None, *, last: bool) -> None:
        super().__init__()
        self.inputs, self.outputs = linear.in_features, linear.out_features
        self.experts = nn.ModuleList(Expert(linear) for _ in range(count))
        self.gate = gate
        self.last = last

    def forward(self, states: Tensor) -> Tensor:
        """Return ``[..., outputs]``; ``ModelError`` without a gate."""
        if self.gate is None:
            raise ModelError(
                "this network has an expert for each dataset and runs as one of them: take "
                "of_source(NAME) or alone(NAME) of its encoder"
            )
        choice = self.gate.chosen() if self.last else self.gate.choose(states)
        mixed = self._sparse if torch.is_inference_mode_enabled() else self._dense
        output = mixed(states, choice.experts)
        if self.last and choice.factor is not None:
            output = output * choice.factor.to(output.dtype)
        return output

    def _dense(self, states: Tensor, chosen: Tensor) -> Tensor:
        """Let every expert that any token has compute all tokens.

        A product over some rows is rounded otherwise than one over all: so a token's output does
        not depend on the experts of the others, and equal experts make the dense layer's.
        """
        numbers = numbers_in(chosen)
        output: Tensor = self.experts[numbers[0]](states)
        for number in numbers[1:]:
            output = torch.where(
                (chosen == number)[..., None], self.experts[number](states), output
            )
        return output

    def _sparse(self, states: Tensor, chosen: Tensor) -> Tensor:
        """Let every expert compute its own tokens."""
        numbers = numbers_in(chosen)
        if len(numbers) == 1:
            output: Tensor = self.experts[numbers[0]](states)
            return output
        flat, experts = states.flatten(0, -2), chosen.flatten()
        parts = [(experts == number).nonzero().squeeze(-1) for number in numbers]
        made = [
            self.experts[number](flat[rows]) for number, rows in zip(numbers, parts, strict=True)
        ]
        output = made[0].new_empty((len(flat), self.outputs))
        for rows, part in zip(parts, made, strict=True):
            output[rows] = part
        return output.view(*states.shape[:-1], self.outputs)


def install(model: Any, count: int, blocks: Sequence[int], *, gated: bool, learns: bool) -> None:
    """Make ``count`` experts of the feed-forward layers of a model's ``blocks``, from 1, in place.

    Raises ``ConfigError`` for a block the model does not have, or one built otherwise.
    """
    for linears in feed_forward(model, blocks):
        *_, (_, last) = linears
        gate = Gate(last.out_features, count, learns=learns) if gated else None
        if gate is not None:
            gate.to(last.weight.device)
        for name, linear in linears:
            above, _, attribute = name.rpartition(".")
            layer = ExpertLinear(linear, count, gate, last=linear is last)
            setattr(model.get_submodule(above), attribute, layer)
    model.train(model.training)  # new parts are in training mode


def feed_forward(model: Any, blocks: Sequence[int]) -> list[list[tuple[str, nn.Linear]]]:
    """Return the linear layers, in order, with their names, of each block's feed-forward network.

    Raises ``ConfigError`` for a block the model does not have, or one built otherwise.
    """
    kind = type(model).__name__
    if added_modules(model) or any(low_rank_layers(model)):
        raise ConfigError(
            "experts: the model is tuned by parts beside its layers, which no expert would have; "
            "start from the model it was made of"
        )
    listed = layer_list(model)
    if listed is None:
        raise ConfigError(f"experts: a {kind} has no list of layers to copy from")
    layers = listed[1]
    wrong = [number for number in blocks if not 1 <= number <= len(layers)]
    if wrong:
        raise ConfigError(f"expert_layers: {wrong[0]}; {kind} has layers 1 to {len(layers)}")
    places = places_of(model)
    names = {module: name for name, module in model.named_modules()}
    found = []
    for number in blocks:
        start = f"{names[layers[number - 1]]}."
        own = [n for n in places.linears if n.startswith(start) and n not in places.attention]
        linears = _checked([model.get_submodule(name) for name in own], number, kind)
        found.append(list(zip(own, linears, strict=True)))
    return found


def shapes_of(
    model: Any, count: int, blocks: Sequence[int], *, gated: bool
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters that ``install`` would make, by name; nothing is made."""
    shapes: dict[str, tuple[int, ...]] = {}
    for linears in feed_forward(model, blocks):
        if gated:
            shapes[f"{linears[0][0]}.gate.weight"] = (count, linears[-1][1].out_features)
        for name, linear in linears:
            for number in range(count):
                for key, parameter in linear.named_parameters():
                    shapes[f"{name}.experts.{number}.{key}"] = tuple(parameter.shape)
    return shapes


def _checked(linears: Sequence[Any], block: int, kind: str) -> Sequence[nn.Linear]:
    """Return a block's linear layers if they are those of one plain feed-forward network."""
    plain = 2 <= len(linears) <= 3 and all(type(each) is nn.Linear for each in linears)
    if plain:
        *inner, last = linears
        plain = all(
            (each.in_features, each.out_features) == (last.out_features, last.in_features)
            for each in inner
        )
    if not plain:
        raise ConfigError(
            f"experts: layer {block} of {kind} has no plain feed-forward network (one or two "
            "linear layers in, one out) to copy; take a BERT, RoBERTa, MPNet or the like"
        )
    return linears


def expert_layers(model: nn.Module) -> dict[str, ExpertLinear]:
    """Return the layers of a model that exist several times, by name."""
    return {name: part for name, part in model.named_modules() if isinstance(part, ExpertLinear)}


def expert_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of experts and gates, by name; a block's gate has one."""
    starts = tuple(f"{name}." for name in expert_layers(model))
    return {n: p for n, p in model.named_parameters() if starts and n.startswith(starts)}


def with_expert(model: Any, number: int | None) -> Any:
    """Return the plain model that one expert makes; None: the mean of all of them.

    It shares all parameters with ``model`` (means are new), so that training one trains the other.
    """
    shared: dict[int, Any] = {id(each): each for each in (*model.parameters(), *model.buffers())}
    plain = copy.deepcopy(model, shared)
    for name, layer in expert_layers(plain).items():
        above, _, attribute = name.rpartition(".")
        setattr(plain.get_submodule(above), attribute, _linear(layer, number))
    plain.train(model.training)
    return plain


def _linear(layer: ExpertLinear, number: int | None) -> nn.Linear:
    experts: list[Any] = list(layer.experts)
    bias = experts[0].bias is not None
    linear = nn.Linear(layer.inputs, layer.outputs, bias=bias, device="meta")
    for name in ("weight", "bias") if bias else ("weight",):
        if number is not None:
            parameter = getattr(experts[number], name)
        else:
            first = getattr(experts[0], name)
            total = sum(getattr(each, name).detach().double() for each in experts)
            parameter = nn.Parameter((total / len(experts)).to(first.dtype))
        setattr(linear, name, parameter)
    return linear


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
