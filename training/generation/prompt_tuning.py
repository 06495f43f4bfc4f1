"""How a soft prompt is learnt on a few pairs of documents and queries: the settings."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import finite_number, whole_number

PROMPT = "Document: {text}\nQuery:"


@dataclass(frozen=True, slots=True)
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

    tokens: int = 50
    text: str = "please generate a query for this document"
    shots: int = 2
    choices: int = 10
    epochs: int = 100
    learning_rate: float = 0.03
    batch: int = 1
    patience: int = 5
    prompt: str = PROMPT
    document_length: int | None = None
    length: int = 32

    def __post_init__(self) -> None:
        for name in ("tokens", "choices", "epochs", "batch", "patience"):
            whole_number(getattr(self, name), name, 1)
        whole_number(self.shots, "shots", 0)
        whole_number(self.length, "length", 2)  # a token and the end
        if finite_number(self.learning_rate, "learning_rate", 0) == 0:
            raise ConfigError("learning_rate: 0, expected a number above 0")
        if self.document_length is not None:
            whole_number(self.document_length, "document_length", 1)
        if not isinstance(self.text, str) or not self.text.strip():
            raise ConfigError(f"text: {self.text!r}; expected the text that the vectors begin as")
