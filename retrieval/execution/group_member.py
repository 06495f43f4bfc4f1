"""A process of a group on this machine: reads its order, and ends when whoever gave it is gone."""

from __future__ import annotations

import json
import os
import sys

from sluice.encoders.foundation.processes import end_after
from sluice.retrieval.execution.group import Order, join

if __name__ == "__main__":
    order = Order(*json.loads(sys.stdin.readline()))
    end_after(sys.stdin.read, code=1)
    join(order)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # libraries' threads have nothing more to do
