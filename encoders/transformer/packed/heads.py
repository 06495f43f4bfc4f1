"""Heads of known classes as functions of packed states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

Head = Callable[[Tensor], Tensor]


def vocabulary_head(model: Any) -> Head | None:
    """Return a masked language model's head, as ``forward`` applies it to its trunk's states.

    None for a class that is not known here.
    """
    kind = type(model).__name__
    if kind == "BertForMaskedLM":
        return _head(model.cls)
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

    None for a class that is not known here.
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
