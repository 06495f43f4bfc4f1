"""Pointwise reranking by the logit of one word, as FlagEmbedding's language models are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.disk.files import fingerprint_of
from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.rerankers.prompt import Template
from sluice.encoders.rerankers.recipes import PASSAGE_B

if TYPE_CHECKING:
    from sluice.encoders.rerankers.local_language_model import LocalLanguageModel


class WordLogit:
    """A scorer of pairs: the logit of a word's first token after the prompt, any finite number.

    The other words of the vocabulary have no part in it, unlike in ``Pointwise``; a sigmoid maps it
    to 0 to 1. The model is one of transformers: endpoints return no logits. (Li et al. 2023, Making
    Large Language Models A Better Foundation For Dense Retrieval, arXiv 2312.15503; the prompt is
    that of bge-reranker-v2-gemma.)
    """

    def __init__(
        self,
        model: LocalLanguageModel,
        *,
        prompt: str = PASSAGE_B,
        answers: Sequence[str] = ("Yes",),
    ) -> None:
        if isinstance(answers, str) or len(answers) != 1 or not isinstance(answers[0], str):
            raise ConfigError(f"answers: {answers!r}; style logit takes one word, such as [Yes]")
        self.model = model
        self.word = answers[0]
        self.template = Template(prompt, ["query", "document"])
        self._token = model.first_token(self.word)

    @property
    def fingerprint(self) -> str:
        """A hash of the model, the prompt and the word."""
        return fingerprint_of("logit", self.model.fingerprint, self.template.text, self.word)

    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Return the logit of each pair, float64 ``[n]``, in input order."""
        fill = self.template.fill
        prompts = [fill({"query": query, "document": text}) for query, text in pairs]
        return self.model.logits_of(prompts, self._token)

    def known(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Return the same: every pair has a logit."""
        return self.score(pairs)
