"""The forward pass of masked-language training: one pass for the words hidden and the terms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from sluice.training.batches.forward import TrainedModule
from sluice.training.batches.masking import IGNORED
from sluice.training.protocol import Features

CHUNK = 1024  # masked positions whose logits are held at a time: 125 MB over 30,522 words


class MaskedModule(TrainedModule):
    """Masked texts to their term weights and how badly their hidden words are predicted.

    Both come from the same states. Without ``terms`` (no sparsity is asked for) the product with
    the vocabulary is made at masked positions alone.
    """

    def __init__(self, encoder: Any, *, terms: bool) -> None:
        super().__init__(encoder)
        self.encoder = encoder
        self.terms = terms

    def forward(self, document: Features) -> dict[str, Tensor]:
        """Return ``document`` ``[n, vocab + 2]``, or ``[n, 2]`` without terms.

        The last columns are, of each text, the cross-entropy summed over its masked positions and
        their number.
        """
        features = {name: values for name, values in document.items() if name != "labels"}
        labels = document["labels"]
        states = self.encoder.hidden(features)
        decoder = self.encoder.model.get_output_embeddings()
        rows, places = (labels != IGNORED).nonzero(as_tuple=True)
        entropies = token_entropies(
            states[rows, places], decoder.weight, decoder.bias, labels[rows, places]
        )
        sums = entropies.new_zeros(len(labels)).index_add(0, rows, entropies)
        counts = (labels != IGNORED).sum(1).to(sums.dtype)
        made = [sums.unsqueeze(1), counts.unsqueeze(1)]
        if self.terms:
            made.insert(0, self.encoder.pooled(states, features, "document"))
        return {"document": torch.cat(made, dim=1)}


def token_entropies(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    """Return ``-log softmax(states W^T + b)[target]`` ``[m]`` of states ``[m, hidden]``.

    Logits are held ``CHUNK`` rows at a time, and made again in the backward pass.
    """
    if len(states) <= CHUNK:
        return _entropies(states, weight, bias, targets)
    parts = [
        checkpoint(
            _entropies, part, weight, bias, wanted, use_reentrant=False, preserve_rng_state=False
        )
        for part, wanted in zip(
            torch.split(states, CHUNK), torch.split(targets, CHUNK), strict=True
        )
    ]
    return torch.cat(parts)


def _entropies(states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = linear(states, weight, bias)
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return cross_entropy(exact, targets, reduction="none")
