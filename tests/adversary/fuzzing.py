"""What the fuzzers share: cases with seeds, the command line in a forked child, a resumable tally.

A fuzzer is a module of this folder with ``KINDS`` (a name, a function of a :class:`Case`, a weight)
and ``prepare(work)``. ``scripts/adversary`` runs them for hours, the suite for seconds; a case is
known by its fuzzer, its seed and its number, and is the same wherever it runs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import logging
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

QUIET = {
    "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1", "TQDM_DISABLE": "1",
}  # fmt: skip
SHOWN = 3  # findings of one sort that are printed
KEPT = 2.0  # seconds between two writings of a tally


@dataclass(frozen=True)
class Outcome:
    """How a command ended. ``code`` is negative where a signal ended it."""

    code: int
    out: str
    err: str
    seconds: float
    hung: bool = False

    def fault(self, allowed: Sequence[int] = (0, 2)) -> str:
        """Say what is wrong with how it ended, or nothing."""
        last = (self.err.strip().splitlines() or [""])[-1][:200]
        if self.hung:
            return "no answer in time"
        if self.err.startswith(("error: no such verb", "error: no such option")):
            return f"the fuzzer names what is no more: {last}"  # or each case would end so, unseen
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        if "Traceback (most recent call last)" in self.err:
            return f"traceback: {last}"
        if self.code not in allowed:
            return f"exit {self.code}: {last}"
        if self.code == 2 and not self.err.strip():
            return "exit 2 without a word"
        if len(self.err) > 20_000:
            return f"{len(self.err)} characters of messages"
        return ""


@dataclass
class Tally:
    """What was tried and what was wrong, kept in a file so that a long run goes on where it was."""

    fuzzer: str
    seed: int
    file: Path | None = None
    next: int = 0
    tried: Counter[str] = field(default_factory=Counter)  # cases, by kind
    counts: Counter[str] = field(default_factory=Counter)  # of what happens within cases
    wrong: list[dict[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    @classmethod
    def resumed(cls, fuzzer: str, seed: int, file: Path) -> Tally:
        """Return the tally that the file holds, or a new one."""
        if not file.exists():
            return cls(fuzzer, seed, file)
        kept = json.loads(file.read_text(encoding="utf-8"))
        counts = Counter(kept["tried"]), Counter(kept["counts"])
        return cls(fuzzer, seed, file, kept["next"], *counts, kept["wrong"], kept["seconds"])

    def fail(self, kind: str, number: int, what: str, **more: object) -> None:
        """Record a finding; the first few of a sort are printed."""
        sort = f"{kind}: {what[:90]}"
        known = sum(f"{each['kind']}: {each['what'][:90]}" == sort for each in self.wrong)
        facts = {name: str(value)[:2000] for name, value in more.items()}
        self.wrong.append({"kind": kind, "case": f"{self.seed}:{number}", "what": what, **facts})
        if known < SHOWN:
            print(f"WRONG {kind} {self.seed}:{number}: {what} {facts or ''}"[:900], flush=True)

    def keep(self) -> None:
        """Write the tally to its file."""
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        facts = {
            "next": self.next, "tried": self.tried, "counts": self.counts,
            "seconds": round(self.seconds, 1), "wrong": self.wrong,
        }  # fmt: skip
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps(facts, indent=1), encoding="utf-8")
        draft.replace(self.file)

    def lines(self) -> Iterator[str]:
        """Give one line for each kind and one for all."""
        bad = Counter(each["kind"] for each in self.wrong)
        for kind, count in sorted(self.tried.items()):
            yield f"  {kind}: {count} tried, {bad[kind]} wrong"
        for what, count in sorted(self.counts.items()):
            yield f"  {count:,} {what}"
        yield f"{self.fuzzer}: {sum(self.tried.values())} tried, {len(self.wrong)} wrong"


@dataclass(frozen=True)
class Case:
    """One try: its own chance, a folder of its own, and what the fuzzer prepared."""

    kind: str
    number: int
    chance: random.Random
    folder: Path
    world: Path
    tally: Tally

    def wrong(self, what: str, **more: object) -> None:
        """Record what is wrong."""
        self.tally.fail(self.kind, self.number, what, **more)


@dataclass(frozen=True)
class Fuzzer:
    """A fuzzer: its kinds of cases with their weights, and what it needs before the first."""

    name: str
    kinds: Mapping[str, tuple[Callable[[Case], None], int]]
    prepare: Callable[[Path], None] = lambda _: None
    long: int = 1_000  # cases of a long run

    def run(
        self,
        work: Path,
        *,
        count: int,
        seed: int = 1,
        only: Sequence[str] = (),
        first: int = 0,
        minutes: float = 1e9,
        file: Path | None = None,
    ) -> Tally:
        """Run cases from ``first``, or where the tally was, to ``count``; work is a folder."""
        tally = Tally.resumed(self.name, seed, file) if file else Tally(self.name, seed)
        unknown = set(only) - set(self.kinds)
        if unknown:
            raise SystemExit(f"{self.name}: no kind {sorted(unknown)}; there are {[*self.kinds]}")
        chosen = [name for name in self.kinds if name in only or (not only and self.kinds[name][1])]
        weights = [max(1, self.kinds[name][1]) for name in chosen]
        world = work / "world"
        world.mkdir(parents=True, exist_ok=True)
        self.prepare(world)
        begun, before = time.monotonic(), tally.seconds
        kept = begun
        for number in range(max(first, tally.next), count):
            if time.monotonic() > begun + 60 * minutes:
                break
            chance = random.Random(f"{self.name}:{seed}:{number}")
            kind = chance.choices(chosen, weights)[0]
            tally.tried[kind] += 1
            with tempfile.TemporaryDirectory(dir=work) as folder:
                case = Case(kind, number, chance, Path(folder), world, tally)
                try:
                    self.kinds[kind][0](case)
                except Exception as error:
                    case.wrong(f"{type(error).__name__}: {error}", trace=traceback.format_exc())
            tally.next = number + 1
            tally.seconds = before + time.monotonic() - begun
            if time.monotonic() > kept + KEPT:
                tally.keep()
                kept = time.monotonic()
        tally.keep()
        return tally


def forked(
    job: Callable[[], int | None],
    *,
    timeout: float = 20.0,
    cwd: Path | None = None,
    memory: int | None = None,
) -> Outcome:
    """Run a job in a forked child: imports are shared, crashes and changed state are not.

    ``memory`` is how many bytes it may take beyond those of this process.
    """
    with tempfile.TemporaryDirectory() as box:
        out, err = Path(box) / "out", Path(box) / "err"
        begun = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            with limited(memory):
                _in_child(job, out, err, cwd, 0.8 * timeout)
        code, hung = waited(child, timeout)
        texts = [
            path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            for path in (out, err)
        ]
        return Outcome(code, texts[0], texts[1], time.monotonic() - begun, hung)


def _in_child(
    job: Callable[[], int | None], out: Path, err: Path, cwd: Path | None, late: float
) -> None:
    """Run the job with its streams in files, and end the process; never returns.

    One that still runs after ``late`` seconds writes where it is.
    """
    code = 70
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdin = io.StringIO()
        sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
        faulthandler.enable(sys.stderr)
        faulthandler.dump_traceback_later(late, file=sys.stderr)
        if cwd is not None:
            os.chdir(cwd)
        try:
            code = job() or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        for stream in (sys.stderr, sys.stdout):
            with contextlib.suppress(OSError, AttributeError):  # full, or None where closed
                stream.flush()
    finally:
        os._exit(code)


def waited(child: int, timeout: float) -> tuple[int, bool]:
    """Wait for a child; one that takes too long is killed with its group. Code, and whether so."""
    ends, pause = time.monotonic() + timeout, 0.002
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), False
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), True


@contextlib.contextmanager
def limited(memory: int | None) -> Iterator[None]:
    """Let this process take so many bytes of address space more than it has, and no more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if memory is not None:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + memory, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class _Late(BaseException):
    """Raised where a job of this process takes too long."""


