"""Texts as their tokens' vectors, padded, and pairs of them: what the heads of rankers read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

NO_TOKEN = -1  # the id where a text has ended


class OneText(NamedTuple):
    """The unit vectors ``[length, dim]`` and the ids ``[length]`` of one text's own tokens."""

    vectors: Tensor
    ids: Tensor


class Texts(NamedTuple):
    """Several texts: ``vectors`` ``[n, longest, dim]``, ``ids`` ``[n, longest]``, ``lengths``.

    Vectors have length 1; beyond a text's length they are zeros, and ids ``NO_TOKEN``. There is
    room for one token at least, so that nothing has a width of zero.
    """

    vectors: Tensor
    ids: Tensor
    lengths: Tensor

    @property
    def mask(self) -> Tensor:
        """Where there are tokens, bool ``[n, longest]``."""
        places = torch.arange(self.ids.shape[1], device=self.ids.device)
        return places < self.lengths.unsqueeze(1)

    def rows(self, places: Tensor) -> Texts:
        """Return some of the texts, which may repeat."""
        return Texts(*(part[places] for part in self))


class Pairs(NamedTuple):
    """n queries, and as many documents to score for them."""

    queries: Texts
    documents: Texts

    @property
    def mask(self) -> Tensor:
        """Where a query's token meets a document's, bool ``[n, queries' longest, documents']``."""
        return self.queries.mask.unsqueeze(2) & self.documents.mask.unsqueeze(1)

    def cosines(self) -> Tensor:
        """Return the cosine of each query token with each document token, 0 where is none."""
        return self.queries.vectors @ self.documents.vectors.transpose(1, 2)


def aligned(vectors: Tensor, ids: Tensor, own: Tensor) -> Texts:
    """Return texts of the tokens ``own`` ``[n, length]`` alone, moved together, of unit length."""
    lengths = own.sum(1)
    width = max(1, int(lengths.max())) if len(lengths) else 1
    order = torch.argsort((~own).to(torch.int8), dim=1, stable=True)[:, :width]
    mask = torch.arange(width, device=ids.device) < lengths.unsqueeze(1)
    chosen = vectors.gather(1, order.unsqueeze(2).expand(-1, -1, vectors.shape[2])).float()
    unit = functional.normalize(chosen, dim=-1) * mask.unsqueeze(2)
    return Texts(unit, ids.gather(1, order).masked_fill(~mask, NO_TOKEN), lengths)


def stacked(texts: Sequence[OneText]) -> Texts:
    """Return single texts side by side."""
    lengths = torch.tensor([len(text.ids) for text in texts], device=texts[0].ids.device)
    vectors = nn.utils.rnn.pad_sequence([text.vectors for text in texts], batch_first=True)
    ids = nn.utils.rnn.pad_sequence(
        [text.ids for text in texts], batch_first=True, padding_value=NO_TOKEN
    )
    missing = 1 - min(1, ids.shape[1])
    return Texts(
        functional.pad(vectors, (0, 0, 0, missing)),
        functional.pad(ids, (0, missing), value=NO_TOKEN),
        lengths,
    )
