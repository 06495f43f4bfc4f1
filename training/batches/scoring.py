"""Scores where no product of two vectors is one: MaxSim, its mean, XTR, attention, networks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding_bag, layer_norm, normalize, pad

from sluice.encoders.foundation.errors import ConfigError, suggest
from sluice.encoders.foundation.q_net import NORM_EPSILON, QNetShape
from sluice.training.protocol import Similarity


@dataclass(frozen=True, slots=True)
class QNetScoring:
    """How flat q-nets ``[B, width]`` make scores ``[B, N]`` of documents ``[N, dim]``.

    ``encoders.foundation.q_net`` has the formula. ``unit``: documents have length 1.
    """

    shape: QNetShape
    unit: bool = False

    @property
    def similarity(self) -> Similarity:
        """The cosine where scores begin as one (``product``), else what is not bounded."""
        return "cosine" if self.unit and self.shape.product else "dot"

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that change what is learnt."""
        return {"name": "q_net", **self.shape._asdict()}

    def scores(self, queries: Tensor, documents: Tensor, *, unit: bool = False) -> Tensor:
        """Return ``[B, N]``: all networks over all documents, a layer at a time.

        Memory: the states of a layer are ``[B, N, dim]``, and all are kept for the gradient.
        """
        dim, hidden, product = self.shape
        count, square, start = len(queries), dim * dim, 0
        states = documents.expand(count, *documents.shape)  # [B, N, dim]
        for number in range(hidden):
            weights = queries[:, start : start + square].view(count, dim, dim)
            bias = queries[:, start + square : start + square + dim, None].transpose(1, 2)
            values = torch.baddbmm(bias, states, weights).relu()
            values = layer_norm(values, (dim,), eps=NORM_EPSILON)
            states = values + states if number < hidden - 1 else values
            start += square + dim
        output = queries[:, start : start + dim, None]
        scores = (states @ output).squeeze(2)
        if product:
            scores = scores + queries[:, start + dim :] @ documents.T
        return scores


ScoringName = Literal["max_sim", "mean_max_sim", "xtr"]
TOP_K = 256  # of `xtr`; the paper trains with 32 to 320
LEAST = -1.0  # for each token of the query: the score of a document without tokens
CELLS = 1 << 22  # similarities of tokens that are held at a time: 16 MB of float32


@dataclass(frozen=True, slots=True)
class TokenScoring:
    """How vectors ``[B, Lq, dim]`` and ``[N, Ld, dim]`` make scores ``[B, N]``.

    Rows of zeros are not tokens. With m_ij the best product of token i of the query with a token of
    document j, the score is ``sum_i m_ij`` (``max_sim``: Khattab and Zaharia 2020, ColBERT, eq. 3),
    that over the number of the query's tokens (``mean_max_sim``), or, with ``xtr``,
    ``sum_i a_ij m_ij / sum_i a_ij``, where a_ij is 1 if m_ij is among the ``top_k`` best products
    of token i with all tokens of the batch's documents, ties included, and else 0: what a search
    by token would not find does not count (Lee et al. 2023, XTR, eq. 5; 0 where nothing counts).

    A document without tokens scores -1 for each token of the query, the least that vectors of
    length 1 can have, and 0 by ``xtr``; a query without any scores 0.
    Raises ``ConfigError`` for an unknown name and for ``top_k`` without ``xtr``.
    """

    name: ScoringName = "max_sim"
    top_k: int | None = None

    def __post_init__(self) -> None:
        known = get_args(ScoringName)
        if self.name not in known:
            raise ConfigError(
                f"scoring: {self.name!r}, expected {', '.join(known)}"
                f"{suggest(str(self.name), known)}"
            )
        if self.top_k is not None and self.name != "xtr":
            raise ConfigError(
                f"xtr_top_k: {self.top_k}: is for scoring: xtr, and scoring is {self.name}; leave "
                "it out"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"xtr_top_k: {self.top_k}, expected 1 or more tokens")

    @property
    def similarity(self) -> Similarity:
        """What losses take their default temperature by: a sum, or a mean within [-1, 1]."""
        return "max_sim" if self.name == "max_sim" else "mean_max_sim"

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that change what is learnt, with their defaults filled in."""
        return {"name": self.name, **({"top_k": self.retrieved} if self.retrieved else {})}

    @property
    def retrieved(self) -> int:
        """How many tokens of the batch's documents each query token finds; 0: all of them."""
        return (self.top_k or TOP_K) if self.name == "xtr" else 0

    def scores(self, queries: Tensor, documents: Tensor, *, unit: bool = False) -> Tensor:
        """Return ``[B, N]``; ``unit`` makes every token's vector of length 1 first.

        Of the ``B Lq x N Ld`` products only blocks are ever held, forwards and backwards.
        """
        asked, filled = tokens_of(queries), tokens_of(documents)  # [B, Lq], [N, Ld]
        if unit:
            queries, documents = normalize(queries, dim=2), normalize(documents, dim=2)
        count, width, dim = queries.shape
        best, least = _TokenMaxima.apply(  # type: ignore[no-untyped-call]
            queries.reshape(count * width, dim), documents, filled, self.retrieved
        )
        counted = asked.reshape(-1, 1) & filled.any(1)
        if self.name == "xtr":
            counted = counted & (best >= least[:, None])
            best = best.masked_fill(~counted, 0.0)
        else:
            best = best.masked_fill(~filled.any(1), LEAST).masked_fill(~asked.reshape(-1, 1), 0.0)
        sums: Tensor = best.view(count, width, len(documents)).sum(1)
        if self.name == "max_sim":
            return sums
        if self.name == "mean_max_sim":
            return sums / asked.sum(1, keepdim=True).clamp(min=1)
        return sums / counted.view(count, width, len(documents)).sum(1).clamp(min=1)


