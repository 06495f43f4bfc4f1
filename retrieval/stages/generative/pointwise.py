"""Pointwise generative reranking: each document graded by itself, by one word of a model."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.rerankers.language_model import LanguageModel, Template, known_chances
from sluice.retrieval.pipelines.stage import Texts
from sluice.retrieval.pipelines.tracing import note
from sluice.retrieval.runs.run import Ranking

log = logging.getLogger("sluice")


def checked_answers(answers: Sequence[str]) -> list[str]:
    """Return answers as a list; ``ConfigError`` unless they are two or more different words."""
    given = list(answers)
    words = [answer.strip() if isinstance(answer, str) else "" for answer in given]
    if isinstance(answers, str) or len(given) < 2 or len(set(words)) < len(given) or "" in words:
        raise ConfigError(f"answers: {answers!r}; expected two or more different words")
    return words


def told_silent(name: str, silent: int, prompts: int) -> None:
    """Note and log how many of the prompts had no answer that could be used."""
    note({"prompts": prompts, "unanswered": silent})
    if silent:
        log.warning(
            "%s: %s of %s prompts had no answer that could be read; their documents keep to the "
            "order they had, or get the middle of the scale",
            name,
            f"{silent:,}",
            f"{prompts:,}",
        )


def head_texts(
    heads: Mapping[str, Ranking], documents: Texts | None, name: str, depth: int | None = None
) -> dict[str, list[str]]:
    """Return the texts of each query's first ``depth`` candidates, each document read once."""
    if documents is None:
        raise ConfigError(
            f"{name}: needs the documents' texts; pass documents= to Rerank, or compose it "
            "after a retriever with a document store"
        )
    ids = {query: list(head.doc_ids[:depth]) for query, head in heads.items()}
    wanted = list(dict.fromkeys(doc for own in ids.values() for doc in own))
    texts = dict(zip(wanted, documents.texts(wanted), strict=True)) if wanted else {}
    return {query: [texts[doc] for doc in own] for query, own in ids.items()}


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
