"""Learns a soft prompt on a few pairs of documents and queries, the language model frozen."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import finite_number, plural, whole_number
from sluice.training.generation.query_prompt import Shot
from sluice.training.generation.soft_prompt import SoftPrompt

if TYPE_CHECKING:
    from sluice.training.generation.query_generation import ModelGenerator

log = logging.getLogger("sluice")

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

    def learn(
        self,
        generator: ModelGenerator,
        pairs: Sequence[Shot],
        held_out: Sequence[Shot],
        *,
        seed: int = 13,
        state: Path | None = None,
    ) -> SoftPrompt:
        """Return the prompt learnt on ``pairs`` and chosen by ``held_out``.

        A call that was killed continues from the last epoch in the file ``state``. The model's
        weights are not changed. ``DataError`` where there are too few pairs, ``ConfigError`` where
        the model has no room for the examples.
        """
        if len(pairs) <= self.shots or not held_out:
            raise DataError(
                f"soft prompt: {plural(len(pairs), 'pair')} to learn from and {len(held_out)} held "
                f"out; {self.shots} examples beside each take at least {self.shots + 1} and 1"
            )
        from sluice.training.generation.prompt_learner import Learner, frozen

        learner = Learner(self, generator, pairs, held_out, seed)
        with frozen(generator.model):
            losses = learner.learn(state)
            losses["chosen"], shots = learner.best_shots()
        log.info(
            "soft prompt: loss of the held-out pairs %.4f at the start, %.4f learnt (%s), %.4f "
            "with the best of %s", losses["start"], losses["learnt"],
            plural(int(losses["epochs"]), "epoch"), losses["chosen"],
            plural(self.choices if self.shots else 1, "group") + " of examples",
        )  # fmt: skip
        return SoftPrompt(
            learner.vectors.detach().cpu().numpy().copy(), self.prompt, learner.document_length,
            self.length, generator.weights, shots, losses,
        )  # fmt: skip
