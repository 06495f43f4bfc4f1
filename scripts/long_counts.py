"""Runs the fuzzers of tests/adversary in slices, and adds up what was ever run.

    python scripts/long_counts.py [--minutes 60] [--only kills,served]   (of all slices together)
    python scripts/long_counts.py --table                                (writes the table anew)

Each slice takes the next seed that docs/long_counts.jsonl does not have, and becomes a line there:
what was tried and what was wrong, with seed, commit, versions and processor. The tables of
docs/reliability.md are written from it. What a run that was killed had done is added by the next
one. A wrong case is repeated, at its commit, by `scripts/adversary FUZZER --seed N --case N`; the
folder of the run (scratch/long_counts) has it in full, and a key "remark" that somebody adds to its
slice, after `--table`, says what came of it.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "adversary"))
from run import FUZZERS, tally_file  # noqa: E402

RECORD = ROOT / "docs" / "long_counts.jsonl"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- long_counts: begin -->", "<!-- long_counts: end -->"
FIRST_SEED = 1001  # smaller ones are for hand and suite
SHARES = {"kills": 5, "served": 4, "mutations": 7, "searches": 2}  # of the minutes; others have 1
PACKAGES = ("torch", "transformers", "numpy", "numba", "faiss-cpu", "scipy", "pyarrow", "starlette")
GRACE = 10  # minutes that a slice's last case may take
Slice = dict[str, Any]


class Goal(NamedTuple):
    """A row of the totals: what is counted, of which fuzzers, and how many are wanted."""

    title: str
    fuzzers: Sequence[str]
    counted: str | None  # of the tally's counts; None: cases
    wanted: int | None = None


GOALS = (
    Goal("kills of commands", ("kills",), "kills", 1_000),
    Goal("mutated inputs", ("mutations", "results"), None, 100_000),
    Goal("searches compared with a reference", ("searches",), "searches", 1_000_000),
    Goal("kills of a service", ("served",), "kills", 1_000),
    Goal("writes to it that were acknowledged", ("served",), "writes acknowledged"),
    Goal("searches of it", ("served",), "searches"),
    Goal("failed calls of the system", ("faults",), None),
    Goal("power cuts", ("power_loss",), None),
    Goal("answers beside a writer", ("readers",), "answers"),
)


def recorded(record: Path) -> list[Slice]:
    """Return all slices."""
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    return [json.loads(line) for line in lines]


def next_seed(slices: Sequence[Slice], fuzzer: str) -> int:
    """Return the smallest seed above all that a fuzzer had."""
    seeds: list[int] = [each["seed"] for each in slices if each["fuzzer"] == fuzzer]
    return max([FIRST_SEED - 1, *seeds]) + 1


def circumstances() -> Slice:
    """Return what a slice ran on: commit, versions, processor, day."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True
    )
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno", "--", ".", ":!docs"], capture_output=True, text=True
    )
    distributions = [each for each in importlib.metadata.distributions() if each.metadata["Name"]]
    installed = {each.metadata["Name"].lower(): each.version for each in distributions}
    versions = {name: installed[name] for name in PACKAGES if name in installed}
    return {
        "commit": commit.stdout.strip() + ("+" if changed.stdout.strip() else ""),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": {"Python": platform.python_version(), **versions},
        "processor": f"{os.cpu_count()} x {_processor()}",
    }


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def tally_in(place: Path, fuzzer: str, seed: int) -> Slice:
    """Return the tally that a slice left in a folder; an empty one if it left none."""
    file = tally_file(place, fuzzer, seed)
    empty = {"next": 0, "tried": {}, "counts": {}, "seconds": 0.0, "wrong": []}
    found: Slice = json.loads(file.read_text(encoding="utf-8")) if file.exists() else empty
    return found


def add_finished(place: Path, record: Path) -> list[Slice]:
    """Append what slices have left in a folder to the record, each once; return them."""
    added = []
    for begun in sorted(place.glob("*.begun.json")):
        facts = json.loads(begun.read_text(encoding="utf-8"))
        known = {(each["fuzzer"], each["seed"]) for each in recorded(record)}
        done = tally_in(place, facts["fuzzer"], facts["seed"])
        wrong = [*done["wrong"], *facts.pop("ended", [])]
        if (facts["fuzzer"], facts["seed"]) not in known and (done["next"] or wrong):
            shown = [{name: each[name] for name in ("kind", "case", "what")} for each in wrong]
            one = {
                **facts, "cases": done["next"], "minutes": round(done["seconds"] / 60, 1),
                "counts": done["counts"], "kinds": done["tried"], "wrong": shown,
            }  # fmt: skip
            with record.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(one, ensure_ascii=False) + "\n")
            added.append(one)
        begun.unlink()  # the tally stays: it has what was wrong in full
    return added


