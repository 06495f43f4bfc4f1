"""Requests to language models, and how many of their answers could be used."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from sluice.encoders.foundation.errors import ConfigError
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
