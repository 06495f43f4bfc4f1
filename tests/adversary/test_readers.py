"""Readers beside a writer for two seconds; scripts/adversary lets them read for ten minutes."""

from functools import partial
from pathlib import Path

import pytest
from fuzzing import Fuzzer
from readers import FUZZER, folder

pytestmark = pytest.mark.thorough


def test_every_answer_is_of_a_committed_state(tmp_path: Path) -> None:
    kinds = {"folder": (partial(folder, seconds=2.0), 1)}
    tally = Fuzzer("readers", kinds, FUZZER.prepare).run(tmp_path, count=1, seed=3)
    assert tally.wrong == []
    assert tally.counts["answers"] > 20
    assert tally.counts["changes"] > 0
