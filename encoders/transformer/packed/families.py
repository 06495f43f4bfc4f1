"""Finds the layers and heads of the transformers that can run packed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sluice.encoders.model_files.identity import modules_of
from sluice.encoders.model_files.weights.quantised import QuantisedLinear
from sluice.encoders.transformer.packed.linear import Activation, activation_of

_MAKERS = ("transformers.", "torch.", QuantisedLinear.__module__)

Head = Callable[[Tensor], Tensor]
Embed = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class LayerParts(NamedTuple):
    """One post-norm transformer layer: attention, sum, norm, feed-forward, sum, norm."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    attended: nn.Linear  # from the heads back to the states
    attention_norm: nn.LayerNorm
    inner: nn.Linear
    activation: Activation
    outer: nn.Linear
    output_norm: nn.LayerNorm
    shares_dropout: nn.Dropout  # of attention's probabilities
    attended_dropout: nn.Dropout | None
    output_dropout: nn.Dropout


class Parts(NamedTuple):
    """What a packed pass needs of a transformer.

    ``embed(ids, positions, types)`` takes and returns ``[1, tokens, ...]``; ``first_position`` is
    that of a text's first token; ``padding_id`` is set where a padding token inside a text has no
    position of its own; ``bias(length)`` is added to the scores, ``[heads, length, length]``.
    """

    embed: Embed
    layers: list[LayerParts]
    heads: int
    first_position: int
    padding_id: int | None
    bias: Callable[[int], Tensor] | None


def parts_of(model: Any) -> Parts | None:
    """Return the parts of a BERT, RoBERTa, ELECTRA, DistilBERT or MPNet; None for all others.

    None also for one that was changed: layers of other classes (adapters), hooks, pruned or
    decoder layers. Right is what ``transformers`` computes; whoever uses the parts compares once.
    """
    kind = type(model).__name__
    family = _FAMILIES.get(kind)
    if family is None or not type(model).__module__.startswith("transformers.models."):
        return None
    config = model.config
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return None
    if is_changed(modules_of(model.base_model)):
        return None
    try:
        parts = family(model)
    except (AttributeError, TypeError):  # built otherwise than the releases known here
        return None
    plain = all(
        type(part) is nn.LayerNorm if "norm" in name else is_linear(part)
        for layer in parts.layers
        for name, part in layer._asdict().items()
        if name != "activation" and not name.endswith("dropout")
    )
    return parts if plain and parts.layers and all(map(_is_known, parts.layers)) else None


def _is_known(layer: LayerParts) -> bool:
    """Return whether a layer's activation is known, and its projections can be one product."""
    biases = {part.bias is None for part in (layer.query, layer.key, layer.value)}
    return layer.activation is not None and len(biases) == 1


def is_linear(part: Any) -> bool:
    """Return whether a part is a linear layer and nothing more, of weights or of codes."""
    return type(part) in (nn.Linear, QuantisedLinear)


def is_changed(trunk: Iterable[nn.Module]) -> bool:
    """Return whether parts of other makers, hooks and the like alter a trunk's modules."""
    return any(
        not type(module).__module__.startswith(_MAKERS)
        or module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in module.__dict__
        or "parametrizations" in module._modules
        for module in trunk
    )


def _bert_layers(model: Any) -> Iterator[LayerParts]:
    for layer in model.encoder.layer:
        attention = layer.attention
        yield LayerParts(
            attention.self.query, attention.self.key, attention.self.value,
            attention.output.dense, attention.output.LayerNorm,
            layer.intermediate.dense, _activation(layer.intermediate.intermediate_act_fn),
            layer.output.dense, layer.output.LayerNorm,
            attention.self.dropout, attention.output.dropout, layer.output.dropout,
        )  # fmt: skip


def _activation(module: Any) -> Activation:
    return activation_of(module)  # type: ignore[return-value]  # None is looked for in parts_of


