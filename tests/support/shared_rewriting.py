"""Several test processes in a fresh clone rewrite each test module once, not once each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def rewrite_a_share(config: pytest.Config, tests: Path) -> None:
    """Rewrite this process's share of the test modules, which the others then read.

    pytest rewrites a module where it finds no newer rewritten one; processes that begin at once all
    find none, and it takes as long as importing everything.
    """
    worker = getattr(config, "workerinput", None)  # of pytest-xdist
    if worker is None or sys.dont_write_bytecode:
        return
    state = config.stash[rewrite.assertstate_key]
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for source in sorted(tests.rglob("test_*.py"))[number::count]:
        place = rewrite.get_cache_dir(source)
        target = place / (source.stem + rewrite.PYC_TAIL)
        if rewrite.try_makedirs(place) and rewrite._read_pyc(source, target) is None:
            source_hash, code = rewrite._rewrite_test(source, config)
            rewrite._write_pyc(state, code, source_hash, target)