def within(
    job: Callable[[], int | None],
    *,
    timeout: float = 20.0,
    cwd: Path | None = None,
    memory: int | None = None,
) -> Outcome:
    """Run a job in this process, without the tenth of a second that a fork takes.

    For jobs that cannot crash the process and leave nothing behind.
    """

    def late(*_: object) -> None:
        raise _Late

    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    for stream in (out, err):
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    begun, code, hung, handlers = time.monotonic(), 0, False, logging.root.handlers[:]
    words, alarm, stdin = sys.argv, signal.signal(signal.SIGALRM, late), sys.stdin
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.chdir(cwd or "."),
            limited(memory),
        ):
            logging.root.handlers[:] = [logging.StreamHandler(err)]  # commands close what is there
            signal.setitimer(signal.ITIMER_REAL, timeout)
            sys.stdin = io.StringIO()
            try:
                code = job() or 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except _Late:
                hung = True
            except BaseException:
                traceback.print_exc()
                code = 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, alarm)
        logging.root.handlers[:] = handlers
        sys.argv, sys.stdin = words, stdin
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8", "replace"))
    return Outcome(code, texts[0], texts[1], time.monotonic() - begun, hung)


def sluice(
    *words: object,
    timeout: float = 20.0,
    cwd: Path | None = None,
    memory: int | None = None,
    fork: bool = True,
) -> Outcome:
    """Run the command line in a forked child of this process, or in this process itself."""
    from sluice.retrieval.cli import main, parser

    parser()  # here, so that not every fork makes it

    def job() -> int | None:
        sys.argv = ["sluice", *map(str, words)]
        return main()

    return (forked if fork else within)(job, timeout=timeout, cwd=cwd, memory=memory)
