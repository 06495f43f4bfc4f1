"""MaxSim: each token of the query finds its best match among the document's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.scorer import Scores

if TYPE_CHECKING:
    from sluice.encoders.transformer.token_states import TokenStates

BYTES = 256 << 20  # of document token vectors held together, at most


class MaxSim:
    """Scores a pair by the tokens' vectors: the sum over the query's of the best cosine.

    ``sum_i max_j cos(q_i, d_j)``, over the tokens of the texts without special and prompt tokens;
    the vectors are the last layer's states of ``encoder``, a dense one of any kind (Khattab and
    Zaharia, 2020, ColBERT, eq. 3). A document without tokens scores -1 for each token of the
    query, the least there is; a query without any scores 0. An encoder in bfloat16 halves memory.

    Every distinct query and document of a call is encoded once; of the documents' vectors about
    256 MB are held at a time.
    """

    def __init__(self, encoder: Any) -> None:
        hooks = hooks_of(encoder)
        if hooks.kind != "dense" or hooks.map_texts is None:
            raise ConfigError(
                f"max_sim: {type(encoder).__name__}; expected a dense encoder, whose tokens have "
                "vectors"
            )
        if hooks.backend is not None:
            raise ConfigError("max_sim: exported graphs give no tokens; use backend: torch")
        self.encoder = encoder

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        query_length: int | None = None,
        document_length: int | None = None,
        device: str = "auto",
        dtype: Literal["float32", "bfloat16", "auto"] = "float32",
        batch_tokens: int | None = None,
    ) -> MaxSim:
        """Load a dense encoder's folder or hub id; the options are those of ``DenseEncoder``."""
        from sluice.encoders.dense.encoder import DenseEncoder

        encoder = DenseEncoder.from_pretrained(
            model,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            query_length=query_length,
            document_length=document_length,
            device=device,
            dtype=dtype,
            batch_tokens=batch_tokens,
            backend="torch",
        )
        return cls(encoder)

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
        from sluice.encoders.transformer.token_states import token_states

        scores = np.zeros(len(pairs), np.float32)
        if not len(pairs):
            return scores
        distinct = dict.fromkeys(query for query, _ in pairs)
        numbers = {query: number for number, query in enumerate(distinct)}
        queries = token_states(self.encoder, list(numbers), "query")
        for documents, places in self._blocks(pairs):
            found = token_states(self.encoder, list(documents), "document")
            by_query: dict[int, list[int]] = {}
            for place in places:
                by_query.setdefault(numbers[pairs[place][0]], []).append(place)
            for query, chosen in by_query.items():
                wanted = [documents[pairs[place][1]] for place in chosen]
                scores[chosen] = _sums(queries.of(query), found, np.array(wanted))
        return scores

    def _blocks(
        self, pairs: Sequence[tuple[str, str]]
    ) -> Iterator[tuple[dict[str, int], list[int]]]:
        """Yield some documents by number, and the places of all pairs with one of them."""
        encoder = self.encoder
        hidden, width = encoder.state_width, encoder.dtype.itemsize
        most = max(1, BYTES // (encoder.lengths["document"] * hidden * width))
        places: dict[str, list[int]] = {}
        for place, (_, document) in enumerate(pairs):
            places.setdefault(document, []).append(place)
        names = list(places)
        for start in range(0, len(names), most):
            block = names[start : start + most]
            numbers = {document: number for number, document in enumerate(block)}
            yield numbers, sorted(place for document in block for place in places[document])


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
