"""An encoder of queries for imported vectors, which looks up tokens in a vocabulary."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import scipy.sparse as sp

from sluice.encoders.encoder import EncoderBase
from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.disk.generations import replaced_folder
from sluice.encoders.foundation.errors import DataError, ModelError
from sluice.encoders.lexical.analyzer import analyzer
from sluice.encoders.model_files.layout import read_sidecar, write_sidecar

TERMS = "vocabulary.json"


class VocabularyEncoder(EncoderBase):
    """Encodes queries over a given vocabulary; the documents' vectors were made elsewhere.

    A query's weight of a term is how often it occurs; tokens outside the vocabulary are left out.
    Without ``language`` a text is split at white space and its tokens are looked up as they are;
    with one, ``sluice.encoders.lexical.analyzer.analyzer`` makes the terms, for vocabularies of
    analysed words. ``column`` lets the vocabulary grow while vectors are being imported.
    """

    kind = "vocabulary"

    def __init__(self, vocabulary: Iterable[str] = (), language: str | None = None) -> None:
        self._columns: dict[str, int] = {}
        for place, term in enumerate(vocabulary):
            if self.column(term) != place:
                raise DataError(f"vocabulary: the term {term!r} occurs twice; terms are unique")
        self._split = str.split if language is None else analyzer(language)
        self.language = None if language is None else analyzer(language).language
        self._fingerprint: tuple[int, str] | None = None  # of a vocabulary of this many terms

    @property
    def dim(self) -> int:
        """The number of terms."""
        return len(self._columns)

    @property
    def vocabulary(self) -> dict[str, int]:
        """A copy of the vocabulary: term to column."""
        return dict(self._columns)

    @property
    def fingerprint(self) -> str:
        """A hash of the terms in their order, and of the language."""
        if self._fingerprint is None or self._fingerprint[0] != self.dim:
            terms = list(self._columns)
            self._fingerprint = (
                self.dim,
                fingerprint_of("sluice.vocabulary", terms, self.language),
            )
        return self._fingerprint[1]

    def column(self, term: str) -> int:
        """Return the column of a term; a new term gets the next one."""
        return self._columns.setdefault(term, len(self._columns))

    def terms(self, columns: Sequence[int]) -> list[str]:
        """Return the terms of columns of the vectors."""
        terms = list(self._columns)
        return [terms[column] for column in columns]

    def encode_queries(self, texts: Sequence[str]) -> sp.csr_array:
        """Return the queries' counts of terms, float32 ``csr_array [n, vocabulary]``."""
        if isinstance(texts, str):
            raise DataError("texts: a single str; expected several texts: put it into a list")
        indices: list[int] = []
        counts: list[int] = []
        ends = [0]
        for text in texts:
            frequencies = Counter(
                column
                for token in self._split(text)
                if (column := self._columns.get(token)) is not None
            )
            for column in sorted(frequencies):
                indices.append(column)
                counts.append(frequencies[column])
            ends.append(len(indices))
        return sp.csr_array(
            (np.array(counts, np.float32), np.array(indices, np.int32), np.array(ends, np.int64)),
            shape=(len(texts), self.dim),
        )

    def encode_documents(self, texts: Sequence[str]) -> sp.csr_array:
        """Raise ``ModelError`` for any text: the model of the documents is not available."""
        if len(texts):
            raise ModelError(
                "VocabularyEncoder: encodes queries only, because the vectors of the documents "
                "were imported; import the vectors of new documents too, or build a retriever "
                "with the encoder that made them"
            )
        return self.encode_queries([])

    def save_pretrained(self, path: str | Path) -> None:
        """Write the vocabulary as a model folder, in one step."""
        with replaced_folder(Path(path)) as folder:
            text = json.dumps(list(self._columns), ensure_ascii=False, indent=0)
            (folder / TERMS).write_text(text, encoding="utf-8")
            write_sidecar(folder, {"type": self.kind, "language": self.language})

    @classmethod
    def from_pretrained(
        cls, model: Annotated[str | Path, "The folder of a saved vocabulary encoder."]
    ) -> VocabularyEncoder:
        """Load a folder that ``save_pretrained`` wrote."""
        folder = Path(model)
        language = read_sidecar(folder).get("language")
        try:
            terms = json.loads((folder / TERMS).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(f"{folder / TERMS}: not readable as JSON ({error})") from None
        sound = isinstance(terms, list) and all(isinstance(term, str) for term in terms)
        if not sound or not isinstance(language, str | None):
            raise ModelError(f"{folder}: not as Sluice writes it; expected a list of terms")
        try:
            return cls(terms, language)
        except DataError as error:
            raise ModelError(f"{folder / TERMS}: {error}") from None
