"""Calls of the system that fail: the n-th of a kind in a verb that writes, and limits of resources.

Behind each: exit code 0 or 2, and a message that names the cause; every part of the output is as
before or as after; the same command again ends as if nothing had happened.
"""

from __future__ import annotations

import errno
import functools
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import writers
from fuzzing import Case, Fuzzer, Outcome

CALLS = {  # by kind: events, and how they fail
    "open": (("open",), (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EACCES)),
    "rename": (("os.rename",), (errno.ENOSPC, errno.EIO)),
    "mkdir": (("os.mkdir",), (errno.ENOSPC, errno.EIO)),
    "link": (("os.link",), (errno.EMLINK, errno.EPERM)),
    "remove": (("os.remove", "os.rmdir", "shutil.rmtree"), (errno.EIO, errno.EACCES)),
    "fsync": (("fsync",), (errno.EIO, errno.ENOSPC)),
    "mmap": (("mmap.__new__",), (errno.ENOMEM,)),
}
VERBS = (
    "index bm25", "index dense", "index faiss", "index documents", "add bm25", "add dense",
    "update bm25", "delete bm25", "compact bm25", "rebuild bm25", "add whole", "delete whole",
    "train dense", "evaluate", "search", "distil", "generate", "mine", "fit ranker", "fit fusion",
    "export ciff", "export vectors", "export npy", "export parquet", "export safetensors",
    "import ciff", "import npy",
)  # fmt: skip
SMALL = (0, 100, 500, 1_000, 4_000, 10_000, 40_000)


def fail(case: Case, kind: str) -> None:
    """Let the n-th call of a kind fail."""
    events, errors = CALLS[kind]
    error = case.chance.choice(errors)
    at = int(case.chance.triangular(1, 120 if kind in ("open", "fsync") else 30, 1))

    def begin(box: Path) -> None:
        seen = 0

        def act(event: str, what: object) -> None:
            nonlocal seen
            if event in events:
                seen += 1
                if seen == at:
                    named = () if not isinstance(what, str | bytes) else (os.fsdecode(what),)
                    os.write(2, b"[failed]\n")
                    raise OSError(error, os.strerror(error), *named)

        writers.on_changes(box, act, reads=kind in ("mmap", "open"))

    tried(case, f"{kind} {at}: {errno.errorcode[error]}", begin, os.strerror(error))


def limit(case: Case, kind: str) -> None:
    """Bound the size of files, or the number of descriptors."""
    if kind == "size":
        most, number = case.chance.choice(SMALL), resource.RLIMIT_FSIZE
        causes = (os.strerror(errno.EFBIG), "not written in full", "large")
    else:
        most, number = case.chance.randint(4, 24), resource.RLIMIT_NOFILE
        causes = (os.strerror(errno.EMFILE),)

    def begin(_: Path) -> None:
        resource.setrlimit(number, (most, resource.getrlimit(number)[1]))

    tried(case, f"{kind} {most}", begin, *causes)


def full_disk(case: Case, kind: str) -> None:
    """Run the verb on a file system of a few kilobytes; where it may be mounted."""
    del kind
    box = case.folder / "box"
    box.mkdir()
    size = case.chance.choice((64, 128, 256, 512, 1024))
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(box)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        return
    try:
        name = case.chance.choice(VERBS)
        task = writers.TASKS[name](case.world)
        known = writers.undisturbed(name, case.world, case.folder / "other")
        try:
            for start in task.start:
                writers.copied(start, case.world, box)
        except OSError:
            return  # too small for what the task starts from
        outcome = writers.ran(task.words, box)
        judge(case, f"full disk {size}k, {name}", outcome, os.strerror(errno.ENOSPC), "disk full")
        mixed = writers.mixed(task.look(box), known)
        if mixed:
            case.wrong(mixed, name=name, size=size)
        subprocess.run(["mount", "-o", "remount,size=100m", str(box)], check=True)
        wrong = writers.repeated(name, task, box, known)
        if wrong:
            case.wrong(wrong, name=name, size=size)
    finally:
        subprocess.run(["umount", "-l", str(box)], check=True)


def tried(case: Case, what: str, begin: Callable[[Path], None], *causes: str) -> None:
    """Run a verb with something broken, and again without."""
    name = case.chance.choice(VERBS)
    box = case.folder / "box"
    known = writers.undisturbed(name, case.world, box)
    task = writers.TASKS[name](case.world)
    writers.filled(box, task, case.world)
    outcome = writers.ran(task.words, box, functools.partial(begin, box))
    judge(case, f"{name}, {what}", outcome, *causes)
    mixed = writers.mixed(task.look(box), known)
    if mixed:
        case.wrong(mixed, where=f"{name}, {what}", err=outcome.err[-300:])
    wrong = writers.repeated(name, task, box, known)
    if wrong:
        case.wrong(wrong, where=f"{name}, {what}", err=outcome.err[-300:])


def judge(case: Case, where: str, outcome: Outcome, *causes: str) -> None:
    """Say what is wrong with how a broken command ended."""
    fault = outcome.fault()
    if fault == "exit 2 without a word" and where.split(", ")[-1].startswith("size"):
        return  # the limit is that of the file with the message too
    if not fault and outcome.code == 2 and not any(each in outcome.err for each in causes):
        fault = "the message does not name the cause"
    if fault:
        case.wrong(fault, where=where, err=outcome.err[-1500:])


def _kind(job: Callable[[Case, str], None], kind: str) -> Callable[[Case], None]:
    return functools.partial(job, kind=kind)


FUZZER = Fuzzer(
    "faults",
    {
        **{kind: (_kind(fail, kind), 3 if kind in ("open", "fsync") else 2) for kind in CALLS},
        **{kind: (_kind(limit, kind), 3) for kind in ("size", "descriptors")},
        "full disk": (_kind(full_disk, "full disk"), 3),
    },
    writers.prepare,
    long=600,
)
