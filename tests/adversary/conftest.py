"""What every fuzzer's test leaves as it was."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _as_loud_as_before() -> Iterator[None]:
    log = logging.getLogger("sluice")
    level = log.level
    yield
    log.setLevel(level)
