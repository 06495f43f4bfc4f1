"""Prompts and answers by which published language models judge one document."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sluice.encoders.foundation.errors import ModelError
from sluice.encoders.model_files.locate import local_folder
from sluice.encoders.model_files.prompts import is_among

MONO = "Query: {query} Document: {document} Relevant:"
QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that "
    "answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
PASSAGE_B = (
    "A: {query}\nB: {document}\nGiven a query A and a passage B, determine whether the passage "
    "contains an answer to the query by providing a prediction of either 'Yes' or 'No'."
)


class Recipe(NamedTuple):
    """Models by their ids on the hub, their prompt, and their answers, the relevant one first.

    The score is the probability of the first answer among the two, or the logit of the only one.
    """

    name: str
    models: tuple[str, ...]
    prompt: str
    answers: tuple[str, ...]


RECIPES = (
    # Nogueira et al., 2020, arXiv 2003.06713
    Recipe(
        "monoT5",
        (
            "castorini/monot5-base-msmarco", "castorini/monot5-base-msmarco-10k",
            "castorini/monot5-large-msmarco", "castorini/monot5-large-msmarco-10k",
            "castorini/monot5-3b-msmarco", "castorini/monot5-3b-msmarco-10k",
        ),
        MONO,
        ("true", "false"),
    ),
    # Bonifacio et al., 2021, mMARCO, arXiv 2108.13897
    Recipe(
        "mT5",
        (
            "unicamp-dl/mt5-base-mmarco-v1", "unicamp-dl/mt5-base-mmarco-v2",
            "unicamp-dl/mt5-base-en-msmarco",
        ),
        MONO,
        ("yes", "no"),
    ),
    # Zhang et al., 2025, arXiv 2506.05176
    Recipe(
        "Qwen3-Reranker",
        ("Qwen/Qwen3-Reranker-0.6B", "Qwen/Qwen3-Reranker-4B", "Qwen/Qwen3-Reranker-8B"),
        QWEN3,
        ("yes", "no"),
    ),
    # Li et al., 2023, arXiv 2312.15503
    Recipe("BGE reranker v2", ("BAAI/bge-reranker-v2-gemma",), PASSAGE_B, ("Yes",)),
)  # fmt: skip


def recipe_of(model: str) -> Recipe | None:
    """Return the prompt of a published reranker, by its hub id or its folder; None: not known."""
    try:
        folder = local_folder(model)
    except ModelError:
        folder = None
    place = Path(model) if folder is None else folder
    return next((recipe for recipe in RECIPES if is_among(place, recipe.models)), None)
