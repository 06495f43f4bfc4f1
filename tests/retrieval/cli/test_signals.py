"""SIGTERM and Ctrl-C end a command alike: one line, what was begun is removed, no traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing import sluice

PROGRAM = """
import os, sys, time
from pathlib import Path
from sluice.encoders.foundation.disk.files import replaced_file
from sluice.retrieval import cli

path, numbers = Path(sys.argv[1]), [int(each) for each in sys.argv[2:]]

def verb(**_):
    try:
        with replaced_file(path) as stream:
            stream.write(b"half")
            os.kill(os.getpid(), numbers[0])
            time.sleep(5)
    finally:
        for number in numbers[1:]:
            os.kill(os.getpid(), number)
        time.sleep(0.01)

cli.parser = lambda: verb
cli.main()
"""


@pytest.mark.parametrize(
    ("numbers", "code", "word"),
    [
        ([signal.SIGINT], 130, "interrupted"),
        ([signal.SIGTERM], 143, "terminated"),
        ([signal.SIGTERM, signal.SIGTERM], 143, "terminated"),
    ],
)
def test_a_signal_ends_a_command_with_one_line(
    tmp_path: Path, numbers: list[int], code: int, word: str
) -> None:
    words = [sys.executable, "-c", PROGRAM, tmp_path / "out.txt", *numbers]
    ended = subprocess.run(
        [str(int(each)) if isinstance(each, int) else str(each) for each in words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == code, ended
    assert ended.stderr == f"{word}; run the same command again to continue\n"
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_not_utf_8_is_one_line(tmp_path: Path) -> None:
    outcome = sluice("index", "x.yaml", "output=" + os.fsdecode(b"\xff\xfe/out"), cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.err.splitlines() == [
        r"error: output=\xff\xfe/out: is not UTF-8; expected names and texts in UTF-8"
    ]
    assert list(tmp_path.iterdir()) == []
