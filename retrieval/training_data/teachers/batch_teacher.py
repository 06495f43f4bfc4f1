"""Bi-encoders and BM25 as a teacher of whole batches: their vectors of all training texts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.tokens import TokenVectors, max_sim
from sluice.retrieval.training_data.teachers.spec import Context, teacher_spec
from sluice.retrieval.training_data.teachers.teachers import Mixture, ModelTeacher, Texts
from sluice.training.protocol import Side

if TYPE_CHECKING:
    from sluice.training import Example
    from sluice.training.protocol import Text

log = logging.getLogger("sluice")

SIDES: tuple[Side, ...] = ("query", "document")


class EncodedTexts:
    """One encoder's vectors of the training texts, by side and text."""

    def __init__(self, encoder: Any, name: str) -> None:
        self.encoder = encoder
        self.name = name
        self.cosine = hooks_of(encoder).similarity == "cosine"
        self._rows: dict[Side, dict[str, int]] = {side: {} for side in SIDES}
        self._vectors: dict[Side, Any] = {}
        self._first: dict[Side, int] = {}  # how many rows the first call made

    def prepare(self, texts: Mapping[Side, Sequence[str]]) -> None:
        """Encode the texts that the first call did not; forget those of the calls between.

        So the vectors are the same whether training was interrupted or not.
        """
        for side in SIDES:
            rows = self._rows[side]
            start = self._first.setdefault(side, 0)
            for text in list(rows)[start:]:
                del rows[text]
            new = [text for text in dict.fromkeys(texts[side]) if text not in rows]
            rows.update({text: start + place for place, text in enumerate(new)})
            if new:
                asking = side == "query"
                encode = self.encoder.encode_queries if asking else self.encoder.encode_documents
                self._append(side, start, encode(new))
            if not start:
                self._first[side] = len(rows)

    def _append(self, side: Side, start: int, vectors: Any) -> None:
        if not start:
            self._vectors[side] = vectors
        elif isinstance(vectors, TokenVectors):
            first = self._vectors[side].rows(slice(start))
            self._vectors[side] = TokenVectors.joined([first, vectors], vectors.dim)
        elif isinstance(vectors, np.ndarray):
            self._vectors[side] = np.concatenate([self._vectors[side][:start], vectors])
        else:
            self._vectors[side] = sp.vstack([self._vectors[side][:start], vectors], format="csr")

    def vectors(self, texts: Sequence[str], side: Side) -> Any:
        """Return the vectors ``[n, dim]``; ``DataError`` for a text it was not prepared for."""
        rows = self._rows[side]
        missing = [text for text in texts if text not in rows]
        if missing:
            raise DataError(
                f"teacher {self.name}: has no vector of the {side} {missing[0]!r:.60}; training "
                "texts must not change without a call of prepare"
            )
        chosen = [rows[text] for text in texts]
        vectors = self._vectors[side]
        if isinstance(vectors, TokenVectors):
            return vectors.rows(chosen)
        vectors = vectors[chosen]
        return _unit(vectors) if self.cosine else vectors


class EncodedTeacher:
    """One or several bi-encoders that score every pair of a batch, see ``Mixture``.

    Scores are normalised over the documents of the batch, query by query.
    """

    def __init__(
        self, encoders: Sequence[tuple[Any, str]], mixture: Mixture, where: str = "teacher"
    ) -> None:
        self.members = [EncodedTexts(encoder, name) for encoder, name in encoders]
        self.mixture = mixture
        self.where = where
        self.name = " + ".join(name for _, name in encoders)

    @property
    def fingerprint(self) -> str:
        """A hash of the encoders' fingerprints and of how they are mixed."""
        members = [str(member.encoder.fingerprint) for member in self.members]
        return fingerprint_of("batch", members, *self.mixture.facts)

    def prepare(self, examples: Sequence[Example]) -> None:
        """Encode the texts of the examples that were not encoded at the first call."""
        texts: dict[Side, list[str]] = {
            "query": [example.query.text for example in examples],
            "document": [doc.text for example in examples for doc in example.documents],
        }
        log.info("teacher %s: encoding the training texts", self.name)
        for member in self.members:
            member.prepare(texts)

    def scores(self, queries: Sequence[Text], documents: Sequence[Text]) -> NDArray[np.float64]:
        """Return ``[B, N]``: every query with every document."""
        members = []
        for member in self.members:
            left = member.vectors([text.text for text in queries], "query")
            right = member.vectors([text.text for text in documents], "document")
            members.append(_products(left, right))
        rows = [self.mixture.of_query([m[row] for m in members]) for row in range(len(queries))]
        return np.stack(rows)

    def vectors(self, texts: Sequence[Text], side: Side) -> NDArray[np.float32]:
        """Return ``[n, dim]``, the one dense encoder's vectors of the texts."""
        if len(self.members) > 1:
            raise ConfigError(
                f"{self.where}: {len(self.members)} teachers, and vectors are learnt from one; "
                "name a single dense encoder"
            )
        vectors = self.members[0].vectors([text.text for text in texts], side)
        if not isinstance(vectors, np.ndarray):
            form = (
                "a vector for each token" if isinstance(vectors, TokenVectors) else "sparse vectors"
            )
            raise ConfigError(
                f"{self.where}: {self.name} makes {form}; vectors are learnt from a dense encoder: "
                "name one"
            )
        return np.asarray(vectors, np.float32)


def make_batch_teacher(
    spec: str | Mapping[str, Any],
    *,
    where: str,
    model: Callable[[str], str],
    corpus: Texts | None,
) -> EncodedTeacher:
    """Make the teacher of whole batches that a section ``teacher`` describes.

    Raises ``ConfigError`` for one that only scores pairs: a cross-encoder, a run, a file.
    """
    parsed = teacher_spec(spec, where)
    encoders = []
    for member in parsed.members:
        teacher = member.make(Context(model, corpus))
        if not isinstance(teacher, ModelTeacher) or teacher.encoder is None:
            raise ConfigError(f"{member.where}: {teacher.name}: {PAIRS_ONLY}")
        encoders.append((teacher.encoder, teacher.name))
    return EncodedTeacher(encoders, parsed.mixture, where)


PAIRS_ONLY = (
    "scores single pairs, and this loss learns from every pair of a batch, or from vectors; name "
    "encoders (dense, splade, tokens, bm25), or learn from a query's own documents (negatives: own)"
)


def check_batch_teacher(spec: str | Mapping[str, Any], where: str, *, vectors: bool) -> None:
    """Refuse before any work what the section shows cannot teach whole batches."""
    members = teacher_spec(spec, where).members
    for member in members:
        if member.pairs_only:
            raise ConfigError(f"{where}: {member.pairs_only}: {PAIRS_ONLY}")
        if vectors and (len(members) > 1 or not member.one_vector):
            raise ConfigError(
                f"{where}: this loss learns the vectors of one dense encoder; name one"
            )


def _products(left: Any, right: Any) -> NDArray[np.float64]:
    """Return every query with every document, MaxSim of token vectors."""
    if isinstance(left, TokenVectors):
        least = -left.lengths[:, None].astype(np.float64)  # of a document without tokens
        return np.maximum(max_sim(left, right), least)
    product = left @ right.T
    dense = product if isinstance(product, np.ndarray) else product.toarray()
    return np.asarray(dense, np.float64)


def _unit(vectors: Any) -> Any:
    lengths = np.sqrt(np.asarray((vectors * vectors).sum(axis=1), np.float64)).reshape(-1, 1)
    unit = vectors * (1 / lengths.clip(1e-30))
    return unit if isinstance(unit, np.ndarray) else sp.csr_array(unit)
