"""An encoder that looks up the vectors of known queries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from sluice.encoders.encoder import Dense, EncoderBase
from sluice.encoders.foundation.disk.arrays import map_array
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import ConfigError, DataError, ModelError, suggest
from sluice.encoders.model_files.layout import read_sidecar, write_sidecar

TEXTS = "texts.json"
VECTORS = "vectors.npy"
NEAR_TEXTS = 1000  # texts that a message looks for a similar one in


class PrecomputedEncoder(EncoderBase):
    """Returns the dense query vectors it was created with, without the model that made them.

    For an index over anyone's embeddings: ``vectors`` ``[n, dim]`` are those of ``texts``, one
    each. Without texts it needs ``dim`` and serves an index that is searched by vector::

        encoder = PrecomputedEncoder(["where is gold?"], query_vectors)
        retriever = Retriever.build(encoder, documents, vectors=[document_vectors])
        retriever.search("where is gold?")

    Raises ``DataError`` for vectors that are not floats, not finite or not one per text, and for a
    text that occurs twice.
    """

    kind = "precomputed"

    def __init__(
        self,
        texts: Sequence[str] = (),
        vectors: np.ndarray | None = None,
        *,
        dim: int | None = None,
    ) -> None:
        if vectors is None:
            if dim is None or dim < 1:
                raise ConfigError(f"dim: {dim!r} without vectors; expected 1 or more dimensions")
            vectors = np.zeros((0, dim), np.float32)
        self._vectors = _checked(vectors, dim)
        if isinstance(texts, str) or len(texts) != len(self._vectors):
            given = "a single str" if isinstance(texts, str) else f"{len(texts):,} texts"
            raise DataError(f"texts: {given} for {len(self._vectors):,} vectors; give one each")
        self._rows: dict[str, int] = {}
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise DataError(f"texts: {text!r:.80} is a {type(text).__name__}, expected a text")
            if self._rows.setdefault(text, row) != row:
                raise DataError(
                    f"texts: {text!r:.80} at positions {self._rows[text]} and {row}; a text has "
                    "one vector: remove one"
                )
        self._fingerprint = ""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def dim(self) -> int:
        """The number of dimensions."""
        return int(self._vectors.shape[1])

    @property
    def texts(self) -> list[str]:
        """The texts whose vectors are known."""
        return list(self._rows)

    @property
    def fingerprint(self) -> str:
        """A hash of the texts and their vectors, in their order."""
        if not self._fingerprint:
            content = hashlib.sha256(self._vectors.astype("<f4").data).hexdigest()
            self._fingerprint = fingerprint_of("sluice.precomputed", self.texts, self.dim, content)
        return self._fingerprint

    def encode_queries(self, texts: Sequence[str]) -> Dense:
        """Return the texts' vectors, float32 ``[n, dim]``; ``ModelError`` for unknown texts."""
        if isinstance(texts, str):
            raise DataError("texts: a single str; expected several texts: put it into a list")
        unknown = [text for text in texts if text not in self._rows]
        if unknown:
            raise ModelError(
                f"PrecomputedEncoder: no vector for {unknown[0]!r:.80}"
                f"{suggest(unknown[0], self.texts[:NEAR_TEXTS])} ({len(unknown):,} of "
                f"{len(texts):,} texts are unknown, {len(self):,} are known); search by vector "
                "(sluice search --vectors), or import the index with the model that made its "
                "vectors (sluice import --encoder MODEL)"
            )
        rows = np.array([self._rows[text] for text in texts], dtype=np.int64)
        vectors: Dense = self._vectors[rows]
        return vectors

    def encode_documents(self, texts: Sequence[str]) -> Dense:
        """Raise ``ModelError`` for any text: the model that made the vectors is not available."""
        if len(texts):
            raise ModelError(
                "PrecomputedEncoder: encodes queries only, because the vectors of the documents "
                "were imported; import the vectors of new documents too, or import all with the "
                "model that made them (sluice import --encoder MODEL)"
            )
        return np.zeros((0, self.dim), np.float32)

    def save_pretrained(self, path: str | Path) -> None:
        """Write texts and vectors as a model folder, in one step."""
        with replaced_folder(Path(path)) as folder:
            (folder / TEXTS).write_text(json.dumps(self.texts, indent=0), encoding="utf-8")
            np.save(folder / VECTORS, self._vectors, allow_pickle=False)
            write_sidecar(folder, {"type": self.kind, "dim": self.dim})

    @classmethod
    def from_pretrained(
        cls, model: Annotated[str | Path, "The folder of vectors that another program made."]
    ) -> PrecomputedEncoder:
        """Load a folder that ``save_pretrained`` wrote."""
        folder = Path(model)
        dim = read_sidecar(folder).get("dim")
        try:
            texts = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
            vectors = map_array(folder / VECTORS)
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(f"{folder}: {TEXTS} or {VECTORS} is not readable ({error})") from None
        if not isinstance(texts, list) or not isinstance(dim, int) or isinstance(dim, bool):
            raise ModelError(f"{folder}: not as Sluice writes it; expected texts and dimensions")
        try:
            return cls(texts, vectors, dim=dim)
        except (ConfigError, DataError) as error:
            raise ModelError(f"{folder}: {error}") from None


def _checked(vectors: np.ndarray, dim: int | None) -> Dense:
    if not isinstance(vectors, np.ndarray) or vectors.dtype.kind != "f":
        kind = getattr(vectors, "dtype", type(vectors).__name__)
        raise DataError(f"vectors: {kind}, expected a numpy array of floats [n, dim]")
    if vectors.ndim != 2 or vectors.shape[1] < 1 or dim not in (None, vectors.shape[1]):
        width = "dim" if dim is None else dim
        raise DataError(f"vectors: shape {vectors.shape}, expected [n, {width}]")
    with np.errstate(over="ignore"):  # what overflows float32 is reported below
        checked: Dense = np.array(vectors, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(checked).all(axis=1))
    if len(bad):
        raise DataError(f"vectors: row {bad[0]} is not finite in float32; expected finite values")
    return checked
