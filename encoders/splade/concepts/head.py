"""The head that makes weights of concepts of a text's vector, or of its tokens' states."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import is_number
from sluice.encoders.splade.pooling import splade_max

Read: TypeAlias = Literal["text", "tokens"]
WEIGHTS = "head.safetensors"
SCALE = 20.0  # of cosines, as in the usual scores of dense encoders
SHARE = 0.9  # of the cosines between names, above which a text has a concept
COMPARED = 1_000  # names


class ConceptHead(nn.Module):
    """``w_j = max_i log(1 + relu(W_j x_i + b_j))`` over a text's tokens ``i``, or its one vector.

    With the transposed word embeddings as ``W`` and the tokens' states after a masked language
    model's transformation as ``x`` it is SPLADE's.
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(bias)

    @classmethod
    def of_names(cls, vectors: Tensor, *, scale: float, threshold: float | None) -> ConceptHead:
        """Return a head by the unit vectors ``[C, dim]`` of the concepts' names.

        A text of length 1 has concept j by ``scale (cos(text, name_j) - threshold)``. Models differ
        in what cosines are usual: a threshold of None is above nine tenths of those between names.
        """
        if threshold is None:
            some = vectors[:: -(-len(vectors) // COMPARED)]
            pairs = torch.triu_indices(len(some), len(some), offset=1)
            threshold = float(torch.quantile((some @ some.T)[*pairs], SHARE))
        return cls(scale * vectors, torch.full((len(vectors),), -scale * threshold))

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return weights float32 ``[n, C]`` of ``[n, length, dim]``, ``mask`` ``[n, length]``."""
        return splade_max(states, mask, self.weight, self.bias)

    def write(self, folder: Path) -> None:
        """Write the weights into a module's folder."""
        state = {name: p.detach().cpu().contiguous() for name, p in self.named_parameters()}
        safetensors.torch.save_file(state, folder / WEIGHTS)

    @classmethod
    def read(cls, folder: Path, concepts: int, dim: int) -> ConceptHead:
        """Read what ``write`` wrote; ``ModelError`` where it does not fit the encoder."""
        file = folder / WEIGHTS
        try:
            state = safetensors.torch.load_file(file)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file}: {error}") from error
        expected = {"weight": (concepts, dim), "bias": (concepts,)}
        shapes = {name: tuple(value.shape) for name, value in state.items()}
        floats = all(value.dtype is torch.float32 for value in state.values())
        if shapes != expected or not floats:
            raise ModelError(f"{file}: holds {shapes}, expected float32 {expected}")
        return cls(state["weight"], state["bias"])


def checked_settings(read: Any, scale: Any, threshold: Any) -> tuple[Read, float, float | None]:
    """Return the settings of a new head; a threshold of None is found by the names."""
    if read is None:
        read = "text"
    if read not in get_args(Read):
        raise ConfigError(f"read: {read!r}, expected {' or '.join(get_args(Read))}")
    scale = SCALE if scale is None else scale
    if not is_number(scale) or scale <= 0:
        raise ConfigError(f"scale: {scale!r}, expected a number above 0")
    if threshold is not None and (not is_number(threshold) or not -1 < threshold < 1):
        raise ConfigError(f"threshold: {threshold!r}, expected a cosine, above -1 and below 1")
    return read, float(scale), threshold
