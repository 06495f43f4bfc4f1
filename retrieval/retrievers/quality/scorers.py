"""What makes a passage worth keeping: scorers of documents alone, and models that read the text."""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.encoders.encoder import hooks_of
from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ConfigError, ModelError
from sluice.encoders.foundation.progress import progress
from sluice.encoders.foundation.tokens import TokenVectors
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.registry import LANGUAGE_MODEL, kind_of, open_encoder
from sluice.encoders.tuning.learning import learning_of
from sluice.retrieval.datasets.source import Corpus
from sluice.retrieval.documents.document import Document, document_input
from sluice.retrieval.retrievers.quality.scores import QualityScores

if TYPE_CHECKING:
    from sluice.encoders.generative.true_false import TrueFalseRanker
    from sluice.encoders.rerankers.cross_encoder import CrossEncoder
    from sluice.encoders.rerankers.language_model import LanguageModel
    from sluice.training.rankers.quality_head import QualityHead


log = logging.getLogger("sluice")

PROMPT = "Document: {document} Relevant:"
ANSWERS = ("true", "false")  # the first says that it is worth keeping


class TextQuality:
    """The logit of a cross-encoder, or true/false ranker, that reads a document without a query.

    ``examples: {type: quality}`` trains one. Of the latter it is the log-odds of true, which orders
    documents as QualT5's log P(true) does, without its ties near 0.
    """

    name = "text"

    def __init__(self, model: CrossEncoder | TrueFalseRanker) -> None:
        self._model = model
        self.facts: dict[str, Any] = {"fingerprint": model.fingerprint}

    def quality(self, documents: Sequence[Document]) -> NDArray[np.float32]:
        """Return each document's logit."""
        pairs = [("", document.full_text) for document in documents]
        return np.asarray(self._model.score(pairs), np.float32)


class AnswerQuality:
    """log P(true) of true and false, which a language model answers to ``PROMPT``.

    So do QualT5's models, an encoder with a decoder (Chang et al. 2024, Neural Passage Quality
    Estimation for Static Pruning, arXiv 2407.12170); a decoder alone will do too. ``ModelError``
    for a model that answers neither.
    """

    name = "answer"

    def __init__(self, model: LanguageModel) -> None:
        from sluice.encoders.rerankers.language_model import Template

        self._model, self._template = model, Template(PROMPT, ["document"])
        self.facts: dict[str, Any] = {"fingerprint": model.fingerprint, "prompt": PROMPT}

    def quality(self, documents: Sequence[Document]) -> NDArray[np.float32]:
        """Return each document's log-probability, 0 at most."""
        prompts = [self._template.fill({"document": each.full_text}) for each in documents]
        logs = np.asarray(self._model.answers(prompts, ANSWERS), np.float64)
        if logs.shape != (len(prompts), 2) or not np.isfinite(logs).all():
            raise ModelError(
                f"{type(self._model).__name__}: answers neither true nor false to {PROMPT!r}; "
                "expected a language model with the probabilities of both"
            )
        both = np.logaddexp(logs[:, 0], logs[:, 1])
        return (logs[:, 0] - both).astype(np.float32)


def text_quality(model: str | Path) -> PassageQuality:
    """Open a model of documents' quality, by folder or hub id.

    That is a cross-encoder or true/false ranker trained by examples of type quality, or a language
    model. A warning names one that was trained with queries. ``ModelError`` for any other model.
    """
    folder = model_folder(str(model))
    kind = checked_kind(folder)
    if kind != LANGUAGE_MODEL:
        if not trained_on_quality(folder):
            log.warning(
                "%s: was not trained by examples: {type: quality}; what it makes of a document "
                "without a query may mean nothing", folder,
            )  # fmt: skip
        opened: CrossEncoder | TrueFalseRanker = open_encoder(folder)
        return TextQuality(opened)
    from sluice.encoders.rerankers.local_language_model import LocalLanguageModel

    return AnswerQuality(LocalLanguageModel.from_pretrained(folder))


def checked_kind(folder: Path) -> str:
    """Return the type of a model of documents' quality; ``ModelError`` for any other."""
    kind = kind_of(folder)
    if kind != LANGUAGE_MODEL and not learning_of(kind).any_text:
        raise ModelError(
            f"{folder}: a {kind} encoder; expected a cross_encoder trained by examples: {{type: "
            "quality}, or true_false, or a language model that answers true or false (fit quality "
            "--retriever fits a head on a dense one's vectors)"
        )
    return kind


def trained_on_quality(folder: Path) -> bool:
    """Return whether a model's manifest says that it was trained by examples of type quality."""
    file = folder / MANIFEST
    facts: Any = read_json(file) if file.exists() else None
    for key in ("config", "training", "examples"):
        facts = facts.get(key) if isinstance(facts, Mapping) else None
    return isinstance(facts, Mapping) and facts.get("type") == "quality"


CHUNK = 2_048  # documents scored at a time


class PassageQuality(Protocol):
    """Anything that scores documents alone."""

    name: str

    def quality(self, documents: Sequence[Document]) -> ArrayLike:
        """Return one finite number per document, higher is worthier."""
        ...


@runtime_checkable
class TellsFacts(Protocol):
    """One that says more of itself, for the file of its scores."""

    facts: Mapping[str, Any] | None


def score_quality(corpus: Iterable[Document], by: PassageQuality) -> QualityScores:
    """Score a corpus, chunk by chunk."""
    import pyarrow as pa

    ids: list[Any] = []
    found: list[NDArray[np.float32]] = []
    size = corpus.size if isinstance(corpus, Corpus) else None
    with progress("quality", size, "documents") as advance:
        for chunk in _chunks(corpus):
            ids.append(pa.array([document.id for document in chunk], pa.string()))
            found.append(np.asarray(by.quality(chunk), np.float32))
            advance(len(chunk))
    names = pa.concat_arrays(ids) if ids else pa.array([], pa.string())
    scores = np.concatenate(found) if found else np.zeros(0, np.float32)
    facts = dict(by.facts or {}) if isinstance(by, TellsFacts) else {}
    return QualityScores(names, scores, by=by.name, facts=facts)


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
    """The logit of a head over an encoder's document vectors; ``scores`` fits it.

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
