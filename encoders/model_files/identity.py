"""Detects changes of a model: its config's decisive settings, and its tensors' version counters."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

# Not the entire config, which differs with the release of transformers that wrote it.
DECISIVE = (
    "model_type", "num_attention_heads", "n_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "hidden_activation", "activation", "layer_norm_eps", "norm_eps", "rms_norm_eps",
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "sliding_window",
    "local_attention", "global_attn_every_n_layers", "is_decoder", "is_causal",
    "position_embedding_type", "relative_attention_num_buckets", "alibi",
    "relative_attention_max_distance", "dense_act_fn", "use_bidirectional_attention",
    "query_pre_attn_scalar",
)  # fmt: skip


def architecture_of(model: Any) -> dict[str, Any]:
    """Return the settings of a model's config that change what its weights compute."""
    config = getattr(model, "config", None)
    settings = {name: getattr(config, name, None) for name in DECISIVE}
    return {name: value for name, value in settings.items() if value is not None}


def modules_of(module: nn.Module) -> list[nn.Module]:
    """Return a module and all below it, each once, in the order of ``module.modules()``.

    Several times as fast, which small batches notice: it is walked before each.
    """
    found: dict[nn.Module, None] = {}
    waiting = [module]
    while waiting:
        part = waiting.pop()
        if part not in found:
            found[part] = None
            below = [child for child in part._modules.values() if child is not None]
            waiting.extend(reversed(below))
    return list(found)


def parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters of modules, each once, in the order of ``module.parameters()``."""
    found = {
        id(parameter): parameter
        for module in modules
        for parameter in module._parameters.values()
        if parameter is not None
    }
    return list(found.values())


def state_hash(
    state: Mapping[str, Tensor], as_saved: Callable[[str, Tensor], Tensor] | None = None
) -> str:
    """Return a hash of tensors by name: their shapes, types and values, one after another.

    ``as_saved`` changes each before.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name] if as_saved is None else as_saved(name, state[name])
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def versions(tensors: Iterable[Tensor]) -> tuple[object, ...]:
    """Return a value that changes whenever a tensor is replaced or (as torch counts it) written.

    The tensors are not read.
    """
    return tuple(
        part for tensor in tensors for part in (_mark(tensor), tensor.data_ptr(), tensor._version)
    )


def _mark(tensor: Tensor) -> _Storage:
    return _Storage(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class _Storage(StorageWeakRef):
    """What equals only itself: a replaced tensor's address may be used again.

    A copy of torch's own would release the same reference once more, and so the tensor's memory.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Storage) and bool(self.cdata == other.cdata)

    def __hash__(self) -> int:
        return hash(self.cdata)

    def __copy__(self) -> _Storage:
        return self

    def __deepcopy__(self, memo: object) -> _Storage:
        return self

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return object, ()  # another process has other tensors
