"""The protocol of language models that rerank: probabilities of answers, and completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.rerankers.prompt import Prompt


class LanguageModel(Protocol):
    """A model that continues a prompt: loaded here, behind an endpoint, or a test's."""

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever an answer could."""
        ...

    def answers(self, prompts: Sequence[Prompt], choices: Sequence[str]) -> NDArray[np.floating]:
        """Return log-probabilities ``[prompts, choices]`` of the choices as the first word.

        Each row is normalised over the choices, or NaN if the model chose none of them.
        """
        ...

    def completions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[str]:
        """Return the model's answer to each prompt, which may be empty."""
        ...


def chances(
    model: LanguageModel, prompts: Sequence[Prompt], choices: Sequence[str]
) -> tuple[NDArray[np.float64], int]:
    """Return probabilities ``[prompts, choices]``, and how many prompts had no answer.

    Without an answer, all choices are equally likely. Raises ``ModelError`` for a model that
    returns another shape.
    """
    shares = known_chances(model, prompts, choices)
    silent = np.isnan(shares)  # complete rows
    return np.where(silent, 1.0 / len(choices), shares), int(silent[:, 0].sum())


def known_chances(
    model: LanguageModel, prompts: Sequence[Prompt], choices: Sequence[str]
) -> NDArray[np.float64]:
    """Return probabilities ``[prompts, choices]``, a row of NaN for a prompt without an answer."""
    if not prompts:
        return np.zeros((0, len(choices)))
    logs = np.asarray(model.answers(prompts, choices), np.float64)
    if logs.shape != (len(prompts), len(choices)):
        raise ModelError(
            f"{type(model).__name__}: answers of shape {logs.shape} for {len(prompts)} prompts "
            f"and {len(choices)} choices"
        )
    silent = ~np.isfinite(logs.max(axis=1, keepdims=True))  # NaN in a row is its maximum too
    logs = np.where(silent, 0.0, logs)
    shares: NDArray[np.float64] = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return np.where(silent, np.nan, shares)
