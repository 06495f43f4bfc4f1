"""Filters in the text of a query: what restricts a field of the metadata becomes ``where``."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Protocol

from sluice.encoders.foundation.errors import ConfigError
from sluice.encoders.foundation.numbers import plural
from sluice.encoders.generative.list_order import spoken
from sluice.encoders.rerankers.language_model import Template
from sluice.retrieval.documents.store import DocumentStore
from sluice.retrieval.documents.where import Where, conditions, matching_rows, parse_where
from sluice.retrieval.pipelines.search import TextsOf
from sluice.retrieval.pipelines.stage import Around, Stage
from sluice.retrieval.pipelines.tracing import is_traced, note, tally
from sluice.retrieval.runs.queries import Queries, like
from sluice.retrieval.runs.run import Ranking, Run
from sluice.retrieval.stages.transforms.drafts import WRITING
from sluice.retrieval.stages.transforms.writer import (
    CacheFile,
    Deadline,
    Limits,
    TokenBudget,
    Writer,
)

log = logging.getLogger("sluice")

EXTRACT = (
    "The documents of a search engine have these fields:\n{fields}\n\nWhich of them does the query "
    "restrict, and what does it ask for besides? Answer with one JSON object, such as "
    '{"query": "solar panels", "where": {"year": {"gte": 2020}, "language": "en"}}. Conditions '
    'are a value, a list of values, or an object of gte, gt, lte, lt and not. With none, "where" '
    "is {}.\n\nQuery: {query}\n\nJSON:"
)
FIELDS = 30  # of the metadata that a prompt names
VALUES = 8  # of a field of texts
LONGEST_VALUE = 40  # characters
TOLD = re.compile(r'(?<!\S)([^\s:=<>!"]+)(:|>=|<=|!=|==|=|>|<)("[^"]*"|[^\s"]+)(?!\S)')


class Extracted(NamedTuple):
    """The text that is left of a query, and its filter, empty for none; ``fault`` if it has one."""

    text: str
    where: Mapping[str, Any]
    fault: str = ""


class Extractor(Protocol):
    """Finds the filters in queries."""

    def conditions(self, queries: Sequence[str], store: DocumentStore) -> list[Extracted]:
        """Return what each query says; its filter is checked by the caller."""
        ...


class Told:
    """Reads conditions that a query spells out: ``year>=2020``, ``lang:en``, ``by:"A. Smith"``.

    The names are keys of the metadata; anything else stays text.
    """

    def conditions(self, queries: Sequence[str], store: DocumentStore) -> list[Extracted]:
        """Return each query without its conditions, and these."""
        known = {key for _, columns in store.columns for key in columns}
        return [self._of(query, known, store) for query in queries]

    def _of(self, query: str, known: set[str], store: DocumentStore) -> Extracted:
        found = [match for match in TOLD.finditer(query) if match[1] in known]
        told = [f"{match[1]}{'=' if match[2] == ':' else match[2]}{match[3]}" for match in found]
        without = TOLD.sub(lambda match: " " if match[1] in known else match[0], query)
        left = " ".join(without.split()) if found else query
        try:
            where = parse_where(told)
            as_text = {key: _as_text(condition) for key, condition in where.items()}
            return Extracted(left, where if fits(store, where) else as_text)
        except ConfigError as error:
            return Extracted(query, {}, str(error).removeprefix("--where "))


class Asked:
    """Lets a language model find them, as one JSON object with ``query`` and ``where``.

    The prompt names the fields, their kinds and some of their values.
    """

    def __init__(self, writer: Writer, prompt: str) -> None:
        self.writer, self.template = writer, Template(prompt, ["query", "fields"])

    def conditions(self, queries: Sequence[str], store: DocumentStore) -> list[Extracted]:
        """Return what the model says; a fault for what is not such an object."""
        fields = described_fields(store)
        if not fields:
            return [Extracted(query, {}) for query in queries]
        values = [{"query": query, "fields": fields} for query in queries]
        written = self.writer.write([self.template.fill(each) for each in values])
        return [read_answer(query, text) for query, text in zip(queries, written, strict=True)]


def read_answer(query: str, answer: str) -> Extracted:
    """Return the filter in a model's answer; a fault where there is none that could be read."""
    if not answer:
        return Extracted(query, {})  # counted by who wrote it
    said = spoken(answer)
    start = said.find("{")
    try:
        facts, _ = json.JSONDecoder().raw_decode(said[start:] if start >= 0 else "")
    except (ValueError, RecursionError):
        return Extracted(query, {}, "no JSON object")
    where = facts.get("where")
    text = facts.get("query")
    if not isinstance(where, dict):
        return Extracted(query, {}, "no object under where")
    return Extracted(text if isinstance(text, str) and text.strip() else query, where)


def described_fields(store: DocumentStore) -> str:
    """Return the fields of a store's metadata with kinds and values, a line each."""
    kinds: dict[str, set[str]] = {}
    values: dict[str, dict[str, None]] = {}
    for _, columns in store.columns:
        for key, group in columns.items():
            for column in group:
                kinds.setdefault(key, set()).add(column.kind)
                own = values.setdefault(key, {})
                words = column.words
                for code in range(min(VALUES, 0 if words is None else len(words))):
                    own[str(words[code] if words is not None else "")[:LONGEST_VALUE]] = None
    lines = []
    for key in sorted(kinds)[:FIELDS]:
        some = ", ".join(map(json.dumps, list(values[key])[:VALUES]))
        lines.append(f"{key} ({' or '.join(sorted(kinds[key]))}){f': {some}' if some else ''}")
    return "\n".join(lines)


