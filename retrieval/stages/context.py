"""Packs what a stage finds into the context of a language model: budget, order, citations."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from sluice.encoders.foundation.bounded_input import same_text_key
from sluice.encoders.foundation.errors import ConfigError, DataError, suggest
from sluice.encoders.foundation.numbers import whole_number
from sluice.retrieval.documents.text import word_pieces
from sluice.retrieval.documents.where import Where
from sluice.retrieval.pipelines.hit import Hit
from sluice.retrieval.pipelines.stage import Stage

Order = Literal["ends", "rank", "reversed"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
DEPTH: Final = 50  # documents that are looked at
APART: Final = "\n\n"  # between two documents
_WORDS = re.compile(r"\s*\S+")


class Cited(NamedTuple):
    """A document of a context: how it is cited, its id, its rank from 1, and the text that is read.

    ``whole`` is False where the text was cut to the budget.
    """

    mark: str
    doc_id: str
    rank: int
    text: str
    whole: bool = True


class Context(NamedTuple):
    """What a language model reads for a query, at most as many ``tokens`` as was asked for.

    ``documents`` stand in ``text`` in this order, each as its mark, its title and its text.
    ``left_out`` are the ids of documents that did not fit, ``repeated`` of those whose text is
    blank or that of a better one, best first.
    """

    text: str
    documents: tuple[Cited, ...]
    tokens: int
    left_out: tuple[str, ...]
    repeated: tuple[str, ...]

    def cited(self, answer: str) -> list[str]:
        """Return the ids of the documents whose marks an answer has, in the order it cites them.

        Marks of no document, which a model made up, are left out.
        """
        ids = {each.mark: each.doc_id for each in self.documents}
        return list(
            dict.fromkeys(ids[mark] for mark in re.findall(r"\[\d+\]", answer) if mark in ids)
        )


def ends_first(count: int) -> list[int]:
    """Return ranks from 0 in the order 0, 2, 4, ..., 5, 3, 1: the best at both ends."""
    return [*range(0, count, 2), *reversed(range(1, count, 2))]


@dataclass(frozen=True, slots=True)
class Pack:
    """What ``pack`` returns: asks a stage and packs what it finds."""

    stage: Stage
    tokens: int
    order: Order
    count: Callable[[str], int]
    depth: int

    def __call__(self, query: str, *, where: Where | None = None) -> Context:
        """Return the context for a query; empty where nothing is found or fits."""
        return self.packed(self.stage.search(query, self.depth, where=where))

    def packed(self, hits: Sequence[Hit]) -> Context:
        """Return the context of hits, best first: each fits whole, or is left out.

        Only where the very first does not fit, it is cut between words.
        """
        marked, repeated, left_out = list[tuple[int, Hit, str, bool]](), list[str](), list[str]()
        seen = set[str]()
        for rank, hit in enumerate(hits):
            text = hit.text if hit.passage is None else hit.passage.text
            key = same_text_key(text)
            if key in seen or not key:
                repeated.append(hit.doc_id)
                continue
            seen.add(key)
            if self._fits([*marked, (rank, hit, text, True)]):
                marked.append((rank, hit, text, True))
            elif not marked and not left_out and (part := self._cut(rank, hit, text)):
                marked.append((rank, hit, part, False))
            else:
                left_out.append(hit.doc_id)
        blocks, documents = self._laid_out(marked)
        text = APART.join(blocks)
        return Context(text, documents, self._counted(text), tuple(left_out), tuple(repeated))

    def _laid_out(
        self, chosen: Sequence[tuple[int, Hit, str, bool]]
    ) -> tuple[list[str], tuple[Cited, ...]]:
        """Return the documents' blocks and citations, in the order they are read."""
        places = {
            "ends": ends_first(len(chosen)),
            "rank": list(range(len(chosen))),
            "reversed": list(reversed(range(len(chosen)))),
        }[self.order]
        blocks, documents = [], []
        for place in places:
            rank, hit, text, whole = chosen[place]
            mark = f"[{place + 1}]"
            blocks.append(f"{mark} {hit.title}\n{text}" if hit.title else f"{mark} {text}")
            documents.append(Cited(mark, hit.doc_id, rank + 1, text, whole))
        return blocks, tuple(documents)

    def _fits(self, chosen: Sequence[tuple[int, Hit, str, bool]]) -> bool:
        return self._counted(APART.join(self._laid_out(chosen)[0])) <= self.tokens

    def _cut(self, rank: int, hit: Hit, text: str) -> str:
        """Return the longest beginning of a text, in whole words, that fits; "" for none."""
        ends = [0, *(word.end() for word in _WORDS.finditer(text))]
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._fits([(rank, hit, text[: ends[middle]], False)]):
                low = middle
            else:
                high = middle - 1
        return text[: ends[low]]

    def _counted(self, text: str) -> int:
        number = self.count(text)
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise DataError(
                f"pack: count returned {number!r} for a text, expected its number of tokens"
            )
        return number


def pack(
    stage: Stage,
    tokens: int = 4_000,
    order: Order = "ends",
    *,
    count: Callable[[str], int] = word_pieces,
    depth: int = DEPTH,
) -> Pack:
    """Return what makes the context of a language model of what a stage finds for a query.

    ``pack(stage, tokens=4000)("a question")`` looks at the best ``depth`` documents (their
    passages, where they have some), leaves out texts that a better one has already, and takes the
    best that fit into ``tokens``, marks and titles counted. ``order`` says how they are read:
    ``ends`` puts the best at both ends (1, 3, 5, ..., 6, 4, 2), where models read best; ``rank``
    and ``reversed`` as they are called. ``count`` returns a text's tokens, for a model's own
    ``lambda text: len(tokenizer(text).input_ids)``. Without it words and marks are counted, and
    most models make more tokens than that: leave room.
    (Jin et al., 2024, Long-context LLMs meet RAG: retrieval reordering.)
    """
    if not isinstance(stage, Stage):
        raise ConfigError(
            f"pack: {type(stage).__name__}; expected a retriever or a pipeline to search"
        )
    if not callable(count):
        raise ConfigError(
            f"count: {type(count).__name__}; expected a function that returns a text's tokens"
        )
    if order not in ORDERS:
        raise ConfigError(
            f"order: {order!r}; known: {', '.join(ORDERS)}{suggest(str(order), ORDERS)}"
        )
    return Pack(
        stage, whole_number(tokens, "tokens", 1), order, count, whole_number(depth, "depth", 1)
    )
