"""Models that read a document's text and say how likely it is to answer any query at all."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import read_json
from sluice.encoders.foundation.disk.generations import MANIFEST
from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.locate import model_folder
from sluice.encoders.model_files.registry import LANGUAGE_MODEL, kind_of, open_encoder
from sluice.retrieval.documents.document import Document

if TYPE_CHECKING:
    from sluice.encoders.generative.true_false import TrueFalseRanker
    from sluice.encoders.rerankers.cross_encoder import CrossEncoder
    from sluice.encoders.rerankers.language_model import LanguageModel
    from sluice.retrieval.retrievers.quality.scorers import PassageQuality

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
        from sluice.encoders.rerankers.prompt import Template

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
    if kind not in ("cross_encoder", "true_false", LANGUAGE_MODEL):
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
