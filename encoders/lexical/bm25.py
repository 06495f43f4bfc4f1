"""BM25 as a sparse encoder: term frequency and length in documents, idf in queries.

The score of Lucene's BM25 is a dot product. With tf the count of a term in a document, dl the
document's number of terms, avgdl the average of dl, N documents and df of them with the term:

    document weight = tf / (tf + k1 * (1 - b + b * dl / avgdl))
    query weight    = count in the query * ln(1 + (N - df + 0.5) / (df + 0.5))

so the same inverted index serves BM25 and learned sparse encoders, and adding documents changes
only the queries' weights and, slowly, avgdl. (Robertson and Zaragoza, 2009; Lucene since version 8
leaves out the constant factor k1 + 1.)
"""

from __future__ import annotations

import copy
import hashlib
import logging
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import scipy.sparse as sp

from sluice.encoders.encoder import EncoderBase
from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.disk.arrays import open_array
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import new_generation, open_generation
from sluice.encoders.foundation.errors import DataError, IndexFormatError, ModelError
from sluice.encoders.foundation.numbers import finite_number
from sluice.encoders.lexical.analyzer import analyzer
from sluice.encoders.lexical.long_query import LongQuery
from sluice.encoders.lexical.term_counts import (
    Column,
    CountSpool,
    Fields,
    TermCounts,
    Totals,
    counted,
)
from sluice.encoders.lexical.term_matrix import Vocabulary, matrix_of
from sluice.encoders.lexical.variants import Variant, Weights, idf, impacts

log = logging.getLogger("sluice")

FORMAT, VERSION = "sluice.bm25", 3  # 3: of a variant, 2: with fields; of neither 1 is written
Input = str | Mapping[str, str]  # a document: its text, or with ``fields`` the text of each


