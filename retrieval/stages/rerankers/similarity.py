"""Scores candidates by the vectors that an index holds: by their dot product, or by MaxSim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.encoder import Side, hooks_of
from sluice.encoders.foundation.build import type_name
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.tokens import TokenVectors, max_sim
from sluice.encoders.model_files.options import TextOptions, takes_options
from sluice.encoders.table import ENCODERS, KNOWN, traits_of
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.pipelines.scorer import Scores
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.retrievers.corpus.token_scores import names_of, token_matches
from sluice.retrieval.retrievers.corpus.vectors.index_tasks import holds_tokens
from sluice.retrieval.retrievers.retriever import retriever_of
from sluice.retrieval.runs.queries import DEPTH, Queries
from sluice.retrieval.runs.run import Ranking
from sluice.retrieval.stages.rerankers.stored_vectors import (
    StoredMaxSim,
    VectorBlock,
    vector_blocks,
)

if TYPE_CHECKING:
    from sluice.encoders.transformer.text_encoder import TokenStates


class VectorDot:
    """Scores candidates as ``retriever`` would: query vector against stored document vector.

    The similarity is the index's: inner product, cosine or negative squared distance. Dense scores
    are exactly those of ``FlatIndex``, so its own hits keep theirs. Candidates that the retriever
    does not know stand below the others in the order they had; a blank query changes nothing.
    Costs one encoding a query and ``dim`` multiplications a candidate.
    """

    def __init__(self, retriever: Stage, /) -> None:
        if not isinstance(retriever, Stage):
            raise ConfigError(f"dot: {type(retriever).__name__}; expected a retriever")
        self.stages = (retriever,)

    def score_lists(
        self, queries: Queries, heads: Mapping[str, Ranking], documents: Texts | None
    ) -> dict[str, Scores]:
        """Return the scores of each query's candidates, float32."""
        found: dict[str, Scores] = {}
        for block in vector_blocks(self.stages[0], queries, heads, "dot"):
            found |= block.spread(pair_dots(block))
        return found


def pair_dots(block: VectorBlock) -> Scores:
    """Return the score of each pair of a block, float32 ``[pairs]``, summed in float64."""
    if not len(block.places):
        return np.zeros(0, np.float32)
    if isinstance(block.documents, np.ndarray) != isinstance(block.vectors, np.ndarray):
        raise ConfigError("dot: the encoder's query vectors and the index are of different kinds")
    if isinstance(block.documents, np.ndarray):
        return _dense(block)
    return _sparse(block)


def _dense(block: VectorBlock) -> Scores:
    from sluice.indexing.storage.exact_scores import METRICS, exact_scores, norms_of

    metric: Any = block.metric if block.metric in METRICS else "ip"
    queries = np.ascontiguousarray(block.vectors, dtype=np.float32)
    query_norms, norms = norms_of(queries), norms_of(block.documents)
    stops = np.searchsorted(block.owners, np.arange(len(queries) + 1))
    scores = np.empty(len(block.places), np.float32)
    for number, query in enumerate(queries):
        pairs = slice(stops[number], stops[number + 1])
        places = block.places[pairs]
        scores[pairs] = exact_scores(
            query, block.documents[places], metric, query_norms[number], norms[places]
        )
    return scores


def _sparse(block: VectorBlock) -> Scores:
    width = max(block.vectors.shape[1], block.documents.shape[1])  # a vocabulary may have grown
    queries, documents = _widened(block.vectors, width), _widened(block.documents, width)
    products = queries[block.owners].multiply(documents[block.places])
    sums: NDArray[np.float64] = products.sum(axis=1, dtype=np.float64)
    return np.asarray(sums).reshape(-1).astype(np.float32)


def _widened(matrix: Any, width: int) -> Any:
    if matrix.shape[1] == width:
        return matrix
    wider = matrix.copy()
    wider.resize((matrix.shape[0], width))
    return wider


dot = VectorDot  # ``bm25 >> dot(dense, depth=100)`` in a pipeline


