"""What a model's config decides of its vectors, beside the weights."""

from __future__ import annotations

from typing import Any

# Not the whole config, which differs with the release of transformers that wrote it.
DECISIVE = (
    "model_type", "num_attention_heads", "n_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "hidden_activation", "activation", "layer_norm_eps", "norm_eps", "rms_norm_eps",
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "sliding_window",
    "local_attention", "global_attn_every_n_layers", "is_decoder", "is_causal",
    "position_embedding_type", "relative_attention_num_buckets", "alibi",
)  # fmt: skip


def architecture_of(model: Any) -> dict[str, Any]:
    """Return the settings of a model's config that change what its weights compute."""
    config = getattr(model, "config", None)
    found = {name: getattr(config, name, None) for name in DECISIVE}
    return {name: value for name, value in found.items() if value is not None}