class BM25Encoder(EncoderBase):
    """Lucene's BM25 as an encoder of sparse vectors; the similarity is the dot product.

    ``k1`` >= 0 damps repetitions, ``b`` in [0, 1] is the strength of length normalisation; the
    defaults are Anserini's. ``language`` chooses the analyser, see
    ``sluice.encoders.analyzer``. N and avgdl count empty documents too, and
    lengths are exact where Lucene keeps one byte. ``variant="plus"`` is BM25+ and ``"l"`` BM25L
    (``sluice.encoders.lexical.variants``).

    ``fields``, names and weights such as ``{"title": 1.0, "text": 1.0}``, scores each field by its
    own N (the documents with a term in it), df and avgdl, as Lucene does, and returns the weighted
    sum. Documents are then mappings of field names to texts, and the vocabulary has the terms of a
    field as ``title:gold``. A query is one text, searched in every field.

    ``fit`` or ``fit_documents`` comes first. Vectors have one column per term of the vocabulary, in
    order of first appearance; ``add_documents`` appends columns and never moves one.
    """

    @checked("bm25.")
    def __init__(
        self,
        k1: Annotated[float, "How much repetitions of a term count: 0 not at all."] = 0.9,
        b: Annotated[
            float, "How much long documents are discounted: 0 not at all, 1 in full."
        ] = 0.4,
        language: Annotated[str, "The language of stemming and stop words: en, de, fr, ..."] = "en",
        fields: Annotated[
            Mapping[str, float] | None,
            "Weights of title and text as fields of their own: {title: 2.0, text: 1.0}.",
        ] = None,
        variant: Annotated[
            Variant, "plus (BM25+) and l (BM25L) discount the terms of long documents less."
        ] = "lucene",
    ) -> None:
        self.k1 = finite_number(k1, "bm25.k1", 0)
        self.b = finite_number(b, "bm25.b", 0, 1)
        self.variant = variant
        self._analyzer = analyzer(language)
        self.language = self._analyzer.language
        self._fields = Fields(fields)
        self._vocabulary: Vocabulary | None = None
        self._totals = Totals.none(self._fields)
        self._averages = self._totals.averages()
        self._field_of = np.zeros(0, np.int8)  # [vocabulary] number of the column's field
        self._fingerprint: str | None = None
        self._whole_idf: Weights | None = None

    @property
    def fields(self) -> dict[str, float] | None:
        """The weights of the fields that documents are read by, or None for plain texts."""
        return dict(self._fields.weights) if self._fields.named else None

    @property
    def dim(self) -> int:
        """The number of terms in the vocabulary."""
        return len(self._terms())

    @property
    def vocabulary(self) -> dict[str, int]:
        """A copy of the vocabulary: term to column."""
        return dict(self._terms())

    @property
    def documents(self) -> int:
        """N: the documents counted so far."""
        return self._totals.documents

    @property
    def document_frequencies(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """How many of the documents have each column's term, int64 ``[vocabulary]``; a copy."""
        self._terms()
        return self._totals.frequencies.copy()

    @property
    def average_length(self) -> float:
        """The avgdl in use, that of the last fit, summed over fields."""
        return float(self._averages.sum())

    @property
    def fingerprint(self) -> str:
        """A hash of settings, vocabulary and counts."""
        if self._fingerprint is None:
            hashes = [hashlib.sha256(data).hexdigest() for data in self._arrays_as_bytes()]
            self._fingerprint = fingerprint_of(FORMAT, self._settings(), self._counts(), hashes)
        return self._fingerprint

    def fit(self, texts: Iterable[Input]) -> Self:
        """Count the terms of ``texts``, which are read once; return the encoder.

        Raises ``ConfigError`` for a field that no document has.
        """
        self._fit(texts, None)
        return self

    def fit_documents(self, texts: Iterable[Input]) -> sp.csr_array:
        """Fit on ``texts`` and return their vectors; each text is analysed once.

        Memory besides the result: 8 bytes for each pair of a document and one of its terms.
        """
        chunks: list[TermCounts] = []
        self._fit(texts, chunks.append)
        return self._impacts(chunks)

    @property
    def learner(self) -> BM25Encoder:
        """The encoder itself, which counts the documents."""
        return self

    def fit_in_parts(self, texts: Iterable[Input]) -> Iterator[sp.csr_array]:
        """Fit on ``texts`` and return their vectors in parts, each text analysed once.

        Memory besides a part: the vocabulary. The counts wait in a temporary file once they are
        many: see ``CountSpool``.
        """
        if type(self).fit_documents is not BM25Encoder.fit_documents:  # a subclass's comes first
            return iter([self.fit_documents(texts)])
        counts = CountSpool()
        self._fit(texts, counts.append)
        if not self.documents:
            return iter([self._impacts([])])
        return (self._impacts([each]) for each in counts.drained())

    def encode_documents(self, texts: Sequence[Input]) -> sp.csr_array:
        """Return documents' vectors [n, vocabulary] under the avgdl in use.

        Terms outside the vocabulary are left out, but count for the length.
        """
        rows = self._fields.parted(texts)
        return self._impacts(list(self._counted(rows, self._terms().get)))

    def encode_queries(self, texts: Sequence[str]) -> sp.csr_array:
        """Return queries' vectors [n, vocabulary]: count times idf, for terms in documents.

        Of a ``LongQuery`` the terms have the weights of a document's in the place of counts.
        """
        chunks = list(self._counted(self._fields.repeated(texts), self._terms().get))
        long = iter([isinstance(text, LongQuery) for text in texts])

        def weights(counts: TermCounts) -> Weights:
            as_document = np.fromiter(islice(long, len(counts.sizes)), np.bool_)
            times: Weights = counts.counts.astype(np.float64)
            if as_document.any():
                of_document = self._idf(counts.terms) * self._document_weights(counts)
                times = np.where(np.repeat(as_document, counts.sizes), of_document, times)
            return times * self._query_weights(counts.terms)

        matrix = matrix_of(chunks, weights, self.dim)
        matrix.eliminate_zeros()  # terms whose last document was removed
        return matrix

    def add_documents(self, texts: Iterable[Input]) -> sp.csr_array:
        """Add ``texts`` to the counts, extend the vocabulary, and return the new vectors.

        idf becomes what a fit on all documents would give. avgdl stays that of the last fit, so
        that old and new vectors agree; fit again (when the index is rebuilt) once the average
        length has drifted. After a fit on no terms at all, the first addition sets it.
        """
        vocabulary, totals, chunks = self._terms(), self._totals, list[TermCounts]()
        size = len(vocabulary)
        try:
            for counts in self._counted(self._fields.parted(texts), vocabulary.__getitem__):
                totals = totals.plus(counts, len(vocabulary), self._fields)
                chunks.append(counts)
        except BaseException:
            vocabulary.shrink(size)  # a bad line among the texts leaves the encoder as it was
            raise
        self._set(vocabulary, totals, np.where(self._averages, self._averages, totals.averages()))
        return self._impacts(chunks)

    def remove_documents(self, texts: Iterable[Input]) -> None:
        """Subtract ``texts``, which must have been fitted or added before, from the counts.

        Their terms keep their columns. Raises ``DataError``, and changes nothing, for texts that
        cannot be among the documents counted so far.
        """
        vocabulary, totals = self._terms(), self._totals
        for counts in self._counted(self._fields.parted(texts), vocabulary.get):
            totals = totals.plus(counts, len(vocabulary), self._fields, sign=-1)
            unknown = int(counts.lengths.sum()) != int(counts.counts.sum())
            sizes = np.concatenate([totals.frequencies, totals.holders, totals.lengths])
            if unknown or sizes.min(initial=totals.documents) < 0:
                raise DataError(
                    "remove_documents: one of the texts was never fitted or added; "
                    "give exactly the texts that were; nothing was removed"
                )
        self._set(vocabulary, totals, self._averages)

    def save_pretrained(self, path: str | Path) -> None:
        """Write the encoder as a new generation of the folder ``path``."""
        facts = {**self._settings(), **self._counts(), "fingerprint": self.fingerprint}
        terms, frequencies = self._arrays_as_bytes()
        version = VERSION if self.variant != "lucene" else 2 if self._fields.named else 1
        with new_generation(Path(path), FORMAT, version, facts) as folder:
            (folder / "vocabulary.txt").write_bytes(terms)
            np.save(folder / "frequencies.npy", np.frombuffer(frequencies, np.int64))

    @classmethod
    def from_pretrained(cls, path: str | Path, *, generation: str | None = None) -> Self:
        """Load what ``save_pretrained`` wrote: the current generation, or the one named."""
        facts, folder = open_generation(Path(path), FORMAT, VERSION, generation=generation)
        try:
            return cls._opened(facts, folder)
        except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
            raise IndexFormatError(
                f"{folder}: not as Sluice writes it ({type(error).__name__}: {error}); rebuild"
            ) from None

    @classmethod
    def _opened(cls, facts: Mapping[str, Any], folder: Path) -> Self:
        fields = facts.get("fields")
        variant = facts.get("variant", "lucene")
        encoder = cls(facts["k1"], facts["b"], facts["language"], fields, variant)
        text = (folder / "vocabulary.txt").read_text(encoding="utf-8")
        terms = text.split("\n")[:-1]
        frequencies = open_array(folder / "frequencies.npy", np.int64, (None,), mapped=False)
        vocabulary = Vocabulary(zip(terms, range(len(terms)), strict=True))
        if not unicodedata.is_normalized("NFC", text):
            log.warning(
                "%s: from before canonically equivalent texts had the same terms: some of its "
                "documents' words with accents are not found; compact() or a rebuild mends it",
                folder,
            )
        if not len(vocabulary) == len(terms) == len(frequencies):
            raise IndexFormatError(
                f"{folder}: {len(terms):,} lines, {len(vocabulary):,} distinct, in vocabulary.txt, "
                f"but {len(frequencies):,} document frequencies; expected equal numbers: rebuild"
            )
        documents = int(facts["documents"])
        holders = np.array(facts["holders"] if fields else [documents], np.int64)
        lengths = np.atleast_1d(np.array(facts["length"], np.int64))
        averages = np.atleast_1d(np.array(facts["average_length"], np.float64))
        if not 0 <= frequencies.min(initial=0) <= frequencies.max(initial=0) <= documents:
            raise IndexFormatError(
                f"{folder}: a term is in fewer than 0 or more than {documents:,} documents; rebuild"
            )
        if not np.isfinite(averages).all() or not len(holders) == len(lengths) == len(averages):
            raise IndexFormatError(f"{folder}: its lengths are damaged; rebuild")
        encoder._set(vocabulary, Totals(frequencies, documents, holders, lengths), averages)
        return encoder

    def idf(self) -> Weights:
        """Return the weight of each column in a query with its term once; 0 for a removed term.

        The variant's idf, times the weight of the column's field.
        """
        self._terms()
        if self._whole_idf is None:  # feedback asks for each query
            self._whole_idf = self._query_weights(slice(None))
            self._whole_idf.setflags(write=False)
        return self._whole_idf

    def _query_weights(self, columns: Any) -> Weights:
        field_weights = np.array([*self._fields.weights.values()])
        weights: Weights = self._idf(columns) * field_weights[self._field_of[columns]]
        return weights

    def _idf(self, columns: Any) -> Weights:
        totals, field = self._totals, self._field_of[columns]
        frequency = totals.frequencies[columns].astype(np.float64)
        rarity = idf(self.variant, totals.holders[field], np.maximum(frequency, 1.0))
        return np.where(frequency > 0, rarity, 0.0)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return an independent encoder; only the vocabulary is ever changed in place."""
        other = copy.copy(self)
        other._vocabulary = None if self._vocabulary is None else Vocabulary(self._vocabulary)
        return other

    def _fit(self, texts: Iterable[Input], keep: Callable[[TermCounts], None] | None) -> None:
        vocabulary, totals = Vocabulary(), Totals.none(self._fields)
        # A later fit is on a changed corpus, which may have lost its last document with a field.
        rows = self._fields.parted(texts, complete=self._vocabulary is None)
        for counts in self._counted(rows, vocabulary.__getitem__):
            totals = totals.plus(counts, len(vocabulary), self._fields)
            if keep:
                keep(counts)
        self._field_of = self._field_of[:0]
        self._set(vocabulary, totals, totals.averages())

    def _counted(self, rows: Iterable[Sequence[str]], column: Column) -> Iterator[TermCounts]:
        return counted(rows, self._analyzer, column, self._fields.prefixes)

    def _set(self, vocabulary: Vocabulary, totals: Totals, averages: Weights) -> None:
        self._vocabulary, self._totals, self._averages = vocabulary, totals, averages
        self._field_of = self._fields.numbers(vocabulary, self._field_of)
        self._fingerprint = self._whole_idf = None

    def _terms(self) -> Vocabulary:
        if self._vocabulary is None:
            raise ModelError(
                "BM25Encoder: not fitted yet; call fit(texts) or "
                "fit_documents(texts) first, or load one with from_pretrained(path)"
            )
        return self._vocabulary

    def _impacts(self, chunks: list[TermCounts]) -> sp.csr_array:
        return matrix_of(chunks, self._document_weights, self.dim)

    def _document_weights(self, counts: TermCounts) -> Weights:
        relative = counts.lengths / np.where(self._averages, self._averages, 1.0)
        norms = 1.0 - self.b + self.b * relative  # [documents, fields]
        if len(self._averages) > 1:
            document = np.repeat(np.arange(len(norms)), counts.sizes)
            norms = norms[document, self._field_of[counts.terms]]
        else:
            norms = np.repeat(norms, counts.sizes)
        return impacts(self.variant, counts.counts.astype(np.float64), norms, self.k1)

    def _settings(self) -> dict[str, Any]:
        fields = {"fields": self._fields.weights} if self._fields.named else {}
        variant = {} if self.variant == "lucene" else {"variant": self.variant}
        return {"k1": self.k1, "b": self.b, "language": self.language, **fields, **variant}

    def _counts(self) -> dict[str, Any]:
        totals, averages = self._totals, self._averages.tolist()
        facts: dict[str, Any] = {"documents": totals.documents}
        if not self._fields.named:
            return {**facts, "length": int(totals.lengths[0]), "average_length": averages[0]}
        lengths = {"length": totals.lengths.tolist(), "average_length": averages}
        return {**facts, "holders": totals.holders.tolist(), **lengths}

    def _arrays_as_bytes(self) -> tuple[bytes, bytes]:
        terms = "".join(f"{term}\n" for term in self._terms())
        return terms.encode("utf-8"), self._totals.frequencies.tobytes()

    def terms(self, columns: Sequence[int]) -> list[str]:
        """Return the analysed terms of columns of the vectors."""
        terms = list(self._terms())
        return [terms[column] for column in columns]