def fits(store: DocumentStore, where: Where) -> bool:
    """Return whether the fields and kinds of a filter are those of a store's metadata."""
    try:
        matching_rows(store, conditions(where))
    except ConfigError:
        return False
    return True


def _as_text(condition: Any) -> Any:
    """Return a condition with its numbers and booleans as the texts they were written as."""
    if isinstance(condition, dict):
        return {operator: _as_text(value) for operator, value in condition.items()}
    return condition if isinstance(condition, str) else json.dumps(condition)


class Structured(Around):
    """``stage``, searched among the documents that meet the conditions in the query's text.

    What ``extractor`` finds is checked against the metadata: fields and kinds that no document has,
    and conditions that none meets, leave the query as it is, are counted and logged. A filter
    of the caller holds besides, and comes first where both restrict a field.
    """

    def __init__(
        self,
        stage: Stage,
        extractor: Extractor,
        *,
        models: Iterable[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.extractor = extractor
        super().__init__(stage, "structured", models=models, options=options)

    def rank(self, queries: Queries, given: Run | None = None, k: int | None = None) -> Run:
        """Search the queries of each filter together."""
        store = self.documents
        if isinstance(store, TextsOf):
            store = store.store
        if not isinstance(store, DocumentStore):
            raise ConfigError(
                f"{self.name}: needs documents with metadata; expected a stage with a retriever"
            )
        if not any(columns for _, columns in store.columns):
            log.warning("%s: the documents have no metadata; nothing is filtered", self.name)
        with_text = {query: text for query, text in queries.items() if text.strip()}
        extracted = self.extractor.conditions(list(with_text.values()), store) if with_text else []
        faults: Counter[str] = Counter()
        alone: list[str] = []  # conditions and nothing else, which are searched as words
        groups: dict[str, tuple[Mapping[str, Any], dict[str, str]]] = {"": ({}, {})}
        for query, own in zip(with_text, extracted, strict=True):
            fault = own.fault or ("" if not own.where else self._fault(own.where, store))
            faults.update([fault] if fault else [])
            if fault or not own.where:
                continue
            _, texts = groups.setdefault(repr(conditions(own.where)), (own.where, {}))
            texts[query] = own.text.strip() or with_text[query]
            if texts[query] == with_text[query]:
                alone.append(query)
        filtered = {query for _, texts in groups.values() for query in texts}
        groups[""][1].update({q: text for q, text in queries.items() if q not in filtered})
        self._tell(faults, len(with_text))
        if is_traced():
            note({"where": {q: w for w, texts in groups.values() for q in texts if w}})
        found: dict[str, Ranking] = {}
        for where, texts in groups.values():
            if texts:
                stage = self.stage.filtered(where) if where else self.stage
                found.update(stage.rank(like(queries, texts), given, k))
        silent = [query for query in alone if not len(found[query])]
        if silent:
            log.warning(
                "%s: no document found for %s with nothing to search for beside conditions; first: "
                "%r; add words to search for", self.name, plural(len(silent), "query"),
                with_text[silent[0]],
            )  # fmt: skip
        return Run({query: found[query] for query in queries}, name=self.name)

    def _fault(self, where: Mapping[str, Any], store: DocumentStore) -> str:
        """Return why a filter cannot be used, empty if it can."""
        try:
            self.stage.filtered(where)
            matches = matching_rows(store, conditions(where)).any()
        except ConfigError as error:
            return str(error)
        return "" if matches else f"no document meets {where!r:.200}"

    def _tell(self, faults: Counter[str], queries: int) -> None:
        if not faults:
            return
        tally({"filters left out": faults.total()})
        log.warning(
            "%s: searched without a filter: %s of %s; first: %s",
            self.name,
            f"{faults.total():,}",
            plural(queries, "query"),
            next(iter(faults)),
        )


def structured(
    stage: Stage,
    writer: Any = None,
    /,
    *,
    prompt: Annotated[
        str | None, "The prompt, with {query} and {fields}, which asks for a JSON object."
    ] = None,
    tokens: Annotated[
        int | None, "Tokens of what the model writes, at most; 128 if left out."
    ] = None,
    cache: CacheFile = None,
    budget: TokenBudget = None,
    deadline_ms: Deadline = None,
) -> Structured:
    """Take conditions on the metadata out of the query, and search among what meets them.

    Without a language model they are those that the query spells out, ``year>=2020 lang:en``. With
    one it reads them out of the query's words. ``prompt`` has ``{query}`` and ``{fields}``.
    """
    if writer is None:
        given = {"prompt": prompt, "tokens": tokens, "cache": cache, "budget": budget,
                 "deadline_ms": deadline_ms}  # fmt: skip
        for name, value in given.items():
            if value is not None:
                raise ConfigError(
                    f"structured: {name} is for a language model, and none is given; name one of "
                    "the rerankers: structured(stage, NAME)"
                )
        return Structured(stage, Told(), options={})
    limits = Limits(WRITING.tokens if tokens is None else tokens, cache, budget, deadline_ms)
    own = Writer(writer, limits, "structured")
    asked = EXTRACT if prompt is None else prompt
    options = {"prompt": asked, **limits.saved}
    return Structured(stage, Asked(own, asked), models=(writer,), options=options)