def candidate_scores(stage: Stage, queries: Queries, heads: Mapping[str, Ranking]) -> Scores:
    """Return the score of each candidate, those of the first of ``heads`` first.

    A retriever whose index gives its vectors back scores all of them exactly, see ``VectorDot`` and
    ``StoredMaxSim``, and so does a stage that passes one on unfiltered. Any other is run, 1,000
    deep, and candidates that it did not find stand just below the lowest of the query's others; 0
    where there is none.
    """
    found = None
    retriever = retriever_of(stage)
    if retriever is not None and stage.base_where is None:
        scorer = StoredMaxSim if holds_tokens(retriever.index) else VectorDot
        try:
            found = scorer(stage).score_lists(queries, heads, None)
        except ConfigError:  # several vectors a document, or an index that keeps none
            found = None
    if found is None:
        run = stage.run({query: queries[query] for query in heads}, None, DEPTH)
        found = {q: _looked_up(run.get(q, Ranking([], [])), head) for q, head in heads.items()}
    return np.concatenate([np.zeros(0, np.float32), *(found[query] for query in heads)])


def _looked_up(ranking: Ranking, head: Ranking) -> Scores:
    known = dict(ranking)
    scores = np.array([known.get(doc, np.nan) for doc in head.doc_ids], np.float32)
    absent = np.isnan(scores)
    if absent.any():
        lowest = scores.min(initial=np.inf, where=~absent)
        below = np.nextafter(lowest, np.float32("-inf")) if np.isfinite(lowest) else 0.0
        scores[absent] = max(below, np.finfo(np.float32).min)
    return scores


BYTES = 256 << 20  # of document token vectors held together, at most
USUAL_TOKENS = 512  # of a document at most, where the encoder does not say


