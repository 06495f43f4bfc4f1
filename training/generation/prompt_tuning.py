"""How a soft prompt is learnt on a few pairs of documents and queries: the settings."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Gt

from sluice.encoders.foundation.build import checked
from sluice.encoders.foundation.errors import ConfigError

if TYPE_CHECKING:
    pass


PROMPT = "Document: {text}\nQuery:"


@dataclass(frozen=True, slots=True)
@checked()
class PromptTuning:
    """``tokens`` vectors, begun as those of ``text``, that make a frozen model write queries.

    The model reads them, then ``shots`` example pairs drawn anew for each pair and epoch, then the
    document in its ``prompt``; what is minimised is the cross-entropy of the query's tokens and the
    end, by Adam with a rate that falls linearly from ``learning_rate``, ``batch`` pairs a step, for
    ``epochs`` or until ``patience`` of them brought no lower loss of the held-out pairs. Then
    ``choices`` groups of examples are drawn, and the one with the lowest loss of the held-out pairs
    is kept. Documents are cut to ``document_length`` tokens (as many as there is room for, at most
    384), queries to ``length``.
    (SPTAR; Peng et al. 2023, "Soft prompt tuning for augmenting dense retrieval with large language
    models", arXiv 2307.08303, sections 3.2 and 3.3.)
    """

    tokens: Annotated[int, Ge(1), "Its vectors."] = 50
    text: Annotated[str, "The text whose embeddings they begin as."] = (
        "please generate a query for this document"
    )
    shots: Annotated[int, Ge(0), "Example pairs shown before each document."] = 2
    choices: Annotated[int, Ge(1), "Groups of examples of which one is chosen."] = 10
    epochs: Annotated[int, Ge(1), "Most epochs over the pairs."] = 100
    learning_rate: Annotated[float, Gt(0), "The learning rate at the start."] = 0.03
    batch: Annotated[int, Ge(1), "Pairs in a step."] = 1
    patience: Annotated[int, Ge(1), "Epochs without a better one before it ends."] = 5
    prompt: str = PROMPT
    document_length: Annotated[int | None, Ge(1), "Most tokens of a document."] = None
    length: Annotated[int, Ge(2), "Most tokens of a query."] = 32  # a token and the end

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise ConfigError(f"text: {self.text!r}; expected the text that the vectors begin as")


log = logging.getLogger("sluice")