def run_slice(fuzzer: str, seed: int, minutes: float, place: Path, facts: Slice) -> None:
    """Run a slice in a process of its own, and note how it ended where it did not end well."""
    begun = place / f"{fuzzer}-{seed}.begun.json"
    facts = {"fuzzer": fuzzer, "seed": seed, **facts}
    tally_file(place, fuzzer, seed).unlink(missing_ok=True)  # of a record that is not here
    begun.write_text(json.dumps(facts), encoding="utf-8")
    command = [
        sys.executable, str(ROOT / "tests" / "adversary" / "run.py"), fuzzer,
        "--place", str(place), "--seed", str(seed), "--minutes", str(minutes),
        "--count", str(10**9),
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, pass_fds=_locks) as process:
        try:
            code: int | str = process.wait(60 * (minutes + GRACE))
        except subprocess.TimeoutExpired:
            code = f"no end {GRACE} minutes after its time"
            process.terminate()
        except BaseException:
            process.terminate()
            raise
    if code and not (code == 1 and tally_in(place, fuzzer, seed)["wrong"]):
        what = f"the fuzzer ended with {code}, soon after the last case of its tally"
        facts["ended"] = [{"kind": fuzzer, "case": f"{seed}:?", "what": what}]
        begun.write_text(json.dumps(facts), encoding="utf-8")


_locks: list[int] = []


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Be the only run in a folder; what a killed run has left running counts as one."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SystemExit(
                f"{place}: another run, or a fuzzer of one, is at work there"
            ) from None
        _locks.append(handle.fileno())
        try:
            yield
        finally:
            _locks.clear()


def tables(slices: Sequence[Slice]) -> str:
    """Return the totals and the slices as Markdown."""
    lines = ["| what | tried | goal | wrong | cases | minutes | seeds |",
             "|---|---:|---:|---:|---:|---:|---|"]  # fmt: skip
    for goal in GOALS:
        own = [each for each in slices if each["fuzzer"] in goal.fuzzers]
        cases = sum(each["cases"] for each in own)
        tried = sum(e["counts"].get(goal.counted, 0) if goal.counted else e["cases"] for e in own)
        wanted = f"{goal.wanted:,}" if goal.wanted else ""
        seeds = "; ".join(f"`{name}` {_seeds(own, name)}" for name in goal.fuzzers)
        bad, minutes = sum(len(e["wrong"]) for e in own), sum(e["minutes"] for e in own)
        lines.append(f"| {goal.title} | {tried:,} | {wanted} | {bad} | {cases:,} | {minutes:.0f} "
                     f"| {seeds} |")  # fmt: skip
    lines += ["", "| date | commit | slices: seed, cases, wrong | versions | processor |",
              "|---|---|---|---|---|"]  # fmt: skip
    groups: dict[tuple[str, ...], list[str]] = {}
    for each in slices:
        versions = ", ".join(f"{name} {version}" for name, version in each["versions"].items())
        key = each["date"], each["commit"], versions, each["processor"]
        text = f"`{each['fuzzer']}` {each['seed']}: {each['cases']:,}, {len(each['wrong'])}"
        groups.setdefault(key, []).append(text)
    for (date, commit, versions, processor), texts in groups.items():
        lines.append(f"| {date} | `{commit}` | {'; '.join(texts)} | {versions} | {processor} |")
    wrong = [(each, case) for each in slices for case in each["wrong"]]
    if wrong:
        lines += ["", "| wrong | commit | what | what came of it |", "|---|---|---|---|"]
    for each, case in wrong:
        what = " ".join(case["what"].replace("|", "\\|").split())[:300]
        lines.append(f"| `{each['fuzzer']}` {case['case']}, {case['kind']} | `{each['commit']}` "
                     f"| {what} | {each.get('remark', '')} |")  # fmt: skip
    return "\n".join(lines)


def _seeds(slices: Sequence[Slice], fuzzer: str) -> str:
    seeds = [each["seed"] for each in slices if each["fuzzer"] == fuzzer]
    return f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(*seeds) or "none"


def write_tables(page: Path, record: Path) -> None:
    """Put the tables of the record between their marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    text = f"{before}{BEGIN}\n\n{tables(recorded(record))}\n\n{END}{after}"
    page.write_text(text, encoding="utf-8")


def in_turn(slices: Sequence[Slice], only: Sequence[str]) -> list[str]:
    """Return the fuzzers, those first that had least of their share so far."""
    minutes: Counter[str] = Counter()
    for each in slices:
        minutes[each["fuzzer"]] += each["minutes"]
    return sorted(only or FUZZERS, key=lambda name: minutes[name] / SHARES.get(name, 1))


def main() -> int:
    """Run slices; 1 where one found something."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="of all slices together")
    parser.add_argument("--only", default="", help=f"some of {', '.join(FUZZERS)}")
    parser.add_argument("--place", type=Path, default=ROOT / "scratch" / "long_counts")
    parser.add_argument("--table", action="store_true", help="write the tables and do no more")
    asked = parser.parse_args()
    only = [each for each in asked.only.split(",") if each]
    if unknown := set(only) - set(FUZZERS):
        parser.error(f"--only: no fuzzer {sorted(unknown)}; there are {', '.join(FUZZERS)}")
    if asked.table:
        write_tables(PAGE, RECORD)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wrong = 0
    with alone(asked.place):
        add_finished(asked.place, RECORD)
        facts, turn = circumstances(), in_turn(recorded(RECORD), only)
        whole = sum(SHARES.get(name, 1) for name in turn)
        try:
            for name in turn:
                minutes = asked.minutes * SHARES.get(name, 1) / whole
                seed = next_seed(recorded(RECORD), name)
                print(f"{name}, seed {seed}, {minutes:.1f} minutes", flush=True)
                run_slice(name, seed, minutes, asked.place, facts)
                wrong += sum(len(each["wrong"]) for each in add_finished(asked.place, RECORD))
        finally:
            add_finished(asked.place, RECORD)
            write_tables(PAGE, RECORD)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
