"""Finds the layers of ModernBERT, NomicBERT, T5 encoders and decoders that can run packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sluice.encoders.model_files.identity import modules_of
from sluice.encoders.transformer.packed.attention import Heads, Sight
from sluice.encoders.transformer.packed.families import Embed, is_changed, is_linear, typed
from sluice.encoders.transformer.packed.linear import Activation, Layer, activation_of
from sluice.encoders.transformer.packed.norms import Norm, Norms, norm_of

# Kinds of rotation whose angles do not depend on the longest text of a batch.
_ROTATIONS = ("default", "linear", "llama3", "yarn")


class Blocks(NamedTuple):
    """What a packed pass needs of a transformer that it only encodes with.

    ``embed(ids, positions, types)`` takes and returns ``[1, tokens, ...]``. Every layer's kind has
    its ``sights``; ``turns(kind, length)`` are the cosines and sines ``[2, length, size / 2]`` of
    its rotation; ``bias(length)`` ``[heads, length, length]`` is added to the scores.
    """

    embed: Embed
    layers: list[Layer]
    heads: Heads
    scale: float
    sights: dict[str, Sight]
    final_norm: Norm | None
    turns: Callable[[str, int], Tensor] | None = None
    bias: Callable[[int], Tensor] | None = None


def blocks_of(model: Any) -> Blocks | None:
    """Return the layers of a ModernBERT, NomicBERT, T5 encoder, Llama, Mistral, Qwen or Gemma 3.

    None for all others, and for one that was changed, see ``parts_of``, or set to attend otherwise
    than its family does.
    """
    family = _FAMILIES.get(type(model).__name__)
    if family is None or not type(model).__module__.startswith("transformers.models."):
        return None
    if is_changed(modules_of(model.base_model)):
        return None
    try:
        blocks = family(model)
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):  # built otherwise than the releases known here
        return None
    plain = all(is_linear(part) for layer in blocks.layers for part in layer.linears)
    known = all(layer.activation is not None for layer in blocks.layers)
    return blocks if blocks.layers and plain and known and _biases_agree(blocks.layers) else None


def _biases_agree(layers: list[Layer]) -> bool:
    """Return whether the projections that become one product all have a bias, or none."""
    joined = [part for layer in layers for part in (layer.projections, layer.inner)]
    return all(len({linear.bias is None for linear in part}) == 1 for part in joined)


def _activation(module: Any) -> Activation:
    return activation_of(module)  # type: ignore[return-value]  # None is looked for in blocks_of


def _turns(model: Any, size: int) -> Callable[[str, int], Tensor]:
    """Return the tables of a model's rotation, which it computes itself."""
    rotation = model.rotary_emb
    by_kind = isinstance(rotation.rope_type, dict)
    used = rotation.rope_type.values() if by_kind else [rotation.rope_type]
    if not set(used) <= set(_ROTATIONS):
        raise TypeError(f"rotation {used}")

    def turns(kind: str, length: int) -> Tensor:
        like = torch.empty(0, device=model.device)
        positions = torch.arange(length, device=model.device)[None]
        kinds = [kind] if by_kind else []
        tables: Any = rotation(like, positions, *kinds)
        return torch.stack([table[0, :, : size // 2] for table in tables])

    kinds = set(model.config.layer_types) if by_kind else {""}
    if any(turns(kind, 1).shape[-1] != size // 2 for kind in kinds):
        raise TypeError("rotation of a part of each head")
    return turns


def _check_directions(model: Any, causal: bool) -> None:
    """Raise ``TypeError`` unless all attention modules look in the same directions."""
    noted = [module.is_causal for module in model.modules() if hasattr(module, "is_causal")]
    if any(each != causal for each in noted):
        raise TypeError("some of its layers look ahead")


def _modern_bert(model: Any) -> Blocks:
    config = model.config
    _check_directions(model, causal=False)
    heads = int(config.num_attention_heads)
    size = int(config.hidden_size) // heads
    layers = [
        Layer(
            [layer.attn.Wqkv], layer.attn.Wo, [layer.mlp.Wi], layer.mlp.Wo,
            _activation(layer.mlp.act), Norms(before=norm_of(layer.attn_norm)),
            Norms(before=norm_of(layer.mlp_norm)), gated=True, kind=layer.attention_type,
        )
        for layer in model.layers
    ]  # fmt: skip
    sights = {
        "full_attention": Sight(),
        "sliding_attention": Sight(window=int(config.sliding_window)),
    }
    return Blocks(
        _words(model.embeddings), layers, Heads(heads, heads, size), size**-0.5, sights,
        norm_of(model.final_norm), _turns(model, size),
    )  # fmt: skip


def _nomic_bert(model: Any) -> Blocks:
    _check_directions(model, causal=False)
    heads, size = int(model.config.num_attention_heads), int(model.layers[0].self_attn.head_dim)
    layers = [
        _decoder_layer(
            layer,
            Norms(after=norm_of(layer.post_attention_layernorm)),
            Norms(after=norm_of(layer.post_mlp_layernorm)),
        )
        for layer in model.layers
    ]
    return Blocks(
        typed(model.embeddings), layers, Heads(heads, heads, size), size**-0.5, {"": Sight()},
        None, _turns(model, size),
    )  # fmt: skip


def _t5(model: Any) -> Blocks:
    stack = model.encoder
    _check_directions(stack, causal=False)
    first = stack.block[0].layer[0].SelfAttention
    if stack.is_decoder:
        raise TypeError("a decoder")

    def bias(length: int) -> Tensor:
        values: Tensor = first.compute_bias(length, length)
        return values[0]

    heads = Heads(int(first.n_heads), int(first.n_heads), int(first.key_value_proj_dim))
    return Blocks(
        _words(stack.embed_tokens), list(_t5_layers(stack)), heads, float(first.scaling),
        {"": Sight()}, norm_of(stack.final_layer_norm), bias=bias,
    )  # fmt: skip


def _t5_layers(stack: Any) -> Iterator[Layer]:
    for block in stack.block:
        attention, output = block.layer
        own, inside = attention.SelfAttention, output.DenseReluDense
        gated = hasattr(inside, "wi_0")
        yield Layer(
            [own.q, own.k, own.v], own.o, [inside.wi_0, inside.wi_1] if gated else [inside.wi],
            inside.wo, _activation(inside.act), Norms(before=norm_of(attention.layer_norm)),
            Norms(before=norm_of(output.layer_norm)), gated=gated,
        )  # fmt: skip


def _llama(model: Any) -> Blocks:
    return _decoder(model, ["full_attention"] * len(model.layers), None)


def _mistral(model: Any) -> Blocks:
    window = model.config.sliding_window
    kind = "full_attention" if window is None else "sliding_attention"
    return _decoder(model, [kind] * len(model.layers), window)


def _qwen(model: Any) -> Blocks:
    return _decoder(model, model.config.layer_types, model.config.sliding_window)


def _decoder(model: Any, kinds: list[str], window: int | None) -> Blocks:
    causal = getattr(model.config, "is_causal", None) is not False
    _check_directions(model, causal)
    layers = [
        _decoder_layer(
            layer,
            Norms(before=norm_of(layer.input_layernorm)),
            Norms(before=norm_of(layer.post_attention_layernorm)),
            kind,
        )
        for layer, kind in zip(model.layers, kinds, strict=True)
    ]
    # A window counts the token itself if nothing after it is seen, and does not otherwise.
    return _decoder_blocks(model, layers, causal, None if window is None else window - causal)


def _gemma(model: Any) -> Blocks:
    config = model.config
    causal = not config.use_bidirectional_attention
    if getattr(config, "is_causal", None) is not None or config.attn_logit_softcapping is not None:
        raise TypeError("set to attend otherwise")
    _check_directions(model, causal)
    layers = [
        _decoder_layer(
            layer,
            Norms(norm_of(layer.input_layernorm), norm_of(layer.post_attention_layernorm)),
            Norms(
                norm_of(layer.pre_feedforward_layernorm), norm_of(layer.post_feedforward_layernorm)
            ),
            kind,
        )
        for layer, kind in zip(model.layers, config.layer_types, strict=True)
    ]
    return _decoder_blocks(model, layers, causal, int(config.sliding_window) - 1)


def _decoder_blocks(model: Any, layers: list[Layer], causal: bool, window: int | None) -> Blocks:
    config, first = model.config, model.layers[0].self_attn
    heads = Heads(
        int(config.num_attention_heads), int(config.num_key_value_heads), int(first.head_dim)
    )
    sights = {"full_attention": Sight(causal), "sliding_attention": Sight(causal, window)}
    return Blocks(
        _words(model.embed_tokens), layers, heads, float(first.scaling), sights,
        norm_of(model.norm), _turns(model, heads.size),
    )  # fmt: skip


def _decoder_layer(layer: Any, attention: Norms, output: Norms, kind: str = "") -> Layer:
    own, inside = layer.self_attn, layer.mlp
    return Layer(
        [own.q_proj, own.k_proj, own.v_proj], own.o_proj, [inside.gate_proj, inside.up_proj],
        inside.down_proj, _activation(inside.act_fn), attention, output, gated=True,
        query_norm=norm_of(getattr(own, "q_norm", None)),
        key_norm=norm_of(getattr(own, "k_norm", None)), kind=kind,
    )  # fmt: skip


def _words(table: Any) -> Embed:
    def embed(ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        states: Tensor = table(ids)
        return states

    return embed


_FAMILIES: dict[str, Callable[[Any], Blocks]] = {
    "Gemma3TextModel": _gemma,
    "LlamaModel": _llama,
    "MistralModel": _mistral,
    "ModernBertModel": _modern_bert,
    "NomicBertModel": _nomic_bert,
    "Qwen2Model": _qwen,
    "Qwen3Model": _qwen,
    "T5EncoderModel": _t5,
}
