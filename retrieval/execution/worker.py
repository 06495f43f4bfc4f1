"""A process that carries out tasks: one a line, each answered by a line, until the input ends.

It ends at once then, even within a task: whoever gave it is gone, and will repeat it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
from typing import Any, TextIO

from sluice.encoders.foundation.processes import describe_error, end_after, limit_threads
from sluice.retrieval.execution.executor import carry_out


def answer_of(line: str) -> dict[str, Any]:
    """Carry out the task of a line of JSON, ``{kind, args}``; return facts or the error."""
    task = json.loads(line)
    try:
        return {"facts": carry_out(task["kind"], task["args"])}
    except Exception as error:
        return {"error": describe_error(error)}


def serve(orders: TextIO, pipe: int, threads: int) -> None:
    """Carry out what is read, and answer through ``pipe``, until the input ends the process."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in orders:
            lines.put(line)

    end_after(read)
    limit_threads(threads)
    while True:
        answer = json.dumps(answer_of(lines.get())).encode() + b"\n"
        while answer:
            answer = answer[os.write(pipe, answer) :]


if __name__ == "__main__":
    # What a library prints goes to stderr: the answers have stdout to themselves.
    own = os.dup(1)
    os.dup2(2, 1)
    sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    try:
        serve(sys.stdin, own, int(sys.argv[1]))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
