"""The batch that a loss over vectors receives: vectors, labels, mask, and what scores mean."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch.nn.functional import normalize

from sluice.training.protocol import Example, Features, ScoreMatrix, Similarity

if TYPE_CHECKING:
    from torch import Tensor


class Scoring(Protocol):
    """A function of queries' and documents' vectors, see ``TokenScoring`` and ``QNetScoring``."""

    @property
    def similarity(self) -> Similarity:
        """What losses take their default temperature by."""
        ...

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that change what is learnt."""
        ...

    def scores(self, queries: Tensor, documents: Tensor, *, unit: bool = False) -> Tensor:
        """Return ``[B, N]``; ``unit`` makes every vector of length 1 first, where it can."""
        ...


@dataclass(frozen=True, slots=True)
class VectorBatch:
    """The vectors of one batch, with gradients, and what each cell of their score matrix means.

    ``queries`` ``[B, dim]`` and ``documents`` ``[N, dim]`` are float32, as the encoder gave them
    (of a cross-encoder they are there only for a loss with ``texts``). With ``scoring`` that makes
    the scores, of token vectors ``[B, Lq, dim]`` and ``[N, Ld, dim]``, where ``cosine`` says that
    each token's has length 1, or of q-nets ``[B, width]``. ``labels``, ``mask`` and ``teacher``
    (NaN where it has no score; None without one) are as wide as ``scores()``: N, or N + 2B with
    ``same_side``; ``weights`` ``[B]``, ``positives`` ``[B]`` and ``owners`` ``[N]`` are the columns
    of the first positives and the row each document came with.

    ``layers`` holds (queries, documents) of the layers that the loss asked for by ``layers(step)``,
    the last first, ``teacher_vectors`` a teacher's vectors of both for a loss that wants them.
    ``answered`` is, for a loss that wants it, the columns of documents and the vectors of
    a query that each answers. ``negative_queries`` is, for a loss that wants them,
    rows ``[n]`` and the vectors ``[n, dim]`` of queries that those rows' positives do not answer.
    ``features`` are the token ids and masks of both sides. ``matrix``
    replaces the product of the vectors where scores come from elsewhere (a cross-encoder's logits,
    candidates of a frozen index). ``chunk`` is how many texts a loss may run through
    the network at once (``gradient_cache``; None: all). ``source`` is the dataset that all examples
    of the batch are of. ``memo`` is what a loss made of
    ``features`` and keeps for the same batch over other vectors.
    """

    queries: Tensor
    documents: Tensor
    labels: Tensor
    mask: Tensor
    positives: Tensor
    owners: Tensor
    weights: Tensor | None = None
    teacher: Tensor | None = None
    cosine: bool = False
    scoring: Scoring | None = None
    layers: tuple[tuple[Tensor, Tensor], ...] = ()
    answered: tuple[Tensor, Tensor] | None = None
    negative_queries: tuple[Tensor, Tensor] | None = None
    teacher_vectors: tuple[Tensor, Tensor] | None = None
    features: Mapping[str, Features] = field(default_factory=dict)
    matrix: Tensor | None = None
    ids: Mapping[str, Any] = field(default_factory=dict)
    chunk: int | None = None
    source: str = ""
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def same_side(self) -> bool:
        """Whether query-query and positive-positive cells follow the documents'."""
        return self.matrix is None and self.labels.shape[1] > len(self.documents)

    def scores(self) -> Tensor:
        """Return the score matrix ``[B, N]``, or ``[B, N + 2B]`` with ``same_side``."""
        if self.matrix is not None:
            return self.matrix
        if self.scoring is not None:
            return self.scoring.scores(self.queries, self.documents, unit=self.cosine)
        return score_matrix(
            self.queries,
            self.documents,
            cosine=self.cosine,
            positives=self.positives if self.same_side else None,
        )

    def score_matrix(self) -> ScoreMatrix:
        """Return the score matrix with what each of its cells means."""
        return ScoreMatrix(self.scores(), self.labels, self.mask, self.weights, self.teacher)

    def with_vectors(self, queries: Tensor, documents: Tensor, **changes: Any) -> VectorBatch:
        """Return the same batch over other vectors (a slice of them, another layer's)."""
        return replace(self, queries=queries, documents=documents, matrix=None, **changes)


def score_matrix(
    queries: Tensor, documents: Tensor, *, cosine: bool, positives: Tensor | None = None
) -> Tensor:
    """Return ``[B, N]`` scores of queries ``[B, dim]`` and documents ``[N, dim]``.

    ``positives`` (column of each query's positive) appends the query-query and positive-positive
    scores, as ``sluice.training.batches.vector_batch`` lays them out.
    """
    if cosine:
        queries, documents = normalize(queries, dim=1), normalize(documents, dim=1)
    scores = queries @ documents.T
    if positives is None:
        return scores
    own = documents[positives]
    return torch.cat([scores, queries @ queries.T, own @ own.T], dim=1)


Negatives = Literal["all", "own", "inbatch_pos", "inbatch_pos+own"]


class Targets(NamedTuple):
    """What each cell of a score matrix means.

    ``labels`` ``[B, N]`` float, 0 off a query's own documents; ``mask`` ``[B, N]`` bool, False
    where a cell must not count; ``positives`` ``[B]``, the column of each query's first positive;
    ``places`` ``[B, N]`` bool, where there is a document (False only in padded groups);
    ``owners`` ``[documents]``, the row each document came with; ``teacher`` ``[B, N]`` a teacher's
    scores, NaN where it has none (None where no example has any); ``weights`` ``[B]``, None where
    all examples weigh the same.
    """

    labels: Tensor
    mask: Tensor
    positives: Tensor
    places: Tensor
    owners: Tensor
    teacher: Tensor | None
    weights: Tensor | None


