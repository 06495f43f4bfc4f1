"""Reads what a language model answered: words, an order of documents, or nothing usable."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

from sluice.encoders.foundation.errors import ConfigError
from sluice.retrieval.pipelines.stage import Texts
from sluice.retrieval.pipelines.tracing import note
from sluice.retrieval.runs.run import Ranking

_BRACKETED = re.compile(r"\[\s*0*([0-9]{1,9})\s*\]")
_NUMBER = re.compile(r"(?<![0-9])0*([0-9]{1,9})(?![0-9])")
_THOUGHT = "</think>"  # ends the reasoning of some models


def read_order(text: str, count: int) -> tuple[list[int], int]:
    """Return a permutation of ``range(count)`` and how many of its places were written.

    ``text`` is like ``[3] > [1] > ...``, numbers from 1. Numbers in brackets count, or any numbers
    if none is in brackets. The first occurrence of each counts; unknown ones are left out;
    those that are missing follow in input order. (Sun et al., 2023, RankGPT, arXiv 2304.09542.)
    """
    said = spoken(text)
    found = _known(_BRACKETED.findall(said), count) or _known(_NUMBER.findall(said), count)
    named = set(found)
    return [*found, *(place for place in range(count) if place not in named)], len(found)


def spoken(text: str) -> str:
    """Return a model's answer without the reasoning that some write before it."""
    return text.rpartition(_THOUGHT)[2]


def _known(numbers: Sequence[str], count: int) -> list[int]:
    places = (int(number) - 1 for number in numbers)
    return list(dict.fromkeys(place for place in places if 0 <= place < count))


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
