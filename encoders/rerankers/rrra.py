"""Scores pairs by a bi-encoder's vectors and the adapter that finds its errors (RRRA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.dense.error_adapter import ErrorAdapter
from sluice.encoders.encoder import EncoderBase, hooks_of
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.numbers import finite_number
from sluice.encoders.model_files.identity import state_hash
from sluice.encoders.model_files.layout import write_sidecar
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.probes import write_probes
from sluice.encoders.model_files.registry import kind_of, open_encoder
from sluice.encoders.rerankers.pairs import check_pairs
from sluice.encoders.table import TYPES

KIND = "rrra"
INNER = "encoder"  # the folder of the encoder in that of a scorer


class AdaptedScorer(EncoderBase):
    """Scores a query and a document from their vectors, by an ``ErrorAdapter``.

    ``s(q, c) s(q, a)^weight`` with s = (1 + cos) / 2 and a the adapted vector of the document: with
    0 the bi-encoder's own order. With None the probability of relevance, from the adapter alone.
    All scores are within 0 and 1. Each distinct text of a call is encoded once.
    """

    kind = KIND

    def __init__(self, encoder: Any, adapter: ErrorAdapter, *, weight: float | None = 1.0) -> None:
        if weight is not None:
            finite_number(weight, "weight", 0.0)
        check_dense(encoder, type(encoder).__name__)
        width = hooks_of(encoder).dim
        if width is not None and width != adapter.dim:
            raise ModelError(
                f"the adapter is for vectors of {adapter.dim} dimensions, and the encoder's have "
                f"{width}; fit an adapter for this encoder"
            )
        self.encoder, self.adapter, self.weight = encoder, adapter, weight
        self.tokenizer: Any = hooks_of(encoder).tokenizer
        self.lengths: Mapping[str, int] = hooks_of(encoder).lengths
        self.device: Any = hooks_of(encoder).device

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        weight: Annotated[
            float | None,
            "The power of the adapter's score beside the encoder's: 0, the encoder's order; "
            "null, the adapter's probability alone.",
        ] = 1.0,
        device: str = "auto",
    ) -> Self:
        """Load a folder of `sluice fit adapter`, or a dense model trained with `loss: rrra`."""
        folder = model_folder(str(model))
        inner = folder / INNER if kind_of(folder) == KIND else folder
        if not inner.is_dir():  # a name that is none might be found on the hub
            raise ModelError(f"{inner}: missing; it holds the encoder of the vectors")
        adapter = ErrorAdapter.load(folder)
        if kind_of(inner) == KIND:
            raise ModelError(f"{inner}: an adapter's folder; expected an encoder of vectors")
        return cls(open_encoder(inner, device=device), adapter, weight=weight)

    @property
    def fingerprint(self) -> str:
        """A hash of the encoder, the adapter and the weight."""
        adapter = state_hash(dict(self.adapter.state_dict()))
        return fingerprint_of(KIND, self.encoder.fingerprint, adapter, self.weight)

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return one score per (query, document) pair, float32 ``[n]``, in input order."""
        check_pairs(pairs)
        if not pairs:
            return np.zeros(0, np.float32)
        queries = list(dict.fromkeys(query for query, _ in pairs))
        documents = list(dict.fromkeys(document for _, document in pairs))
        left = self.encoder.encode_queries(queries)
        right = self.encoder.encode_documents(documents)
        row = {text: place for place, text in enumerate(queries)}
        column = {text: place for place, text in enumerate(documents)}
        q = left[np.array([row[query] for query, _ in pairs])]
        c = right[np.array([column[document] for _, document in pairs])]
        return self.adapter.scores(q, c, self.weight).astype(np.float32)

    def save_pretrained(self, path: str | Path) -> None:
        """Write the adapter and the encoder, in one step; ``from_pretrained`` loads them."""
        with replaced_folder(Path(path)) as folder:
            self.encoder.save_pretrained(folder / INNER)
            self.adapter.save(folder)
            write_sidecar(folder, {"type": KIND})
            write_probes(folder, self)


def check_dense(encoder: Any, where: str) -> None:
    """Raise ``ConfigError`` unless it is one of our networks with one dense vector a text."""
    known = TYPES.get(hooks_of(encoder).kind)
    if known is None or (known.form, known.model) != ("dense", "network") or known.one_way:
        raise ConfigError(
            f"{where}: an error adapter reads one dense vector of each text; use a dense encoder"
        )
