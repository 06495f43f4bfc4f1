"""A few dozen mutated inputs; scripts/adversary runs thousands."""

import dataclasses
from pathlib import Path

import pytest
from mutations import FUZZER, LIGHT, prepare

pytestmark = pytest.mark.thorough

SLOW = {"drafts", "reproduction", "experiment", "yaml", "evaluate"}  # left to scripts/adversary

COUNT = 40


def test_no_mutation_ends_badly(tmp_path: Path) -> None:
    kinds = {name: kind for name, kind in LIGHT.items() if name not in SLOW}
    light = dataclasses.replace(FUZZER, kinds=kinds, prepare=prepare)
    tally = light.run(tmp_path, count=COUNT, seed=20)
    assert not tally.wrong
    assert sum(tally.tried.values()) == COUNT
