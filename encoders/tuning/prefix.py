"""Tunes by a prefix: learned pairs of keys and values that every token attends to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.adapters import AddedModule
from sluice.encoders.tuning.adapters import places_of

# Standard deviation of keys and values at the start: of gated ones, with 0.2 the gates open five
# times slower; of joined ones, where a prefix token gets about as much attention as a token.
GATED_SPREAD = 1.0
SPREAD = 0.02
NAME = "sluice_prefix_"


class JoinedPairs(AddedModule):
    """Keys and values ``[heads, tokens, size]`` that stand before those of the text.

    The softmax runs over both, so that the model changes at the start: new values are near zero,
    and take their share of the attention.
    """

    def __init__(self, tokens: int, heads: int, size: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(SPREAD * torch.randn(heads, tokens, size))
        self.values = nn.Parameter(SPREAD * torch.randn(heads, tokens, size))

    def joined(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values ``[n, heads, tokens + length, size]`` of those of texts."""
        own, read = (part.expand(len(keys), -1, -1, -1) for part in (self.keys, self.values))
        joined = torch.cat([own.to(keys.dtype), keys], dim=2)
        return joined, torch.cat([read.to(values.dtype), values], dim=2)

    def masked(self, mask: Tensor | None, length: int, *, causal: bool) -> Tensor | None:
        """Return the mask ``[n, 1, length, tokens + length]``: every token sees the prefix."""
        tokens = self.keys.shape[1]
        if mask is None:
            if not causal or length == 1:
                return None
            ones = torch.ones((length, length), dtype=torch.bool, device=self.keys.device)
            mask = ones.tril()[None, None]
        seen = True if mask.dtype is torch.bool else 0.0
        return functional.pad(mask, (tokens, 0), value=seen)


class GatedPairs(AddedModule):
    """Keys and values ``[heads, tokens, size]``, and a gate for each of ``gates`` query heads.

    ``tanh(gate) softmax(q K^T) V`` is added to the output of attention; gates start at zero, so
    the model starts unchanged.
    """

    def __init__(self, tokens: int, heads: int, gates: int, size: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(GATED_SPREAD * torch.randn(heads, tokens, size))
        self.values = nn.Parameter(GATED_SPREAD * torch.randn(heads, tokens, size))
        self.gates = nn.Parameter(torch.zeros(gates))

    def forward(self, queries: Tensor, scale: float) -> Tensor:
        """Return the states to add.

        ``queries`` are ``[n, gates, length, size]``, the result is ``[n, length, gates, size]``.
        """
        share = len(self.gates) // len(self.keys)
        keys, values = (
            part.repeat_interleave(share, 0).expand(len(queries), -1, -1, -1).to(queries.dtype)
            for part in (self.keys, self.values)
        )
        read = functional.scaled_dot_product_attention(queries, keys, values, scale=scale)
        gates = torch.tanh(self.gates).to(queries.dtype)
        return read.transpose(1, 2) * gates[:, None]


@dataclass(frozen=True, slots=True)
@checked("prefix.")
class Prefix:
    """``tokens`` virtual pairs of keys and values in every block, joined to those of the text.

    (Li and Liang, 2021, without their reparametrisation; Liu et al., 2022, P-tuning v2, arXiv
    2110.07602.) The softmax runs over both, so that the vectors change as soon as it is there.
    Learning rates are about 1e-2. They cannot be merged.
    """

    tokens: Annotated[int, Ge(1)] = 20

    def install(self, model: Any) -> list[nn.Parameter]:
        """Put the pairs into a model's blocks; return the parameters to train."""
        heads, _, size = _heads(model)
        return _installed(model, "prefix", partial(JoinedPairs, self.tokens, heads, size))


@dataclass(frozen=True, slots=True)
@checked("gated_prefix.")
class GatedPrefix:
    """``tokens`` virtual key/value pairs in every block, read beside the text by gated attention.

    (Zhang et al., 2023, LLaMA-Adapter, arXiv 2303.16199.) The gate starts at zero, so that the
    model starts unchanged; it opens slowly: learning rates are about 1e-2. They cannot be merged.
    """

    tokens: Annotated[int, Ge(1)] = 20

    def install(self, model: Any) -> list[nn.Parameter]:
        """Put the pairs into a model's blocks; return the parameters to train."""
        heads, gates, size = _heads(model)
        make = partial(GatedPairs, self.tokens, heads, gates, size)
        return _installed(model, "gated_prefix", make)


def _heads(model: Any) -> tuple[int, int, int]:
    """Return the heads of keys, those of queries, and the size of each."""
    config = model.config
    gates = int(config.num_attention_heads)
    heads = int(getattr(config, "num_key_value_heads", None) or gates)
    size = getattr(config, "head_dim", None) or int(config.hidden_size) // gates
    return heads, gates, int(size)


def _installed(model: Any, kind: str, make: Callable[[], AddedModule]) -> list[nn.Parameter]:
    config = model.config
    modules = [model.get_submodule(name) for name in places_of(model).attending]
    by_interface = all("ALL_ATTENTION_FUNCTIONS" in _source(module) for module in modules)
    usual = config._attn_implementation
    if not by_interface or usual not in _USUAL:
        raise ConfigError(
            f"{kind}: {type(model).__name__} computes its attention by itself, without room "
            "for a prefix; use lora or adapter"
        )
    for module in modules:
        module.prefix = make().to(next(module.parameters()).device)
    config._attn_implementation = NAME + usual
    return [parameter for module in modules for parameter in module.prefix.parameters()]


def _source(module: nn.Module) -> dict[str, Any]:
    return vars(sys.modules[type(module).__module__])


def _over_sdpa(module: Any, *rest: Any, **options: Any) -> tuple[Tensor, Any]:
    return _with_prefix(ALL_ATTENTION_FUNCTIONS["sdpa"], module, *rest, **options)


def _over_eager(module: Any, *rest: Any, **options: Any) -> tuple[Tensor, Any]:
    usual = _source(module)["eager_attention_forward"]  # every family has its own
    return _with_prefix(usual, module, *rest, **options)


def _with_prefix(
    usual: Any, module: Any, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Tensor | None, **options: Any,
) -> tuple[Tensor, Any]:  # fmt: skip
    pairs = getattr(module, "prefix", None)
    if isinstance(pairs, JoinedPairs):
        causal = bool(options.get("is_causal", getattr(module, "is_causal", False)))
        attention_mask = pairs.masked(attention_mask, query.shape[2], causal=causal)
        options["is_causal"] = False
        key, value = pairs.joined(key, value)
    output, weights = usual(module, query, key, value, attention_mask, **options)
    if not isinstance(pairs, GatedPairs):
        return output, weights
    scale = options.get("scaling")
    added = pairs(query, query.shape[-1] ** -0.5 if scale is None else scale)
    return output + added.to(output.dtype), weights


# At import, so that a model with a prefix can be unpickled anywhere.
_USUAL = {"sdpa": _over_sdpa, "eager": _over_eager}
for _name, _function in _USUAL.items():
    AttentionInterface.register(NAME + _name, _function)
    AttentionMaskInterface.register(NAME + _name, ALL_MASK_ATTENTION_FUNCTIONS[_name])
