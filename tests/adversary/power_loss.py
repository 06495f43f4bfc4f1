"""A power cut at every change of a file: what was not flushed is lost, torn, or there by chance.

The model: a folder's entries are on the disk as they were at its last flush, or at any instant
since; a file's bytes as they were at its last flush, or those of now, or half of them. Each such
state opens as before or as after, and the command run again ends as if nothing had happened. SQLite
answers for its own files; they are taken as they are.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import writers
from fuzzing import Case, Fuzzer

Entries = dict[str, int]  # of a folder: names, and the numbers of what they name
TRIED = 12  # states of one recorded command
REPEATED = 2  # of them, how many are continued by the same command
WAYS = ("lost", "names", "torn", "bytes", "mixed")


@dataclass
class Moment:
    """What has changed since the moment before; ``flushed`` is what is flushed at it."""

    event: str
    folders: dict[int, Entries]
    files: dict[int, bytes]
    flushed: int | None = None


@dataclass
class Disk:
    """What may be on the disk at an instant."""

    past: dict[int, list[Entries]] = field(default_factory=dict)  # of each folder since its flush
    flushed: dict[int, bytes] = field(default_factory=dict)
    now: dict[int, bytes] = field(default_factory=dict)

    def take(self, moment: Moment) -> None:
        """Go on to the next moment."""
        for number, entries in moment.folders.items():
            self.past.setdefault(number, [{}]).append(entries)
        self.now |= moment.files
        if moment.flushed in self.now:
            self.flushed[moment.flushed] = self.now[moment.flushed]
        elif moment.flushed in self.past:
            self.past[moment.flushed] = self.past[moment.flushed][-1:]

    def flush(self) -> None:
        """Take everything as flushed: what was there before the command."""
        self.flushed = dict(self.now)
        self.past = {number: entries[-1:] for number, entries in self.past.items()}

    def written(self, folder: Path, root: int, way: str, chance: random.Random) -> None:
        """Write one of the states that the power cut may leave."""
        folder.mkdir()
        past = self.past[root]
        chosen = {"lost": 0, "bytes": 0, "mixed": chance.randrange(len(past))}.get(way, -1)
        for name, number in past[chosen].items():
            if number in self.past:
                self.written(folder / name, number, way, chance)
            else:
                (folder / name).write_bytes(self.content(name, number, way, chance))

    def content(self, name: str, number: int, way: str, chance: random.Random) -> bytes:
        """Return what a file may hold."""
        flushed, now = self.flushed.get(number, b""), self.now.get(number, b"")
        if ".sqlite" in name:
            return now
        torn = now if now == flushed else now[: len(now) // 2]
        states = {"lost": flushed, "names": flushed, "torn": torn, "bytes": now}
        return states[way] if way in states else chance.choice([flushed, torn, now])


class Recorder:
    """Writes the moments of this process's changes to a stream."""

    def __init__(self, box: Path, stream: IO[bytes]) -> None:
        self.box, self.stream = box, stream
        self.numbers: dict[tuple[int, int], int] = {}
        self.count = 0
        self.last: tuple[dict[int, Entries], dict[int, bytes]] = {}, {}

    def __call__(self, event: str, what: Any = None) -> None:
        folders: dict[int, Entries] = {}
        files: dict[int, bytes] = {}
        present: dict[tuple[int, int], int] = {}
        root = self._number(self.box.stat(), present)
        self._walk(self.box, root, folders, files, present)
        self.numbers = present  # a number that goes is not that of the next file
        flushed = None
        if event == "fsync":
            status = os.fstat(what)
            flushed = present.get((status.st_dev, status.st_ino))
        changed = {k: v for k, v in folders.items() if self.last[0].get(k) != v}
        written = {k: v for k, v in files.items() if self.last[1].get(k) != v}
        self.last = folders, files
        pickle.dump(Moment(f"{event} {what}", changed, written, flushed), self.stream)
        self.stream.flush()

    def _number(self, status: os.stat_result, present: dict[tuple[int, int], int]) -> int:
        key = status.st_dev, status.st_ino
        if key not in self.numbers:
            self.numbers[key] = self.count = self.count + 1
        present[key] = self.numbers[key]
        return present[key]

    def _walk(
        self,
        folder: Path,
        number: int,
        folders: dict[int, Entries],
        files: dict[int, bytes],
        present: dict[tuple[int, int], int],
    ) -> None:
        folders[number] = {}
        for name in sorted(os.listdir(folder)):  # noqa: PTH208 - quicker
            path = folder / name
            status = path.lstat()
            if name in ("tmp", "moments") or stat.S_ISLNK(status.st_mode):
                continue
            here = self._number(status, present)
            folders[number][name] = here
            if stat.S_ISDIR(status.st_mode):
                self._walk(path, here, folders, files, present)
            elif here not in files:
                handle = os.open(path, os.O_RDONLY)
                files[here] = os.read(handle, status.st_size)
                os.close(handle)


