"""Pointwise generative reranking: each document graded by itself, by one word of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.rerankers.language_model import LanguageModel, known_chances
from sluice.encoders.rerankers.prompt import Template
from sluice.retrieval.stages.generative.answers import checked_answers, told_silent

YES_NO = (
    "Does this document answer the query, or give evidence for it?\n\n"
    "Document: {document}\n\nQuery: {query}\n\n"
    "Answer with one word, yes or no.\nAnswer:"
)
GRADED = (
    "How relevant is this document to the query? Grades go from 1, not relevant at all, to "
    "{grades}, a full answer.\n\nDocument: {document}\n\nQuery: {query}\n\n"
    "Answer with one number from 1 to {grades}.\nGrade:"
)


class Pointwise:
    """A scorer of pairs: the worth of each possible answer, weighted by how likely it is.

    The probabilities are a softmax over the answers alone, at the first place where they differ,
    so the score lies between the least worth and the greatest. A document that the model gives none
    of the answers to gets their mean worth; how many there were is noted and logged. Cost: one
    prompt a pair. (Huang and Chen, 2024, InstUPR, arXiv 2403.16435, soft score aggregation.)
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        prompt: str = YES_NO,
        answers: Sequence[str] = ("yes", "no"),
        worths: Sequence[float] = (1.0, 0.0),
    ) -> None:
        self.model = model
        self.answers = checked_answers(answers)
        prompt = prompt.replace("{grades}", str(len(self.answers)))
        self.template = Template(prompt, ["query", "document"])
        self.worths = [float(worth) for worth in worths]
        if len(self.worths) != len(self.answers) or not all(map(math.isfinite, self.worths)):
            raise ConfigError(
                f"worths: {list(worths)}; expected a finite number for each of "
                f"{len(self.answers)} answers"
            )

    @classmethod
    def yes_no(
        cls, model: LanguageModel, *, prompt: str = YES_NO, answers: Sequence[str] = ("yes", "no")
    ) -> Pointwise:
        """Return the scorer by the probability of the first of two answers."""
        if len(checked_answers(answers)) != 2:
            raise ConfigError(f"answers: {list(answers)}; expected two, the one for relevant first")
        return cls(model, prompt=prompt, answers=answers)

    @classmethod
    def graded(
        cls,
        model: LanguageModel,
        *,
        prompt: str = GRADED,
        grades: int = 5,
        answers: Sequence[str] | None = None,
    ) -> Pointwise:
        """Return the scorer by grades from 1 to ``grades``: its scores are expected grades.

        ``answers`` are the grades' names, the lowest first, where they are not the numbers.
        """
        whole_number(grades, "grades", 2)
        names = [str(grade) for grade in range(1, grades + 1)] if answers is None else answers
        if len(names) != grades:
            raise ConfigError(f"answers: {len(names)} for {grades} grades; expected one for each")
        return cls(model, prompt=prompt, answers=names, worths=range(1, grades + 1))

    @property
    def fingerprint(self) -> str:
        """A hash of the model, the prompt, the answers and their worths."""
        return fingerprint_of(
            "pointwise", self.model.fingerprint, self.template.text, self.answers, self.worths
        )

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Return the expected worth of each pair's answer, float64 ``[n]``, in input order."""
        known = self.known(pairs)
        return np.where(np.isnan(known), sum(self.worths) / len(self.worths), known)

    def known(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Return the expected worths, NaN for a pair that the model gave none of the answers to."""
        fill = self.template.fill
        prompts = [fill({"query": query, "document": text}) for query, text in pairs]
        shares = known_chances(self.model, prompts, self.answers)
        known: NDArray[np.float64] = shares @ np.array(self.worths)
        told_silent(type(self).__name__, int(np.isnan(known).sum()), len(prompts))
        return known
