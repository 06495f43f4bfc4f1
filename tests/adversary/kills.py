"""Signals at random instants and before random changes of files, over every verb that writes.

Behind each: every part of the output opens and answers as before or as after; the same command
again ends with 0, its result equals that of the undisturbed command, and no litter is left.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import writers
from fuzzing import Case, Fuzzer

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
CODES = {
    signal.SIGKILL: (0, -signal.SIGKILL),
    signal.SIGINT: (0, 2, 130, -signal.SIGINT),  # the signal itself: before the command began
    signal.SIGTERM: (0, 2, 143, -signal.SIGTERM),
}


def kill(case: Case, name: str) -> None:
    """Signal one verb, up to three times one after the other, then run it undisturbed."""
    box = case.folder / "box"
    known = writers.undisturbed(name, case.world, box)
    task = writers.TASKS[name](case.world)
    writers.filled(box, task, case.world)
    number = case.chance.choices(SIGNALS, (6, 2, 2))[0]
    trail = []
    for _ in range(case.chance.choice((1, 1, 1, 2, 3))):
        at = case.chance.randint(1, max(known.events, 1))
        after = case.chance.uniform(0.02, 1.05) * known.seconds
        by_change = case.chance.random() < 0.65 and not task.program
        act = functools.partial(
            *((strike_at, box, at, number) if by_change else (strike_after, after, number))
        )
        outcome = writers.ran(task.words, box, act, program=task.program)
        case.tally.counts["commands disturbed"] += 1
        case.tally.counts["kills"] += outcome.code != 0  # the others were over before
        where = f"change {at} of {known.events}" if by_change else f"{after:.3f} s"
        trail.append(f"{number.name} at {where}, exit {outcome.code}")
        fault = outcome.fault((0, 2, 130, 143)) if number != signal.SIGKILL else ""
        allowed = CODES[number]
        if name.split()[0] in writers.REPEATED and task.look(box) == known.after:
            allowed = (*allowed, 2)  # done by the one before
        if outcome.hung or (outcome.code not in allowed and not task.program):
            case.wrong(f"{number.name}: exit {outcome.code}", trail=trail, err=outcome.err[-500:])
        elif "traceback" in fault and not task.program:
            case.wrong(f"{number.name}: {fault}", trail=trail, err=outcome.err[-800:])
        mixed = writers.mixed(task.look(box), known)
        if mixed:
            case.wrong(mixed, trail=trail)
    wrong = writers.repeated(name, task, box, known)
    if wrong:
        case.wrong(wrong, trail=trail)


def strike_at(box: Path, at: int, number: int) -> None:
    """Signal this process and its children before its n-th change of a file."""
    seen = 0

    def act(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen == at:
            os.killpg(0, number)

    _interruptible()
    writers.on_changes(box, act)


def strike_after(seconds: float, number: int) -> None:
    """Signal this process and its children after some seconds, from one that it starts."""
    _interruptible()
    target, handle = os.getpid(), os.pidfd_open(os.getpid())
    if os.fork() == 0:
        os.setsid()
        time.sleep(seconds)
        try:
            signal.pidfd_send_signal(handle, 0)
            os.killpg(target, number)
        finally:
            os._exit(0)
    os.close(handle)


def _interruptible() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def cache_deleted(case: Case) -> None:
    """Delete the cache of vectors while it is read: one error or none, and nothing wrong kept."""
    name, box = "index dense", case.folder / "box"
    known = writers.undisturbed(name, case.world, box)
    task = writers.TASKS[name](case.world)
    writers.filled(box, task, case.world)
    writers.ran(task.words, box)
    shutil.rmtree(box / "out")
    at = case.chance.randint(1, 12)

    def act() -> None:
        import sys

        seen = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            if event == "open" and str(arguments[0]).startswith(str(box / "cache")):
                seen += 1
                if seen == at:
                    shutil.rmtree(box / "cache")

        sys.addaudithook(hook)

    outcome = writers.ran(task.words, box, act)
    if outcome.fault():
        case.wrong(outcome.fault(), at=at, err=outcome.err[-800:])
    wrong = writers.mixed(task.look(box), known) or writers.repeated(name, task, box, known)
    if wrong:
        case.wrong(wrong, at=at)


def beside(case: Case) -> None:
    """Two writers at once, and a reader: each answer is that of a state that was committed."""
    box = case.folder / "box"
    verbs = [f"{verb} bm25" for verb in case.chance.sample(("add", "update", "delete"), 2)]
    known = [writers.undisturbed(verb, case.world, box) for verb in verbs]
    tasks = [writers.TASKS[verb](case.world) for verb in verbs]
    part = "out/retrievers/bm25"
    writers.filled(box, tasks[0], case.world)
    states = [known[0].before[part], *(each.after[part] for each in known)]
    pause = case.chance.uniform(0, 0.3)
    children = [started(task, box, pause * number) for number, task in enumerate(tasks)]
    seen, codes = [], {}
    while len(codes) < len(children):
        seen.append(tasks[0].look(box)[part])
        for child in children:
            done, status = os.waitpid(child, os.WNOHANG) if child not in codes else (0, 0)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
    for task, child in zip(tasks, children, strict=True):
        if codes[child] == 2:  # the other one was writing
            again = writers.ran(task.words, box)
            if again.code:
                case.wrong(f"run again: exit {again.code}", err=again.err[-300:])
        elif codes[child]:
            case.wrong(f"exit {codes[child]}", verbs=verbs)
    states.append(tasks[0].look(box)[part])
    if isinstance(states[-1], str):
        case.wrong(states[-1], verbs=verbs)
    for answer in seen:
        if answer not in states and not _both(answer, states):
            case.wrong(f"an answer of no state: {str(answer)[:300]}", verbs=verbs)


def rebuilt_beside(case: Case) -> None:
    """Two builds of one output at once, of other settings: one of the two is there, whole."""
    box = case.folder / "box"
    tasks = [writers.TASKS[name](case.world) for name in ("index bm25", "rebuild bm25")]
    part, states = "out/retrievers/bm25", []
    for task in tasks:
        writers.filled(box, tasks[0], case.world)
        writers.ran(task.words, box)
        states.append(task.look(box)[part])
    writers.filled(box, tasks[0], case.world)
    pause = case.chance.uniform(0, 0.5)
    children = [started(task, box, pause * number) for number, task in enumerate(tasks)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    answer = tasks[0].look(box)[part]
    if not set(codes) <= {0, 2} or 0 not in codes:
        case.wrong(f"exits {codes}")
    if answer not in states:
        case.wrong(f"neither of the two: {str(answer)[:300]}", codes=codes)


def _both(answer: object, states: list[object]) -> bool:
    """Whether an answer is that of both changes, in the order that differs from the last one's."""
    return isinstance(answer, list) and answer[1:] == states[-1][1:]  # type: ignore[index]


def started(task: writers.Task, box: Path, pause: float) -> int:
    """Start a task in a child and return its number."""
    child = os.fork()
    if child == 0:
        time.sleep(pause)
        os._exit(writers.ran(task.words, box).code & 255)
    return child


def _kind(name: str) -> Callable[[Case], None]:
    return functools.partial(kill, name=name)


WEIGHTS = {"train": 4, "rebuild": 6, "index": 3, "evaluate": 4, "add": 3, "delete": 2, "distil": 3}
RARE = ("train torchrun", "index workers")
FUZZER = Fuzzer(
    "kills",
    {
        **{name: (_kind(name), 1 if name in RARE else WEIGHTS.get(name.split()[0], 2))
           for name in writers.TASKS},
        "cache deleted": (cache_deleted, 4),
        "beside": (beside, 4),
        "rebuilt beside": (rebuilt_beside, 2),
    },
    writers.prepare,
    long=1_000,
)  # fmt: skip
