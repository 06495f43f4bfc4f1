"""What a generative reranker asks of a language model: which answer is likely, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.rerankers.prompt import Prompt


class LanguageModel(Protocol):
    """A model that reads a prompt and goes on: loaded here, behind an endpoint, or made up."""

    @property
    def fingerprint(self) -> str:
        """What changes whenever an answer would."""
        ...

    def answers(self, prompts: Sequence[Prompt], choices: Sequence[str]) -> NDArray[np.floating]:
        """Return log-probabilities ``[prompts, choices]`` of the choices as the first word said.

        Each row is normalised over the choices; one of NaN says that the model gave none of them.
        """
        ...

    def completions(self, prompts: Sequence[Prompt], max_new_tokens: int) -> list[str]:
        """Return what the model says to each prompt, empty where it said nothing."""
        ...


def chances(
    model: LanguageModel, prompts: Sequence[Prompt], choices: Sequence[str]
) -> tuple[NDArray[np.float64], int]:
    """Return probabilities ``[prompts, choices]``, and how many prompts had no answer.

    Those without an answer have all choices equally likely. Raises ``ModelError`` for a model that
    returns another shape.
    """
    found = known_chances(model, prompts, choices)
    silent = np.isnan(found)  # whole rows
    return np.where(silent, 1.0 / len(choices), found), int(silent[:, 0].sum())


def known_chances(
    model: LanguageModel, prompts: Sequence[Prompt], choices: Sequence[str]
) -> NDArray[np.float64]:
    """Return probabilities ``[prompts, choices]``, a row of NaN for a prompt without an answer."""
    if not prompts:
        return np.zeros((0, len(choices)))
    found = np.asarray(model.answers(prompts, choices), np.float64)
    if found.shape != (len(prompts), len(choices)):
        raise ModelError(
            f"{type(model).__name__}: answers of shape {found.shape} for {len(prompts)} prompts "
            f"and {len(choices)} choices"
        )
    silent = ~np.isfinite(found.max(axis=1, keepdims=True))  # NaN in a row is its maximum too
    found = np.where(silent, 0.0, found)
    shares: NDArray[np.float64] = np.exp(found - found.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return np.where(silent, np.nan, shares)
