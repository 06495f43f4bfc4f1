"""The protocol every encoder keeps: texts in, vectors out, in input order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import scipy.sparse as sp

Side: TypeAlias = Literal["query", "document"]
Dense: TypeAlias = np.ndarray[tuple[int, int], np.dtype[np.float32]]
Vectors: TypeAlias = Dense | sp.csr_array


@runtime_checkable
class Encoder(Protocol):
    """Text in, vectors out: float32 ``[n, dim]``, dense (numpy) or sparse (``csr_array``).

    ``fingerprint`` changes whenever the vectors could: weights, tokenizer, pooling, prompts,
    lengths. An index remembers it and refuses another encoder's queries.
    """

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides the vectors."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per query, in input order."""
        ...

    def encode_documents(self, texts: Sequence[str]) -> Vectors:
        """Return one vector per document, in input order."""
        ...

    def save_pretrained(self, path: str | Path) -> None:
        """Write a folder from which the encoder can be loaded again."""
        ...
