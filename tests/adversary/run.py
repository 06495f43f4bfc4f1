"""Run the fuzzers of this folder, all or those named, one after the other.

Each keeps its tally and goes on where it was; the exit code is 1 where one found something.
``scripts/long_counts.py`` runs slices of them, and adds up what was run.
"""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE), str(ROOT / "tests" / "support")]
from fuzzing import QUIET, Fuzzer  # noqa: E402

FUZZERS = (
    "kills",
    "served",
    "faults",
    "power_loss",
    "mutations",
    "results",
    "searches",
    "readers",
)  # modules of this folder, each with a FUZZER
SHORT = 60  # without --count, a sixtieth of the long run's cases


def tally_file(place: Path, fuzzer: str, seed: int, only: Sequence[str] = ()) -> Path:
    """Return where the tally of a fuzzer and a seed is kept."""
    return place / f"{'-'.join([fuzzer, *only, str(seed)])}.json"


def main() -> int:
    """Run them; 1 where one found something."""
    parser = argparse.ArgumentParser(prog="scripts/adversary", description=__doc__)
    parser.add_argument("fuzzers", nargs="*", metavar="FUZZER", help=", ".join(FUZZERS))
    parser.add_argument("--place", type=Path, required=True, help="folder for work and tallies")
    parser.add_argument("--count", type=int, help="so many cases of each fuzzer")
    parser.add_argument("--case", type=int, help="this case of the seed alone, and no tally")
    parser.add_argument("--only", default="", help="kinds of cases, comma-separated")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop each after so many")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    os.environ.update(QUIET)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends what a case has started
    ended = 0
    for name in asked.fuzzers or FUZZERS:
        fuzzer: Fuzzer = importlib.import_module(name).FUZZER
        count, first = asked.count or max(1, fuzzer.long // SHORT), 0
        only = [each for each in asked.only.split(",") if each]
        file = tally_file(asked.place, name, asked.seed, only)
        if asked.case is not None:
            count, first, file = asked.case + 1, asked.case, None
        tally = fuzzer.run(
            asked.place / name, count=count, seed=asked.seed, only=only, first=first,
            minutes=asked.minutes, file=file,
        )  # fmt: skip
        print("\n".join(tally.lines()), flush=True)
        ended |= bool(tally.wrong)
    return ended


if __name__ == "__main__":
    sys.exit(main())
