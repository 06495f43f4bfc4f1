"""How many labels a sequence classifier has, and which of two says that a document is relevant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.layout import read_object, transformer_folder

RELEVANT = ("relevant", "true", "yes", "positive", "1", "label_1", "entailment", "is_relevant")


def label_count(folder: Path) -> int:
    """Return the labels of a folder's classifier; 1, a new head's, for another model.

    A configuration that does not say has two, transformers' default. ``ModelError`` for more.
    """
    path = transformer_folder(folder) / "config.json"
    config = read_object(path)
    if "SequenceClassification" not in str(config.get("architectures")):
        return 1
    names = config.get("id2label")
    count = len(names) if isinstance(names, dict) else config.get("num_labels", 2)
    if count not in (1, 2):
        raise ModelError(f"{path}: a classifier of {count} labels; a reranker has one or two")
    return int(count)


def relevant_label(config: Any) -> int:
    """Return which of two labels says relevant: the one of that name, else the second."""
    names = getattr(config, "id2label", None) or {}
    first = str(names.get(0, "")).strip().lower()
    second = str(names.get(1, "")).strip().lower()
    return 0 if first in RELEVANT and second not in RELEVANT else 1


def one_score(logits: Tensor, relevant: int) -> Tensor:
    """Return one number a pair ``[n]`` of logits ``[n, 1]`` or ``[n, 2]``, float32.

    Of two it is their difference, the log-odds of relevance: its sigmoid is the probability that a
    softmax gives. (Nogueira and Cho, 2019, arXiv 1901.04085, train two labels so.)
    """
    scores = logits.float()
    if scores.shape[-1] == 1:
        return scores.squeeze(-1)
    signs = torch.full((2,), -1.0, device=scores.device)
    signs[relevant] = 1.0
    return (scores * signs).sum(dim=-1)
