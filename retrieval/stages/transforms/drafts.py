"""Queries with what a language model would answer: HyDE, query2doc, Iter-RetGen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import finite_number, whole_number
from sluice.encoders.rerankers.language_model import Template
from sluice.retrieval.pipelines.stage import Around, Stage
from sluice.retrieval.pipelines.tracing import is_traced, note
from sluice.retrieval.runs.queries import DEPTH, Queries, like
from sluice.retrieval.runs.run import Run
from sluice.retrieval.stages.generative.pointwise import head_texts
from sluice.retrieval.stages.transforms.stage import (
    SHOWN,
    Transformed,
    Variant,
)
from sluice.retrieval.stages.transforms.writer import (
    CacheFile,
    Deadline,
    Draw,
    Limits,
    TokenBudget,
    TokenLimit,
    Writer,
)

HYDE = "Write a short passage that answers this query.\n\nQuery: {query}\n\nPassage:"
QUERY2DOC = "Write a passage that answers this query.\n\nQuery: {query}\n\nPassage:"
ITERATIVE = (
    "Passages:\n{documents}\n\nAnswer this query in a few sentences, from the passages and from "
    "what you know.\n\nQuery: {query}\n\nAnswer:"
)
REPEATED = 5  # times that a query stands before its draft, for a stage that counts words
MOST_ROUNDS, MOST_SAMPLES = 100, 100
TEMPERATURE = 0.7  # of drafts that are drawn, as in HyDE
WRITING = Limits()


class Drafts:
    """The transform of HyDE: the query, and documents that might answer it.

    For each prompt these are ``samples``: the likeliest answer, or several that are drawn at
    ``temperature``. ``query_weight`` is the query's, the drafts have 1 each.
    """

    def __init__(
        self,
        writer: Writer,
        prompts: Sequence[str],
        query_weight: float,
        samples: int = 1,
        temperature: float | None = None,
    ) -> None:
        self.writer = writer
        count = whole_number(samples, f"{writer.name}: samples", 1, MOST_SAMPLES)
        if temperature is not None and count == 1:
            raise ConfigError(
                f"{writer.name}: temperature is for several samples; set samples, or leave it out"
            )
        self.draws: list[Draw | None] = [None]
        if count > 1:
            warmth = TEMPERATURE if temperature is None else temperature
            finite_number(warmth, f"{writer.name}: temperature", 0, 2)
            if warmth == 0:
                raise ConfigError(
                    f"{writer.name}: temperature 0 draws {count} answers alike; expected a number "
                    "above 0"
                )
            self.draws = [Draw(float(warmth), number) for number in range(count)]
        if not prompts:
            raise ConfigError(f"{writer.name}: prompt is an empty list; expected one or more")
        self.templates = [Template(prompt, ["query"]) for prompt in prompts]
        self.query_weight = finite_number(query_weight, f"{writer.name}: query_weight", 0)

    def variants(self, queries: Sequence[str]) -> list[list[Variant]]:
        """Return each query and its drafts; nothing for a query without any."""
        prompts = [each.fill({"query": query}) for query in queries for each in self.templates]
        each = len(self.templates)
        written = [self.writer.write(prompts, each, draw) for draw in self.draws]
        made = []
        for place, query in enumerate(queries):
            own = slice(place * each, (place + 1) * each)
            texts = [text for answers in written for text in answers[own]]
            drafts = [Variant(text, 1.0, True) for text in texts if text]
            made.append([Variant(query, self.query_weight), *drafts] if drafts else [])
        return made


class Prefixed:
    """The transform of query2doc: one text, the query ``repeats`` times and then its draft."""

    def __init__(self, writer: Writer, prompt: str, repeats: int) -> None:
        self.writer, self.template = writer, Template(prompt, ["query"])
        self.repeats = whole_number(repeats, f"{writer.name}: repeats", 1)

    def variants(self, queries: Sequence[str]) -> list[list[Variant]]:
        """Return each query's text; nothing for a query without a draft."""
        written = self.writer.write([self.template.fill({"query": query}) for query in queries])
        return [
            [Variant(" ".join([query] * self.repeats + [draft]))] if draft else []
            for query, draft in zip(queries, written, strict=True)
        ]


def hyde(
    stage: Stage,
    writer: Any,
    /,
    *,
    prompt: Annotated[
        str | list[str],
        "A prompt with {query}, or a list of such, each of which writes a document.",
    ] = HYDE,
    samples: Annotated[
        int, "Documents written for each prompt; several are drawn, each time the same."
    ] = 1,
    temperature: Annotated[
        float | None, "How freely several are drawn, above 0 and at most 2; left out, 0.7."
    ] = None,
    query_weight: Annotated[
        float, "What the query itself counts; each document written for it counts 1."
    ] = 1.0,
    tokens: TokenLimit = WRITING.tokens,
    cache: CacheFile = None,
    budget: TokenBudget = None,
    deadline_ms: Deadline = None,
) -> Transformed:
    """Search by documents that a language model makes up for the query (HyDE).

    ``prompt`` is one with ``{query}``, or a list of such, each of which writes ``samples``
    documents: the likeliest one, or several drawn at ``temperature`` (0.7), each time the same.
    ``query_weight`` is what the query itself counts beside a document's 1. The mean of their
    vectors is searched for. (Gao et al. 2022, Precise Zero-Shot Dense Retrieval without Relevance
    Labels, arXiv 2212.10496, equation 8.)
    """
    limits = Limits(tokens, cache, budget, deadline_ms)
    prompts = [prompt] if isinstance(prompt, str) else prompt
    drafts = Drafts(Writer(writer, limits, "hyde"), prompts, query_weight, samples, temperature)
    options = {
        "prompt": prompt, "samples": samples, "temperature": temperature,
        "query_weight": query_weight, **limits.saved,
    }  # fmt: skip
    return Transformed(stage, drafts, "hyde", models=(writer,), options=options)