def typed(embeddings: Any) -> Embed:
    """Return an embedding that adds those of positions and segments, 0 by default."""

    def embed(ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        types = torch.zeros_like(ids) if types is None else types
        states: Tensor = embeddings(input_ids=ids, position_ids=positions, token_type_ids=types)
        return states

    return embed


def _untyped(embeddings: Any) -> Embed:
    def embed(ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        states: Tensor = embeddings(input_ids=ids, position_ids=positions)
        return states

    return embed


def _bert(model: Any) -> Parts:
    if getattr(model.config, "position_embedding_type", "absolute") != "absolute":
        raise TypeError("relative positions")
    heads = int(model.config.num_attention_heads)
    return Parts(typed(model.embeddings), list(_bert_layers(model)), heads, 0, None, None)


def _electra(model: Any) -> Parts:
    parts = _bert(model)
    if not hasattr(model, "embeddings_project"):
        return parts

    def embed(ids: Tensor, positions: Tensor, types: Tensor | None) -> Tensor:
        states: Tensor = model.embeddings_project(parts.embed(ids, positions, types))
        return states

    return parts._replace(embed=embed)


def _roberta(model: Any) -> Parts:
    padding = int(model.embeddings.padding_idx)
    return _bert(model)._replace(first_position=padding + 1, padding_id=padding)


def _mpnet(model: Any) -> Parts:
    layers = [
        LayerParts(
            layer.attention.attn.q, layer.attention.attn.k, layer.attention.attn.v,
            layer.attention.attn.o, layer.attention.LayerNorm,
            layer.intermediate.dense, _activation(layer.intermediate.intermediate_act_fn),
            layer.output.dense, layer.output.LayerNorm,
            layer.attention.attn.dropout, layer.attention.dropout, layer.output.dropout,
        )
        for layer in model.encoder.layer
    ]  # fmt: skip
    padding = int(model.embeddings.padding_idx)

    def bias(length: int) -> Tensor:
        place = torch.empty((1, length, 1), device=model.device)
        values: Tensor = model.encoder.compute_position_bias(place)
        return values[0]

    heads = int(model.config.num_attention_heads)
    return Parts(_untyped(model.embeddings), layers, heads, padding + 1, padding, bias)


def _distilbert(model: Any) -> Parts:
    layers = [
        LayerParts(
            layer.attention.q_lin, layer.attention.k_lin, layer.attention.v_lin,
            layer.attention.out_lin, layer.sa_layer_norm,
            layer.ffn.lin1, _activation(layer.ffn.activation), layer.ffn.lin2,
            layer.output_layer_norm, layer.attention.dropout, None, layer.ffn.dropout,
        )
        for layer in model.transformer.layer
    ]  # fmt: skip
    heads = int(model.config.n_heads)
    return Parts(_untyped(model.embeddings), layers, heads, 0, None, None)


_FAMILIES: dict[str, Callable[[Any], Parts]] = {
    "BertModel": _bert,
    "CamembertModel": _roberta,
    "DistilBertModel": _distilbert,
    "ElectraModel": _electra,
    "MPNetModel": _mpnet,
    "RobertaModel": _roberta,
    "XLMRobertaModel": _roberta,
}


def vocabulary_head(model: Any) -> Head | None:
    """Return a masked language model's head, as ``forward`` applies it to its trunk's states.

    None for an unknown class.
    """
    kind = type(model).__name__
    if kind in ("BertForMaskedLM", "NomicBertForMaskedLM"):
        return _head(model.cls)
    if kind == "ModernBertForMaskedLM":
        return lambda states: model.decoder(model.head(states))
    if kind in ("RobertaForMaskedLM", "XLMRobertaForMaskedLM", "CamembertForMaskedLM"):
        return _head(model.lm_head)
    if kind == "MPNetForMaskedLM":
        return _head(model.lm_head)
    if kind == "ElectraForMaskedLM":
        return lambda states: model.generator_lm_head(model.generator_predictions(states))
    if kind == "DistilBertForMaskedLM":
        return lambda states: model.vocab_projector(
            model.vocab_layer_norm(model.activation(model.vocab_transform(states)))
        )
    return None


def classification_head(model: Any) -> Head | None:
    """Return a sequence classifier's head as a function of first tokens' states ``[n, hidden]``.

    None for an unknown class.
    """
    kind = type(model).__name__
    if kind == "BertForSequenceClassification":
        return lambda states: model.classifier(
            model.dropout(model.bert.pooler(states.unsqueeze(1)))
        )
    if kind in (
        "RobertaForSequenceClassification",
        "XLMRobertaForSequenceClassification",
        "CamembertForSequenceClassification",
        "ElectraForSequenceClassification",
        "MPNetForSequenceClassification",
    ):
        return lambda states: model.classifier(states.unsqueeze(1))
    if kind == "NomicBertForSequenceClassification":
        return lambda states: model.classifier(
            model.dropout(model.nomic_bert.pooler(states.unsqueeze(1)))
        )
    if kind == "ModernBertForSequenceClassification" and model.config.classifier_pooling == "cls":
        return lambda states: model.classifier(model.drop(model.head(states)))
    if kind == "DistilBertForSequenceClassification":
        return lambda states: model.classifier(
            model.dropout(functional.relu(model.pre_classifier(states)))
        )
    return None


def _head(module: Any) -> Head:
    def head(states: Tensor) -> Tensor:
        found: Tensor = module(states)
        return found

    return head
