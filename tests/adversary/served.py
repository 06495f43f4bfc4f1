"""SIGKILL of workers and of the parent of ``sluice serve`` amid changes and searches.

Every answer must be all of one state that could be served just then, and of the state whose number
it carries; what was acknowledged is read back from the service, and in the end from the disk; what
was not is there as a whole or not at all. A case is the life of one service.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fuzzing import QUIET, Case, Fuzzer, forked
from mutation_seeds import run
from served_process import Served
from small_world import write_beir

Content = frozenset[tuple[str, str]]  # ids and texts of all documents that have the word
Change = Callable[[Content], Content]

WORD, SIZE, MOST = "marker", 4, 400  # documents of a group; hits that are asked for
READERS = 3
AFTER_KILL = 20.0  # seconds in which connections may break
BUSY = (429, 503, 504)  # refused, or not answered in time: written or not
WORKERS_END = 30.0  # seconds, once their parent was killed
PIPELINES = {"one": {}, "several": {"pipeline": "both"}}  # what a search adds


def prepare(world: Path) -> None:
    """Make a retriever, and an output of two."""
    if (world / "made").exists():
        return
    write_beir(world / "data")
    terms = {"encoder": {"type": "bm25"}}
    config = {
        "dataset": str(world / "data"), "output": "several",
        "retrievers": {"bm25": terms, "two": {"encoder": {"type": "bm25", "k1": 2.0}}},
        "pipelines": {"both": "bm25 | two"},
    }  # fmt: skip
    (world / "x.yaml").write_text(json.dumps(config), encoding="utf-8")
    run("index", "x.yaml", cwd=world)
    (world / "made").touch()


class Known:
    """What may be on disk and what may be served; ``epochs`` are all that was, in their order."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.disk: set[Content] = {frozenset()}
        self.epochs: list[set[Content]] = [{frozenset()}]
        self.settled = True  # a change was acknowledged, and none has begun since
        self.states: dict[int, Content] = {}

    @contextmanager
    def changing(self, change: Change) -> Iterator[Callable[[int], None]]:
        """Begin a change; the function takes its status, 0 where no answer came."""
        with self.lock:
            before, disk = self.epochs[-1], self.disk
            after = {change(each) for each in disk}
            self.epochs.append(before | disk | after)
            self.disk, self.settled = disk | after, False

        def ended(status: int) -> None:
            with self.lock:
                if status in (200, 202):
                    self.disk = after
                if status == 200:
                    self.epochs.append(after)
                    self.settled = True

        yield ended

    def fault(self, begun: int, state: int, content: Content) -> str:
        """Say what is wrong with an answer to what was asked in epoch ``begun``, or nothing."""
        with self.lock:
            if self.states.setdefault(state, content) != content:
                return f"state {state} has two contents: {told(content, [self.states[state]])}"
            possible = set().union(*self.epochs[begun:])
            if content not in possible:
                return f"an answer of no state that may be served: {told(content, [*possible])}"
            if self.settled and begun == len(self.epochs) - 1 and len(self.disk) > 1:
                self.disk = {content}  # all workers serve what is on disk
                self.epochs.append({content})
            return ""


def told(content: Content, others: list[Content]) -> str:
    """Say how a content differs from the nearest of others."""
    nearest = min(others, key=lambda other: len(content ^ other))
    return f"{sorted(content - nearest)[:6]} for {sorted(nearest - content)[:6]}"