def query2doc(
    stage: Stage,
    writer: Any,
    /,
    *,
    prompt: Annotated[str, "The prompt, with {query}."] = QUERY2DOC,
    repeats: Annotated[
        int | None,
        "How often the query stands before the passage; left out, 5 times where words are "
        "counted, else once.",
    ] = None,
    tokens: TokenLimit = WRITING.tokens,
    cache: CacheFile = None,
    budget: TokenBudget = None,
    deadline_ms: Deadline = None,
) -> Transformed:
    """Search by the query and a passage that a language model writes for it, as one text.

    ``repeats`` is how often the query stands before the passage; left out, 5 times for a retriever
    that counts words, else once. (Wang et al. 2023, Query2doc, arXiv 2303.07678.)
    """
    limits = Limits(tokens, cache, budget, deadline_ms)
    times = (REPEATED if stage.lexical else 1) if repeats is None else repeats
    prefixed = Prefixed(Writer(writer, limits, "query2doc"), prompt, times)
    options = {"prompt": prompt, "repeats": times, **limits.saved}
    return Transformed(stage, prefixed, "query2doc", models=(writer,), options=options)


class IterRetGen(Around):
    """``stage``, searched again by the query and an answer drafted from what it found.

    After the first search a language model answers from the first ``depth`` documents, and the
    query followed by that draft is searched; ``rounds`` times. The last list counts. A query whose
    draft is missing keeps the list it has. (Shao et al. 2023, Iter-RetGen, arXiv 2305.15294.)
    """

    lexical = False

    def __init__(
        self, stage: Stage, writer: Writer, *, prompt: str, rounds: int, depth: int, models: Any
    ) -> None:
        self.writer = writer
        self.template = Template(prompt, ["query", "documents"])
        self.rounds = whole_number(rounds, "iter_retgen: rounds", 0, MOST_ROUNDS)
        self.depth = whole_number(depth, "iter_retgen: depth", 1)
        options = {"rounds": rounds, "depth": depth, "prompt": prompt, **writer.limits.saved}
        super().__init__(stage, "iter_retgen", models=models, options=options)

    def _take(self, stage: Stage) -> None:
        super()._take(stage)
        self.name = f"iter_retgen({stage.name}, rounds={self.rounds})"

    @property
    def leaves(self) -> frozenset[str]:
        """Those of the stage, and the function."""
        return self.stage.leaves | {"iter_retgen"} if self.stage.leaves else frozenset()

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Search, draft and search again."""
        deepest = max(DEPTH if k is None else k, self.depth)
        run = self.stage.rank(queries, given, deepest)
        texts = {query: text for query, text in queries.items() if text.strip()}
        noted: dict[str, list[str]] = {}
        for _ in range(self.rounds):
            heads = {query: run[query] for query in texts if len(run[query])}
            shown = head_texts(heads, self.documents, "iter_retgen", self.depth)
            values = [{"query": texts[query], "documents": shown[query]} for query in heads]
            drafts = self.writer.write([self.template.fill(each) for each in values])
            asked = {
                query: f"{texts[query]} {draft}"
                for query, draft in zip(heads, drafts, strict=True)
                if draft
            }
            if not asked:
                break
            for query, text in asked.items():
                noted.setdefault(query, []).append(text[:SHOWN])
            again = self.stage.rank(like(queries, asked), given, deepest)
            run = Run({**run, **again}, name=self.name)
        if is_traced():
            note({"searched": noted})
        return run


def iter_retgen(
    stage: Stage,
    writer: Any,
    /,
    *,
    rounds: Annotated[int, "How many drafts are written, each followed by a search; 0: none."] = 2,
    depth: Annotated[int, "Documents that a draft is written from."] = 5,
    prompt: Annotated[str, "The prompt, with {query} and {documents}."] = ITERATIVE,
    tokens: TokenLimit = WRITING.tokens,
    cache: CacheFile = None,
    budget: TokenBudget = None,
    deadline_ms: Deadline = None,
) -> IterRetGen:
    """Search again by the query and an answer drafted from what was found (Iter-RetGen).

    ``rounds`` is how many drafts are written, each followed by a search; 0 is the stage itself.
    ``depth`` is how many documents a draft is written from. ``prompt`` has ``{query}`` and
    ``{documents}``.
    """
    limits = Limits(tokens, cache, budget, deadline_ms)
    own = Writer(writer, limits, "iter_retgen")
    return IterRetGen(stage, own, prompt=prompt, rounds=rounds, depth=depth, models=(writer,))