def tokens_of(vectors: Tensor) -> Tensor:
    """Return ``[n, L]``: where vectors ``[n, L, dim]`` are tokens, and not zeros."""
    return (vectors.detach() != 0).any(2)


def widened_to(vectors: Tensor, length: int) -> Tensor:
    """Return vectors ``[n, L, dim]`` as ``[n, length, dim]``, filled up with zeros."""
    return pad(vectors, (0, 0, 0, length - vectors.shape[1]))


class _TokenMaxima(torch.autograd.Function):
    """The best product of each query token with each document's tokens, and where it is.

    ``queries`` is ``[R, dim]``, ``documents`` ``[N, L, dim]``, ``filled`` ``[N, L]``. Returns
    ``[R, N]``, -inf for a document without tokens, and ``[R]``, each token's ``top_k``-th best
    product of all (-inf where there are fewer, or ``top_k`` is 0). Of equal products the first
    counts: the gradient goes to its token alone.
    """

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, documents: Tensor, filled: Tensor, top_k: int
    ) -> tuple[Tensor, Tensor]:
        rows, (count, width) = len(queries), filled.shape
        best = queries.new_full((rows, count), -torch.inf)
        places = torch.zeros(rows, count, dtype=torch.int32, device=queries.device)
        least = queries.new_full((rows,), -torch.inf)
        for some in _parts(rows, min(CELLS // max(1, width), rows)):
            top = queries.new_full((len(queries[some]), top_k), -torch.inf)
            for block in _parts(count, CELLS // max(1, width * len(top))):
                texts = documents[block]
                products = (queries[some] @ texts.flatten(0, 1).T).view(len(top), len(texts), width)
                products.masked_fill_(~filled[block], -torch.inf)
                if width:
                    values, first = products.max(2)
                    best[some, block], places[some, block] = values, first.to(torch.int32)
                if top_k:
                    top = torch.cat([top, products.flatten(1)], 1).topk(top_k, 1, sorted=False)[0]
            if top_k:
                least[some] = top.amin(1)
        ctx.save_for_backward(queries, documents, places)
        ctx.mark_non_differentiable(least)
        return best, least

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries, documents, places = ctx.saved_tensors
        to_queries, to_documents = torch.zeros_like(queries), torch.zeros_like(documents)
        count, width, dim = documents.shape
        if not (len(queries) and width):
            return to_queries, to_documents, None, None
        for block in _parts(count, CELLS // len(queries)):
            texts, given = documents[block], gradients[0][:, block].contiguous()  # given: [R, n]
            starts = torch.arange(len(texts), device=queries.device) * width
            tokens = places[:, block].long() + starts  # [R, n]
            flat = texts.reshape(-1, dim)
            to_queries += embedding_bag(tokens, flat, per_sample_weights=given, mode="sum")
            order = tokens.flatten().argsort(stable=True)
            bags = torch.searchsorted(
                tokens.flatten()[order], torch.arange(len(flat), device=queries.device)
            )
            to_documents[block] = embedding_bag(
                order // len(texts), queries, bags,
                per_sample_weights=given.flatten()[order], mode="sum",
            ).view_as(texts)  # fmt: skip
        return to_queries, to_documents, None, None


def _parts(count: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


@dataclass(frozen=True, slots=True)
class AttentionScoring:
    """How queries ``[B, dim]`` and documents ``[N, k, dim]`` make scores ``[B, N]``.

    <q, sum_j a_j c_j> with a = softmax_j <q, c_j>; rows of zeros are not vectors. (Tang et al.
    2021.) A document without any scores 0.
    """

    @property
    def similarity(self) -> Similarity:
        """What losses take their default temperature by: queries have their sharpness already."""
        return "dot"

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that change what is learnt."""
        return {"name": "attention"}

    def scores(self, queries: Tensor, documents: Tensor, *, unit: bool = False) -> Tensor:
        """Return ``[B, N]``. Memory: the products ``[B, N, k]`` are kept for the gradient."""
        filled = tokens_of(documents)  # [N, k]
        products = torch.einsum("bd,nkd->bnk", queries, documents)
        # where there is none, the products are zeros, and so is their mean
        attended = filled | ~filled.any(dim=1, keepdim=True)
        shares = products.masked_fill(~attended, -torch.inf).softmax(dim=2)
        return (shares * products).sum(dim=2)
