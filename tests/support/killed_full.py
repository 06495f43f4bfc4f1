"""``killed.py`` with almost all memory taken, as far as the watch can see."""

import runpy
import sys
from pathlib import Path

here = Path(__file__).parent
sys.path[:0] = [str(here), str(here.parents[1])]

import sluice.training.loop.callbacks as memory_watch  # noqa: E402

memory_watch.read_memory = lambda: memory_watch.Memory(95 << 30, 0, 100 << 30)
runpy.run_path(str(here / "killed.py"), run_name="__main__")
