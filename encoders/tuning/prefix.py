"""Tunes by a prefix: learned pairs of keys and values that every token attends to."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.model_files.adapters import AddedModule
from sluice.encoders.tuning.places import places_of

# Standard deviation of keys and values at the start: with 0.2 the gates open five times slower.
SPREAD = 1.0
NAME = "sluice_prefix_"


class PrefixPairs(AddedModule):
    """Keys and values ``[heads, tokens, size]``, and a gate for each of ``gates`` query heads.

    ``tanh(gate) softmax(q K^T) V`` is added to the output of attention; gates start at zero, so
    the model starts unchanged.
    """

    def __init__(self, tokens: int, heads: int, gates: int, size: int) -> None:
        super().__init__()
        self.keys = nn.Parameter(SPREAD * torch.randn(heads, tokens, size))
        self.values = nn.Parameter(SPREAD * torch.randn(heads, tokens, size))
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
class Prefix:
    """``tokens`` virtual key/value pairs in every block, read beside the text by gated attention.

    (Li and Liang, 2021; the gate that starts at zero: Zhang et al., 2023, arXiv 2303.16199. Without
    it, keys of any value take part of the softmax from the first step.) Gates open slowly:
    learning rates are about 1e-2. They cannot be merged.
    """

    tokens: int = 20

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise ConfigError(f"prefix.tokens: {self.tokens!r}, expected 1 or more")

    def install(self, model: Any) -> list[nn.Parameter]:
        """Put the pairs into a model's blocks; return the parameters to train."""
        config = model.config
        modules = [model.get_submodule(name) for name in places_of(model).attending]
        by_interface = all("ALL_ATTENTION_FUNCTIONS" in _source(module) for module in modules)
        usual = config._attn_implementation
        if not by_interface or usual not in _USUAL:
            raise ConfigError(
                f"prefix: {type(model).__name__} computes its attention by itself, without room "
                "for a prefix; use lora or adapter"
            )
        gates = int(config.num_attention_heads)
        heads = int(getattr(config, "num_key_value_heads", None) or gates)
        size = getattr(config, "head_dim", None) or int(config.hidden_size) // gates
        for module in modules:
            module.prefix = PrefixPairs(self.tokens, heads, gates, int(size))
            module.prefix.to(next(module.parameters()).device)
        config._attn_implementation = NAME + usual
        return [parameter for module in modules for parameter in module.prefix.parameters()]


def _source(module: nn.Module) -> dict[str, Any]:
    return vars(sys.modules[type(module).__module__])


def _over_sdpa(module: Any, query: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Any]:
    return _with_prefix(ALL_ATTENTION_FUNCTIONS["sdpa"], module, query, *rest, **options)


def _over_eager(module: Any, query: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Any]:
    usual = _source(module)["eager_attention_forward"]  # every family has its own
    return _with_prefix(usual, module, query, *rest, **options)


def _with_prefix(
    usual: Any, module: Any, query: Tensor, *rest: Any, **options: Any
) -> tuple[Tensor, Any]:
    output, weights = usual(module, query, *rest, **options)
    pairs = getattr(module, "prefix", None)
    if pairs is None:
        return output, weights
    scale = options.get("scaling")
    added = pairs(query, query.shape[-1] ** -0.5 if scale is None else scale)
    return output + added.to(output.dtype), weights


# At import, so that a model with a prefix can be unpickled anywhere.
_USUAL = {"sdpa": _over_sdpa, "eager": _over_eager}
for _name, _function in _USUAL.items():
    AttentionInterface.register(NAME + _name, _function)
    AttentionMaskInterface.register(NAME + _name, ALL_MASK_ATTENTION_FUNCTIONS[_name])
