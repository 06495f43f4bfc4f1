"""Half a minute of compiling is announced: in a plain program too, and not where one is quiet."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FIRST_CALL = """
import logging, threading
from sluice.indexing.kernels import calls
{before}
calls.PATIENCE = 0
for _ in range(2):
    with calls.notice_once():
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
"""
NOTICE = "compiling the search kernels, once per installation: numba caches them\n"


@pytest.mark.parametrize(
    ("before", "environment", "said"),
    [
        ("", {}, NOTICE),
        ("logging.basicConfig(level='INFO', format='%(levelname)s')", {}, "INFO\n"),
        ("logging.basicConfig()", {}, ""),
        ("", {"SLUICE_PROGRESS": "0"}, ""),
        ("import sluice; sluice.show_progress(False)", {}, ""),
    ],
)
def test_a_plain_program_is_told_once(before: str, environment: dict[str, str], said: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", FIRST_CALL.format(before=before)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stderr == said
