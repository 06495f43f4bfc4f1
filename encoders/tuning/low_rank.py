"""Tunes by LoRA or (IA)^3 through peft, both merged exactly into the weights afterwards."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Interval
from torch import nn
from transformers.pytorch_utils import Conv1D

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError, MissingPackageError
from sluice.encoders.tuning.places import FUSED, KEYS_AND_VALUES, places_of, targets_of


@dataclass(frozen=True, slots=True)
@checked("lora.")
class LowRank:
    """LoRA: ``W + alpha / rank * B A`` with ``B`` zero at the start (Hu et al., 2022).

    ``alpha`` is, left out, twice the rank. ``targets`` are ``all-linear`` (every linear layer of
    the blocks), ``attention``, or endings of names (``[query, value]``,
    ``[attention.output.dense]``); ``dropout`` applies to the input of ``A``. Rank 4 trains 0.7% of
    a MiniLM's parameters and 0.6% of BERT-base's, with ``attention`` about half as many.
    """

    rank: Annotated[
        int, Ge(1), "The rank of the added matrices: more learns more, with more parameters."
    ] = 4
    alpha: Annotated[float | None, "The added matrices count alpha / rank."] = None
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.05
    targets: str | list[str] = "all-linear"

    def __post_init__(self) -> None:
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ConfigError(f"lora.alpha: {self.alpha!r}, expected a number above 0")

    def install(self, model: Any) -> list[nn.Parameter]:
        """Put LoRA into a model's blocks; return the parameters to train."""
        names = targets_of(places_of(model), self.targets, "lora.targets")
        _need_peft("lora")
        from peft import LoraConfig

        config = LoraConfig(
            r=self.rank,
            lora_alpha=2 * self.rank if self.alpha is None else self.alpha,
            lora_dropout=self.dropout,
            target_modules=names,
            fan_in_fan_out=_transposed(model, names),
        )
        return _injected(model, config, "lora_")


@dataclass(frozen=True, slots=True)
class LearnedScales:
    """(IA)^3: scales keys, values and the input of the last feed-forward layer, from 1 on.

    If query, key and value are one layer, all three are scaled. (Liu et al., 2022, arXiv
    2205.05638.)
    """

    def install(self, model: Any) -> list[nn.Parameter]:
        """Put the scales into a model's blocks; return the parameters to train."""
        places = places_of(model)
        scaled = [n for n in places.attention if n.rpartition(".")[2] in KEYS_AND_VALUES | FUSED]
        if not scaled:
            raise ConfigError(
                f"ia3: the keys and values of {type(model).__name__} are not known; use lora"
            )
        _need_peft("ia3")
        from peft import IA3Config

        names = [*scaled, *places.outer]
        config = IA3Config(
            target_modules=names,
            feedforward_modules=places.outer,
            fan_in_fan_out=_transposed(model, names),
        )
        return _injected(model, config, "ia3_")


def _need_peft(kind: str) -> None:
    if importlib.util.find_spec("peft") is None:
        raise MissingPackageError("peft", "peft", f"tuning by {kind}")


def _transposed(model: Any, names: list[str]) -> bool:
    """Return whether the layers store their weights like GPT-2, ``[in, out]``."""
    return all(isinstance(model.get_submodule(name), Conv1D) for name in names)


def _injected(model: Any, config: Any, prefix: str) -> list[nn.Parameter]:
    from peft import inject_adapter_in_model

    inject_adapter_in_model(config, model)
    return [p for name, p in model.named_parameters() if prefix in name]
