"""Has a language model put whole lists of candidates in order, window by window."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from sluice.encoders.foundation.bounded_input import expanded
from sluice.encoders.foundation.disk.files import packed_file
from sluice.encoders.foundation.errors import ConfigError, DataError
from sluice.encoders.foundation.numbers import whole_number
from sluice.encoders.foundation.progress import progress
from sluice.encoders.generative.list_order import LISTWISE, answer_room, read_order, windows
from sluice.encoders.rerankers.language_model import Prompt, Template
from sluice.retrieval.stages.transforms.writer import Limits, Writer
from sluice.retrieval.training_data.files.examples import document_texts
from sluice.retrieval.training_data.written.written_corpus import (
    caching_writer,
    check_output,
    json_line,
)

if TYPE_CHECKING:
    from sluice.retrieval.datasets.dataset import Dataset


log = logging.getLogger("sluice")

QUERIES: Final = 32  # asked about together


class Windows(NamedTuple):
    """How a list is gone through: windows of ``width``, ``step`` apart, ``passes`` times over.

    Left out, there are as many passes as any order takes.
    """

    width: Annotated[int, "Candidates in one prompt."] = 20
    step: Annotated[int, "Places between two windows."] = 10
    passes: Annotated[int | None, "Passes over each list."] = None

    def checked(self) -> Windows:
        """Return these windows; ``ConfigError`` where they cannot be."""
        whole_number(self.width, "window", 2)
        whole_number(self.step, "step", 1)
        if self.step >= self.width:
            raise ConfigError(
                f"step: {self.step}; expected less than the window, {self.width}, so that windows "
                "overlap"
            )
        if self.passes is not None:
            whole_number(self.passes, "passes", 1)
        return self

    def passes_over(self, count: int) -> int:
        """Return how often a list of ``count`` is gone through."""
        return passes_needed(count, self.width, self.step) if self.passes is None else self.passes


class Ranked(NamedTuple):
    """Queries with candidates, those that were ranked, and the windows and tokens it took."""

    output: Path
    queries: int
    ranked: int
    windows: int
    tokens: int

    def __str__(self) -> str:
        left = self.queries - self.ranked
        silent = f", {left:,} left out for want of an answer" if left else ""
        return (
            f"{self.output}: {self.ranked:,} lists in order{silent}; {self.windows:,} windows, "
            f"{self.tokens:,} tokens"
        )


def passes_needed(count: int, width: int, step: int) -> int:
    """Return how many passes of windows put any list of ``count`` in order.

    Each pass by a model that orders windows rightly brings the next best ``width - step`` to their
    places, and the last window all that remain.
    """
    return 1 + math.ceil(max(0, count - width) / (width - step))


def rank_dataset(
    model: Any,
    dataset: Dataset,
    candidates: str,
    output: Path,
    *,
    depth: Annotated[int, "The first N candidates of each query."] = 100,
    over: Windows = Windows(),  # noqa: B008 (a tuple)
    prompt: Annotated[
        str, "TEXT", "The prompt, with {query}, {documents} and {count}, as style: listwise."
    ] = LISTWISE,
    limits: Limits | None = None,
    allow: Collection[str] = (),
) -> Ranked:
    """Write a split's queries with their candidates in the order that a language model finds.

    ``candidates`` is a run or a retriever's folder, cut to ``depth``. Passes of windows, as those
    of ``Listwise``, are repeated until the whole list is in order and not its top alone, or a pass
    changes nothing. A row is ``{query_id, query, documents, doc_ids, grades}``, the best first,
    ``grades`` 1 / log2(1 + rank). A query of which a window had no usable answer is left out
    and counted, since the order of its list would be the retriever's. Answers are kept beside the
    output, so that the same call after a kill pays for none of them again.
    (Liu et al. 2025, Sliding windows are not the end, arXiv 2412.14574.)
    """
    from sluice.retrieval.retrievers.candidate_lists import open_lists, run_on

    check_output(output)
    over.checked()
    whole_number(depth, "depth", 2)
    template = Template(prompt, ["query", "documents"], ["count"])
    if not expanded(candidates).exists():
        raise ConfigError(
            f"candidates: no file or folder {candidates}; expected a run or a retriever's folder"
        )
    source = open_lists(candidates, "candidates", allow=allow)
    run = run_on(source, dataset, depth).top(depth)
    texts = document_texts(
        {doc for query in dataset.queries if query in run for doc in run[query].doc_ids}, dataset
    )
    lists = {
        query: [doc for doc in run[query].doc_ids if doc in texts]
        for query in dataset.queries
        if query in run
    }
    lists = {query: own for query, own in lists.items() if len(own) > 1}
    if not lists:
        raise DataError(
            f"candidates: {candidates} has two documents or more for none of the "
            f"{len(dataset.queries):,} queries of {dataset.name} ({dataset.split}); is it a run on "
            "another split?"
        )
    longest = min(over.width, max(map(len, lists.values())))
    limits = (limits or Limits())._replace(tokens=answer_room(longest))
    writer = caching_writer(model, limits, output, "rank")
    asking = _Asking(writer, template, over, dataset.queries, texts)
    ranked = 0
    with packed_file(output) as stream, progress("rank", len(lists), "queries") as advance:
        for start in range(0, len(lists), QUERIES):
            names = list(lists)[start : start + QUERIES]
            for query, order in asking.ordered({name: lists[name] for name in names}).items():
                stream.write(_row(query, dataset.queries[query], order, texts))
                ranked += 1
            advance(len(names))
        if not ranked:
            raise DataError(
                f"{dataset.name}: no answer about {len(lists):,} queries names a document; "
                "expected [2] > [1] > ...: take a model that follows the prompt"
            )
    if ranked < len(lists):
        log.warning(
            "rank: left out %s of %s queries: a window of their lists had no usable answer",
            f"{len(lists) - ranked:,}", f"{len(lists):,}",
        )  # fmt: skip
    return Ranked(output, len(lists), ranked, asking.asked, writer.tokens_spent)


class _Asking:
    """Asks for the order of windows, those of several queries together."""

    def __init__(
        self,
        writer: Writer,
        template: Template,
        over: Windows,
        queries: Mapping[str, str],
        texts: Mapping[str, str],
    ) -> None:
        self.writer = writer
        self.template = template
        self.over = over
        self.queries = queries
        self.texts = texts
        self.asked = 0

    def ordered(self, lists: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return the lists in order, without those of which a window had no usable answer."""
        orders = {query: list(own) for query, own in lists.items()}
        passes = {query: self.over.passes_over(len(own)) for query, own in orders.items()}
        changed = list(orders)
        number = 0
        while before := {q: list(orders[q]) for q in changed if number < passes[q]}:
            for query in self._pass(orders, before):
                del orders[query]
            changed = [q for q in before if q in orders and orders[q] != before[q]]
            number += 1
        return orders

    def _pass(self, orders: dict[str, list[str]], queries: Collection[str]) -> set[str]:
        """Go through lists from the back to the front; return queries without a usable answer."""
        plans = {q: windows(len(orders[q]), self.over.width, self.over.step) for q in queries}
        silent: set[str] = set()
        for turn in range(max(map(len, plans.values()))):
            here = {q: own[turn] for q, own in plans.items() if turn < len(own) and q not in silent}
            answers = self.writer.write([self._prompt(q, orders[q][at]) for q, at in here.items()])
            self.asked += len(here)
            for (query, at), answer in zip(here.items(), answers, strict=True):
                own = orders[query][at]
                places, named = read_order(answer, len(own))
                if not named:
                    silent.add(query)
                orders[query][at] = [own[place] for place in places]
        return silent

    def _prompt(self, query: str, documents: Sequence[str]) -> Prompt:
        shown = [self.texts[document] for document in documents]
        return self.template.fill(
            {"query": self.queries[query], "documents": shown, "count": len(shown)}
        )


def _row(query: str, text: str, order: Sequence[str], texts: Mapping[str, str]) -> bytes:
    row = {
        "query_id": query, "query": text,
        "documents": [texts[document] for document in order], "doc_ids": list(order),
        "grades": [1 / math.log2(1 + rank) for rank in range(1, len(order) + 1)],
    }  # fmt: skip
    return json_line(row)
