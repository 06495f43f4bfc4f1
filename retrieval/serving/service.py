"""The service: what HTTP and MCP ask, answered from one state of a folder by lanes of work."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from sluice.encoders.encoder import Side, hooks_of
from sluice.encoders.foundation.build import resolve
from sluice.encoders.foundation.errors import UnknownDocumentError
from sluice.encoders.foundation.processes import cores
from sluice.retrieval.documents.document import Document
from sluice.retrieval.pipelines.asking import Asking
from sluice.retrieval.pipelines.stage import Stage
from sluice.retrieval.serving.content.content import (
    WARM,
    Content,
    change_documents,
    needs_model,
    query_cost,
    reranks,
)
from sluice.retrieval.serving.content.live import LiveFolder, Peers, Written
from sluice.retrieval.serving.faults import Fault, late, not_written, overloaded, too_large
from sluice.retrieval.serving.metrics import Metrics
from sluice.retrieval.serving.settings import MOST_QUERY, TABLE, ServeSettings
from sluice.retrieval.serving.shapes.search import (
    ExplainRequest,
    Explanation,
    SearchAnswer,
    SearchRequest,
)
from sluice.retrieval.serving.work.embedding import (
    Pair,
    Vector,
    cost_of,
    encode_all,
    pair_cost,
    score_all,
)
from sluice.retrieval.serving.work.lane import Job, Lane
from sluice.retrieval.serving.work.pace import Budget, Mailbox
from sluice.retrieval.serving.work.searching import answer, explained, is_quick, search_all

log = logging.getLogger("sluice.serve")

MODELS, INDEXES, WRITES = "models", "indexes", "writes"
MOST_SEARCHERS = 8  # threads for searches without a model
MOST_WRITES = 16  # that wait for those before
MOST_NAMES = 100  # of a filter
MOST_FILTER = 262_144  # characters of a filter, as JSON
QUICK_FILTER = 2_048  # of a filter that is checked in less than a millisecond
HITS_AT_ONCE = 16  # the most hits of a request, in largest ``k``


class Service:
    """Answers from one folder; ``open`` loads it, ``close`` finishes what was accepted.

    All that asks a model runs in one thread, in batches over the requests that wait; searches by
    words alone run beside it. Both share one bounded queue. Methods are for one event loop.
    """

    def __init__(self, live: LiveFolder, settings: ServeSettings) -> None:
        self.live, self.settings = live, settings
        self.metrics = Metrics()
        self.budget = Budget(settings.queue_tokens)
        self.stopping = False
        self._mail = Mailbox()
        self._warming: list[Future[list[Any]]] = []
        window = settings.window_ms / 1000
        common: dict[str, Any] = {
            "batch_tokens": settings.batch_tokens,
            "longest_wait": settings.longest_wait,
            "seen": self.metrics.saw_batch,
            "settled": self._mail.wake,
        }
        searchers = max(1, min(MOST_SEARCHERS, cores() // settings.workers))
        self._writes = Budget(MOST_WRITES)
        self._lanes = {
            MODELS: Lane(MODELS, self.budget, window=window, **common),
            INDEXES: Lane(INDEXES, self.budget, threads=searchers, **common),
            WRITES: Lane(WRITES, self._writes, batch_tokens=1, settled=self._mail.wake),
        }
        opener = resolve(TABLE["judging"].opener)
        self.judging = opener(settings, live.folder, live.content)  # None where nothing is judged
        self.lag = 0.0  # seconds that the event loop is late
        self._ends = 0.0  # when what was accepted is given up
        self._lane_names: dict[tuple[int, str], str] = {}

    @classmethod
    def open(
        cls,
        folder: str | Path,
        settings: ServeSettings | None = None,
        peers: Peers | None = None,
    ) -> Service:
        """Open a folder and load its models; ``ConfigError`` for one that cannot be served.

        ``peers`` are the other processes that serve it.
        """
        settings = settings or ServeSettings()
        return cls(LiveFolder(Path(folder), settings, peers), settings)

    @property
    def content(self) -> Content:
        """The state that new requests are answered from."""
        return self.live.content

    @property
    def name(self) -> str:
        """What the folder is called."""
        return self.live.folder.absolute().name

    def readable(self, message: str) -> str:
        """Return a message without the folder's place on this machine."""
        folder = self.live.folder
        for place in (str(folder.absolute()), str(folder)):
            message = message.replace(place, folder.absolute().name)
        return message

    def start(self) -> None:
        """Look for changes of the folder from now on, and do once what is slow the first time."""
        self.live.watch()
        content, request = self.content, ExplainRequest(query=WARM, k=1)
        for name, stage in content.stages.items():
            self._warm(
                self._lane_of(content, name, stage),
                partial(explained, stage, request.query, request.k, None, name, content.number),
            )
        if self.settings.writable:
            self._warm(WRITES, partial(change_documents, content))

    def _warm(self, lane: str, work: Callable[[], Any]) -> None:
        def run(units: Sequence[Any]) -> list[Any]:
            try:
                work()
            except Exception:  # a request that does the same gets the error
                log.exception("warming up failed")
            return list(units)

        self._warming.append(self._lanes[lane].submit(Job(object(), [1], [1], run, kind=WARM)))

    @property
    def is_warm(self) -> bool:
        """Whether what is slow the first time is done."""
        return all(future.done() for future in self._warming)

    def stop(self) -> None:
        """Refuse new work from now on; what was accepted has ``stop_within`` seconds to finish."""
        if self.stopping:
            return
        self.stopping = True
        self._ends = time.monotonic() + self.settings.stop_within
        for lane in self._lanes.values():
            lane.close(0.0)

    @property
    def left(self) -> float:
        """The seconds that what was accepted has to finish, once the service stops."""
        return max(0.0, self._ends - time.monotonic())

    @property
    def is_done(self) -> bool:
        """Whether what was accepted is done, once the service stops."""
        return all(lane.is_done for lane in self._lanes.values())

    def close(self) -> bool:
        """Refuse new work and finish what was accepted; whether that was done in time."""
        self.stop()
        done = [lane.close(self.left) for lane in self._lanes.values()]
        self.live.close()
        return all(done)

    def waiting(self) -> tuple[int, int]:
        """How many requests and tokens wait."""
        counts = [self._lanes[name].waiting for name in (MODELS, INDEXES)]
        return sum(jobs for jobs, _ in counts), sum(tokens for _, tokens in counts)

    async def search(
        self, request: SearchRequest, arrived: float | None = None
    ) -> list[SearchAnswer]:
        """Return the answer of each query; the deadline counts from ``arrived``."""
        arrived = time.perf_counter() if arrived is None else arrived
        content = self.content
        queries = [request.query] if isinstance(request.query, str) else request.query
        self._check_inputs(len(queries), "query")
        self._check_inputs(len(request.seen), "seen")
        for query in queries:
            _check_query(query)
        _check_query(request.context or "", "context")
        self._check_depth(request.k)
        asking = Asking(request.fuse, request.context, request.seen, request.budget_tokens)
        depth = min(asking.depth(request.k), self.settings.depth)
        if len(queries) * depth > HITS_AT_ONCE * self.settings.depth:
            raise too_large(
                f"query: {len(queries):,} queries of {depth:,} hits; expected at most "
                f"{HITS_AT_ONCE * self.settings.depth:,} hits in one request; send it in parts",
                "query",
            )
        name, stage = content.stage(request.pipeline)
        lane = self._lane_of(content, name, stage)
        ends = None if request.deadline_ms is None else arrived + request.deadline_ms / 1000
        stage, where = await _filtered(stage, request.where)
        costs = [self._cost(stage, query + (request.context or "")) for query in queries]
        stage, asked = asking.over(stage, request.query)
        if isinstance(asked, str):
            queries, costs = [asked], [self._at_most(sum(costs))]
        stops = ends is not None and reranks(stage)
        # Run by itself: what a reranker keeps a deadline of, and what has more than queries.
        apart = object() if stops or asking.is_more else None
        results = await self._run(
            lane,
            ("search", content.number, name, where, depth, apart),
            queries,
            costs,
            lambda texts: search_all(stage, texts, depth, ends if stops else None),
            ends,
            kind=("search", name),
        )
        pairs = zip(queries, results, strict=True)

        def answers() -> list[SearchAnswer]:
            return [answer(request, query, name, each, content.number) for query, each in pairs]

        # What takes long is not the loop's work: it answers all other clients.
        return answers() if is_quick(request, results) else await asyncio.to_thread(answers)

    async def explain(self, request: ExplainRequest) -> Explanation:
        """Follow a query's documents through a pipeline."""
        content = self.content
        _check_query(request.query)
        self._check_depth(request.k)
        name, stage = content.stage(request.pipeline)
        lane = self._lane_of(content, name, stage)
        stage, _ = await _filtered(stage, request.where)
        if request.ids is not None:
            self._check_inputs(len(request.ids), "ids")
            self._documents_of(content, request.ids)

        def run(queries: Sequence[str]) -> list[Explanation]:
            ids = request.ids
            return [
                explained(stage, query, request.k, ids, name, content.number) for query in queries
            ]

        cost = self._cost(stage, request.query)
        (answered,) = await self._run(
            lane, object(), [request.query], [cost], run, kind=("explain", name)
        )
        return answered  # type: ignore[no-any-return]

    async def embed(
        self, model: str | None, side: Side, texts: Sequence[str], *, sparse: bool, field: str
    ) -> tuple[str, Any, list[Vector]]:
        """Return the encoder's name, the encoder and the vectors of texts."""
        content = self.content
        self._check_inputs(len(texts), field)
        name, encoder = content.encoder(model, sparse=sparse)
        vectors = await self._run(
            MODELS,
            ("embed", id(encoder), side),  # a fingerprint reads all weights
            texts,
            [cost_of(encoder, side, text) for text in texts],
            partial(encode_all, encoder, side),
            kind=("embed", name, side),
        )
        return name, encoder, vectors

    async def rerank(self, model: str | None, pairs: Sequence[Pair]) -> tuple[str, list[Vector]]:
        """Return the reranker's name, its own score of each pair, and which it cut."""
        self._check_inputs(len(pairs), "texts")
        for query in {query for query, _ in pairs}:
            _check_query(query)
        name, scorer = self.content.scorer(model)
        key = ("rerank", name, id(scorer))
        run = partial(score_all, scorer)
        costs = list(map(pair_cost, pairs))
        return name, await self._run(MODELS, key, pairs, costs, run, kind=("rerank", name))

    def documents(self, ids: Sequence[str]) -> list[Document]:
        """Return documents by id; ``UnknownDocumentError`` for an id that none has."""
        return self._documents_of(self.content, ids)

    def _documents_of(self, content: Content, ids: Sequence[str]) -> list[Document]:
        store = content.store
        if store is None:
            raise Fault(404, "not_found", "no documents are served here")
        documents = [store.find(doc_id) for doc_id in ids]
        for doc_id, document in zip(ids, documents, strict=True):
            if document is None:
                raise UnknownDocumentError(
                    f"id: no document {doc_id[:80]!r} among {len(store):,}; ids are those of hits"
                )
        return [document for document in documents if document is not None]

    async def add(self, documents: Sequence[Document]) -> Written:
        """Add documents; they are on disk when this returns, and served unless it says why not."""
        return await self._write(lambda: self.live.add(documents))

    async def update(self, documents: Sequence[Document]) -> Written:
        """Replace documents by id and add the others."""
        return await self._write(lambda: self.live.update(documents))

    async def delete(self, ids: Sequence[str]) -> Written:
        """Delete documents by id."""
        return await self._write(lambda: self.live.delete(ids))

    async def _write(self, change: Callable[[], Written]) -> Written:
        if not self.settings.writable:
            raise Fault(
                403, "read_only", "documents cannot be changed here; sluice serve --writable allows"
            )
        if self._writes.used >= MOST_WRITES:
            raise overloaded(f"{self._writes.used} changes wait already; try again later", 1)
        job = Job(WRITES, [change], [1], lambda changes: [each() for each in changes])
        # Not cancelled with the request: a change that is under way is not half given up.
        try:
            (written,) = await self._mail.future(self._lanes[WRITES].submit(job))
        except OSError as error:
            log.error("a change was not written: %s", error)
            raise not_written(error) from None
        if written.fault:
            self.metrics.saw_unserved_write()
        return written  # type: ignore[no-any-return]

    async def _run(
        self,
        lane: str,
        key: Hashable,
        units: Sequence[Any],
        costs: Sequence[int],
        run: Callable[[Sequence[Any]], Sequence[Any]],
        ends: float | None = None,
        *,
        kind: Hashable,
    ) -> list[Any]:
        """Run a job in a lane and wait for it; a cancelled wait takes it out of the queue."""
        job = Job(key, units, costs, run, ends, kind)
        future = self._lanes[lane].submit(job)
        self.metrics.saw_input(job.tokens)
        answered = self._mail.future(future)
        try:
            async with asyncio.timeout(self.settings.timeout):
                if ends is not None:  # a thread that is busy does not look at the clock
                    ahead = max(0.0, ends - time.perf_counter())
                    await asyncio.wait({answered}, timeout=ahead)
                    if not answered.done() and job.started is None and future.cancel():
                        waited = (time.perf_counter() - job.arrived) * 1000
                        raise late(f"deadline_ms: over after {waited:,.0f} ms in the queue")
                return await answered
        except TimeoutError:
            raise late(
                f"no answer within {self.settings.timeout:g} s, the service's limit; ask for less"
            ) from None
        finally:
            future.cancel()  # no effect on one that is done

    def _cost(self, stage: Stage, query: str) -> int:
        """Return a query's tokens; one query, however deep, leaves room for others."""
        return self._at_most(query_cost(stage, query))

    def _at_most(self, tokens: int) -> int:
        return min(tokens, max(1, self.settings.queue_tokens // 4))

    def _lane_of(self, content: Content, name: str, stage: Stage) -> str:
        key = (content.number, name)
        if key not in self._lane_names:
            lanes = {n: lane for n, lane in self._lane_names.items() if n[0] == content.number}
            lanes[key] = MODELS if needs_model(stage) else INDEXES
            self._lane_names = lanes
        return self._lane_names[key]

    def _check_inputs(self, count: int, field: str) -> None:
        if count > self.settings.inputs:
            raise too_large(
                f"{field}: {count:,} in one request; expected at most {self.settings.inputs:,}; "
                "send them in parts",
                field,
            )

    def _check_depth(self, k: int) -> None:
        if k > self.settings.depth:
            raise Fault(
                400, "invalid_request", f"k: {k:,}; expected {self.settings.depth:,} or less",
                param="k",
            )  # fmt: skip


def _check_query(query: str, field: str = "query") -> None:
    if len(query) > MOST_QUERY:
        raise too_large(
            f"{field}: {len(query):,} characters; expected at most {MOST_QUERY:,}", field
        )


async def _filtered(stage: Stage, where: dict[str, Any] | None) -> tuple[Stage, str]:
    """Return the filtered stage, and the filter as text; a long one is checked off the loop."""
    if where is None:
        return stage, ""
    text = json.dumps(where, sort_keys=True) if len(where) <= MOST_NAMES else ""
    if not text or len(text) > MOST_FILTER:
        raise too_large(
            f"where: {len(where):,} names, {len(text):,} characters; expected at most {MOST_NAMES} "
            f"names and {MOST_FILTER:,} characters",
            "where",
        )
    if len(text) <= QUICK_FILTER:
        return stage.filtered(where), text
    return await asyncio.to_thread(stage.filtered, where), text


def model_facts(encoder: Any) -> Mapping[str, Any]:
    """Return what /info says of an encoder."""
    hooks = hooks_of(encoder)
    return {"dim": hooks.dim, "max_input_length": max(hooks.lengths.values(), default=None)}