def recorded(name: str, world: Path, box: Path) -> list[Moment]:
    """Run a task and return the moments of its changes, the first one before it."""
    task = writers.TASKS[name](world)
    writers.filled(box, task, world)
    file = box.with_name("moments")
    with file.open("wb") as stream:
        recorder = Recorder(box, stream)
        busy = False

        def act(event: str, what: object) -> None:
            nonlocal busy
            if not busy:  # not what the recorder itself opens
                busy = True
                recorder(event, what)
                busy = False

        def begin() -> None:
            recorder("begin")
            writers.on_changes(box, act)

        outcome = writers.ran(task.words, box, begin, lambda: act("end", None))
    if outcome.code:
        raise RuntimeError(f"{name}: {outcome}")
    return list(_moments(file))


def _moments(file: Path) -> Iterator[Moment]:
    with file.open("rb") as stream:
        while True:
            try:
                yield pickle.load(stream)
            except EOFError:
                return


def lose(case: Case, name: str) -> None:
    """Record one command, and cut the power at some of its moments."""
    box = case.folder / "box"
    known = writers.undisturbed(name, case.world, box)
    task = writers.TASKS[name](case.world)
    moments = recorded(name, case.world, box)
    cuts = [(place, way) for place in range(1, len(moments) + 1) for way in WAYS]
    chosen = sorted({*case.chance.sample(cuts, min(TRIED, len(cuts))), (len(moments), "lost")})
    continued = set(case.chance.sample(range(len(chosen)), min(REPEATED, len(chosen))))
    disk, place, seen = Disk(), 0, set()
    for number, (cut, way) in enumerate(chosen):
        while place < cut:
            disk.take(moments[place])
            if not place:
                disk.flush()
            place += 1
        shutil.rmtree(box)
        disk.written(box, 1, way, case.chance)
        digest = _digest(box)
        if digest in seen and number not in continued:
            continue
        seen.add(digest)
        event = moments[cut - 1].event.replace(str(case.folder), "")
        where = f"{way}, at {cut} of {len(moments)}: {event}"
        wrong = writers.mixed(task.look(box), known)
        if not wrong and cut == len(moments) and way == "lost" and any(known.before.values()):
            wrong = "" if task.look(box) == known.after else "lost after the command had ended"
        if not wrong and number in continued:
            wrong = writers.repeated(name, task, box, known)
        if wrong:
            case.wrong(wrong, where=where)


def _digest(box: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(box.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        digest.update(f"{path.relative_to(box)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def _kind(name: str) -> Callable[[Case], None]:
    return functools.partial(lose, name=name)


VERBS = (
    "index bm25", "index dense", "index documents", "add bm25", "add dense", "update bm25",
    "delete bm25", "compact bm25", "compact dense", "rebuild bm25", "rebuild dense", "add whole",
    "delete whole", "train dense", "evaluate", "search", "distil", "generate", "fit ranker",
    "export vectors", "import npy",
)  # fmt: skip
FUZZER = Fuzzer("power_loss", {name: (_kind(name), 1) for name in VERBS}, writers.prepare, long=300)