def matrix_targets(
    examples: Sequence[Example], negatives: Negatives = "all", *, same_side: bool = False
) -> Targets:
    """Describe the matrix of every query against every document of the batch, in their order.

    Masked are documents relevant to a query without being its own labelled positive: by id (the
    example's ``relevant``) and by text (that of such a document, of its positive, or its own: a
    document that reads like the query). A document that several examples brought, by text, counts
    once for a query: its own, else one that is a positive, else the first.
    ``same_side`` appends two blocks ``[B, B]``, queries against queries and positives against
    positives, all negatives but the pairs that share a query text or a relevant document.
    """
    owner = torch.tensor([row for row, e in enumerate(examples) for _ in e.documents])
    flat = torch.tensor([label for e in examples for label in e.labels])
    own = owner[None, :] == torch.arange(len(examples))[:, None]  # [B, N]
    labels = torch.where(own, flat[None, :], 0.0)
    known = _relevant_cells(examples)
    allowed = {
        "all": torch.ones_like(own),
        "own": own,
        "inbatch_pos": (flat > 0).expand_as(own),
        "inbatch_pos+own": (flat > 0) | own,
    }[negatives]
    mask = _once(allowed & ~known, own, flat > 0, examples) | (own & (labels > 0))
    starts = [0]
    for example in examples:
        starts.append(starts[-1] + len(example.documents))
    positives = torch.tensor(
        [start + e.positive for start, e in zip(starts, examples, strict=False)]
    )
    teacher = None
    if any(example.scores for example in examples):
        scores = torch.tensor([score for e in examples for score in _scores(e)])
        teacher = torch.where(own, scores[None, :], math.nan)
    if same_side:
        wide = len(examples), 2 * len(examples)
        side = _same_side(examples, known[:, positives])
        labels = torch.cat([labels, torch.zeros(wide)], dim=1)
        mask = torch.cat([mask, side, side], dim=1)
        if teacher is not None:
            teacher = torch.cat([teacher, torch.full(wide, math.nan)], dim=1)
    places = torch.ones_like(mask)
    return Targets(labels, mask, positives, places, owner, teacher, row_weights(examples))


def group_targets(examples: Sequence[Example]) -> Targets:
    """Describe the matrix of every query against its own documents, padded to the largest group."""
    width = max(len(e.documents) for e in examples)
    labels = torch.zeros(len(examples), width)
    places = torch.zeros(len(examples), width, dtype=torch.bool)
    mask = torch.zeros(len(examples), width, dtype=torch.bool)
    scored = any(example.scores for example in examples)
    teacher = torch.full((len(examples), width), math.nan) if scored else None
    known = _relevant_cells(examples)
    start = 0
    for row, example in enumerate(examples):
        end = len(example.documents)
        if teacher is not None:
            teacher[row, :end] = torch.tensor(_scores(example))
        labels[row, :end] = torch.tensor(example.labels)
        places[row, :end] = True
        mask[row, :end] = ~known[row, start : start + end] | (labels[row, :end] > 0)
        start += end
    positives = torch.tensor([e.positive for e in examples])
    owners = torch.tensor([row for row, e in enumerate(examples) for _ in e.documents])
    return Targets(labels, mask, positives, places, owners, teacher, row_weights(examples))


def _scores(example: Example) -> Sequence[float]:
    return example.scores or (math.nan,) * len(example.documents)


def row_weights(examples: Sequence[Example]) -> Tensor | None:
    """Return the examples' weights ``[B]``; None where all weigh the same 1."""
    weights = torch.tensor([example.weight for example in examples])
    return None if bool((weights == 1).all()) else weights


def _relevant_cells(examples: Sequence[Example]) -> Tensor:
    """``[B, N]``: the document is relevant to the query, by id or by the text of one that is."""
    by_id: dict[str, list[int]] = defaultdict(list)
    by_text: dict[str, list[int]] = defaultdict(list)
    documents = [document for example in examples for document in example.documents]
    for column, document in enumerate(documents):
        by_id[document.id].append(column)
        by_text[document.text].append(column)
    known = torch.zeros(len(examples), len(documents), dtype=torch.bool)
    for row, example in enumerate(examples):
        own = [d.id for d, x in zip(example.documents, example.labels, strict=True) if x > 0]
        named = (c for doc_id in example.relevant.union(own) for c in by_id.get(doc_id, ()))
        texts = {documents[column].text for column in named} | {example.query.text} & by_text.keys()
        known[row, [column for text in texts for column in by_text[text]]] = True
    return known


def _once(mask: Tensor, own: Tensor, positive: Tensor, examples: Sequence[Example]) -> Tensor:
    """Leave of the columns with one text only the best that a row counts."""
    by_text: dict[str, list[int]] = defaultdict(list)
    for column, text in enumerate(d.text for e in examples for d in e.documents):
        by_text[text].append(column)
    for columns in by_text.values():
        if len(columns) > 1:
            rank = mask[:, columns] * (1 + positive[columns] + 2 * own[:, columns])
            best = torch.nn.functional.one_hot(rank.argmax(dim=1), len(columns)).bool()
            mask[:, columns] &= best
    return mask


def _same_side(examples: Sequence[Example], known: Tensor) -> Tensor:
    """``[B, B]``: two examples whose queries and positives can be negatives of each other."""
    ids = _codes([e.query.id for e in examples])
    texts = _codes([e.query.text for e in examples])
    twins = (ids[:, None] == ids) | (texts[:, None] == texts)
    return ~(known | known.T | twins)


def _codes(values: Sequence[str]) -> Tensor:
    """``[B]``: equal numbers for equal strings."""
    first: dict[str, int] = {}
    return torch.tensor([first.setdefault(value, len(first)) for value in values])
