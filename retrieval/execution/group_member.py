"""A process of a group on this machine: reads its order, and ends when whoever gave it is gone."""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import TextIO

from sluice.retrieval.execution.group import Order, join


def _end_with(orders: TextIO) -> None:
    """End this process at once when the other end of ``orders`` is closed."""
    orders.read()
    os._exit(1)


if __name__ == "__main__":
    order = Order(*json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with, args=(sys.stdin,), daemon=True).start()
    join(order)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # libraries' threads have nothing more to do
