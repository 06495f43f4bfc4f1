"""A judge that asks a language model for grades on a defined scale."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.generative.list_order import spoken
from sluice.encoders.rerankers.language_model import LanguageModel, Prompt, Template, known_chances
from sluice.training.negatives.false_negatives import JudgedPair

log = logging.getLogger("sluice")

Method: TypeAlias = Literal["direct", "criteria", "binary_first"]
Order: TypeAlias = Literal["ascending", "descending"]
Answer: TypeAlias = Literal["probabilities", "text"]
Grades = NDArray[np.float64]

METHODS: tuple[Method, ...] = ("direct", "criteria", "binary_first")
# The four levels that TREC's passage and document tracks have used since 2019, in our words.
DEFINITIONS = (
    "the document has nothing to do with the query",
    "the document is about the query's subject, but does not answer it",
    "the document answers the query in part, or the answer is hidden among other things",
    "the document is devoted to the query and answers it in full",
)
# Criteria of Farzi and Dietz (2024), criteria-based judgements for the LLMJudge challenge.
CRITERIA: Mapping[str, str] = {
    "exactness": "how precisely the document answers the query",
    "coverage": "how much of what the query asks for the document deals with",
    "topicality": "how close the document's subject is to the query's",
    "contextual fit": "how well the document gives the background that whoever asks needs",
}
SCALE = "{scale}"
NUMBERS = "{numbers}"
_HEAD = "You judge the results of a search engine."
_TEXTS = "Query: {query}\n\nDocument: {document}\n\n"
PROMPT = (
    f"{_HEAD} Grade how relevant the document is to the query:\n{SCALE}\n\n{_TEXTS}"
    f"Answer with one number, {NUMBERS}.\nGrade:"
)
TEXT_PROMPT = (
    f"{_HEAD} Grade how relevant the document is to the query:\n{SCALE}\n\n{_TEXTS}"
    f'Give your reasons in a sentence or two. Then write "Grade:" and one number, {NUMBERS}.'
)
CRITERION = (
    f"{_HEAD} Look at one criterion only, {{criterion}}: {{meaning}}. Grade how far the document "
    f"meets it for the query, from 0, not at all, to {{highest}}, fully:\n{SCALE}\n\n{_TEXTS}"
    f"Answer with one number, {NUMBERS}.\nGrade:"
)
BINARY = (
    f"{_HEAD} Has the document anything to do with what the query asks for?\n\n{_TEXTS}"
    "Answer with one word, yes or no.\nAnswer:"
)
YES_NO = ("yes", "no")


class GenerativeJudge:
    """A grading judge that asks a language model.

    ``direct`` asks for the grade; ``criteria`` asks for a grade by each criterion and takes the
    mean; ``binary_first`` asks whether the document has anything to do with the query, grades it 0
    if no is likelier, and else asks for a grade from 1 up. ``order`` is the order of the scale in
    the prompt; ``definitions`` are its lines, grade 0 first.

    With ``answer: probabilities`` a grade is the mean of the possible ones, weighted by how likely
    each is as the first word of the answer; with ``text`` the model writes up to
    ``max_new_tokens`` and the last grade it names counts. ``prompt`` replaces the question for the
    grade, with ``{query}``, ``{document}`` and optionally ``{scale}`` and ``{numbers}``. A pair
    without a usable answer has no grade; such pairs are counted in a warning. ``models`` are the
    model's names.
    """

    needs_texts = True

    def __init__(
        self,
        model: LanguageModel,
        *,
        name: str = "language model",
        method: Method = "direct",
        order: Order = "ascending",
        answer: Answer = "probabilities",
        definitions: Sequence[str] = DEFINITIONS,
        criteria: Mapping[str, str] | None = None,
        prompt: str | None = None,
        max_new_tokens: int = 256,
        models: Sequence[str] = (),
    ) -> None:
        _check(method, order, answer, definitions, criteria, prompt)
        self.model = model
        self.name = name
        self.method = method
        self.answer = answer
        self.highest = len(definitions) - 1
        self.max_new_tokens = whole_number(max_new_tokens, "max_new_tokens", 1)
        self.models = (*models, model.fingerprint)
        lowest = 1 if method == "binary_first" else 0
        self.grades = list(range(lowest, self.highest + 1))
        scale = [*self.grades] if order == "ascending" else self.grades[::-1]
        lines = [f"{grade} = {definitions[grade]}" for grade in scale]
        if method == "criteria":
            lines = [str(grade) for grade in scale]
        self._names = ", ".join(map(str, scale[:-1])) + f" or {scale[-1]}"
        self._scale = "\n".join(lines)
        question = prompt or (TEXT_PROMPT if answer == "text" else PROMPT)
        self.templates = [self._template(question)]
        if method == "criteria":
            self.templates = [
                self._template(self._about(criterion, meaning))
                for criterion, meaning in (criteria or CRITERIA).items()
            ]
        self._binary = Template(BINARY, ["query", "document"])

    @property
    def fingerprint(self) -> str:
        """A hash of the model, the prompts and how their answers are read."""
        texts = [template.text for template in self.templates]
        binary = self._binary.text if self.method == "binary_first" else ""
        length = self.max_new_tokens if self.answer == "text" else 0
        return fingerprint_of(
            "generative judge", self.model.fingerprint, self.method, texts, binary, self.answer,
            length, self.grades,
        )  # fmt: skip

    def scores(self, pairs: Sequence[JudgedPair]) -> Grades:
        """Return expected grades; NaN if the model gave no usable answer."""
        scores = np.zeros(len(pairs))
        listed = list(pairs)
        places = np.arange(len(pairs))
        if self.method == "binary_first":
            shares = known_chances(self.model, self._filled(self._binary, listed), YES_NO)[:, 0]
            scores[np.isnan(shares)] = np.nan
            places = np.flatnonzero(shares >= 0.5)
            listed = [pairs[place] for place in places.tolist()]
        grades = [self._graded(self._filled(template, listed)) for template in self.templates]
        scores[places] = np.mean(grades, axis=0)
        silent = int(np.isnan(scores).sum())
        if silent:
            log.warning(
                "judge %s: %s of %s pairs got no usable answer and have no label",
                self.name, f"{silent:,}", f"{len(pairs):,}",
            )  # fmt: skip
        return scores

    def _graded(self, prompts: Sequence[Prompt]) -> Grades:
        if self.answer == "text" and prompts:
            written = self.model.completions(prompts, self.max_new_tokens)
            return np.array([named_grade(text, self.grades) for text in written])
        names = [str(grade) for grade in self.grades]
        shares = known_chances(self.model, prompts, names)
        expected: Grades = shares @ np.array(self.grades, np.float64)
        return expected

    def _template(self, text: str) -> Template:
        text = text.replace(SCALE, self._scale).replace(NUMBERS, self._names)
        return Template(text, ["query", "document"])

    def _about(self, criterion: str, meaning: str) -> str:
        text = CRITERION.replace("{highest}", str(self.highest))
        return text.replace("{criterion}", criterion).replace("{meaning}", meaning)

    def _filled(self, template: Template, pairs: Sequence[JudgedPair]) -> list[Prompt]:
        return [template.fill({"query": p.query, "document": p.document}) for p in pairs]


def named_grade(text: str, grades: Sequence[int]) -> float:
    """Return the grade that a text ends with: after the last "grade", else its only number.

    NaN if there is none, or if it is not on the scale.
    """
    said = spoken(text)
    named = re.findall(
        r"(?:grade|score)\W{0,9}(?:is\W{0,3})?(\d{1,2})(?![\d.]*\d)", said, re.IGNORECASE
    )
    if not named:
        named = re.findall(r"(?<![\w.])\d{1,2}(?!\w|\.\d)", said)
        named = named if len(set(named)) == 1 else []
    return float(named[-1]) if named and int(named[-1]) in grades else float("nan")


def _check(
    method: str,
    order: str,
    answer: str,
    definitions: Sequence[str],
    criteria: Mapping[str, str] | None,
    prompt: str | None,
) -> None:
    known = {"method": (method, METHODS), "order": (order, ("ascending", "descending")),
             "answer": (answer, ("probabilities", "text"))}  # fmt: skip
    for key, (value, expected) in known.items():
        if value not in expected:
            raise ConfigError(f"{key}: {value!r}; expected one of {', '.join(expected)}")
    if isinstance(definitions, str) or not 2 <= len(definitions) <= 10:
        raise ConfigError(f"definitions: {definitions!r:.80}; expected 2 to 10, grade 0 first")
    if method == "binary_first" and len(definitions) < 3:
        raise ConfigError(
            "binary_first: needs at least 3 grades, because yes or no already "
            "separates two; use direct"
        )
    if criteria is not None and (method != "criteria" or not criteria):
        raise ConfigError("criteria: expected names with their meanings, and method: criteria")
    if prompt is not None and method == "criteria":
        raise ConfigError("prompt: method criteria has its own prompts; set criteria instead")
