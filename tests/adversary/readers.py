"""Readers in threads and processes beside a writer: every answer is that of a committed state.

A case is a few seconds of a folder that changes all the time. Some readers share the writer's
object, some hold one of their own, some open the folder anew, and some stop between opening one
part and the next; they ask for single queries, several at once, and by pipelines.
"""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from changing_folders import ALLOW, Corpus, Counts, Lengths
from fuzzing import Case, Fuzzer
from searches import prepare

from sluice.encoders import BM25Encoder
from sluice.retrieval import Document, Rerank, Retriever, Stage

THREADS, PROCESSES = 8, 4
SECONDS = 10.0  # of a case
QUERIES = ["gold river", "stone water index", "never"]

WAYS: dict[str, Callable[[Retriever], Stage]] = {
    "plain": lambda retriever: retriever,
    "cut": lambda retriever: retriever % 4,
    "cascade": lambda retriever: (retriever | 0.5 * retriever) % 6 >> Rerank(Lengths(), 3),
}


def answer(way: str, stage: Stage) -> str:
    """Return what a stage finds for all queries at once, as a short text."""
    hits = stage.search(QUERIES, 20)
    facts = [[(hit.doc_id, round(hit.score, 5), hit.text) for hit in found] for found in hits]
    return f"{way} {blake2b(repr(facts).encode(), digest_size=12).hexdigest()}"


def answers(path: Path) -> set[str]:
    """Return the answers of the folder's state."""
    retriever = opened(path)
    return {answer(way, make(retriever)) for way, make in WAYS.items()}


def opened(path: Path) -> Retriever:
    """Open the folder."""
    return Retriever.open(path, allow=ALLOW)


def reading(number: int, path: Path, shared: Retriever | None) -> Iterator[str]:
    """Ask for ever, in one of four manners; the answers."""
    ways = itertools.cycle(WAYS)
    held = shared or opened(path)
    stages = {way: make(held) for way, make in WAYS.items()}
    for turn in itertools.count():
        way = next(ways)
        if shared or number % 4 == 1:
            yield answer(way, stages[way])
        elif number % 4 == 2:
            yield answer(way, WAYS[way](opened(path)))
        else:  # what is opened before a pause may be gone after it
            late = opened(path)
            _ = len(late) if turn % 2 else late.encoder
            time.sleep(0.05)
            yield answer(way, WAYS[way](late))


def recorded(reader: Iterator[str], found: set[str], faults: set[str], ends: float) -> int:
    """Collect answers until the end; return how many there were."""
    count = 0
    while time.time() < ends:
        try:
            found.add(next(reader))
            count += 1
            time.sleep(0.01)  # the writer's turn
        except Exception as error:
            faults.add(f"{type(error).__name__}: {error}"[:300])
            return count
    return count


def _process(number: int, path: Path, ends: float, results: Any) -> None:
    found, faults = set[str](), set[str]()
    try:
        count = recorded(reading(number, path, None), found, faults, ends)
    except Exception as error:
        count = faults.add(repr(error)) or 0
    results.put((count, found, faults))


def changes(corpus: Corpus, turn: int, retriever: Retriever) -> None:
    """Change the documents once."""
    if turn % 7 == 6:
        retriever.compact()
        return
    if len(corpus.documents) > 20 and turn % 3 == 2:
        corpus.change("delete", retriever)
        return
    more = [
        Document(each.id, "", f"{each.text} gold turn{turn}", each.metadata)
        for each in corpus.new(4, known=0.5)
    ]
    retriever.update(more)
    corpus.put(more)


def folder(case: Case, seconds: float = SECONDS) -> None:
    """Eight threads and four processes read what a writer changes."""
    corpus, path = Corpus(case.chance), case.folder / "r"
    corpus.put(corpus.new(60))
    encoder: Any = case.chance.choice([BM25Encoder(b=0.0), Counts()])
    writer = Retriever.build(encoder, list(corpus.documents.values()), path=path)
    committed = answers(path)
    found, faults, counts = set[str](), set[str](), list[int]()
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()
    ends = time.time() + seconds
    children = [
        context.Process(target=_process, args=(number, path, ends, results))
        for number in range(PROCESSES)
    ]
    for child in children:
        child.start()

    def thread(number: int) -> None:
        shared = writer if number % 4 == 0 else None
        counts.append(recorded(reading(number, path, shared), found, faults, ends))

    threads = [threading.Thread(target=thread, args=(number,)) for number in range(THREADS)]
    for each in threads:
        each.start()
    turn = 0
    while not turn or time.time() < ends:  # once, however busy the machine is
        changes(corpus, turn, writer)
        committed |= answers(path)
        turn += 1
    for each in threads:
        each.join()
    for _ in children:
        count, theirs, their_faults = results.get()
        counts.append(count)
        found |= theirs
        faults |= their_faults
    for child in children:
        child.join()
    case.tally.counts["answers"] += sum(counts)
    case.tally.counts["changes"] += turn
    case.tally.counts["states that were seen"] += len(found & committed)
    for fault in faults:
        case.wrong(fault)
    if found - committed:
        ways = sorted({each.split()[0] for each in found - committed})
        case.wrong(f"{len(found - committed)} answers of no state, by {ways}", of=len(found))
    if min(counts) == 0 and seconds >= SECONDS:
        case.wrong("a reader without an answer", counts=counts)


FUZZER = Fuzzer("readers", {"folder": (folder, 1)}, prepare, long=60)