class MaxSim:
    """Scores a pair by the tokens' vectors: the sum over the query's of the best cosine.

    ``sum_i max_j cos(q_i, d_j)`` (Khattab and Zaharia, 2020, ColBERT, eq. 3). Of a token encoder
    the vectors are those that it was trained to give, and the products are as it normalises them.
    Of a dense encoder of any kind they are the last layer's states, over the tokens of the texts
    without special and prompt tokens; one in bfloat16 halves memory. A document without tokens
    scores -1 for each token of the query, the least there is; a query without any scores 0.

    Every distinct query and document of a call is encoded once; of the documents' vectors about
    256 MB are held at a time.
    """

    def __init__(self, encoder: Any) -> None:
        hooks = hooks_of(encoder)
        self._of_tokens = hooks.similarity == "max_sim"
        known = traits_of(encoder)
        states = known is not None and known.layered and hooks.map_texts is not None
        if not self._of_tokens and not states:
            raise ConfigError(
                f"max_sim: {type(encoder).__name__}; expected a dense encoder or a token encoder, "
                "whose tokens have vectors"
            )
        if hooks.backend is not None:
            raise ConfigError("max_sim: exported graphs give no tokens; use backend: torch")
        self.encoder = encoder

    @classmethod
    @takes_options(TextOptions)
    def from_pretrained(cls, model: str | Path, **options: Unpack[TextOptions]) -> MaxSim:
        """Load a token encoder's or a dense encoder's folder or hub id, with their options."""
        from sluice.encoders.dense.encoder import DenseEncoder
        from sluice.encoders.late_interaction.encoder import TokenEncoder
        from sluice.encoders.model_files.locate import model_folder
        from sluice.encoders.model_files.registry import kind_of

        if kind_of(model_folder(str(model))) == TokenEncoder.kind:
            return cls(TokenEncoder.from_pretrained(model, **options))
        return cls(DenseEncoder.from_pretrained(model, backend="torch", **options))

    @property
    def is_saved(self) -> bool:
        """Whether ``from_pretrained`` reads what ``save_pretrained`` writes."""
        known = KNOWN.get(type_name(self.encoder, ENCODERS))
        return known is not None and (known.layered or known.form == "tokens")

    def save_pretrained(self, path: str | Path) -> None:
        """Write the encoder; ``ConfigError`` for one that is neither dense nor of tokens."""
        if not self.is_saved:
            raise ConfigError(
                f"max_sim: a {type(self.encoder).__name__} is not saved with it; save the encoder, "
                "and make MaxSim of it again"
            )
        self.encoder.save_pretrained(path)

    @property
    def fingerprint(self) -> str:
        """A hash of the encoder."""
        return fingerprint_of("max_sim", str(self.encoder.fingerprint))

    @property
    def module(self) -> Any:
        """The encoder's parameters."""
        return self.encoder.module

    @property
    def dtype(self) -> Any:
        """The encoder's arithmetic type."""
        return self.encoder.dtype

    def score(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """Return one score per (query, document) pair, float32 ``[n]``."""
        scores = np.zeros(len(pairs), np.float32)
        if not len(pairs):
            return scores
        distinct = dict.fromkeys(query for query, _ in pairs)
        numbers = {query: number for number, query in enumerate(distinct)}
        queries = self._encoded(list(numbers), "query")
        for documents, places in self._blocks(pairs):
            found = self._encoded(list(documents), "document")
            by_query: dict[int, list[int]] = {}
            for place in places:
                by_query.setdefault(numbers[pairs[place][0]], []).append(place)
            for query, chosen in by_query.items():
                wanted = np.array([documents[pairs[place][1]] for place in chosen])
                if self._of_tokens:
                    scores[chosen] = _products(queries[[query]], found[wanted])
                else:
                    scores[chosen] = _sums(queries.of(query), found, wanted)
        return scores

    def _encoded(self, texts: list[str], side: Side) -> Any:
        """Return texts' token vectors, ``TokenVectors`` or the states of a dense encoder."""
        if self._of_tokens:
            encoder = self.encoder
            encode = encoder.encode_queries if side == "query" else encoder.encode_documents
            return encode(texts)
        from sluice.encoders.transformer.text_encoder import token_states

        return token_states(self.encoder, texts, side)

    def matches_of(self, query: str, doc_id: str, documents: Texts | None) -> list[TokenMatch]:
        """Return which of a document's tokens each of the query's met, of a token encoder."""
        if not self._of_tokens or documents is None or not query.strip():
            return []
        (text,) = documents.texts([doc_id])
        sides: tuple[tuple[str, Side], ...] = ((query, "query"), (text, "document"))
        names = [names_of(self.encoder, each, side) for each, side in sides]
        found = [self._encoded([each], side).text(0) for each, side in sides]
        return token_matches(*found, *names)

    def _blocks(
        self, pairs: Sequence[tuple[str, str]]
    ) -> Iterator[tuple[dict[str, int], list[int]]]:
        """Yield some documents by number, and the places of all pairs with one of them."""
        hooks = hooks_of(self.encoder)
        if self._of_tokens:
            size = 4 * (hooks.dim or 0)
        else:
            size = self.encoder.state_width * self.encoder.floats.itemsize
        most = max(1, BYTES // max(1, hooks.lengths.get("document", USUAL_TOKENS) * size))
        places: dict[str, list[int]] = {}
        for place, (_, document) in enumerate(pairs):
            places.setdefault(document, []).append(place)
        names = list(places)
        for start in range(0, len(names), most):
            block = names[start : start + most]
            numbers = {document: number for number, document in enumerate(block)}
            yield numbers, sorted(place for document in block for place in places[document])


def _products(query: TokenVectors, documents: TokenVectors) -> Scores:
    """Return the MaxSim of one query with documents, those without tokens below all others."""
    (scores,) = max_sim(query, documents)
    return np.where(np.isneginf(scores), np.float32(-len(query.values)), scores)


def _sums(query: Any, documents: TokenStates, wanted: np.ndarray) -> Scores:
    """Return the sums of the best cosines of one query with some of the documents."""
    import torch

    bounds = documents.bounds
    starts, lengths = bounds[wanted], bounds[wanted + 1] - bounds[wanted]
    sums = np.full(len(wanted), -float(len(query)), np.float32)
    filled = lengths > 0
    if not len(query) or not filled.any():
        return sums
    starts, lengths = starts[filled], lengths[filled]
    if (starts[1:] == starts[:-1] + lengths[:-1]).all():
        tokens = documents.values[int(starts[0]) : int(starts[-1] + lengths[-1])]
    else:
        first = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        rows = torch.from_numpy(first + np.arange(len(first)))
        tokens = documents.values[rows.to(documents.values.device)]
    with torch.inference_mode():
        cosines = tokens.float() @ query.float().T  # [tokens, query tokens]
        counts = torch.from_numpy(lengths).to(cosines.device)
        best = torch.segment_reduce(cosines, "max", lengths=counts, axis=0)
        sums[filled] = best.sum(dim=1).cpu().numpy()
    return sums


@takes_options(TextOptions)
def max_sim_scorer(
    model: str | Path | None = None,
    *,
    retriever: Annotated[
        Any,
        "Instead of a model: a retriever, whose stored token vectors are compared; only "
        "queries are encoded.",
    ] = None,
    **options: Unpack[TextOptions],
) -> MaxSim | StoredMaxSim:
    """Return the scorer of ``type: max_sim``: of a ``model``, or of a retriever's stored vectors.

    Late interaction: each token of the query finds its best match among the document's tokens.
    """
    if isinstance(retriever, Stage):
        return StoredMaxSim(retriever)
    if model is None:
        raise ConfigError("max_sim: expected a model, or a retriever of token vectors")
    return MaxSim.from_pretrained(model, **options)
