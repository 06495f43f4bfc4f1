"""What makes a passage worth keeping: scorers of documents alone, without a query."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.token_vectors import TokenVectors
from sluice.retrieval.documents.document import Document, document_input
from sluice.retrieval.retrievers.quality.scores import QualityScores

if TYPE_CHECKING:
    from sluice.training.rankers.quality_head import QualityHead

CHUNK = 2_048  # documents scored at a time


class PassageQuality(Protocol):
    """Anything that scores documents alone."""

    name: str

    def quality(self, documents: Sequence[Document]) -> ArrayLike:
        """Return one finite number per document, higher is worthier."""
        ...


def score_quality(corpus: Iterable[Document], by: PassageQuality) -> QualityScores:
    """Score a corpus, chunk by chunk."""
    import pyarrow as pa

    ids: list[Any] = []
    found: list[NDArray[np.float32]] = []
    size = getattr(corpus, "size", None)
    with progress("quality", size, "documents") as advance:
        for chunk in _chunks(corpus):
            ids.append(pa.array([document.id for document in chunk], pa.string()))
            found.append(np.asarray(by.quality(chunk), np.float32))
            advance(len(chunk))
    names = pa.concat_arrays(ids) if ids else pa.array([], pa.string())
    scores = np.concatenate(found) if found else np.zeros(0, np.float32)
    facts = getattr(by, "facts", None)
    return QualityScores(names, scores, by=by.name, facts=dict(facts or {}))


class Length:
    """How many words a document has, as BM25 counts them without a language's rules."""

    name = "length"

    def quality(self, documents: Sequence[Document]) -> NDArray[np.float32]:
        """Return the number of words of each document."""
        from sluice.encoders.lexical.analyzer import words

        return np.array([len(words(document.full_text)) for document in documents], np.float32)


class InformationToNoise:
    """Which part of a document's words carry meaning: are left after analysis in its language.

    Zhu and Gauch (2000), who divide the words after preprocessing by the words of the document; 0
    for an empty one.
    """

    name = "itn"

    def __init__(self, language: str = "en") -> None:
        from sluice.encoders.lexical.analyzer import analyzer

        self._analyse = analyzer(language)

    def quality(self, documents: Sequence[Document]) -> NDArray[np.float32]:
        """Return the share of each document's words that are left."""
        from sluice.encoders.lexical.analyzer import words

        shares = []
        for document in documents:
            text = document.full_text
            shares.append(len(self._analyse(text)) / max(1, len(words(text))))
        return np.array(shares, np.float32)


class UnigramLikelihood:
    """How usual a document's words are: minus its log perplexity under the corpus' word counts.

    log p(word) is that of add-one smoothing, averaged over the words; a word that ``fit`` never saw
    has its share too. An empty document is as unusual as an unseen word.
    """

    name = "unigram"

    def __init__(self, counts: Counter[str]) -> None:
        self.counts = counts
        self._total = math.log(counts.total() + len(counts) + 1)

    @classmethod
    def fit(cls, corpus: Iterable[Document]) -> UnigramLikelihood:
        """Count the words of a corpus, lower-cased."""
        from sluice.encoders.lexical.analyzer import words

        counts: Counter[str] = Counter()
        for document in corpus:
            counts.update(words(document.full_text.lower()))
        return cls(counts)

    def quality(self, documents: Sequence[Document]) -> NDArray[np.float32]:
        """Return the mean log probability of each document's words."""
        from sluice.encoders.lexical.analyzer import words

        means = []
        for document in documents:
            found = words(document.full_text.lower()) or [""]
            logs = math.fsum(math.log(self.counts[word] + 1) for word in found)
            means.append(logs / len(found) - self._total)
        return np.array(means, np.float32)


class Magnitude:
    """How long a document's vector is before it is normalised.

    ``encoder`` is one that leaves lengths as they are: ``DenseEncoder.from_pretrained(path,
    normalize=False)``, or a sparse one.
    """

    name = "norm"

    def __init__(self, encoder: Any) -> None:
        if hooks_of(encoder).normalize:
            raise ConfigError(
                "norm: this encoder's vectors all have length 1; open it with normalize=False"
            )
        self._encoder = encoder
        self.facts = {"fingerprint": str(encoder.fingerprint)}

    def quality(self, documents: Sequence[Document]) -> NDArray[np.float32]:
        """Return the Euclidean length of each document's vector."""
        inputs = [document_input(self._encoder, document) for document in documents]
        vectors = self._encoder.encode_documents(inputs)
        if isinstance(vectors, np.ndarray):
            return np.asarray(np.linalg.norm(vectors, axis=1), np.float32)
        if isinstance(vectors, TokenVectors):
            raise ConfigError(
                "norm: a token encoder gives a document several vectors, which have no one length; "
                "use a dense or a sparse encoder"
            )
        return np.sqrt(np.asarray(vectors.multiply(vectors).sum(axis=1), np.float32)).ravel()


class HeadQuality:
    """The logit of a head over an encoder's document vectors; ``retrievers.quality.head`` fits it.

    ``ConfigError`` if the head was fitted on another encoder's vectors.
    """

    name = "head"

    def __init__(self, encoder: Any, head: QualityHead) -> None:
        known = head.facts.get("fingerprint")
        if known is not None and known != str(encoder.fingerprint):
            raise ConfigError(
                f"quality head: fitted on vectors of the encoder {known}, and this one is "
                f"{encoder.fingerprint}; open that one, or fit a head for this"
            )
        self._encoder, self._head = encoder, head
        self.facts = dict(head.facts)

    def quality(self, documents: Sequence[Document]) -> NDArray[np.float32]:
        """Encode documents and return their logits."""
        inputs = [document_input(self._encoder, document) for document in documents]
        return self._head.quality(self._encoder.encode_documents(inputs))


class RandomQuality:
    """Numbers from 0 to 1 without any meaning: the baseline that every other must beat."""

    name = "random"

    def __init__(self, seed: int = 13) -> None:
        self._draw = np.random.default_rng(seed)

    def quality(self, documents: Sequence[Document]) -> NDArray[np.float32]:
        """Return a number for each document; those of the next documents are others."""
        return self._draw.random(len(documents), np.float32)


def _chunks(corpus: Iterable[Document]) -> Iterator[list[Document]]:
    stream = iter(corpus)
    while chunk := list(itertools.islice(stream, CHUNK)):
        yield chunk
