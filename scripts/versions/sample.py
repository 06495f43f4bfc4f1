"""Run a sample of the tests on the oldest or the newest versions that pyproject.toml allows.

Called by scripts/test-oldest and scripts/test-newest. Both use the torch that constraints.txt pins,
as its CPU build: other releases come from most indexes with gigabytes of CUDA packages. Test tools
are those of constraints.txt; what documents, locks or benchmarks Sluice is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from lock import UV, WORK, resolve
from locked import LOCK, ROOT, extras, normal, read_pins
from table import LEFT_OUT, record

RESOLUTION = {"oldest": "lowest-direct", "newest": "highest"}
TOOLS = ("pytest", "hypothesis", "bm25s", "setuptools")
# The oldest datasets needs an old fsspec, which uv looks at too late: it would take new datasets.
HELD = {"oldest": "fsspec<=2024.6.1", "newest": ""}
SAMPLE = Path(__file__).with_name("sample.txt")


def main() -> None:
    which, *options = sys.argv[1:]
    python = install(which)
    places = {"PYTHONPATH": str(Path(__file__).parent), "NUMBA_CACHE_DIR": f"{python}-numba"}
    paths = options or [line for line in SAMPLE.read_text(encoding="utf-8").split() if line]
    command = [python, "-m", "pytest", "-p", "used_packages", "-p", "no:xdist", *paths]
    lines = []
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **places}, stdout=subprocess.PIPE, text=True
    ) as tests:
        for line in tests.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    if not options:  # the whole sample
        counts = [re.findall(r"\d+ (?:passed|failed|skipped|error)", line) for line in lines]
        result = ", ".join(next(filter(None, reversed(counts)), ["no test"]))
        release = subprocess.run([python, "-V"], capture_output=True, text=True, check=True).stdout
        versions = installed(python)
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        record(which, versions, (result, day, release.split()[1], str(len(versions))))
    sys.exit(tests.returncode)


def install(which: str) -> str:
    """Install the versions into build/oldest or build/newest; return its interpreter."""
    WORK.mkdir(parents=True, exist_ok=True)
    pins = {pin.name: pin for pin in read_pins(LOCK.read_text(encoding="utf-8"))}
    limits = [str(pins[name]) for name in (*TOOLS, "torch")]
    (WORK / "tools.txt").write_text("\n".join(limits), encoding="utf-8")
    words = [
        word
        for extra in extras()
        if extra not in (*LEFT_OUT, "base")
        for word in ("--extra", extra)
    ]
    (WORK / "held.txt").write_text(HELD[which], encoding="utf-8")
    words += ["-c", "held.txt"]
    (WORK / f"{which}.txt").unlink(missing_ok=True)  # uv would keep the versions of last time
    wanted = resolve(f"{which}.txt", "--resolution", RESOLUTION[which], *words, "tools.txt")
    chosen = [str(pin) for pin in wanted if pin.name != "torch"]
    (WORK / f"{which}.txt").write_text("\n".join(chosen), encoding="utf-8")
    home = ROOT / "build" / which
    python = str(home / "bin" / "python")
    run(UV, "venv", "--quiet", "--seed", "--clear", "--python", sys.executable, str(home))
    into = ("--quiet", "--no-deps", "--compile-bytecode", "--python", python)
    run(UV, "pip", "install", *into, "-r", f"{which}.txt")
    run(python, "-m", "pip", "install", "--quiet", limits[-1])
    run(
        python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "-e",
        str(ROOT),
    )  # fmt: skip
    run(python, "-m", "pip", "check")
    return python


def run(*words: str) -> None:
    """Run a command, or leave with its exit code."""
    if code := subprocess.run(words, cwd=WORK, check=False).returncode:
        sys.exit(code)


def installed(python: str) -> dict[str, str]:
    """Return the versions of an environment."""
    words = [python, "-m", "pip", "freeze", "--all"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    pairs = (line.split("==") for line in text.splitlines() if "==" in line)
    return {normal(name): version for name, version in pairs}


if __name__ == "__main__":
    main()
