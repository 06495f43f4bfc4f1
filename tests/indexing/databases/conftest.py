"""One PostgreSQL for the tests of a process, started when the first test needs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from postgres import Postgres


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running server; its tests are skipped where the wheel is absent or does not run."""
    server = Postgres()
    yield server
    server.stop()