class Life:
    """One service: a writer, readers, and what kills it."""

    def __init__(self, case: Case, folder: Path, more: dict[str, str]) -> None:
        self.case, self.chance, self.more = case, case.chance, more
        self.counts: Counter[str] = case.tally.counts
        self.known, self.trail, self.writing = Known(), list[str](), False
        self.killed, self.parent_killed = 0.0, False
        self.over = threading.Event()
        self.versions, self.workers = 0, set[int]()  # those that were ever seen
        self.served = Served(folder, "--writable", "--most-hits", str(MOST))

    def wrong(self, what: str) -> None:
        """Record what is wrong, with what was done and what the service said."""
        log = [line for line in self.served.lines if line[:1] != "{"]
        self.case.wrong(what, trail=self.trail[-14:], log="".join(log[-12:]))

    def ask(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Ask once; status 0 where the connection broke, which is wrong unless by a kill."""
        try:
            return self.served.ask(method, path, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if time.monotonic() - self.killed > AFTER_KILL and not self.parent_killed:
                self.wrong(f"{method} {path}: {type(error).__name__}: {error}")
            return 0, None

    def read(self) -> None:
        """Search until the life is over."""
        body = {"query": WORD, "k": MOST, **self.more}
        while not self.over.is_set():
            begun = len(self.known.epochs) - 1
            status, answer = self.ask("POST", "/search", body)
            if status == 200:
                content = frozenset((hit["id"], hit["text"]) for hit in answer["hits"])
                self.counts["searches"] += 1
                fault = self.known.fault(begun, answer["state"], content)
                if len(content) != len(answer["hits"]):
                    fault = "a document twice"
                if fault:
                    self.wrong(fault)
                    return
            elif status and status not in BUSY:
                self.wrong(f"a search has status {status}: {answer}")
                return
            time.sleep(0.02)

    def change(self) -> tuple[str, Any, Change]:
        """Draw a change: its method, its body and what it makes of a content."""
        self.versions += 1
        sure = frozenset[tuple[str, str]].intersection(*self.known.disk)
        groups = sorted({name.partition("-")[0] for name, _ in sure})
        if len(groups) > 2 and self.chance.random() < 0.25:
            gone = self.chance.choice(groups)
            names = {name for each in self.known.disk for name, _ in each
                     if name.startswith(f"{gone}-")}  # fmt: skip
            body = {"ids": sorted(names)}
            return "DELETE", body, lambda old: frozenset(e for e in old if e[0] not in names)
        method, chosen = "POST", [f"g{self.versions}"]
        if groups and self.chance.random() < 0.7:
            method, chosen = "PUT", self.chance.sample(groups, min(len(groups), 2))
        new = {f"{group}-{at}": f"{WORD} {group} version{self.versions}"
               for group in chosen for at in range(SIZE)}  # fmt: skip
        body = {"documents": [{"id": name, "text": text} for name, text in new.items()]}

        def put(old: Content) -> Content:
            return frozenset({each for each in old if each[0] not in new} | set(new.items()))

        return method, body, put

    def write(self) -> None:
        """Change the documents once."""
        method, body, change = self.change()
        with self.known.changing(change) as ended:
            self.writing = True
            status, answer = self.ask(method, "/documents", body)
            self.writing = False
            ended(status)
        self.trail.append(f"{method} version {self.versions}: {status}")
        self.counts["writes acknowledged"] += status in (200, 202)
        self.counts["writes cut off"] += not status
        if status and status not in (200, 202, *BUSY):
            self.wrong(f"{method} /documents: status {status}: {answer}")
        if not status:
            self.served.until(lambda: self.parent_killed or self.answers())

    def answers(self) -> bool:
        """Whether anybody answers."""
        with suppress(OSError, http.client.HTTPException, ValueError):
            return self.served.ask("GET", "/health")[0] == 200
        return False

    def kill(self, victim: int) -> None:
        """Kill a worker or the parent."""
        self.killed = time.monotonic()
        self.parent_killed = victim == self.served.process.pid
        when = " amid a write" if self.writing else ""
        self.workers |= set(self.served.workers())  # a killed parent has none
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            self.counts["kills"] += 1
            self.counts[f"kills{when or ' between writes'}"] += 1
            self.counts["parents killed"] += self.parent_killed
            self.trail.append(f"{'parent' if self.parent_killed else 'worker'} killed{when}")

    def live(self, writes: int) -> None:
        """Write, and kill on the way; then end the service and see that all have ended."""
        self.served.until(lambda: len(self.served.states()) == 2)
        readers = [threading.Thread(target=self.read) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        seconds, last = 0.3, self.chance.random() < 0.35
        try:
            for number in range(writes):
                victims = self.served.workers()
                alone = len(victims) < 2 and self.chance.random() < 0.8
                parent = last and number == writes - 1
                timer = None
                if (victims and parent) or (not alone and self.chance.random() < 0.7):
                    victim = self.served.process.pid if parent else self.chance.choice(victims)
                    after = self.chance.uniform(0, 1.3) * seconds
                    timer = threading.Timer(after, self.kill, [victim])
                    timer.start()
                begun = time.monotonic()
                self.write()
                seconds = 0.7 * seconds + 0.3 * min(2.0, time.monotonic() - begun)
                if timer:
                    timer.join()
            if not self.parent_killed:
                self.read_back()
        finally:
            self.over.set()
            for reader in readers:
                reader.join()
        self.end()

    def read_back(self) -> None:
        """Wait until two workers serve: they start from what is on disk."""
        self.served.until(lambda: len(self.served.workers()) == 2 and self.answers())
        time.sleep(0.5)

    def end(self) -> None:
        """End the service; its workers end with it."""
        self.workers |= set(self.served.workers())
        if not self.parent_killed:
            self.served.process.send_signal(signal.SIGTERM)
            if code := self.served.process.wait(90):
                self.wrong(f"SIGTERM: exit {code}")
        ends = time.monotonic() + WORKERS_END
        while left := [each for each in self.workers if runs(each)]:
            if time.monotonic() > ends:
                self.wrong(f"{len(left)} workers outlive the service")
                break
            time.sleep(0.1)


def runs(process: int) -> bool:
    """Whether a process is there, and not only waits for its parent."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def on_disk(folder: Path, case: Case) -> Content | None:
    """Return what all retrievers of a folder hold, also after one more change of each."""

    def job() -> None:
        from sluice.retrieval import Document, Retriever
        from sluice.retrieval.retrievers.folder import verify_retriever

        found = []
        for head in sorted(folder.rglob("retriever.json")):
            retriever = Retriever.open(head.parent)
            found.append(sorted((d.id, d.text) for d in retriever.store if WORD in d.text))
            retriever.update([Document("later", "", "later")])
            verify_retriever(head.parent)
            asked = dict(retriever.run({"q": WORD}, None, MOST)["q"])
            if sorted(asked) != [name for name, _ in found[-1]] or not len(retriever):
                found[-1].append(("searched", "otherwise"))
        print(json.dumps(found))

    done = forked(job, timeout=60)
    if done.code:
        case.wrong(f"the folder behind it: {done.err[-300:]}")
        return None
    first, *others = json.loads(done.out)
    if any(each != first for each in others):
        case.wrong("the retrievers behind it differ", found=json.loads(done.out))
        return None
    return frozenset((name, text) for name, text in first)


def service(case: Case, *, place: str, writes: int = 12) -> None:
    """A service over one retriever, or over an output of several."""
    os.environ.update(QUIET)
    folder = case.folder / "served"
    source = case.world / "several"
    shutil.copytree(source / "retrievers" / "bm25" if place == "one" else source, folder)
    life = Life(case, folder, PIPELINES[place])
    try:
        life.live(writes)
    finally:
        life.over.set()
        life.served.end()
    content = on_disk(folder, case)
    if content is not None and content not in life.known.disk:
        life.wrong(f"on disk is none of what may be: {told(content, [*life.known.disk])}")


FUZZER = Fuzzer(
    "served",
    {name: (functools.partial(service, place=name), 1) for name in PIPELINES},
    prepare,
    long=120,
)
