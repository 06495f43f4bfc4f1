"""MaxSim: each token of the query finds its best match among the document's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import numpy as np

from sluice.encoders.encoder import Side, hooks_of
from sluice.encoders.foundation.build import type_name
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.token_vectors import TokenVectors, max_sim
from sluice.encoders.model_files.options import TextOptions, takes_options
from sluice.encoders.table import ENCODERS, KNOWN, traits_of
from sluice.retrieval.pipelines.hit import TokenMatch
from sluice.retrieval.pipelines.scorer import Scores
from sluice.retrieval.pipelines.stage import Stage, Texts
from sluice.retrieval.retrievers.corpus.token_scores import names_of, token_matches
from sluice.retrieval.stages.rerankers.stored_vectors import StoredMaxSim

if TYPE_CHECKING:
    from sluice.encoders.transformer.text_encoder import TokenStates

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
            size = self.encoder.state_width * self.encoder.dtype.itemsize
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
