"""MatchPyramid: the similarities of a pair as an image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.own.matching.ranker import Head, MatchingRanker
from sluice.encoders.own.matching.sources import Pairs


def pooled(values: Tensor, lengths: Tensor, parts: int, axis: int) -> Tensor:
    """Return the largest values of ``parts`` equal parts of each row's own length along an axis.

    ``values`` ``[n, ...]``, ``lengths`` ``[n]``. Part p of a length L is from floor(p L / parts) to
    ceil((p + 1) L / parts), so that none is empty where L is not 0; zeros where it is. (Pang et
    al., 2016, dynamic pooling.)
    """
    shape = [1] * values.dim()
    shape[0], shape[axis] = len(values), values.shape[axis]
    places = torch.arange(values.shape[axis], device=values.device)
    lowest = torch.finfo(values.dtype).min
    made = []
    for part in range(parts):
        starts = (part * lengths).div(parts, rounding_mode="floor")
        ends = ((part + 1) * lengths + parts - 1).div(parts, rounding_mode="floor")
        inside = (places >= starts.unsqueeze(1)) & (places < ends.unsqueeze(1))
        largest = values.masked_fill(~inside.view(shape), lowest).amax(axis)
        empty = (lengths == 0).view([-1] + [1] * (largest.dim() - 1))
        made.append(largest.masked_fill(empty, 0.0))
    return torch.stack(made, dim=axis)


class Image(Head):
    """A 3 x 3 convolution of the matrix of cosines, dynamic max pooling, and a hidden layer.

    ``filters`` (8): of the convolution, which has a ReLU.
    ``rows`` (3): what pooling leaves of the query's places.
    ``columns`` (10): what pooling leaves of the document's places.
    ``hidden`` (32): the units between these and the score.
    """

    def __init__(
        self, dim: int, *, filters: int = 8, rows: int = 3, columns: int = 10, hidden: int = 32
    ) -> None:
        super().__init__()
        for name, value in (("filters", filters), ("rows", rows), ("columns", columns)):
            whole_number(value, name, 1, 256)
        whole_number(hidden, "hidden", 1, 1024)
        self.grid = rows, columns
        self.convolution = nn.Conv2d(1, filters, 3, padding=1)
        self.network = nn.Sequential(
            nn.Linear(filters * rows * columns, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, pairs: Pairs) -> Tensor:
        """Return scores ``[n]``."""
        image = torch.relu(self.convolution(pairs.cosines().unsqueeze(1)))
        image = pooled(image, pairs.queries.lengths, self.grid[0], 2)
        image = pooled(image, pairs.documents.lengths, self.grid[1], 3)
        scores: Tensor = self.network(image.flatten(1)).squeeze(-1)
        return scores


class MatchPyramid(MatchingRanker):
    """Reads the matrix of a pair's similarities as an image, by a convolution.

    (Pang et al., 2016, Text Matching as Image Recognition.)
    """

    kind = "match_pyramid"
    head = Image
