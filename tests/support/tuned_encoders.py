"""What tests of tuning share: an encoder's outputs, and a change of all that it trains."""

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

TEXTS = ["river gold stone", "the weight of a vector model", "query", "sluice water search index"]


def named(settings: dict[str, Any]) -> str:
    return "-".join(str(value) for value in settings.values())


def outputs(encoder: Any) -> np.ndarray:
    """What encoding gives: packed where it can be."""
    if hasattr(encoder, "score"):
        return encoder.score([(a, b) for a in TEXTS for b in TEXTS])
    found = encoder.encode_documents(TEXTS)
    return found.toarray() if isinstance(found, sp.csr_array) else found


def embedded(encoder: Any) -> np.ndarray:
    """What training sees, without its dropout."""
    with torch.no_grad():
        if hasattr(encoder, "score"):
            pairs = encoder.tokenize_pairs([(a, b) for a in TEXTS for b in TEXTS])
            return encoder.logits(pairs).numpy()
        return encoder.embed(encoder.tokenize(TEXTS, "document"), "document").numpy()


def move(encoder: Any) -> None:
    """Change all that is trained, as a training would."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in encoder.module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
